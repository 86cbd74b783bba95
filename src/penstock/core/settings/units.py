"""Sizes and durations as people write them: "1280KiB", "1.5MB", "10s", "7d"."""

from __future__ import annotations

import re

# KB and KiB are both 1,024 bytes, as in the documents the settings come from.
_SIZES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmgt])i?b?|b)?\s*", re.IGNORECASE)
_DURATIONS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d|w)?\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes; raises ValueError when the text is no size or not a whole number of bytes."""
    found = _SIZE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a size")
    size = float(found[1]) * _SIZES[(found[2] or "").lower()]
    if not size.is_integer():
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return int(size) if "." in found[1] else int(found[1]) * _SIZES[(found[2] or "").lower()]


def parse_duration(text: str) -> float:
    """Seconds; raises ValueError when the text is no duration."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a duration")
    # Rounding to the microsecond keeps 100ms from becoming 0.10000000000000001.
    return round(float(found[1]) * _DURATIONS[(found[2] or "s").lower()], 6)
