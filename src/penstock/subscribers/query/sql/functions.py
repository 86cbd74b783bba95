"""The functions a query may call: the one list that the compiler checks and the evaluator implements.

The compiler writes `("call", result, name, argument…)` with the names of this list and with arguments of exactly the
types of one of its signatures. What a function does is DuckDB's (2.0, with `ieee_floating_point_ops=false` and
`error_on_division_by_zero=false`), and if not said otherwise a NULL argument gives NULL. Text is counted in
code points. The operation `concat` is `||`: NULL when one part is.

A few rules that are easily missed; "error" is a row error, for the topic's policy
  abs               of the least BIGINT: error
  round             half away from zero; (BIGINT, digits): digits < 0 round to tens, hundreds; overflow: error
  sqrt ln log2 log10  of a negative number, logarithms also of zero: error; NaN stays NaN
  pow               zero to a negative power: error; a negative base with a fraction: NaN
  sign              of NaN: 0
  greatest least    pass over NULLs, NULL only when all are; NaN is greater than everything; TRUE > FALSE
  lower upper       one code point for one (simple case mapping): the sharp s becomes U+1E9E, capital I with dot i
  substr            1-based; start 0 is before the first; a negative start counts from the end; a negative length takes
                    what lies before the start; a number outside of +-4294967295: error
  left right        a negative count leaves that many out at the other end
  trim ltrim rtrim  spaces only (U+0020), or any of the characters of the second argument
  replace           an empty search text changes nothing
  strpos            from 1, 0 when it is not there; an empty text is at 1
  concat_ws         passes over NULLs behind the separator; NULL separator: NULL
  split_part        from 1; negative counts from the end; 0 and outside: ''; an empty separator splits into characters
  lpad rpad         cut to the length as well; nothing to fill with: error
  date_trunc        the first argument is a literal of TRUNC_UNITS; a week begins on Monday
  date_part         the first argument is a literal of PARTS; dow: Sunday is 0; isodow: Monday is 1, Sunday 7; week and
                    isoyear are ISO 8601's; millisecond and microsecond have the seconds in them (56123 for 56.123)
  add_months        the day is cut to the month's last one; written by the compiler for `+ INTERVAL '1 month'`
  time_bucket       (width in ns, time): buckets counted from 2000-01-03 00:00; a width < 1 is refused by the compiler
  epoch             seconds with a fraction; epoch_ms and epoch_us round half away from zero
  epoch_ms of a BIGINT, to_timestamp, make_timestamp (microseconds), make_timestamp_ns: outside of 64-bit ns: error
  decode            UTF-8 bytes as text; bytes that are no UTF-8: error. encode: the other way round
  json_text         what `->>` gives: a string without quotes and escapes, JSON null is NULL, everything else its text
  json_nullify      NULL for JSON null, else the value: how `payload.a` differs from `payload -> 'a'`
  json_type         NULL UBIGINT BIGINT DOUBLE VARCHAR BOOLEAN OBJECT ARRAY (UBIGINT: a whole number >= 0)
  json_array_length 0 when it is no array

The leaf ("json", JSON, path) and ("json_of", …) are NULL when the member is missing (or the payload is no JSON); a JSON
null that is there is a value, as in DuckDB; converted to any other type it is NULL. `json_of` of a text that is no JSON
is an error. In a path a negative number counts from the array's end. JSON to VARCHAR is always written as json_text,
never as a cast.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock_client.types import SqlType

BOOLEAN, BIGINT, DOUBLE, VARCHAR = SqlType.BOOLEAN, SqlType.BIGINT, SqlType.DOUBLE, SqlType.VARCHAR
TIMESTAMP, BLOB, JSON = SqlType.TIMESTAMP, SqlType.BLOB, SqlType.JSON

TRUNC_UNITS = (
    "microsecond",
    "millisecond",
    "second",
    "minute",
    "hour",
    "day",
    "week",
    "month",
    "quarter",
    "year",
)
PARTS = (
    "year",
    "isoyear",
    "quarter",
    "month",
    "week",
    "day",
    "dow",
    "isodow",
    "doy",
    "hour",
    "minute",
    "second",
    "millisecond",
    "microsecond",
)


@dataclass(frozen=True, slots=True)
class Signature:
    arguments: tuple[SqlType, ...]
    result: SqlType
    is_variadic: bool = False  # the last argument's type may be given once or many times


def _one(result: SqlType, *arguments: SqlType) -> tuple[Signature, ...]:
    return (Signature(arguments, result),)


def _many(result: SqlType, *arguments: SqlType) -> tuple[Signature, ...]:
    return (Signature(arguments, result, is_variadic=True),)


_EXTREME = tuple(Signature((kind,), kind, is_variadic=True) for kind in (BOOLEAN, BIGINT, DOUBLE, VARCHAR, TIMESTAMP))
_MATHS = _one(DOUBLE, DOUBLE)
_TEST = _one(BOOLEAN, VARCHAR, VARCHAR)
_TEXT = _one(VARCHAR, VARCHAR)
_TRIM = _TEXT + _one(VARCHAR, VARCHAR, VARCHAR)

# In the order in which they are tried: the first signature that the arguments fit without loss is taken.
FUNCTIONS: dict[str, tuple[Signature, ...]] = {
    "abs": _one(BIGINT, BIGINT) + _one(DOUBLE, DOUBLE),
    "round": _one(BIGINT, BIGINT, BIGINT) + _one(DOUBLE, DOUBLE) + _one(DOUBLE, DOUBLE, BIGINT),
    "floor": _MATHS,
    "ceil": _MATHS,
    "sqrt": _MATHS,
    "exp": _MATHS,
    "ln": _MATHS,
    "log2": _MATHS,
    "log10": _MATHS,
    "pow": _one(DOUBLE, DOUBLE, DOUBLE),
    "sign": _one(BIGINT, BIGINT) + _one(BIGINT, DOUBLE),
    "greatest": _EXTREME,
    "least": _EXTREME,
    "lower": _TEXT,
    "upper": _TEXT,
    "reverse": _TEXT,
    "length": _one(BIGINT, VARCHAR),
    "substr": _one(VARCHAR, VARCHAR, BIGINT) + _one(VARCHAR, VARCHAR, BIGINT, BIGINT),
    "left": _one(VARCHAR, VARCHAR, BIGINT),
    "right": _one(VARCHAR, VARCHAR, BIGINT),
    "trim": _TRIM,
    "ltrim": _TRIM,
    "rtrim": _TRIM,
    "replace": _one(VARCHAR, VARCHAR, VARCHAR, VARCHAR),
    "starts_with": _TEST,
    "ends_with": _TEST,
    "contains": _TEST,
    "strpos": _one(BIGINT, VARCHAR, VARCHAR),
    "concat_ws": _many(VARCHAR, VARCHAR, VARCHAR),
    "split_part": _one(VARCHAR, VARCHAR, VARCHAR, BIGINT),
    "lpad": _one(VARCHAR, VARCHAR, BIGINT, VARCHAR),
    "rpad": _one(VARCHAR, VARCHAR, BIGINT, VARCHAR),
    "date_trunc": _one(TIMESTAMP, VARCHAR, TIMESTAMP),
    "date_part": _one(BIGINT, VARCHAR, TIMESTAMP),
    "add_months": _one(TIMESTAMP, TIMESTAMP, BIGINT),
    "time_bucket": _one(TIMESTAMP, BIGINT, TIMESTAMP),
    "epoch": _one(DOUBLE, TIMESTAMP),
    "epoch_ms": _one(BIGINT, TIMESTAMP) + _one(TIMESTAMP, BIGINT),
    "epoch_us": _one(BIGINT, TIMESTAMP),
    "epoch_ns": _one(BIGINT, TIMESTAMP),
    "to_timestamp": _one(TIMESTAMP, DOUBLE),
    "make_timestamp": _one(TIMESTAMP, BIGINT),
    "make_timestamp_ns": _one(TIMESTAMP, BIGINT),
    "decode": _one(VARCHAR, BLOB),
    "encode": _one(BLOB, VARCHAR),
    "octet_length": _one(BIGINT, BLOB),
    "json_text": _one(VARCHAR, JSON),
    "json_nullify": _one(JSON, JSON),
    "json_type": _one(VARCHAR, JSON),
    "json_array_length": _one(BIGINT, JSON),
}
