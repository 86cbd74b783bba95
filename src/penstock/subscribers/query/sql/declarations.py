"""The body of CREATE TABLE: `FROM '<filter>' (column TYPE [FROM source], …) [TAGS (…)]`."""

from __future__ import annotations

from sqlglot.tokenizer_core import TokenType

from penstock.subscribers.query.sql.conversions import can_cast
from penstock.subscribers.query.sql.cursor import Cursor
from penstock.subscribers.query.sql.jsonpath import MAX_STEPS, BadPath, parse_path
from penstock.subscribers.query.sql.names import check_column, check_filter, check_table
from penstock.subscribers.query.sql.tables import (
    FIELDS,
    TYPE_NAMES,
    AnySource,
    ColumnDefinition,
    FromField,
    FromJson,
    FromLevel,
    FromProperty,
    TableDefinition,
)
from penstock_client.types import SqlType

MAX_COLUMNS = 512
MAX_LEVEL = 128


def read_table(cursor: Cursor) -> TableDefinition:
    """From the table's name on."""
    name = cursor.name("table", check_table).lower()
    if not cursor.accept("FROM"):
        cursor.fail(f"FROM and an MQTT filter in quotes are expected here, not {cursor.shown()}")
    topic_filter = cursor.name("source (an MQTT filter in quotes)", check_filter)
    if cursor.word() != "(":
        cursor.fail(
            "the columns are expected here in brackets: (name TYPE, …). "
            f"INFER TABLE {name} FROM '{topic_filter}' proposes them from the newest messages"
        )
    columns: list[ColumnDefinition] = []
    _read_columns(cursor, columns, are_tags=False)
    if cursor.accept("TAGS"):
        _read_columns(cursor, columns, are_tags=True)
    return TableDefinition(name, topic_filter, tuple(columns))


def _read_columns(cursor: Cursor, columns: list[ColumnDefinition], *, are_tags: bool) -> None:
    cursor.expect("(")
    while True:
        start = cursor.offset
        column = _read_column(cursor, are_tag=are_tags)
        if any(other.name.casefold() == column.name.casefold() for other in columns):
            cursor.fail(f"the column {column.name!r} is there twice: rename one (capitals make no difference)", start)
        columns.append(column)
        if len(columns) > MAX_COLUMNS:
            cursor.fail(f"a table has at most {MAX_COLUMNS} columns: leave some out", start)
        if cursor.accept(")"):
            return
        if not cursor.accept(","):
            cursor.fail(f"a comma or ) is expected here, not {cursor.shown()}")


def _read_column(cursor: Cursor, *, are_tag: bool) -> ColumnDefinition:
    start = cursor.offset
    name = cursor.name("column", check_column)
    kind = read_type(cursor)
    source_at = cursor.offset
    source: AnySource = FromJson((name,))
    if cursor.accept("FROM") or cursor.accept("AS"):
        source = _read_source(cursor)
        if kind == SqlType.JSON and source == FromField("payload"):
            source = FromJson(())
    is_tag = are_tag or cursor.accept("TAG")
    if is_tag and isinstance(source, FromJson):
        cursor.fail(
            f"the tag {name!r} is a topic level, a user property or a column of the message: write FROM TOPIC LEVEL n, "
            "FROM USER PROPERTY name or FROM client_id (values of the payload are columns)",
            start,
        )
    column = ColumnDefinition(name, kind, source, is_tag)
    have = SqlType(column.base()[1])
    if not can_cast(have, kind):
        cursor.fail(f"{have.name} cannot become {kind.name}: declare {name!r} as {have.name}", source_at)
    return column


def read_type(cursor: Cursor) -> SqlType:
    word = cursor.word().removesuffix(" PRECISION")
    kind = TYPE_NAMES.get(word)
    if kind is None:
        known = ", ".join(dict.fromkeys(member.name for member in TYPE_NAMES.values()))
        cursor.fail(f"a type is expected here, not {cursor.shown()}: one of {known}")
    cursor.index += 1
    if cursor.accept("("):  # VARCHAR(20): the length is not enforced, as in DuckDB
        cursor.whole_number("a length", 1, 1 << 31)
        cursor.expect(")")
    return kind


def _read_source(cursor: Cursor) -> AnySource:
    if cursor.accept("TOPIC", "LEVEL"):
        return FromLevel(cursor.whole_number("the level of the topic", 1, MAX_LEVEL))
    if cursor.accept("USER", "PROPERTY"):
        return FromProperty(cursor.name("user property", check_column))
    start = cursor.offset
    if not cursor.is_at_end and cursor.tokens[cursor.index].token_type is TokenType.STRING:
        text = cursor.string("a JSON path")
        try:
            return FromJson(parse_path(text))
        except BadPath as error:
            cursor.fail(str(error), start)
    word = cursor.word().lower()
    if word == "payload" and cursor.index + 1 < len(cursor.tokens) and cursor.tokens[cursor.index + 1].text in ".[":
        cursor.index += 1
        return FromJson(_read_path(cursor))
    if word in FIELDS:
        cursor.index += 1
        return FromField(word)
    cursor.fail(
        f"a source is expected here, not {cursor.shown()}: payload.member, '$.json.path', TOPIC LEVEL n, USER PROPERTY "
        "name or a column of the message (ts, topic, client_id …)"
    )


def _read_path(cursor: Cursor) -> tuple[str | int, ...]:
    """`.a.b[0]` behind `payload`."""
    steps: list[str | int] = []
    while len(steps) < MAX_STEPS:
        if cursor.accept("."):
            if cursor.is_at_end:
                cursor.fail("the name of a member is expected here")
            steps.append(cursor.tokens[cursor.index].text)
            cursor.index += 1
        elif cursor.accept("["):
            steps.append(cursor.whole_number("the number of an element, from 0,", 0, 10**9))
            cursor.expect("]")
        else:
            break
    return tuple(steps)
