"""Sizes and durations as people write them: "1280KiB", "1.5MB", "10s", "7d", "1h30m"."""

from __future__ import annotations

import re

# KB and KiB are both 1,024 bytes, as in the documents the settings come from.
_SIZES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmgt])i?b?|b)?\s*", re.IGNORECASE)
_DURATIONS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d|w)?\s*", re.IGNORECASE)
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|min|s|m|h|d|w)", re.IGNORECASE)
_PARTS = re.compile(f"(?:{_PART.pattern})+", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return the bytes; raises ValueError when the text is not a size or not a whole number of bytes."""
    found = _SIZE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a size")
    size = float(found[1]) * _SIZES[(found[2] or "").lower()]
    if not size.is_integer():
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return int(size) if "." in found[1] else int(found[1]) * _SIZES[(found[2] or "").lower()]


def parse_duration(text: str) -> float:
    """Return the seconds; raises ValueError when the text is not a duration."""
    found = _DURATION.fullmatch(text)
    if found is None and _PARTS.fullmatch(text.strip()):
        return round(sum(float(number) * _DURATIONS[unit.lower()] for number, unit in _PART.findall(text)), 6)
    if found is None:
        raise ValueError(f"{text!r} is not a duration")
    # Rounding to the microsecond keeps 100ms from becoming 0.10000000000000001.
    return round(float(found[1]) * _DURATIONS[(found[2] or "s").lower()], 6)


def show_duration(seconds: float) -> str:
    """The duration as `parse_duration` reads it: "7d", "1h30m", "250ms"."""
    milliseconds = round(seconds * 1000)
    if abs(milliseconds / 1000 - seconds) > 1e-9:
        return f"{seconds:.6f}".rstrip("0") + "s"
    parts = []
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, milliseconds = divmod(milliseconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0"


def show_age(seconds: float) -> str:
    """A time that has passed, to its two largest units: "3d4h", "12s"."""
    size = 3600 if seconds >= 86_400 else 60 if seconds >= 3600 else 1
    return show_duration(max(seconds, 0.0) // size * size) if seconds >= 1 else "0s"


def show_size(size: int) -> str:
    """The size as `parse_size` reads it: "10MiB", "1500"."""
    for unit, factor in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)
