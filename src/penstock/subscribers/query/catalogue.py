"""Tables and query topics: durable, and the same at every node.

A topic is stored with its statement, the tables it reads as they were, and its plan; a broker of another version makes
the plan from the others. So thousands of topics are there again in a moment, and a topic's schema stays what it
was when it was made, whatever becomes of the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import msgspec

from penstock.core.logging import get_logger
from penstock.core.signal import Signal
from penstock.storage.state.base import Change
from penstock.subscribers.query.plan import Plan
from penstock.subscribers.query.sql.reading_thread import in_thread
from penstock.subscribers.query.sql.statements import CreateTopic, ReloadTopic, parse_statement
from penstock.subscribers.query.sql.tables import TableDefinition
from penstock.subscribers.query.stored import TABLES, TOPICS, Stored
from penstock_client.errors import AlreadyExists, BadRequest, DataError, NotFound

log = get_logger("penstock.datasub")

Definition = CreateTopic | ReloadTopic
Compile = Callable[[Definition, Mapping[str, TableDefinition]], Plan]


@dataclass(frozen=True, slots=True)
class QueryTopic:
    """A topic that is a query."""

    name: str
    sql: str  # the statement that made it, or that it was reloaded with
    plan: Plan
    mode: str  # query, stable or database
    meta: str  # none, with or only
    owner: str | None  # user name of who made it
    created: int  # ms
    version: int = 1  # grows with each RELOAD

    @property
    def schema(self) -> list[tuple[str, int]]:
        return [(name, int(type_)) for name, type_, _ in self.plan.columns]


class TableRecord(msgspec.Struct, frozen=True):
    table: TableDefinition
    owner: str | None
    created: int


class TopicRecord(msgspec.Struct, frozen=True):
    """`plan` was made by the broker whose version `made_by` is."""

    sql: str
    mode: str
    meta: str
    on_error: str
    owner: str | None
    created: int
    version: int
    tables: dict[str, TableDefinition]
    plan: Any
    made_by: str


class Catalogue:
    """`on_dropped` and `on_reloaded` hear of topics, whichever node has changed them."""

    def __init__(self, stored: Stored, *, compile_topic: Compile | None = None) -> None:
        self._stored = stored
        self._compile = compile_topic or _compile
        self._made_by = version("penstock")
        self._tables: dict[str, TableRecord] = {}
        self._topics: dict[str, QueryTopic] = {}
        self._records: dict[str, TopicRecord] = {}
        self.on_dropped = Signal[[str]]()
        self.on_reloaded = Signal[[str]]()
        stored.listen(TABLES, self._on_table)
        stored.listen(TOPICS, self._on_topic)

    # ---- what is there ----

    def topic(self, name: str) -> QueryTopic | None:
        return self._topics.get(name)

    def topics(self) -> Iterator[QueryTopic]:
        """By name."""
        return (topic for _, topic in sorted(self._topics.items()))

    async def look_for(self, name: str) -> QueryTopic | None:
        """None when no other node has just made it either."""
        if name not in self._topics:
            await self._stored.catch_up()
        return self._topics.get(name)

    def table(self, name: str) -> TableRecord | None:
        return self._tables.get(name)

    def tables(self) -> Iterator[TableRecord]:
        """By name."""
        return (table for _, table in sorted(self._tables.items()))

    def readers_of(self, table: str) -> list[str]:
        """Topics that were made from the table."""
        return sorted(name for name, record in self._records.items() if table in record.tables)

    # ---- changes; one at a time, which the caller sees to ----

    async def create_table(self, table: TableDefinition, owner: str | None, now_ms: int) -> None:
        if table.name in self._tables:
            raise AlreadyExists(f"there is a table {table.name} already")
        record = msgspec.msgpack.encode(TableRecord(table, owner, now_ms))
        await self._stored.write([(TABLES, table.name.encode(), record)])

    async def drop_table(self, name: str, is_shown: Callable[[str], bool] = lambda _: True) -> None:
        """`is_shown`: topics whose names may be in the words of a refusal."""
        readers = self.readers_of(name)
        if readers:
            shown = [reader for reader in readers if is_shown(reader)]
            names = f" ({', '.join(shown[:5])}{' …' if len(readers) > len(shown[:5]) else ''})" if shown else ""
            raise BadRequest(f"table {name} is read by {len(readers)} topics: drop them before it{names}")
        await self._stored.write([(TABLES, name.encode(), None)])

    async def compile(
        self, statement: Definition, is_seen: Callable[[TableRecord], bool] = lambda _: True
    ) -> tuple[Plan, dict[str, TableDefinition]]:
        """The plan, and the tables it reads; those that are not `is_seen` are none. In a thread: the first one loads
        the parser. Raises SqlError."""
        tables = _Tables({name: record.table for name, record in self._tables.items() if is_seen(record)})
        return await in_thread(lambda: self._compile(statement, tables)), tables.used

    async def create_topic(
        self,
        statement: CreateTopic,
        plan: Plan,
        tables: dict[str, TableDefinition],
        owner: str | None,
        now_ms: int,
    ) -> None:
        if statement.name in self._topics:
            raise AlreadyExists(f"there is a topic {statement.name} already")
        record = TopicRecord(
            sql=statement.text,
            mode=statement.mode,
            meta=statement.meta,
            on_error=statement.on_error,
            owner=owner,
            created=now_ms,
            version=1,
            tables=tables,
            plan=_dump(plan),
            made_by=self._made_by,
        )
        await self._write(statement.name, record)

    def completed(self, statement: ReloadTopic) -> ReloadTopic:
        """With the error policy of before, where the statement names none."""
        record = self._record(statement.name)
        if record.mode != "query":
            raise BadRequest(f"topic {statement.name} is none of a query: only those can be reloaded")
        return replace(statement, on_error=statement.on_error or record.on_error)

    async def reload_topic(self, statement: ReloadTopic, plan: Plan, tables: dict[str, TableDefinition]) -> None:
        record = self._record(statement.name)
        changed = msgspec.structs.replace(
            record,
            sql=statement.text,
            on_error=statement.on_error,
            version=record.version + 1,
            tables=tables,
            plan=_dump(plan),
            made_by=self._made_by,
        )
        await self._write(statement.name, changed)

    async def drop_topic(self, name: str, also: list[Change]) -> None:
        """`also` is removed with it."""
        await self._stored.write([(TOPICS, name.encode(), None), *also])

    def _record(self, name: str) -> TopicRecord:
        if name not in self._records:
            raise NotFound(f"there is no topic {name}")
        return self._records[name]

    async def _write(self, name: str, record: TopicRecord) -> None:
        await self._stored.write([(TOPICS, name.encode(), msgspec.msgpack.encode(record))])

    # ---- what was stored ----

    def _on_table(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self._tables.pop(key.decode(), None)
        else:
            self._tables[key.decode()] = msgspec.msgpack.decode(value, type=TableRecord)

    def _on_topic(self, key: bytes, value: bytes | None) -> None:
        name = key.decode()
        before = self._topics.get(name)
        if value is None:
            self._records.pop(name, None)
            if self._topics.pop(name, None) is not None:
                self.on_dropped(name)
            return
        record = msgspec.msgpack.decode(value, type=TopicRecord)
        try:
            plan = self._plan(record)
        except DataError as error:
            log.error("a stored topic cannot be read by this version", topic=name, error=str(error))
            return
        self._records[name] = record
        self._topics[name] = QueryTopic(
            name, record.sql, plan, record.mode, record.meta, record.owner, record.created, record.version
        )
        if before is None or (before.version == record.version and before.created == record.created):
            return
        if before.created != record.created:  # dropped and made again before this node has heard of either
            self.on_dropped(name)
        else:
            self.on_reloaded(name)

    def _plan(self, record: TopicRecord) -> Plan:
        if record.made_by == self._made_by:
            return _load(record.plan)
        statement = parse_statement(record.sql)
        if not isinstance(statement, CreateTopic | ReloadTopic):
            raise BadRequest("the statement makes no topic")
        return self._compile(replace(statement, on_error=record.on_error), record.tables)


class _Tables(Mapping[str, TableDefinition]):
    """Notes which of them a query reads."""

    def __init__(self, tables: Mapping[str, TableDefinition]) -> None:
        self._tables = tables
        self.used: dict[str, TableDefinition] = {}

    def __getitem__(self, name: str) -> TableDefinition:
        table = self.used[name] = self._tables[name]
        return table

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)


def _compile(statement: Definition, tables: Mapping[str, TableDefinition]) -> Plan:
    from penstock.subscribers.query.sql.compiler import compile_topic  # noqa: PLC0415 - brings sqlglot, which costs half a second

    return compile_topic(statement, tables)


def _dump(plan: Plan) -> list[Any]:
    return [plan.key, plan.filter, plan.columns, plan.where, plan.on_error, plan.unnest]


def _load(fields: list[Any]) -> Plan:
    key, topic_filter, columns, where, on_error, *rest = fields  # older records end here
    return Plan(key, topic_filter, _tuples(columns), _tuples(where), on_error, *map(_tuples, rest))


def _tuples(value: Any) -> Any:
    """MessagePack has lists only; expressions are tuples throughout."""
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value
