"""What each statement does. Changes of the catalogue are made one after the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec

from penstock.storage.state.base import Change
from penstock.subscribers.query.catalogue import Catalogue, QueryTopic, TableRecord
from penstock.subscribers.query.groups import views
from penstock.subscribers.query.groups.offsets import OffsetBook, key_of
from penstock.subscribers.query.plan import Plan
from penstock.subscribers.query.ports import Coordinator, Identity
from penstock.subscribers.query.privileges import EVERY, Hidden, Privileges
from penstock.subscribers.query.sql import statements as s
from penstock.subscribers.query.sql.reading_thread import in_thread
from penstock.subscribers.query.sql.tables import TableDefinition
from penstock.subscribers.query.stored import OFFSETS
from penstock_client.errors import AlreadyExists, BadRequest, NotFound
from penstock_client.types import SqlType
from penstock_client.wire import Table

LONGEST_STATEMENT = 65_536

Infer = Callable[[s.InferTable], Awaitable[str]]
"""The CREATE TABLE statement that fits the newest messages of a filter."""

OnTable = Callable[[str, TableDefinition, Identity], Awaitable[None]]
"""Called with create-table and drop-table once they are durable; the statement is answered after it returns."""


async def announce_nothing(*_: object) -> None:
    """Do nothing, for brokers without a log."""


class LocalExecutor:
    """At the node where the catalogue is changed. `is_taken`: names that an MQTT shared subscription uses already;
    `errors_of`: rows of a query that could not be made, at this node and since its start."""

    def __init__(
        self,
        catalogue: Catalogue,
        privileges: Privileges,
        coordinator: Coordinator,
        book: OffsetBook,
        *,
        infer: Infer | None = None,
        is_taken: Callable[[str], bool] = lambda _: False,
        errors_of: Callable[[Plan], int] = lambda _: 0,
        on_table: OnTable = announce_nothing,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._catalogue = catalogue
        self._privileges = privileges
        self._coordinator = coordinator
        self._book = book
        self._infer = infer
        self._is_taken = is_taken
        self._errors_of = errors_of
        self._on_table = on_table
        self._wall_clock = wall_clock
        self._changing = asyncio.Lock()
        self._questions: dict[type, Callable[[Any, Identity], Awaitable[Table]]] = {
            s.ShowTopics: self._show_topics,
            s.ShowTables: self._show_tables,
            s.ShowConsumers: self._show_consumers,
            s.ShowSubscriptions: self._show_subscriptions,
            s.ShowGrants: self._show_grants,
            s.Describe: self._describe,
            s.InferTable: self._infer_table,
        }
        self._changes: dict[type, Callable[[Any, Identity], Awaitable[Table]]] = {
            s.CreateTable: self._create_table,
            s.DropTable: self._drop_table,
            s.CreateTopic: self._create_topic,
            s.ReloadTopic: self._reload_topic,
            s.DropTopic: self._drop_topic,
            s.DropGroup: self._drop_group,
            s.Grant: self._grant,
            s.Revoke: self._revoke,
        }

    async def execute(self, sql: str, who: Identity) -> Table:
        return await self.run(await parse(sql), who)

    def is_change(self, statement: s.Statement) -> bool:
        return type(statement) in self._changes

    async def run(self, statement: s.Statement, who: Identity) -> Table:
        question = self._questions.get(type(statement))
        if question is not None:
            return await question(statement, who)
        async with self._changing:
            return await self._changes[type(statement)](statement, who)

    # ---- tables ----

    async def _create_table(self, statement: s.CreateTable, who: Identity) -> Table:
        name = statement.table.name
        self._privileges.check(who, "create", name)
        if statement.if_not_exists and self._catalogue.table(name) is not None:
            return said(f"table {name} is there already")
        await self._catalogue.create_table(statement.table, who.user, self._now_ms())
        await self._on_table("create-table", statement.table, who)
        return said(f"table {name} created")

    async def _drop_table(self, statement: s.DropTable, who: Identity) -> Table:
        name = statement.name
        table = self._catalogue.table(name)
        try:
            if table is None:
                self._privileges.check_there(who, "drop", name, None, is_there=False, noun="table")
            else:
                self._privileges.check_there(
                    who, "drop", name, table.owner, is_there=True, noun="table", table_filter=table.table.filter
                )
        except (NotFound, Hidden) as error:
            return _nothing(error, is_fine=statement.if_exists)
        assert table is not None
        await self._catalogue.drop_table(name, lambda topic: self._is_known(who, topic))
        await self._on_table("drop-table", table.table, who)
        return said(f"table {name} dropped")

    def _knows_table(self, who: Identity, record: TableRecord) -> bool:
        return self._privileges.may_know_table(who, record.table.name, record.owner, record.table.filter)

    def _sees(self, who: Identity) -> Callable[[TableRecord], bool]:
        """A query may use the tables that SHOW lists, and those whose messages may be read anyway."""
        return lambda record: self._knows_table(who, record) or self._privileges.may_read(who, record.table.filter)

    async def _show_tables(self, _: s.ShowTables, who: Identity) -> Table:
        rows: list[list[Any]] = [
            [record.table.name, record.table.filter, views.time_text(record.created), record.table.to_sql()]
            for record in self._catalogue.tables()
            if self._knows_table(who, record)
        ]
        return Table(["table_name", "db_name", "create_time", "sql"], rows)

    async def _infer_table(self, statement: s.InferTable, who: Identity) -> Table:
        self._privileges.check(who, "create", statement.name)
        self._privileges.check_source(who, statement.filter)
        if self._infer is None:
            raise BadRequest("this broker cannot look at messages to propose a table: declare its columns")
        return Table(["sql"], [[await self._infer(statement)]])

    # ---- topics ----

    async def _create_topic(self, statement: s.CreateTopic, who: Identity) -> Table:
        name = statement.name
        self._privileges.check(who, "create", name)
        if self._catalogue.topic(name) is not None:
            if statement.if_not_exists:
                return said(f"topic {name} is there already")
            raise AlreadyExists(f"there is a topic {name} already")
        if self._is_taken(name):
            raise BadRequest(f"{name} is subscribed to by MQTT clients as $share/<group>/{name}: choose another name")
        plan, tables = await self._catalogue.compile(statement, self._sees(who))
        self._privileges.check_source(who, plan.filter)
        await self._catalogue.create_topic(statement, plan, tables, who.user, self._now_ms())
        return said(f"topic {name} created")

    async def _reload_topic(self, statement: s.ReloadTopic, who: Identity) -> Table:
        try:
            # Who reloads a topic ends what it was and makes another one.
            topic = self._find_for(who, "drop", statement.name)
        except (NotFound, Hidden) as error:
            return _nothing(error, is_fine=statement.if_exists)
        completed = self._catalogue.completed(statement)
        plan, tables = await self._catalogue.compile(completed, self._sees(who))
        self._privileges.check_source(who, plan.filter)
        await self._catalogue.reload_topic(completed, plan, tables)
        return said(f"topic {topic.name} reloaded")

    async def _drop_topic(self, statement: s.DropTopic, who: Identity) -> Table:
        name = statement.name
        try:
            self._find_for(who, "drop", name)
        except (NotFound, Hidden) as error:
            return _nothing(error, is_fine=statement.if_exists)
        groups = [] if statement.force else await self._coordinator.groups_of(name)
        if groups:
            raise BadRequest(
                f"topic {name} is read by {_listed('group', groups)}: close the consumers, or use "
                f"DROP TOPIC FORCE {name}"
            )
        also: list[Change] = [(OFFSETS, key_of(*key), None) for key in self._book if key[1] == name]
        await self._catalogue.drop_topic(name, [*also, *self._privileges.forget_topic(name)])
        return said(f"topic {name} dropped")

    async def _drop_group(self, statement: s.DropGroup, who: Identity) -> Table:
        group, name = statement.group, statement.topic
        try:
            self._find_for(who, "drop", name)
            await self._coordinator.drop_group(group, name, is_forced=statement.force)
        except (NotFound, Hidden) as error:
            return _nothing(error, is_fine=statement.if_exists)
        return said(f"group {group} dropped from topic {name}")

    def _find(self, name: str) -> QueryTopic | None:
        return self._catalogue.topic(name)

    def _find_for(self, who: Identity, action: str, name: str) -> QueryTopic:
        """Raises NotFound, NotAllowed; see Privileges.check_there."""
        topic = self._find(name)
        owner = None if topic is None else topic.owner
        self._privileges.check_there(who, action, name, owner, is_there=topic is not None)
        assert topic is not None
        return topic

    def _is_known(self, who: Identity, name: str) -> bool:
        topic = self._find(name)
        return self._privileges.may_know(who, name, None if topic is None else topic.owner)

    async def _show_topics(self, _: s.ShowTopics, who: Identity) -> Table:
        rows: list[list[Any]] = [
            [
                topic.name,
                topic.plan.filter,
                views.time_text(topic.created),
                topic.sql,
                _schema_text(topic),
                self._errors_of(topic.plan),
            ]
            for topic in self._catalogue.topics()
            if self._privileges.may_know(who, topic.name, topic.owner)
        ]
        return Table(["topic_name", "db_name", "create_time", "sql", "schema", "errors"], rows)

    async def _describe(self, statement: s.Describe, who: Identity) -> Table:
        topic = self._find(statement.name)
        if topic is not None and self._privileges.may_know(who, topic.name, topic.owner):
            return Table(["column", "type"], [[name, SqlType(type_).name] for name, type_ in topic.schema])
        record = self._catalogue.table(statement.name.lower())
        if record is None or not self._knows_table(who, record):
            raise NotFound(f"there is no topic and no table {statement.name}")
        rows: list[list[Any]] = [[each.name, each.type.name, each.is_tag] for each in record.table.columns]
        return Table(["column", "type", "is_tag"], rows)

    # ---- consumers ----

    async def _show_consumers(self, _: s.ShowConsumers, who: Identity) -> Table:
        user, topics = views.CONSUMERS.index("user"), views.CONSUMERS.index("topics")
        rows: list[list[Any]] = []
        for row in await self._coordinator.consumers():
            names = [name for name in str(row[topics]).split(",") if name and self._is_known(who, name)]
            if names or who.is_operator or (who.user is not None and who.user == row[user]):
                rows.append([*row[:topics], ",".join(names), *row[topics + 1 :]])
        return Table(list(views.CONSUMERS), rows)

    async def _show_subscriptions(self, _: s.ShowSubscriptions, who: Identity) -> Table:
        rows = [row for row in await self._coordinator.subscriptions() if self._is_known(who, str(row[0]))]
        return Table(list(views.SUBSCRIPTIONS), rows)

    # ---- privileges ----

    async def _grant(self, statement: s.Grant, who: Identity) -> Table:
        self._check_giver(who, statement.topic, statement.privileges)
        await self._privileges.give(statement.user, statement.topic, statement.privileges, is_granted=True)
        return said(f"{_listed_words(statement.privileges)} on {statement.topic} granted to {statement.user}")

    async def _revoke(self, statement: s.Revoke, who: Identity) -> Table:
        self._check_giver(who, statement.topic, statement.privileges)
        await self._privileges.give(statement.user, statement.topic, statement.privileges, is_granted=False)
        return said(f"{_listed_words(statement.privileges)} on {statement.topic} revoked from {statement.user}")

    def _check_giver(self, who: Identity, name: str, privileges: Iterable[str]) -> None:
        """Who may drop a topic may say who else may do with it what they may do themselves."""
        owner = None
        if name == EVERY:
            self._privileges.check(who, "drop", name)
        else:
            owner = self._find_for(who, "drop", name).owner
        for privilege in privileges:
            self._privileges.check(who, privilege, name, owner)

    async def _show_grants(self, _: s.ShowGrants, who: Identity) -> Table:
        rows: list[list[Any]] = [
            [user, topic, privilege, is_granted]
            for (user, topic), given in sorted(self._privileges.given().items())
            if user == who.user or self._is_known(who, topic)
            for privilege, is_granted in sorted(given.items())
        ]
        return Table(["user_name", "topic_name", "privilege", "is_granted"], rows)

    def _now_ms(self) -> int:
        return int(self._wall_clock() * 1_000)


async def parse(sql: str) -> s.Statement:
    """In a thread: the first statement loads the parser. Raises SqlError, BadRequest."""
    if len(sql) > LONGEST_STATEMENT:
        raise BadRequest(f"a statement of {len(sql)} characters: use at most {LONGEST_STATEMENT}")
    return await in_thread(lambda: s.parse_statement(sql))


def said(text: str) -> Table:
    return Table([], [], text)


def _nothing(error: NotFound | Hidden, *, is_fine: bool) -> Table:
    """What is not there: with IF EXISTS it need not be."""
    if not is_fine:
        raise error
    return said(error.message)


def _listed(noun: str, names: list[str]) -> str:
    shown = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
    return f"{len(names)} {noun}{'s' if len(names) > 1 else ''} ({shown})"


def _listed_words(words: Iterable[str]) -> str:
    return ", ".join(word.upper() for word in words)


def _schema_text(topic: QueryTopic) -> str:
    columns = [{"name": name, "type": SqlType(type_).name} for name, type_ in topic.schema]
    return msgspec.json.encode(columns).decode()
