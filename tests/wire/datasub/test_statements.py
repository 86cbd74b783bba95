"""SQL statements: topics, tables, views; mistakes are shown where they are."""

from __future__ import annotations

import pytest

from penstock_client import DataError
from penstock_client.errors import SqlError
from tests.support.worlds.datasub import (
    SOURCES,
    DataWorld,
    next_message,
    read,
    read_error,
    read_rows,
    until_assigned,
    wait_for,
)

TOPICS = ["topic_name", "db_name", "create_time", "sql", "schema"]
SUBSCRIPTIONS = ["topic_name", "consumer_group", "vgroup_id", "consumer_id", "user", "fqdn", "offset", "rows", "lag"]
CONSUMERS = [
    *("consumer_id", "consumer_group", "client_id", "user", "fqdn", "status", "topics", "end_point", "up_time"),
    *("subscribe_time", "rebalance_time", "parameters", "poll_time"),
]


@pytest.mark.parametrize(
    ("select", "at", "reason"),
    [
        ('SELECT payload.n FORM "{space}/#"', '"', "not SQL"),
        ('SELECT nothing FROM "{space}/#"', "nothing", "there is no column 'nothing'"),
        ('SELECT payload.n,\n  lowre(topic)\nFROM "{space}/#"', "lowre", "is lower() meant?"),
        ('SELECT payload.n FROM "{space}/#"\nWHERE payload.n >', ">", "not complete"),
        ('SELECT topic FROM "{space}/#/x"', '"', "# stands alone in the last level"),
        ('SELECT topic FROM "{space}/#" WHERE topic * 2 > 3', "topic * 2", "VARCHAR is no number"),
    ],
)
def test_bad_sql_shows_the_position_and_the_reason(world: DataWorld, select: str, at: str, reason: str) -> None:
    """[issue] Bad SQL gets the position and the reason; the position is where `at` stands first."""
    statement = f"CREATE TOPIC {world.topic} AS {select}".replace("{space}", world.space)
    before = statement[: statement.index(at)]
    with pytest.raises(SqlError) as refused:
        world.execute(statement)
    assert (refused.value.line, refused.value.column) == (before.count("\n") + 1, len(before.split("\n")[-1]) + 1)
    assert reason in str(refused.value)
    assert not world.show("TOPICS")


@pytest.mark.parametrize(
    "select",
    [
        'SELECT count(*) FROM "{space}/#"',
        'SELECT avg(payload.n) FROM "{space}/#" GROUP BY topic',
        'SELECT payload.n, sum(payload.n) OVER (ORDER BY ts) FROM "{space}/#"',
        'SELECT DISTINCT topic FROM "{space}/#"',
        'SELECT topic FROM "{space}/#" ORDER BY ts',
        'SELECT topic FROM "{space}/#" LIMIT 3',
    ],
)
def test_what_needs_state_is_refused(world: DataWorld, select: str) -> None:
    """[issue] Refused with a message that points to the Spark job that materialises such a topic."""
    with pytest.raises(SqlError) as refused:
        world.execute(f"CREATE TOPIC {{topic}} AS {select}")
    assert "penstock spark run topic" in str(refused.value)


def test_projection_filter_and_functions(world: DataWorld) -> None:
    """[reference] Filtering and transformation happen at the server."""
    world.create_topic(
        """SELECT upper(payload.name) AS name, payload.n * 2 AS twice, split_part(topic, '/', 2) AS part,
             CASE WHEN payload.n > 2 THEN 'high' ELSE 'low' END AS level, CAST(payload.n AS VARCHAR) || '!' AS text,
             payload.missing AS missing, payload.deep.list[1] AS second
           FROM "{space}/+" WHERE payload.name LIKE 'a%' AND payload.n IS NOT NULL"""
    )
    world.publish(
        {"name": "anna", "n": 1, "deep": {"list": [1, 2]}},
        {"name": "bert", "n": 2},
        {"name": "anton", "n": 3},
        {"name": "alma"},
        topic="x",
    )
    rows = read_rows(world.consumer(), 2)
    common = {"part": "x", "missing": None}
    assert rows == [
        {"name": "ANNA", "twice": 2, "level": "low", "text": "1!", "second": 2, **common},
        {"name": "ANTON", "twice": 6, "level": "high", "text": "3!", "second": None, **common},
    ]


