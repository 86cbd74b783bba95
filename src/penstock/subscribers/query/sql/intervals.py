"""INTERVAL literals: a number of months and a number of nanoseconds."""

from __future__ import annotations

import re
from fractions import Fraction

from penstock.subscribers.query.sql.functions import PARTS, TRUNC_UNITS

_SECOND = 10**9
_FIXED = {
    "nanosecond": 1,
    "microsecond": 1_000,
    "millisecond": 1_000_000,
    "second": _SECOND,
    "minute": 60 * _SECOND,
    "hour": 3600 * _SECOND,
    "day": 86_400 * _SECOND,
    "week": 7 * 86_400 * _SECOND,
}
_MONTHS = {"month": 1, "quarter": 3, "year": 12}
_ALIASES = {
    "ns": "nanosecond",
    "us": "microsecond",
    "usec": "microsecond",
    "ms": "millisecond",
    "msec": "millisecond",
    "s": "second",
    "sec": "second",
    "min": "minute",
    "m": "minute",
    "h": "hour",
    "hr": "hour",
    "d": "day",
    "w": "week",
    "mon": "month",
    "y": "year",
    "yr": "year",
    "weekday": "dow",
    "dayofweek": "dow",
    "dayofyear": "doy",
    "dayofmonth": "day",
}
_TERM = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*([a-zA-Z]+)")
_CLOCK = re.compile(r"\s*(-?)(\d{1,4}):(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?\s*$")


class BadInterval(ValueError):
    """The text says what is wrong."""


def unit_name(text: str) -> str:
    """The one name of a unit of time: hours, HOUR and hr are hour. Unknown ones come back in small letters."""
    name = text.lower()
    for candidate in (name, name.removesuffix("s")):
        if candidate in PARTS or candidate in TRUNC_UNITS or candidate in _FIXED or candidate in _MONTHS:
            return candidate
        if candidate in _ALIASES:
            return _ALIASES[candidate]
    return name


def parse_interval(text: str, unit: str = "") -> tuple[int, int]:
    """`5` with a unit, or `1 day 2 hours`, `1 day 03:04:05.5` without: months and nanoseconds."""
    rest = f"{text} {unit}" if unit else text
    months, nanoseconds = 0, Fraction(0)
    at = 0
    while found := _TERM.match(rest, at):
        name = unit_name(found[2])
        number = Fraction(found[1])
        if name in _MONTHS:
            part = number * _MONTHS[name]
            if part.denominator != 1:
                raise BadInterval(f"INTERVAL {text!r}: a fraction of a month has no length, use days")
            months += int(part)
        elif name in _FIXED:
            nanoseconds += number * _FIXED[name]
        else:
            raise BadInterval(f"INTERVAL {text!r}: {found[2]!r} is no unit of time, use second, minute, hour, day …")
        at = found.end()
    if clock := _CLOCK.match(rest, at):
        seconds = int(clock[2]) * 3600 + int(clock[3]) * 60 + int(clock[4] or 0)
        total = seconds * _SECOND + int((clock[5] or "").ljust(9, "0"))
        nanoseconds += -total if clock[1] else total
        at = len(rest)
    if rest[at:].strip() or not rest.strip():
        raise BadInterval(f"INTERVAL {text!r} cannot be read: write INTERVAL 5 MINUTES or INTERVAL '1 day 2 hours'")
    whole = int(nanoseconds)
    if abs(whole) >= 2**63 or abs(months) > 12 * 600:
        raise BadInterval(f"INTERVAL {text!r} is longer than time itself here (292 years)")
    return months, whole
