"""The door to the compiler. sqlglot costs half a second to load, so it is loaded with the first query."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.subscribers.query.plan import Plan
from penstock.subscribers.query.sql.statements import ON_ERROR, CreateTopic, ReloadTopic
from penstock.subscribers.query.sql.tables import ColumnDefinition, TableDefinition

__all__ = ["ColumnDefinition", "TableDefinition", "compile_topic"]


def compile_topic(
    statement: CreateTopic | ReloadTopic, tables: Mapping[str, TableDefinition], on_error: str = ON_ERROR[0]
) -> Plan:
    """`tables` by their names in small letters; `on_error` is what a reloaded topic keeps when its statement does not
    say. Raises SqlError with the position, the reason and what to do."""
    from penstock.subscribers.query.sql.query import Query  # noqa: PLC0415 - as said above

    mode = statement.mode if isinstance(statement, CreateTopic) else "query"
    has_rows = not (isinstance(statement, CreateTopic) and statement.meta == "only")
    query = Query(statement.text, statement.query_at, mode)
    return query.compile(tables, statement.on_error or on_error, has_rows=has_rows)
