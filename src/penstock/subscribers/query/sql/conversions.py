"""Which type becomes which, by itself and by a cast, and the casts written into the expression."""

from __future__ import annotations

from penstock.subscribers.query.plan import Expression
from penstock.subscribers.query.sql.constants import can_cast_literal, cast_literal
from penstock_client.types import SqlType

NULL, BOOLEAN, BIGINT, DOUBLE = SqlType.NULL, SqlType.BOOLEAN, SqlType.BIGINT, SqlType.DOUBLE
VARCHAR, TIMESTAMP, BLOB, JSON = SqlType.VARCHAR, SqlType.TIMESTAMP, SqlType.BLOB, SqlType.JSON

# What a cast may do, beside leaving a type as it is and NULL becoming anything.
_CASTS: dict[SqlType, tuple[SqlType, ...]] = {
    BOOLEAN: (BIGINT, DOUBLE, VARCHAR, JSON),
    BIGINT: (BOOLEAN, DOUBLE, VARCHAR, JSON),
    DOUBLE: (BOOLEAN, BIGINT, VARCHAR, JSON),
    VARCHAR: (BOOLEAN, BIGINT, DOUBLE, TIMESTAMP, BLOB, JSON),
    TIMESTAMP: (VARCHAR, JSON),
    BLOB: (VARCHAR,),
    JSON: (BOOLEAN, BIGINT, DOUBLE, VARCHAR, TIMESTAMP),
}
_NUMBERS = (BOOLEAN, BIGINT, DOUBLE)


class NoConversion(ValueError):
    """The text names both types and what to do."""


def can_cast(have: SqlType, want: SqlType) -> bool:
    return have in (NULL, want) or want in _CASTS.get(have, ())


def type_of(expression: Expression) -> SqlType:
    return SqlType(expression[1])


def is_literal(expression: Expression) -> bool:
    return bool(expression[0] == "literal")


def is_text_literal(expression: Expression) -> bool:
    return is_literal(expression) and expression[1] == VARCHAR


def convert(expression: Expression, want: SqlType, *, is_try: bool = False) -> Expression:
    """The expression as that type; the conversion must be one that a cast may do. Literals are converted here."""
    have = type_of(expression)
    if have == want:
        return expression
    if not can_cast(have, want):
        raise NoConversion(f"{have.name} cannot become {want.name}")
    if have == NULL:
        return ("literal", int(want), None)
    if have == JSON:
        return _from_json(expression, want, is_try)
    if is_literal(expression) and can_cast_literal(have, want):
        done, value = cast_literal(expression[2], have, want)
        if done:
            return ("literal", int(want), value)
        if not is_try:
            raise NoConversion(f"{expression[2]!r} is no {want.name}: correct it, or use TRY_CAST to have NULL")
        return ("literal", int(want), None)
    return ("try_cast" if is_try else "cast", int(want), expression)


def _from_json(expression: Expression, want: SqlType, is_try: bool) -> Expression:
    # a JSON null becomes NULL in every conversion, so the step that does only this is left out
    inner = expression[3] if expression[:3] == ("call", int(JSON), "json_nullify") else expression
    if want == VARCHAR:
        return ("call", int(VARCHAR), "json_text", inner)
    return ("try_cast" if is_try else "cast", int(want), inner)


def common_type(expressions: list[Expression], *, is_comparison: bool = False) -> SqlType:
    """The type in which values are compared, or which a CASE has. A text literal takes the type of the others, JSON
    too, with DOUBLE for every number; BOOLEAN < BIGINT < DOUBLE. Everything else needs a cast by hand."""
    plain = [e for e in expressions if type_of(e) not in (NULL, JSON) and not is_text_literal(e)]
    has_json = any(type_of(e) == JSON for e in expressions)
    has_text = any(is_text_literal(e) for e in expressions)
    kinds = list(dict.fromkeys(type_of(e) for e in plain))
    if not kinds:
        if has_text:
            return VARCHAR
        if not has_json:
            return NULL
        if is_comparison:
            raise NoConversion(
                "two JSON values are not compared, as it is not known what they are: cast one, such as with ::DOUBLE"
            )
        return JSON
    if len(kinds) == 1:
        kind = kinds[0]
    elif all(kind in _NUMBERS for kind in kinds):
        kind = max(kinds)
    else:
        raise NoConversion(
            f"{kinds[0].name} and {kinds[1].name} do not go together: cast one of them, for example with "
            f"CAST(… AS {kinds[0].name})"
        )
    return DOUBLE if has_json and kind == BIGINT else kind


def unify(expressions: list[Expression], *, is_comparison: bool = False) -> tuple[SqlType, list[Expression]]:
    kind = common_type(expressions, is_comparison=is_comparison)
    return kind, [convert(expression, kind) for expression in expressions]
