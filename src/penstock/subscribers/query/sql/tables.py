"""Declared tables: typed columns over the messages of an MQTT filter."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.subscribers.query.plan import Expression
from penstock.subscribers.query.sql.jsonpath import path_text
from penstock_client.types import SqlType

# The message's own columns. `*` over a filter has those of the first tuple, in this order.
STAR_FIELDS: tuple[tuple[str, SqlType], ...] = (
    ("ts", SqlType.TIMESTAMP),
    ("topic", SqlType.VARCHAR),
    ("client_id", SqlType.VARCHAR),
    ("username", SqlType.VARCHAR),
    ("qos", SqlType.BIGINT),
    ("retain", SqlType.BOOLEAN),
    ("payload", SqlType.BLOB),
    ("content_type", SqlType.VARCHAR),
    ("response_topic", SqlType.VARCHAR),
    ("correlation_data", SqlType.BLOB),
    ("user_properties", SqlType.PROPERTIES),
    ("expires_at", SqlType.TIMESTAMP),
)
FIELDS: dict[str, SqlType] = {
    **dict(STAR_FIELDS),
    "partition": SqlType.BIGINT,
    "offset": SqlType.BIGINT,
}
# What every row of a table topic begins with, so that it says where it came from.
TABLE_FIELDS = ("ts", "topic", "client_id")

# The names of types in declarations and casts. The shorter numbers are the same as the long ones.
TYPE_NAMES: dict[str, SqlType] = {
    "BOOLEAN": SqlType.BOOLEAN,
    "BOOL": SqlType.BOOLEAN,
    "BIGINT": SqlType.BIGINT,
    "INT8": SqlType.BIGINT,
    "LONG": SqlType.BIGINT,
    "INT": SqlType.BIGINT,
    "INTEGER": SqlType.BIGINT,
    "DOUBLE": SqlType.DOUBLE,
    "FLOAT8": SqlType.DOUBLE,
    "FLOAT": SqlType.DOUBLE,
    "REAL": SqlType.DOUBLE,
    "VARCHAR": SqlType.VARCHAR,
    "TEXT": SqlType.VARCHAR,
    "STRING": SqlType.VARCHAR,
    "NCHAR": SqlType.VARCHAR,
    "TIMESTAMP": SqlType.TIMESTAMP,
    "TIMESTAMP_NS": SqlType.TIMESTAMP,
    "BLOB": SqlType.BLOB,
    "BYTEA": SqlType.BLOB,
    "VARBINARY": SqlType.BLOB,
    "JSON": SqlType.JSON,
}


class ColumnSource(msgspec.Struct, frozen=True, tag_field="from", tag=True):
    """Where a column's value is taken from."""


class FromJson(ColumnSource, frozen=True, tag="json"):
    path: tuple[str | int, ...]


class FromLevel(ColumnSource, frozen=True, tag="level"):
    number: int  # from 1


class FromProperty(ColumnSource, frozen=True, tag="property"):
    name: str


class FromField(ColumnSource, frozen=True, tag="field"):
    name: str


AnySource = FromJson | FromLevel | FromProperty | FromField


class ColumnDefinition(msgspec.Struct, frozen=True):
    name: str
    type: SqlType
    source: AnySource
    is_tag: bool = False

    def base(self) -> Expression:
        """The value before it is converted to the column's type."""
        source = self.source
        if isinstance(source, FromJson):
            return ("json", int(SqlType.JSON), source.path)
        if isinstance(source, FromLevel):
            return ("level", int(SqlType.VARCHAR), source.number)
        if isinstance(source, FromProperty):
            return ("property", int(SqlType.VARCHAR), source.name)
        return ("field", int(FIELDS[source.name]), source.name)

    def parts(self) -> tuple[str, str, str, str | int]:
        """Name, type, the kind of source (json, level, property, field) and the path, number or name in it."""
        source = self.source
        if isinstance(source, FromJson):
            return self.name, self.type.name, "json", path_text(source.path)
        if isinstance(source, FromLevel):
            return self.name, self.type.name, "level", source.number
        kind = "property" if isinstance(source, FromProperty) else "field"
        return self.name, self.type.name, kind, source.name

    def to_sql(self) -> str:
        words = [quote_name(self.name), self.type.name]
        source = self.source
        if isinstance(source, FromJson):
            if source.path != (self.name,):
                words.append(f"FROM {quote_text(path_text(source.path))}")
        elif isinstance(source, FromLevel):
            words.append(f"FROM TOPIC LEVEL {source.number}")
        elif isinstance(source, FromProperty):
            words.append(f"FROM USER PROPERTY {quote_text(source.name)}")
        else:
            words.append(f"FROM {source.name}")
        return " ".join(words)


class TableDefinition(msgspec.Struct, frozen=True):
    """What CREATE TABLE declares. The name is in small letters; columns are found in any case."""

    name: str
    filter: str
    columns: tuple[ColumnDefinition, ...]

    @property
    def tags(self) -> tuple[ColumnDefinition, ...]:
        return tuple(column for column in self.columns if column.is_tag)

    def column(self, name: str) -> ColumnDefinition | None:
        wanted = name.casefold()
        return next((column for column in self.columns if column.name.casefold() == wanted), None)

    def to_sql(self) -> str:
        """The statement that declares this table."""
        values = [f"  {column.to_sql()}" for column in self.columns if not column.is_tag]
        text = f"CREATE TABLE {quote_name(self.name)} FROM {quote_text(self.filter)} (\n" + ",\n".join(values) + "\n)"
        if self.tags:
            text += " TAGS (\n" + ",\n".join(f"  {column.to_sql()}" for column in self.tags) + "\n)"
        return text


Meta = Literal["none", "with", "only"]


def quote_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def quote_name(name: str) -> str:
    """With quotes always: a name may be a keyword."""
    return '"' + name.replace('"', '""') + '"'
