"""What a name in a query stands for: a declared column, one of the message's own, or a member of the payload."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from penstock.subscribers.query.plan import Expression
from penstock.subscribers.query.sql.conversions import (
    BIGINT,
    BLOB,
    JSON,
    VARCHAR,
    NoConversion,
    convert,
    type_of,
)
from penstock.subscribers.query.sql.jsonpath import MAX_STEPS, Path
from penstock.subscribers.query.sql.tables import FIELDS, STAR_FIELDS, TABLE_FIELDS, TableDefinition
from penstock_client.types import SqlType

ELEMENT: Expression = ("element", int(JSON), ())
PAYLOAD: Expression = ("field", int(BLOB), "payload")


class Unknown(ValueError):
    """No such name; the text says which there are."""


@dataclass(frozen=True, slots=True)
class Scope:
    table: TableDefinition | None
    alias: str = ""  # another name of the source, in small letters
    has_only_tags: bool = False  # the condition of a table topic
    element: str = ""  # the name of an element of UNNEST, in small letters
    element_table: str = ""  # and of the table that UNNEST makes
    ordinality: str = ""  # of the number of an element

    def resolve(self, parts: list[str | int]) -> Expression:
        """`a`, `source.a`, `payload.a.b[0]`: names, then numbers for elements."""
        head = str(parts[0])
        if self.element and (found := self._of_element(parts)) is not None:
            return found
        if len(parts) > 1 and head.casefold() in self._own_names() and not self._is_column(head):
            return self.resolve(parts[1:])
        rest = tuple(parts[1:])
        if self.table is not None and (column := self.table.column(head)) is not None:
            if self.has_only_tags and not column.is_tag:
                raise Unknown(
                    f"{head!r} is no tag: the condition of a STABLE topic is on tags and tbname only. "
                    "Write AS SELECT … WHERE … for a condition on values"
                )
            return member_of(convert(nullified(column.base()), column.type), rest)
        return self._of_message(head, rest)

    def _of_element(self, parts: list[str | int]) -> Expression | None:
        """`r`, `r.a.b[0]`, `u.r.a`: an element of UNNEST and what is in it; its number."""
        names = [part.casefold() if isinstance(part, str) else part for part in parts]
        if len(names) > 1 and self.element_table != self.element and names[0] == self.element_table:
            names, parts = names[1:], parts[1:]
        if names[0] == self.element:
            return nullified(json_member(ELEMENT, tuple(parts[1:])))
        return ("ordinality", int(BIGINT)) if self.ordinality and names == [self.ordinality] else None

    def star(self, *, is_table_topic: bool = False) -> list[tuple[str, Expression]]:
        if self.table is None:
            return [(name, field(name)) for name, _ in STAR_FIELDS]
        columns = [(column.name, self.resolve([column.name])) for column in self.table.columns]
        if not is_table_topic:
            return columns
        own = [(name, field(name)) for name in TABLE_FIELDS if self.table.column(name) is None]
        return own + columns

    def _own_names(self) -> set[str]:
        names = {self.alias} if self.alias else set()
        return names | {self.table.name} if self.table is not None else names

    def _is_column(self, head: str) -> bool:
        return head.casefold() in FIELDS or (self.table is not None and self.table.column(head) is not None)

    def _of_message(self, head: str, rest: Path) -> Expression:
        name = head.lower()
        if name == "tbname" and not rest:
            return field("topic")
        if self.has_only_tags:
            raise Unknown(f"{head!r} is no tag: the condition of a STABLE topic is on tags and tbname only")
        if name == "payload":
            return nullified(json_member(PAYLOAD, rest)) if rest else PAYLOAD
        if name == "user_properties" and len(rest) == 1 and isinstance(rest[0], str):
            return ("property", int(VARCHAR), rest[0])
        if name in FIELDS:
            return member_of(field(name), rest)
        raise Unknown(self._no_such(head))

    def _no_such(self, head: str) -> str:
        known = [column.name for column in self.table.columns] if self.table is not None else []
        known += [*FIELDS, *sorted(self._own_names())]
        close = difflib.get_close_matches(head.lower(), known, n=1)
        if close:
            return f"there is no column {head!r}: is {close[0]!r} meant?"
        return f"there is no column {head!r}: for a member of the JSON payload write payload.{head}"


def field(name: str) -> Expression:
    return ("field", int(FIELDS[name]), name)


def nullified(expression: Expression) -> Expression:
    """A value of the payload reads as in a table: a JSON null is NULL."""
    if type_of(expression) != JSON or expression[:3] == ("call", int(JSON), "json_nullify"):
        return expression
    return ("call", int(JSON), "json_nullify", expression)


def json_member(base: Expression, path: Path) -> Expression:
    """The value at that path of the payload, of a JSON value or of a text, as `->` gives it."""
    inner: Expression = base[3] if base[:3] == ("call", int(JSON), "json_nullify") else base
    if inner == PAYLOAD:
        result: Expression = ("json", int(JSON), path)
    elif inner[0] in ("json", "element"):
        result = (inner[0], int(JSON), (*inner[2], *path))
    elif inner[0] == "json_of":
        result = ("json_of", int(JSON), inner[2], (*inner[3], *path))
    elif type_of(inner) in (VARCHAR, JSON):
        result = ("json_of", int(JSON), inner, path)
    elif type_of(inner) == SqlType.NULL:
        return ("literal", int(JSON), None)
    else:
        raise NoConversion(f"{type_of(inner).name} has no members: only the payload, JSON and VARCHAR have")
    if len(result[-1]) > MAX_STEPS:
        raise NoConversion(f"the path has more than {MAX_STEPS} steps")
    return result


def member_of(base: Expression, path: Path) -> Expression:
    if not path:
        return base
    if type_of(base) != JSON and base != PAYLOAD:
        raise NoConversion(f"a {type_of(base).name} has no members: only the payload and JSON columns have")
    return nullified(json_member(base, path))
