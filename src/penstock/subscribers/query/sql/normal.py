"""The normal form of a query: the same text for every spelling of the same thing, so that they share one evaluation."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from penstock.subscribers.query.plan import Expression
from penstock.subscribers.query.sql.jsonpath import path_text
from penstock.subscribers.query.sql.tables import quote_name, quote_text
from penstock_client.types import SqlType

_INFIX = {
    "and": "AND",
    "or": "OR",
    "eq": "=",
    "ne": "<>",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "distinct": "IS DISTINCT FROM",
    "not_distinct": "IS NOT DISTINCT FROM",
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "intdiv": "//",
    "mod": "%",
    "concat": "||",
    "add_ns": "+ns",
    "sub_ts": "-ns",
}


def plan_key(
    topic_filter: str,
    columns: tuple[tuple[str, int, Expression], ...],
    where: Expression | None,
    on_error: str,
    unnest: Expression | None = None,
) -> str:
    shown = ", ".join(f"{normal(expression)} AS {quote_name(name)}" for name, _, expression in columns)
    condition = "" if where is None else f" WHERE {normal(where)}"
    rows = "" if unnest is None else f", UNNEST({normal(unnest)})"
    return f"SELECT {shown} FROM {quote_name(topic_filter)}{rows}{condition} ON ERROR {on_error}"


def normal(expression: Expression) -> str:
    operation, kind, *arguments = expression
    if operation == "literal":
        return _literal(SqlType(kind), arguments[0])
    if operation == "field":
        return str(arguments[0])
    if operation == "level":
        return f"topic_level({arguments[0]})"
    if operation == "property":
        return f"user_property({quote_text(arguments[0])})"
    if operation == "json":
        return f"payload->{quote_text(path_text(arguments[0]))}"
    if operation == "element":
        return f"element->{quote_text(path_text(arguments[0]))}"
    if operation == "json_of":
        return f"({normal(arguments[0])})->{quote_text(path_text(arguments[1]))}"
    if operation in _INFIX:
        return "(" + f" {_INFIX[operation]} ".join(map(normal, arguments)) + ")"
    if operation in ("cast", "try_cast"):
        return f"{operation.upper()}({normal(arguments[0])} AS {SqlType(kind).name})"
    if operation in ("like", "ilike"):
        escape = "" if arguments[2] is None else f" ESCAPE {quote_text(arguments[2])}"
        return f"({normal(arguments[0])} {operation.upper()} {normal(arguments[1])}{escape})"
    if operation == "regex":
        return f"regex({normal(arguments[0])}, {hashlib.sha256(arguments[1]).hexdigest()})"
    if operation == "call":
        return f"{arguments[0]}({', '.join(map(normal, arguments[1:]))})"
    return f"{operation}({', '.join(map(normal, arguments))})"


def _literal(kind: SqlType, value: Any) -> str:
    if value is None:
        return f"NULL::{kind.name}"
    if kind == SqlType.VARCHAR:
        return quote_text(value)
    if kind == SqlType.BLOB:
        return f"x'{value.hex()}'"
    if kind == SqlType.TIMESTAMP:
        return f"{value}ns"
    return json.dumps(value)