def test_tables_and_table_topics(world: DataWorld) -> None:
    """A declared table plays the supertable: typed columns, tags are topic levels and user properties."""
    world.execute(
        """CREATE TABLE {topic}_table FROM '{space}/+/state' (
             watt DOUBLE, on_grid BOOLEAN FROM payload.grid.connected, at TIMESTAMP,
             site VARCHAR FROM TOPIC LEVEL 2 TAG, owner VARCHAR FROM USER PROPERTY owner TAG)"""
    )
    world.execute("CREATE TOPIC {topic} AS STABLE {topic}_table WHERE site = 'north'")
    world.execute("CREATE TOPIC {topic}_q AS SELECT site, watt FROM {topic}_table WHERE watt > 5")
    state = {"watt": 7, "grid": {"connected": True}, "at": "2026-01-02T03:04:05.000000006Z"}
    world.publish(state, topic="north/state", properties={"user_property": [("owner", "ann")]})
    world.publish({**state, "watt": 8}, topic="south/state")
    row = read_rows(world.consumer(), 1)[0]
    assert (row["watt"], row["on_grid"], row["site"], row["owner"]) == (7.0, True, "north", "ann")
    assert row["at"] == 1767323045000000006, "nanoseconds end to end"
    assert row["topic"] == f"{world.space}/north/state"
    got = read_rows(world.consumer(f"{world.topic}_q", group_id=f"{world.group}-q"), 2)
    assert sorted((row["site"], row["watt"]) for row in got) == [("north", 7.0), ("south", 8.0)]
    with pytest.raises(DataError):
        world.execute("DROP TABLE {topic}_table")
    described = world.execute("DESCRIBE {topic}_table").to_pylist()
    assert [(each["column"], each["is_tag"]) for each in described][-1] == ("owner", True)


def test_a_table_is_proposed(world: DataWorld) -> None:
    """[issue] Inferred schema as help: what INFER TABLE says can be declared and read."""
    world.publish(
        {"watt": 7.5, "on": True, "deep": {"text": "x"}},
        topic="north/state",
        properties={"user_property": [("owner", "ann")]},
    )
    (proposed,) = world.execute("INFER TABLE {topic}_table FROM '{space}/+/state'").to_pylist()
    world.execute(proposed["sql"])
    columns = {row["column"]: row["type"] for row in world.execute("DESCRIBE {topic}_table").to_pylist()}
    assert columns["watt"] == "DOUBLE"
    assert columns["on"] == "BOOLEAN"
    world.execute("CREATE TOPIC {topic} AS SELECT watt FROM {topic}_table")
    assert read(world.consumer(), 1, column="watt") == [7.5]


def test_many_topics(world: DataWorld) -> None:
    """[issue] No limit of 20; a consumer of hundreds of topics; those with the same query are evaluated once."""
    names = [f"{world.topic}_{number}" for number in range(200)]
    for number, name in enumerate(names):
        world.execute(f'CREATE TOPIC {name} AS SELECT payload.n AS n FROM "{{space}}/#" WHERE payload.n < {number % 2}')
    before = world.broker.counter("datasub_queries")
    consumer = world.consumer(*names)
    until_assigned([consumer], [4 * len(names)])
    world.publish({"n": 0})
    seen: set[str] = set()
    while len(seen) < 100:
        seen.add(next_message(consumer).topic())
    assert seen == {name for number, name in enumerate(names) if number % 2}
    assert consumer.poll(0.1) is None
    assert world.broker.counter("datasub_queries") <= before + 2


def test_database_topics(world: DataWorld) -> None:
    """Everything of a namespace, with the source of each row."""
    world.execute("CREATE TOPIC {topic} AS DATABASE '{space}/#'")
    world.publish(b"\x00raw", topic="a/b", properties={"user_property": [("k", "v"), ("k", "w")]})
    row = read_rows(world.consumer(), 1)[0]
    assert row["topic"] == f"{world.space}/a/b"
    assert row["payload"] == b"\x00raw"
    assert row["client_id"].startswith("one-")
    assert [tuple(pair) for pair in row["user_properties"]] == [("k", "v"), ("k", "w")]
    assert (row["qos"], row["retain"]) == (1, False)


@pytest.mark.parametrize("mode", ["WITH META", "ONLY META"])
def test_changes_of_tables(world: DataWorld, mode: str) -> None:
    """[reference] WITH META: create and drop events come as records; ONLY META: nothing but them. Each is in every
    partition."""
    world.execute(f"CREATE TOPIC {{topic}} {mode} AS DATABASE '{{space}}/#'")
    consumer = world.consumer()
    world.publish({"n": 1})
    world.execute("CREATE TABLE {topic}_table FROM '{space}/+' (n BIGINT)")
    world.execute("DROP TABLE {topic}_table")
    changes: dict[int | None, list[dict[str, object]]] = {}
    rows = 0
    while sum(map(len, changes.values())) < 8 or (mode == "WITH META" and not rows):
        message = next_message(consumer)
        changes.setdefault(message.partition(), []).extend(message.meta())
        rows += len(message)
        assert (message.value() is None) == (len(message) == 0)
    assert [[change["type"] for change in found] for found in changes.values()] == [["create-table", "drop-table"]] * 4
    assert {change["table"] for found in changes.values() for change in found} == {f"{world.topic}_table"}
    assert len({change["id"] for found in changes.values() for change in found}) == 2
    assert rows == (1 if mode == "WITH META" else 0)


