"""Function calls: names, other names, argument types, and those that are written as other operations."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from penstock.subscribers.query.plan import Expression
from penstock.subscribers.query.sql import building as b
from penstock.subscribers.query.sql.conversions import (
    BIGINT,
    DOUBLE,
    JSON,
    NULL,
    TIMESTAMP,
    VARCHAR,
    convert,
    is_literal,
    is_text_literal,
    type_of,
    unify,
)
from penstock.subscribers.query.sql.functions import FUNCTIONS, PARTS, TRUNC_UNITS, Signature
from penstock.subscribers.query.sql.intervals import unit_name
from penstock.subscribers.query.sql.jsonpath import BadPath, Path, parse_path
from penstock.subscribers.query.sql.scope import PAYLOAD, field, json_member
from penstock_client.types import SqlType

MAX_LEVEL = 128

ALIASES = {
    "substring": "substr",
    "ceiling": "ceil",
    "power": "pow",
    "lcase": "lower",
    "ucase": "upper",
    "char_length": "length",
    "character_length": "length",
    "len": "length",
    "prefix": "starts_with",
    "suffix": "ends_with",
    "instr": "strpos",
    "log": "log10",
    "datetrunc": "date_trunc",
    "datepart": "date_part",
    "ifnull": "coalesce",
    "json_extract_path": "json_extract",
    "json_extract_path_text": "json_extract_string",
    "get_current_timestamp": "now",
    "current_timestamp": "now",
}
# What is asked of many rows at once. They are not refused as unknown, but with the way to have them.
_AGGREGATES = """
    count sum avg mean min max first last any_value median mode stddev stddev_pop stddev_samp variance
    var_pop var_samp string_agg group_concat listagg list array_agg approx_count_distinct
    approx_quantile quantile quantile_cont quantile_disc percentile corr covar_pop covar_samp bool_and
    bool_or bit_and bit_or arg_min arg_max min_by max_by product sumif countif count_if spread twa
    elapsed histogram top bottom sample tail unique interp diff derivative irate mavg csum statecount
    stateduration last_row apercentile hyperloglog leastsquares window tumble hop session row_number
    rank dense_rank ntile lag lead first_value last_value nth_value percent_rank cume_dist
