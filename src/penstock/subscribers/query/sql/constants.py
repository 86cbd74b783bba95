"""What a cast makes of a literal, by DuckDB's rules: constants cost nothing per row and mistakes are found early."""

from __future__ import annotations

import calendar
import math
import re
from typing import Any

from penstock_client.types import SqlType

LEAST, GREATEST = -(2**63), 2**63 - 1
_TRUE, _FALSE = ("true", "t", "1", "yes", "y"), ("false", "f", "0", "no", "n")
_OTHER_BASES = re.compile(r"0[xX][0-9a-fA-F]+|0[bB][01]+")
_NUMBER = re.compile(r"[+-]?(\d+(_\d+)*\.?(\d+(_\d+)*)?|\.\d+(_\d+)*)([eE][+-]?\d+)?")
_TIME = re.compile(
    r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[ T](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,9}))?)?)?"
    r"(?:\s?(Z|UTC|[+-]\d{2}(?::?\d{2})?))?"
)


def can_cast_literal(have: SqlType, want: SqlType) -> bool:
    """Whether that conversion is done here at all; the others are left to the evaluator."""
    return (have, want) in _CONVERTERS


def cast_literal(value: Any, have: SqlType, want: SqlType) -> tuple[bool, Any]:
    """Whether the value has a meaning in that type, and the result."""
    if value is None:
        return True, None
    try:
        result = _CONVERTERS[have, want](value)
    except (ValueError, OverflowError):
        return False, None
    if want == SqlType.BIGINT and not LEAST <= result <= GREATEST:
        return False, None
    return True, result


def double_text(value: float) -> str:
    """1.0, 1e+16, 1e-05: as DuckDB prints a DOUBLE."""
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return repr(value)


def _text_to_boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered in _TRUE:
        return True
    if lowered in _FALSE:
        return False
    raise ValueError


def _text_to_double(text: str) -> float:
    stripped = text.strip(" \t\n\v\f\r").lower()
    if stripped in ("nan", "inf", "-inf", "infinity", "-infinity"):
        return float(stripped)
    if not _NUMBER.fullmatch(stripped):
        raise ValueError
    return float(stripped.replace("_", ""))


def _text_to_bigint(text: str) -> int:
    stripped = text.strip(" \t\n\v\f\r")
    if found := _OTHER_BASES.fullmatch(stripped):
        return int(found[0], 0)
    if not _NUMBER.fullmatch(stripped):
        raise ValueError
    plain = stripped.replace("_", "")
    if plain.lstrip("+-").isdigit():
        return int(plain)
    number = float(plain)
    # texts are rounded half away from zero, numbers half to even
    return int(math.copysign(math.floor(abs(number) + 0.5), number))


def text_to_time(text: str) -> int:
    """Nanoseconds since the epoch. Without an offset it is UTC."""
    found = _TIME.fullmatch(text.strip())
    if found is None:
        raise ValueError
    year, month, day = (int(found[number]) for number in (1, 2, 3))
    hour, minute, second = (int(found[number] or 0) for number in (4, 5, 6))
    if not (1 <= month <= 12 and 1 <= day <= calendar.monthrange(year, month)[1]):
        raise ValueError
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError
    seconds = calendar.timegm((year, month, day, hour, minute, second))
    zone = found[8]
    if zone and zone not in ("Z", "UTC"):
        digits = zone[1:].replace(":", "").ljust(4, "0")
        shift = int(digits[:2]) * 3600 + int(digits[2:]) * 60
        seconds += -shift if zone[0] == "+" else shift
    nanoseconds = seconds * 10**9 + int((found[7] or "").ljust(9, "0"))
    if not LEAST <= nanoseconds <= GREATEST:
        raise ValueError
    return nanoseconds


def _text_to_blob(text: str) -> bytes:
    if not text.isascii():
        raise ValueError
    return re.sub(
        rb"\\x([0-9a-fA-F]{2})|(\\)",
        lambda found: bytes.fromhex(found[1].decode()) if found[1] else _no(),
        text.encode(),
    )


def _no() -> bytes:
    raise ValueError


def _to_bigint(value: float) -> int:
    return round(value)  # half to even, as DuckDB does with numbers


_CONVERTERS: dict[tuple[SqlType, SqlType], Any] = {
    (SqlType.BOOLEAN, SqlType.BIGINT): int,
    (SqlType.BOOLEAN, SqlType.DOUBLE): float,
    (SqlType.BOOLEAN, SqlType.VARCHAR): lambda value: "true" if value else "false",
    (SqlType.BIGINT, SqlType.BOOLEAN): bool,
    (SqlType.BIGINT, SqlType.DOUBLE): float,
    (SqlType.BIGINT, SqlType.VARCHAR): str,
    (SqlType.DOUBLE, SqlType.BOOLEAN): bool,
    (SqlType.DOUBLE, SqlType.BIGINT): _to_bigint,
    (SqlType.DOUBLE, SqlType.VARCHAR): double_text,
    (SqlType.VARCHAR, SqlType.BOOLEAN): _text_to_boolean,
    (SqlType.VARCHAR, SqlType.BIGINT): _text_to_bigint,
    (SqlType.VARCHAR, SqlType.DOUBLE): _text_to_double,
    (SqlType.VARCHAR, SqlType.TIMESTAMP): text_to_time,
    (SqlType.VARCHAR, SqlType.BLOB): _text_to_blob,
}