@pytest.mark.both_logs
@pytest.mark.parametrize("kind", ["STABLE {topic}_table", "DATABASE '{space}/#'"])
def test_a_table_is_declared_in_each_partition_before_its_rows(world: DataWorld, kind: str) -> None:
    world.execute("CREATE TABLE {topic}_table FROM '{space}/data/+' (n BIGINT)")
    world.execute(f"CREATE TOPIC {{topic}} WITH META AS {kind}")
    wanted = world.spread(range(SOURCES))
    consumer = world.consumer()
    declared: set[int | None] = set()
    rows = 0
    while rows < len(wanted):
        message = next_message(consumer)
        declared |= {message.partition() for change in message.meta() if change["type"] == "create-table"}
        rows += len(message)
        if len(message):
            assert message.partition() in declared, "rows came before the declaration of their table"
    assert declared == {0, 1, 2, 3}
    world.execute("DROP TOPIC FORCE {topic}")
    world.execute("DROP TABLE {topic}_table")


def test_topics_are_shown(world: DataWorld) -> None:
    world.create_topic()
    assert world.execute("SHOW TOPICS").columns[: len(TOPICS)] == TOPICS, "ours adds errors"
    (shown,) = world.show("TOPICS")
    assert shown["topic_name"] == world.topic
    assert shown["db_name"] == f"{world.space}/#"
    assert "SELECT payload.n" in shown["sql"]
    assert '"n"' in shown["schema"]
    with pytest.raises(DataError) as there:
        world.create_topic()
    assert there.value.code == "already-exists"
    world.execute('CREATE TOPIC IF NOT EXISTS {topic} AS SELECT topic FROM "x"')


def test_consumers_and_subscriptions_are_shown(world: DataWorld) -> None:
    world.create_topic()
    consumer = world.consumer(client_id="report", heartbeat_interval_ms=1_000, fetch_max_wait_ms=100)
    until_assigned([consumer], [4])
    assert world.execute("SHOW CONSUMERS").columns == CONSUMERS
    (shown,) = world.show("CONSUMERS")
    assert (shown["client_id"], shown["status"], shown["topics"]) == ("report", "ready", world.topic)
    assert "auto.offset.reset:earliest" in shown["parameters"]
    assert world.execute("SHOW SUBSCRIPTIONS").columns == SUBSCRIPTIONS
    wanted = world.spread(range(8))
    read(consumer, 8)
    consumer.poll(0.01)

    def is_read() -> bool:
        rows = world.show("SUBSCRIPTIONS")
        return sum(row["rows"] or 0 for row in rows) == len(wanted) and all(row["lag"] == 0 for row in rows)

    wait_for(lambda: consumer.poll(0.05) or is_read(), what=lambda: f"{world.show('SUBSCRIPTIONS')}")
    rows = world.show("SUBSCRIPTIONS")
    assert [row["vgroup_id"] for row in rows] == [0, 1, 2, 3]
    assert {row["consumer_id"] for row in rows} == {shown["consumer_id"]}
    consumer.close()
    wait_for(lambda: not world.show("CONSUMERS"), what="no consumer")


def test_reload(world: DataWorld) -> None:
    """[reference] RELOAD TOPIC: another query under the same name; progress stays, consumers go on with it."""
    world.create_topic()
    consumer = world.consumer()
    world.publish({"n": 1})
    assert read(consumer, 1) == [1]
    world.execute('RELOAD TOPIC {topic} AS SELECT payload.n * 10 AS n, topic FROM "{space}/#"')
    world.publish({"n": 2})
    (row,) = read_rows(consumer, 1)
    assert row == {"n": 20, "topic": f"{world.space}/data"}
    with pytest.raises(DataError):
        world.execute('RELOAD TOPIC nothing AS SELECT topic FROM "x"')
    world.execute('RELOAD TOPIC IF EXISTS nothing AS SELECT topic FROM "x"')


def test_drop(world: DataWorld) -> None:
    """[reference] Refused while consumers read it, unless FORCE; it affects that topic only, and they are told."""
    world.create_topic()
    other = f"{world.topic}_other"
    world.execute(f'CREATE TOPIC {other} AS SELECT payload.n AS n FROM "{{space}}/#"')
    consumer = world.consumer(world.topic, other)
    until_assigned([consumer], [8])
    with pytest.raises(DataError) as refused:
        world.execute("DROP TOPIC {topic}")
    assert "FORCE" in str(refused.value)
    world.execute("DROP TOPIC FORCE {topic}")
    error = read_error(consumer)
    assert error.code == "refused"
    assert world.topic in str(error)
    world.publish({"n": 5})
    assert read(consumer, 1) == [5], "the other topic goes on"
    assert [each["topic_name"] for each in world.show("TOPICS")] == [other]
    world.execute("DROP TOPIC IF EXISTS {topic}")
    with pytest.raises(DataError) as missing:
        world.execute("DROP TOPIC {topic}")
    assert missing.value.code == "not-found"
    with pytest.raises(DataError) as unknown:
        world.consumer(world.topic, group_id=f"{world.group}-late")
    assert unknown.value.code == "not-found"


@pytest.mark.parametrize("name", ['"a/+/b"', '"a/#"', '"$SYS"', '""'])
def test_names_that_mqtt_gives_a_meaning(world: DataWorld, name: str) -> None:
    """[reference] CREATE TOPIC refuses names with an MQTT wildcard or `$`."""
    with pytest.raises(DataError):
        world.execute(f'CREATE TOPIC {name} AS SELECT topic FROM "x"')
