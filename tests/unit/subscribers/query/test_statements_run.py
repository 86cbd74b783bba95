"""Statements that are run: tables, topics, groups that are dropped, topics that are reloaded, all of it durable."""

from __future__ import annotations

import asyncio
import time

import pytest

from penstock.subscribers.query.sql.statements import Statement, parse_statement
from penstock_client import wire
from penstock_client.errors import (
    AlreadyExists,
    BadRequest,
    DataError,
    NotAllowed,
    NotFound,
    SqlError,
    StaleEpoch,
)
from tests.support.worlds.datasub_world import ALICE, DataWorld, in_world, numbers

TABLE = "CREATE TABLE meters FROM 'plant/+/meter' (value DOUBLE, unit VARCHAR) TAGS (line VARCHAR FROM TOPIC LEVEL 2)"


def test_topics_are_made_shown_and_dropped() -> None:
    async def work(world: DataWorld) -> None:
        sql = 'CREATE TOPIC hot AS SELECT ts, client_id AS c FROM "sensors/#"'
        answer = await world.service.execute(sql, ALICE)
        assert (answer.columns, answer.rows, answer.text) == ([], [], "topic hot created")
        (row,) = await world.table("SHOW TOPICS")
        assert list(row) == ["topic_name", "db_name", "create_time", "sql", "schema", "errors"]
        assert (row["topic_name"], row["db_name"], row["sql"]) == ("hot", "sensors/#", sql)
        assert row["schema"] == '[{"name":"ts","type":"TIMESTAMP"},{"name":"c","type":"VARCHAR"}]'
        assert await world.table("DESCRIBE hot") == [
            {"column": "ts", "type": "TIMESTAMP"},
            {"column": "c", "type": "VARCHAR"},
        ]
        with pytest.raises(AlreadyExists):
            await world.service.execute(sql, ALICE)
        await world.service.execute('CREATE TOPIC IF NOT EXISTS hot AS SELECT qos FROM "x"', ALICE)
        topic = world.service.topic("hot")
        await world.restart()
        assert world.service.topic("hot") == topic
        await world.service.execute("DROP TOPIC hot", ALICE)
        with pytest.raises(NotFound):
            await world.service.execute("DROP TOPIC hot", ALICE)
        await world.service.execute("DROP TOPIC IF EXISTS hot", ALICE)
        await world.restart()
        assert world.service.topic("hot") is None

    in_world(work)


def test_a_topic_that_another_version_has_stored_is_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(world: DataWorld) -> None:
        await world.service.execute(TABLE, ALICE)
        await world.service.execute("CREATE TOPIC m WITH (on_error = 'skip') AS SELECT value FROM meters", ALICE)
        topic = world.service.topic("m")
        assert topic.plan.on_error == "skip"
        with monkeypatch.context() as patch:
            patch.setattr("penstock.subscribers.query.catalogue.version", lambda _: "another")
            await world.restart()
            assert world.service.topic("m") == topic

    in_world(work)


def test_a_table_stays_while_topics_read_it() -> None:
    async def work(world: DataWorld) -> None:
        await world.service.execute(TABLE, ALICE)
        with pytest.raises(AlreadyExists):
            await world.service.execute(TABLE, ALICE)
        await world.service.execute("CREATE TOPIC m AS STABLE meters WHERE line = 'a'", ALICE)
        await world.restart()
        with pytest.raises(BadRequest, match="m"):
            await world.service.execute("DROP TABLE meters", ALICE)
        (row,) = await world.table("SHOW TABLES")
        assert (row["table_name"], row["db_name"]) == ("meters", "plant/+/meter")
        described = await world.table("DESCRIBE meters")
        assert [(each["column"], each["type"], each["is_tag"]) for each in described] == [
            ("value", "DOUBLE", False),
            ("unit", "VARCHAR", False),
            ("line", "VARCHAR", True),
        ]
        await world.service.execute("DROP TOPIC m", ALICE)
        await world.service.execute("DROP TABLE meters", ALICE)
        assert await world.table("SHOW TABLES") == []
        with pytest.raises(NotFound):
            await world.service.execute("DROP TABLE meters", ALICE)
        await world.service.execute("DROP TABLE IF EXISTS meters", ALICE)

    in_world(work)


