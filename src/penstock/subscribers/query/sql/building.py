"""Expressions of a plan, made with the conversions SQL makes by itself and with constants computed at once."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from penstock.subscribers.query.plan import Expression
from penstock.subscribers.query.sql.constants import GREATEST, LEAST
from penstock.subscribers.query.sql.conversions import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    JSON,
    NULL,
    TIMESTAMP,
    VARCHAR,
    NoConversion,
    convert,
    is_literal,
    type_of,
    unify,
)
from penstock.subscribers.query.sql.regex import BadRegex, compile_regex
from penstock_client.types import SqlType

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
_FLIPPED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_FLIPPED |= {"distinct": "distinct", "not_distinct": "not_distinct"}
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}


def literal(kind: SqlType, value: Any) -> Expression:
    return ("literal", int(kind), value)


def boolean(expression: Expression) -> Expression:
    """As a condition."""
    if type_of(expression) in (TIMESTAMP, SqlType.BLOB, SqlType.PROPERTIES):
        raise NoConversion(f"a condition is expected here, not a {type_of(expression).name}: compare it with something")
    return convert(expression, BOOLEAN)


def all_of(operation: str, parts: list[Expression]) -> Expression:
    """AND or OR of conditions, in one node; what is known already is left out."""
    flat: list[Expression] = []
    neutral = operation == "and"
    for part in map(boolean, parts):
        if part[0] == operation:
            flat.extend(part[2:])
        elif is_literal(part) and part[2] is (not neutral):
            return part
        elif not (is_literal(part) and part[2] is neutral):
            flat.append(part)
    flat = list(dict.fromkeys(flat))
    if not flat:
        return literal(BOOLEAN, neutral)
    return flat[0] if len(flat) == 1 else (operation, int(BOOLEAN), *flat)


def negate(expression: Expression) -> Expression:
    condition = boolean(expression)
    if is_literal(condition):
        return literal(BOOLEAN, None if condition[2] is None else not condition[2])
    if condition[0] == "not":
        inner: Expression = condition[2]
        return inner
    return ("not", int(BOOLEAN), condition)


def is_null(expression: Expression) -> Expression:
    if is_literal(expression):
        return literal(BOOLEAN, expression[2] is None)
    return ("is_null", int(BOOLEAN), expression)


def compare(operation: str, left: Expression, right: Expression) -> Expression:
    kind, (left, right) = unify([left, right], is_comparison=True)
    if kind == SqlType.PROPERTIES:
        raise NoConversion("user_properties are not compared: name one with user_property('name')")
    if kind == NULL:
        left, right = convert(left, BIGINT), convert(right, BIGINT)
    if operation in ("distinct", "not_distinct"):
        if is_literal(right) and right[2] is None:
            return is_null(left) if operation == "not_distinct" else negate(is_null(left))
    elif (is_literal(left) and left[2] is None) or (is_literal(right) and right[2] is None):
        return literal(BOOLEAN, None)
    elif is_literal(left) and is_literal(right) and left[2] == left[2] and right[2] == right[2]:
        return literal(BOOLEAN, _COMPARE[operation](left[2], right[2]))
    if is_literal(left) and not is_literal(right):
        operation, left, right = _FLIPPED[operation], right, left
    return (operation, int(BOOLEAN), left, right)


def arithmetic(operation: str, left: Expression, right: Expression) -> Expression:
    """add sub mul mod of whole numbers or DOUBLEs; div, and intdiv as DuckDB has it: of DOUBLEs the same as div."""
    kinds = [BIGINT if type_of(side) == NULL else type_of(side) for side in (left, right)]
    for kind in kinds:
        if kind not in (BIGINT, DOUBLE, JSON):
            raise NoConversion(f"{kind.name} is no number: cast it, for example with CAST(… AS DOUBLE)")
    kind = BIGINT if kinds == [BIGINT, BIGINT] and operation != "div" else DOUBLE
    if operation == "intdiv" and kind == DOUBLE:
        operation = "div"
    left, right = convert(left, kind), convert(right, kind)
    if any(is_literal(side) and side[2] is None for side in (left, right)):
        return literal(kind, None)
    if operation not in _ARITHMETIC and is_literal(right) and not right[2]:
        return literal(kind, None)  # division by zero
    if operation in _ARITHMETIC and is_literal(left) and is_literal(right):
        value = _ARITHMETIC[operation](left[2], right[2])
        if kind == DOUBLE or LEAST <= value <= GREATEST:
            return literal(kind, value)
        raise NoConversion("the result is no BIGINT any more: it overflows")
    return (operation, int(kind), left, right)


def negative(expression: Expression) -> Expression:
    kind = type_of(expression)
    if kind not in (NULL, BIGINT, DOUBLE, JSON):
        raise NoConversion(f"{kind.name} is no number: cast it, for example with CAST(… AS DOUBLE)")
    value = convert(expression, {NULL: BIGINT, JSON: DOUBLE}.get(kind, kind))
    if is_literal(value) and value[2] != LEAST:
        return literal(type_of(value), None if value[2] is None else -value[2])
    return ("neg", value[1], value)


def one_of(needle: Expression, choices: list[Expression]) -> Expression:
    """IN. Choices that are no constants become comparisons."""
    if not all(map(is_literal, choices)):
        return all_of("or", [compare("eq", needle, choice) for choice in choices])
    kind, (needle, *choices) = unify([needle, *choices], is_comparison=True)
    if kind == NULL or (is_literal(needle) and needle[2] is None):
        return literal(BOOLEAN, None)
    values = {choice[2] for choice in choices if choice[2] is not None}
    has_null = any(choice[2] is None for choice in choices)
    if is_literal(needle):
        found = needle[2] in values
        return literal(BOOLEAN, True if found else (None if has_null else False))
    ordered = sorted(values, key=lambda value: (isinstance(value, float) and math.isnan(value), value))
    if not ordered:
        return literal(BOOLEAN, None)
    if len(ordered) == 1 and not has_null:
        return compare("eq", needle, literal(kind, ordered[0]))
    parts = [literal(kind, value) for value in ordered]
    return ("in", int(BOOLEAN), needle, *parts, *([literal(kind, None)] if has_null else []))


def case(branches: list[tuple[Expression, Expression]], default: Expression | None) -> Expression:
    values = [value for _, value in branches] + [default if default is not None else literal(NULL, None)]
    kind, values = unify(values)
    if kind == SqlType.PROPERTIES:
        raise NoConversion("user_properties are not computed with: name one with user_property('name')")
    if kind == NULL:
        return literal(NULL, None)
    parts: list[Expression] = []
    for (condition, _), value in zip(branches, values, strict=False):
        test = boolean(condition)
        if is_literal(test):
            if not test[2]:
                continue
            return value if not parts else ("case", int(kind), *parts, value)
        parts += [test, value]
    return ("case", int(kind), *parts, values[-1]) if parts else values[-1]


def coalesce(parts: list[Expression]) -> Expression:
    kind, values = unify(parts)
    if kind == SqlType.PROPERTIES:
        raise NoConversion("user_properties are not computed with: name one with user_property('name')")
    kept: list[Expression] = []
    for value in values:
        if is_literal(value) and value[2] is None:
            continue
        kept.append(value)
        if is_literal(value):
            break
    if not kept:
        return literal(kind, None)
    return kept[0] if len(kept) == 1 else ("coalesce", int(kind), *kept)


def nullif(left: Expression, right: Expression) -> Expression:
    """The first one, with its own type, unless they are equal."""
    if type_of(right) == NULL:
        return left
    if type_of(left) == NULL:
        return left
    kind, (first, second) = unify([left, right], is_comparison=True)
    if type_of(left) in (kind, JSON):
        return ("nullif", int(kind), first, second)
    equal = compare("eq", left, right)
    return case([(equal, literal(type_of(left), None))], left)


def text(expression: Expression) -> Expression:
    """As || and concat take it: anything but bytes."""
    if type_of(expression) in (SqlType.BLOB, SqlType.PROPERTIES):
        raise NoConversion(f"{type_of(expression).name} is no text: cast it, for example with CAST(… AS VARCHAR)")
    return convert(expression, VARCHAR)


def regex(value: Expression, pattern: Expression, options: str = "", *, is_full: bool = False) -> Expression:
    """Build the test whether a text, or with `is_full` the whole text, matches a pattern."""
    if type_of(value) not in (VARCHAR, NULL, JSON):
        raise NoConversion(f"a regular expression matches texts, not a {type_of(value).name}: use CAST(… AS VARCHAR)")
    if not is_literal(pattern) or type_of(pattern) not in (VARCHAR, NULL):
        raise NoConversion("a regular expression is written out in single quotes: it is compiled once, with the query")
    value = convert(value, VARCHAR)
    if pattern[2] is None or (is_literal(value) and value[2] is None):
        return literal(BOOLEAN, None)
    try:
        return ("regex", int(BOOLEAN), value, compile_regex(pattern[2], options, is_full=is_full))
    except BadRegex as error:
        raise NoConversion(f"regular expression {pattern[2][:60]!r}: {error}") from None


def join(parts: list[Expression]) -> Expression:
    """`||`: NULL as soon as one part is."""
    flat: list[Expression] = []
    for part in map(text, parts):
        pieces = part[2:] if part[0] == "concat" else (part,)
        for piece in pieces:
            if is_literal(piece) and piece[2] is None:
                return literal(VARCHAR, None)
            if is_literal(piece) and flat and is_literal(flat[-1]):
                flat[-1] = literal(VARCHAR, flat[-1][2] + piece[2])
            else:
                flat.append(piece)
    return flat[0] if len(flat) == 1 else ("concat", int(VARCHAR), *flat)