"""
AGGREGATES = frozenset(_AGGREGATES.split())
SPARK = (
    "a topic looks at one message at a time. Let the Spark job make such rows, `penstock spark run topic --name <name> "
    "--sql '…'`, and subscribe to what it publishes"
)
_WRITTEN_BY_COMPILER = frozenset({"json_text", "json_nullify", "add_months"})


class BadCall(ValueError):
    """The text says what is wrong and what to do."""


def call(name: str, arguments: list[Expression]) -> Expression:
    name = ALIASES.get(name.lower(), name.lower())
    if name in AGGREGATES:
        raise BadCall(f"{name}() is computed over many rows, and {SPARK}")
    special = _SPECIAL.get(name)
    if special is not None:
        return special(arguments)
    if name in PARTS and name not in FUNCTIONS:
        return _date_part([b.literal(VARCHAR, name), *arguments])
    if name not in FUNCTIONS or name in _WRITTEN_BY_COMPILER:
        raise BadCall(_no_such(name))
    return plain_call(name, arguments)


def _no_such(name: str) -> str:
    if name in ("unnest", "explode"):
        return f'{name}() is not a column: write FROM "<filter>", UNNEST(payload.readings) AS r, and select r.value'
    known = sorted((FUNCTIONS.keys() | _SPECIAL.keys() | ALIASES.keys()) - _WRITTEN_BY_COMPILER)
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"there is no function {name}(): is {close[0]}() meant?"
    return f"there is no function {name}(): see the list in docs/data-subscription-sql.md"


def plain_call(name: str, arguments: list[Expression]) -> Expression:
    if name in ("greatest", "least") and arguments:
        _, arguments = unify(arguments, is_comparison=True)
    best: tuple[int, Signature, tuple[SqlType, ...]] | None = None
    for signature in FUNCTIONS[name]:
        wanted = _wanted(signature, len(arguments))
        if wanted is None:
            continue
        costs = [_cost(argument, want) for argument, want in zip(arguments, wanted, strict=True)]
        if None not in costs and (best is None or sum(filter(None, costs)) < best[0]):
            best = sum(filter(None, costs)), signature, wanted
    if best is None:
        raise BadCall(_no_match(name, arguments))
    _, signature, wanted = best
    converted = [convert(argument, want) for argument, want in zip(arguments, wanted, strict=True)]
    passes_null = name in ("greatest", "least", "concat_ws")
    if not passes_null and any(is_literal(argument) and argument[2] is None for argument in converted):
        return b.literal(signature.result, None)
    return ("call", int(signature.result), name, *converted)


def _wanted(signature: Signature, count: int) -> tuple[SqlType, ...] | None:
    missing = count - len(signature.arguments)
    if missing == 0:
        return signature.arguments
    if missing > 0 and signature.is_variadic:
        return signature.arguments + (signature.arguments[-1],) * missing
    return None


def _cost(argument: Expression, want: SqlType) -> int | None:
    """None: it does not fit without a cast by hand."""
    have = type_of(argument)
    if have in (want, NULL):
        return 0
    if have == BIGINT and want == DOUBLE:
        return 1
    if have == JSON:
        return {DOUBLE: 1, VARCHAR: 1, TIMESTAMP: 2, BIGINT: 3}.get(want)
    if want == JSON and (have == VARCHAR or argument == PAYLOAD):
        return None
    if is_text_literal(argument) and want == TIMESTAMP:
        return 1
    return None


def _no_match(name: str, arguments: list[Expression]) -> str:
    given = ", ".join(type_of(argument).name for argument in arguments)
    forms = "; ".join(_form(name, signature) for signature in FUNCTIONS[name])
    return f"{name}({given}) is not there, but {forms}: cast the arguments"


def _form(name: str, signature: Signature) -> str:
    dots = ", …" if signature.is_variadic else ""
    return f"{name}({', '.join(kind.name for kind in signature.arguments)}{dots})"


def _count(name: str, arguments: list[Expression], low: int, high: int) -> None:
    if not low <= len(arguments) <= high:
        number = str(low) if low == high else f"{low} to {high}"
        raise BadCall(f"{name}() takes {number} arguments, not {len(arguments)}")


def _now(arguments: list[Expression]) -> Expression:
    """The time of the message: the same row comes out whenever it is read."""
    _count("now", arguments, 0, 0)
    return field("ts")


def _unit(name: str, argument: Expression, allowed: tuple[str, ...]) -> str:
    if not is_text_literal(argument):
        raise BadCall(f"the first argument of {name}() is a text that is written out, such as 'hour'")
    unit = unit_name(argument[2])
    if unit not in allowed:
        raise BadCall(f"{argument[2]!r} is not known to {name}(): one of {', '.join(allowed)}")
    return unit


def _date_trunc(arguments: list[Expression]) -> Expression:
    _count("date_trunc", arguments, 2, 2)
    unit = _unit("date_trunc", arguments[0], TRUNC_UNITS)
    return plain_call("date_trunc", [b.literal(VARCHAR, unit), arguments[1]])


def _date_part(arguments: list[Expression]) -> Expression:
    _count("date_part", arguments, 2, 2)
    unit = _unit("date_part", arguments[0], (*PARTS, "epoch"))
    if unit == "epoch":
        return plain_call("epoch", arguments[1:])
    return plain_call("date_part", [b.literal(VARCHAR, unit), arguments[1]])


def _round(arguments: list[Expression]) -> Expression:
    if len(arguments) == 1 and type_of(arguments[0]) == BIGINT:
        return arguments[0]
    return plain_call("round", arguments)


def _concat(arguments: list[Expression]) -> Expression:
    """Unlike || it passes over NULLs."""
    _count("concat", arguments, 1, 64)
    return b.join([b.coalesce([b.text(argument), b.literal(VARCHAR, "")]) for argument in arguments])


def _concat_ws(arguments: list[Expression]) -> Expression:
    _count("concat_ws", arguments, 2, 64)
    return plain_call("concat_ws", [b.text(argument) for argument in arguments])


def _coalesce(arguments: list[Expression]) -> Expression:
    _count("coalesce", arguments, 1, 64)
    return b.coalesce(arguments)


def _nullif(arguments: list[Expression]) -> Expression:
    _count("nullif", arguments, 2, 2)
    return b.nullif(*arguments)


def _if(arguments: list[Expression]) -> Expression:
    _count("if", arguments, 2, 3)
    return b.case([(arguments[0], arguments[1])], arguments[2] if len(arguments) > 2 else None)


def path_of(argument: Expression) -> Path:
    if is_literal(argument) and type_of(argument) == BIGINT and argument[2] is not None:
        return (argument[2],)
    if not is_text_literal(argument) or argument[2] is None:
        raise BadCall("a JSON path is written out, such as 'member', '$.a.b[0]' or 0")
    try:
        return parse_path(argument[2])
    except BadPath as error:
        raise BadCall(str(error)) from None


def json_extract(arguments: list[Expression]) -> Expression:
    _count("json_extract", arguments, 2, 2)
    return json_member(arguments[0], path_of(arguments[1]))


def json_extract_string(arguments: list[Expression]) -> Expression:
    _count("json_extract_string", arguments, 2, 2)
    return convert(json_extract(arguments), VARCHAR)


def _json_at(name: str, arguments: list[Expression]) -> Expression:
    _count(name, arguments, 1, 2)
    return json_member(arguments[0], path_of(arguments[1]) if len(arguments) > 1 else ())


def _json_type(arguments: list[Expression]) -> Expression:
    return plain_call("json_type", [_json_at("json_type", arguments)])


def _json_array_length(arguments: list[Expression]) -> Expression:
    return plain_call("json_array_length", [_json_at("json_array_length", arguments)])


def _json_exists(arguments: list[Expression]) -> Expression:
    _count("json_exists", arguments, 2, 2)
    exists = b.negate(b.is_null(json_extract(arguments)))
    if arguments[0] == PAYLOAD:
        return exists
    return b.case([(b.is_null(arguments[0]), b.literal(SqlType.BOOLEAN, None))], exists)


def _topic_level(arguments: list[Expression]) -> Expression:
    _count("topic_level", arguments, 1, 1)
    number = arguments[0]
    if not (is_literal(number) and type_of(number) == BIGINT and number[2] and 1 <= number[2] <= MAX_LEVEL):
        raise BadCall(f"topic_level() takes a written out number from 1 to {MAX_LEVEL}")
    return ("level", int(VARCHAR), number[2])


def _user_property(arguments: list[Expression]) -> Expression:
    _count("user_property", arguments, 1, 1)
    if not is_text_literal(arguments[0]) or arguments[0][2] is None:
        raise BadCall("user_property() takes a written out name: user_property('site')")
    return ("property", int(VARCHAR), arguments[0][2])


def _regexp(name: str, arguments: list[Expression]) -> Expression:
    _count(name, arguments, 2, 3)
    if len(arguments) == 3 and not (is_text_literal(arguments[2]) and arguments[2][2] is not None):
        raise BadCall(f"the options of {name}() are written out: {name}(text, 'pattern', 'i')")
    options = arguments[2][2] if len(arguments) == 3 else ""
    return b.regex(arguments[0], arguments[1], options, is_full=name == "regexp_full_match")


_SPECIAL: dict[str, Callable[[list[Expression]], Expression]] = {
    "now": _now,
    "date_trunc": _date_trunc,
    "date_part": _date_part,
    "round": _round,
    "concat": _concat,
    "concat_ws": _concat_ws,
    "coalesce": _coalesce,
    "nullif": _nullif,
    "if": _if,
    "json_extract": json_extract,
    "json_extract_string": json_extract_string,
    "json_type": _json_type,
    "json_array_length": _json_array_length,
    "json_exists": _json_exists,
    "regexp_matches": lambda arguments: _regexp("regexp_matches", arguments),
    "regexp_full_match": lambda arguments: _regexp("regexp_full_match", arguments),
    "topic_level": _topic_level,
    "user_property": _user_property,
}