def test_statements_are_read_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop shares the interpreter with one reader, however many statements come."""
    under_way, most = 0, 0

    def parse(text: str) -> Statement:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        time.sleep(0.005)
        under_way -= 1
        return parse_statement(text)

    async def work(world: DataWorld) -> None:
        monkeypatch.setattr("penstock.subscribers.query.sql.statements.parse_statement", parse)
        await asyncio.gather(*(world.service.execute("SHOW TOPICS", ALICE) for _ in range(8)))
        assert most == 1

    in_world(work)


def test_bad_sql_has_its_place() -> None:
    async def work(world: DataWorld) -> None:
        with pytest.raises(SqlError) as caught:
            await world.service.execute("CREATE TOPIC hot AS\nSELECT count(*) FROM x", ALICE)
        assert caught.value.line == 2
        with pytest.raises(BadRequest):
            await world.service.execute("SHOW TOPICS" + " " * 70_000, ALICE)
        with pytest.raises(NotFound):
            await world.service.execute("DESCRIBE nothing", ALICE)

    in_world(work)


def test_a_topic_with_readers_is_dropped_by_force_only_and_alone() -> None:
    async def work(world: DataWorld) -> None:
        await world.make_topics("hot", "cold")
        world.source.write(5)
        first = await world.ready((await world.join("hot", "cold")).consumer)
        await world.commit(first, ("hot", 0, 1), ("cold", 0, 2))
        with pytest.raises(BadRequest, match="FORCE"):
            await world.service.execute("DROP TOPIC hot", ALICE)
        await world.service.execute("DROP TOPIC FORCE hot", ALICE)
        told = await world.ask(first.consumer, first.epoch)
        assert told is not None
        assert told.refused == {"hot": "topic hot was dropped"}
        assert (told.state, told.topics, numbers(told, "cold")) == ("ready", ["cold"], [0, 1, 2, 3])
        with pytest.raises(NotAllowed, match="was dropped"):
            await world.service.handle(ALICE, "fetch", wire.Fetch(first.consumer, "g", told.epoch, "hot", 0, 0))
        # The other topic was not disturbed, not even by a new epoch.
        await world.service.handle(ALICE, "fetch", wire.Fetch(first.consumer, "g", first.epoch, "cold", 0, 0))
        await world.commit(first, ("cold", 1, 3))
        await world.make_topics("hot")  # another one of the same name: nobody has read it yet
        assert await world.committed(("hot", 0), ("cold", 0), ("cold", 1)) == [None, 2, 3]
        await world.restart()
        assert await world.committed(("hot", 0), ("cold", 0)) == [None, 2]

    in_world(work)


def test_a_topic_is_free_when_its_readers_have_left() -> None:
    async def work(world: DataWorld) -> None:
        await world.make_topics("hot")
        first = await world.ready((await world.join("hot")).consumer)
        await world.service.handle(ALICE, "leave", wire.Leave(first.consumer, "g"))
        await world.service.execute("DROP TOPIC hot", ALICE)  # before the rebalance

    in_world(work)


def test_the_last_topic_of_a_consumer_is_dropped() -> None:
    async def work(world: DataWorld) -> None:
        await world.make_topics("hot")
        first = await world.ready((await world.join("hot")).consumer)
        await world.service.execute("DROP TOPIC FORCE hot", ALICE)
        await world.pass_time(2.0)
        told = await world.ask(first.consumer, first.epoch)
        assert told is not None
        assert (told.partitions, told.refused) == ([], {"hot": "topic hot was dropped"})
        await world.pass_time(13.0)
        assert not world.coordinator.groups  # every state has a deadline

    in_world(work)


def test_a_group_is_dropped() -> None:
    async def work(world: DataWorld) -> None:
        await world.make_topics("hot", "cold")
        world.source.write(5)
        with pytest.raises(NotFound):
            await world.service.execute("DROP CONSUMER GROUP g ON hot", ALICE)
        await world.service.execute("DROP CONSUMER GROUP IF EXISTS g ON hot", ALICE)
        first = await world.ready((await world.join("hot", "cold")).consumer)
        await world.commit(first, ("hot", 0, 3), ("cold", 0, 4))
        with pytest.raises(BadRequest, match="FORCE"):
            await world.service.execute("DROP CONSUMER GROUP g ON hot", ALICE)
        await world.service.execute("DROP CONSUMER GROUP FORCE g ON hot", ALICE)
        told = await world.ask(first.consumer, first.epoch)
        assert told is not None
        assert "group g was dropped" in told.refused["hot"]
        assert await world.committed(("hot", 0), ("cold", 0)) == [None, 4]
        again = await world.join("hot", consumer=first.consumer, auto_offset_reset="earliest")
        assert again.refused == {}
        assert {each.offset for each in (await world.ready(first.consumer)).partitions} == {0}

    in_world(work)


def test_a_group_that_is_stuck_is_dropped_all_the_same() -> None:
    async def work(world: DataWorld) -> None:
        await world.make_topics("hot")
        world.source.failure = "no log"
        joined = await world.join("hot")
        await world.service.execute("DROP CONSUMER GROUP FORCE g ON hot", ALICE)
        assert world.group().members_of("hot") == []
        assert world.group().member(joined.consumer).refused

    in_world(work)


def test_a_reloaded_topic_is_asked_for_again() -> None:
    async def work(world: DataWorld) -> None:
        await world.make_topics("hot")
        world.source.write(5)
        first = await world.ready((await world.join("hot")).consumer)
        await world.commit(first, ("hot", 0, 3))
        await world.service.execute('RELOAD TOPIC hot AS SELECT qos FROM "sensors/#"', ALICE)
        with pytest.raises(StaleEpoch):
            await world.service.handle(ALICE, "fetch", wire.Fetch(first.consumer, "g", first.epoch, "hot", 0, 3))
        again = await world.ask(first.consumer, first.epoch)
        assert again is not None
        assert (again.state, numbers(again), again.schema) == ("ready", [0, 1, 2, 3], {"hot": [("qos", 2)]})
        assert again.partitions[0].offset == 3
        await world.service.handle(ALICE, "fetch", wire.Fetch(first.consumer, "g", again.epoch, "hot", 0, 3))
        await world.restart()
        assert world.service.topic("hot").schema == [("qos", 2)]
        with pytest.raises(NotFound):
            await world.service.execute('RELOAD TOPIC cold AS SELECT qos FROM "x"', ALICE)
        await world.service.execute("CREATE TOPIC everything AS DATABASE 'a/#'", ALICE)
        with pytest.raises(BadRequest):
            await world.service.execute('RELOAD TOPIC everything AS SELECT qos FROM "x"', ALICE)

    in_world(work)


def test_positions_are_asked_for() -> None:
    async def work(world: DataWorld) -> None:
        await world.make_topics("hot")
        world.source.write(5)
        asked = wire.Positions("g", [("hot", 2), ("hot", 0)], [3, 9])
        assert await world.service.handle(ALICE, "watermarks", asked) == [(0, 5), (0, 5)]
        assert await world.service.handle(ALICE, "times", asked) == [3, 5]
        with pytest.raises(BadRequest):
            await world.service.handle(ALICE, "times", wire.Positions("g", [("hot", 0)]))
        with pytest.raises(NotFound):
            await world.service.handle(ALICE, "watermarks", wire.Positions("g", [("cold", 0)]))
        with pytest.raises(DataError):
            await world.service.handle(ALICE, "hello", wire.Hello())

    in_world(work)


def test_replay_is_for_queries() -> None:
    async def work(world: DataWorld) -> None:
        await world.service.execute("CREATE TOPIC everything AS DATABASE 'a/#'", ALICE)
        with pytest.raises(BadRequest, match="replayed"):
            await world.join("everything", replay=True)
        await world.make_topics("hot")
        world.source.write(5)
        first = await world.ready((await world.join("hot", replay=True)).consumer)
        assert {each.offset for each in first.partitions} == {5}
        await world.pass_time(14.0)
        assert world.store.tables.get("tbmq.datasub.offsets", {}) == {}

    in_world(work)
