"""A broker with query topics, spoken to in frames: create, join, fetch, be pushed to, and survive nonsense."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock_client import Consumer
from tests.support.brokers.broker import IS_MOSQUITTO, Broker
from tests.support.clients.data_client import DataClient, DataFailure, rows_of
from tests.support.clients.packets import V5
from tests.support.clients.raw_client import RawClient

pytestmark = pytest.mark.skipif(IS_MOSQUITTO, reason="mosquitto has no query topics")


@pytest.fixture
def data(broker: Broker) -> Iterator[Callable[..., DataClient]]:
    clients: list[DataClient] = []

    def connect(**options: Any) -> DataClient:
        clients.append(DataClient(broker.data_port, **options))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


@pytest.fixture
def name(new_name: Callable[[str], str]) -> str:
    return new_name("query_")


def publish(client: RawClient, topic: str, *payloads: str) -> None:
    for payload in payloads:
        client.publish(topic, payload.encode(), qos=1)


def test_a_topic_is_created_subscribed_to_and_fetched(
    data: Callable[..., DataClient], connect: Callable[..., RawClient], name: str
) -> None:
    client, publisher = data(), connect(V5)
    publish(publisher, f"{name}/1", '{"temp": 31.5}', '{"temp": 12}', '{"temp": 40}')
    query = f'SELECT topic, CAST(payload.temp AS DOUBLE) AS t FROM "{name}/+" WHERE payload.temp > 30'
    client.execute(f"CREATE TOPIC {name} AS {query}")
    client.join("g", [name])
    assert client.read_all(name) == [{"topic": f"{name}/1", "t": 31.5}, {"topic": f"{name}/1", "t": 40.0}]


def test_a_parked_fetch_is_pushed_to_and_holds_up_nothing(
    data: Callable[..., DataClient], connect: Callable[..., RawClient], name: str
) -> None:
    client, publisher = data(), connect(V5)
    client.execute(f'CREATE TOPIC {name} AS SELECT payload.n AS n FROM "{name}/+"')
    client.join("g", [name], "latest")
    parked = {
        client.send_fetch(name, partition, offset, max_wait_ms=60_000): partition
        for (_, partition), offset in client.starts.items()
    }
    assert client.execute("SHOW TOPICS")["columns"][0] == "topic_name"
    publish(publisher, f"{name}/1", '{"n": 1}')
    number, failure, fetched = client.receive()
    assert failure is None
    assert number in parked
    assert rows_of(fetched) == [{"n": 1}]


@pytest.mark.both_logs
@pytest.mark.parametrize(
    ("statement", "code", "words"),
    [
        ("DROP TOPIC FORCE {name}", "not-allowed", "was dropped"),
        ("DROP CONSUMER GROUP FORCE g ON {name}", "not-allowed", "group g was dropped"),
        ('RELOAD TOPIC {name} AS SELECT topic FROM "x"', "stale-epoch", ""),
        ("another", "stale-epoch", ""),
    ],
    ids=["topic", "group", "reload", "rebalance"],
)
def test_a_parked_fetch_hears_at_once_that_it_waits_in_vain(
    data: Callable[..., DataClient], name: str, statement: str, code: str, words: str
) -> None:
    """It would be parked for longer than this test waits."""
    client = data()
    client.execute(f'CREATE TOPIC {name} AS SELECT payload.n AS n FROM "{name}/+"')
    client.join("g", [name])
    parked = {client.send_fetch(name, number, at, max_wait_ms=60_000) for (_, number), at in client.starts.items()}
    client.execute("SHOW TOPICS")  # answered behind them: they are parked
    if statement == "another":
        data().join("g", [name])
    else:
        data().execute(statement.format(name=name))
    number, failure, result = client.receive()
    while failure is None:  # of a partition that it keeps: nothing, to be asked for again
        assert "blocks" not in result
        number, failure, result = client.receive()
    assert number in parked
    assert failure["code"] == code
    assert words in failure["message"]


def test_what_is_committed_is_where_the_next_one_goes_on(
    data: Callable[..., DataClient], connect: Callable[..., RawClient], name: str
) -> None:
    first, publisher = data(), connect(V5)
    publish(publisher, f"{name}/1", *(f'{{"n": {number}}}' for number in range(5)))
    first.execute(f'CREATE TOPIC {name} AS SELECT payload.n AS n FROM "{name}/+"')
    first.join("g", [name])
    partition, fetched = next(first.read_parts(name))
    rows, offset = fetched["rows"], fetched["next_offset"]
    while len(rows) < 5:  # a fetch ends at the end of what is there when it is asked
        fetched = first.fetch(name, partition, offset)
        rows, offset = rows + fetched["rows"], fetched["next_offset"]
    assert [row["n"] for row in rows] == [0, 1, 2, 3, 4]
    first.commit((name, partition, offset - 2))
    first.ask("leave", {"consumer": first.state["consumer"], "group": "g"})
    with pytest.raises(DataFailure) as caught:
        first.fetch(name, partition, offset)
    assert caught.value.code in ("not-a-member", "stale-epoch")
    second = data()
    second.join("g", [name])
    assert second.starts[name, partition] == offset - 2
    assert second.fetch(name, partition, offset - 2, min_rows=2, max_wait_ms=10_000)["rows"] == [{"n": 3}, {"n": 4}]


def test_an_offset_that_is_not_there_is_an_error_with_the_range(data: Callable[..., DataClient], name: str) -> None:
    client = data()
    client.execute(f'CREATE TOPIC {name} AS SELECT payload FROM "{name}"')
    client.join("g", [name])
    _, end = client.watermarks(name, 0)
    with pytest.raises(DataFailure) as caught:
        client.fetch(name, 0, end + 1_000)
    assert caught.value.code == "out-of-range"
    assert (caught.value.failure["begin"], caught.value.failure["end"]) == (0, end)


def test_bad_sql_has_a_position(data: Callable[..., DataClient]) -> None:
    client = data()
    with pytest.raises(DataFailure) as caught:
        client.execute("CREATE TOPIC x AS\nSELECT nonsense( FROM y")
    assert caught.value.code == "sql"
    assert caught.value.failure["line"] == 2


def test_garbage_costs_its_sender_the_connection_and_nobody_else(data: Callable[..., DataClient]) -> None:
    other = data()
    chance = random.Random(5)
    for number in range(20):
        client = data(hello=number % 2 == 0)
        noise = os.urandom(chance.randrange(4, 200))
        # A length that never comes is no garbage yet: the frame must be whole.
        client.socket.sendall(len(noise).to_bytes(4, "big") + noise if number % 4 else b"\xff" * 8 + noise)
        zero, failure, _ = client.receive()
        assert (zero, failure["code"]) == (0, "bad-request")
        assert client.is_closed()
    assert other.execute("SHOW TOPICS")["columns"]


def test_rows_with_errors_are_counted(
    data: Callable[..., DataClient], connect: Callable[..., RawClient], name: str
) -> None:
    client, publisher = data(), connect(V5)
    publish(publisher, f"{name}/1", '{"n": 1}', '{"n": "x"}', '{"n": 3}')
    query = f'SELECT CAST(payload.n AS BIGINT) AS n FROM "{name}/+"'
    client.execute(f"CREATE TOPIC {name} WITH (on_error = 'skip') AS {query}")
    client.join("g", [name])
    assert client.read_all(name) == [{"n": 1}, {"n": 3}]
    table = client.execute("SHOW TOPICS")
    row = next(dict(zip(table["columns"], row, strict=True)) for row in table["rows"] if row[0] == name)
    assert row["errors"] == 1


def test_tables_of_a_namespace_are_announced(
    data: Callable[..., DataClient], connect: Callable[..., RawClient], name: str
) -> None:
    client, publisher = data(), connect(V5)
    client.execute(f"CREATE TOPIC {name}_with WITH META AS DATABASE '{name}/#'")
    client.execute(f"CREATE TOPIC {name}_only ONLY META AS DATABASE '{name}/#'")
    client.execute(f"CREATE TABLE {name} FROM '{name}/+/data' (n BIGINT FROM payload.n)")
    client.execute(f"CREATE TABLE other_{name} FROM 'other/+' (n BIGINT FROM payload.n)")
    publish(publisher, f"{name}/1/data", '{"n": 1}')
    publisher.publish(f"$datasub/meta/{name}/1", b'{"type": "create-table", "table": "of a client"}', qos=1)
    client.execute(f"DROP TABLE {name}")
    publish(publisher, "elsewhere", "{}")  # what the broker said before is durable when this is
    client.join("g", [f"{name}_with", f"{name}_only"])
    changes = client.read_all(f"{name}_only")
    partitions = len({partition for _, partition in client.starts})
    assert [(row["meta"]["type"], row["meta"]["table"]) for row in changes] == [
        ("create-table", name),
        ("drop-table", name),
    ] * partitions, "each change is in every partition"
    both = client.read_all(f"{name}_with")
    assert [row for row in both if "meta" in row] == changes
    assert [row["topic"] for row in both if "meta" not in row] == [f"{name}/1/data"]


def test_a_consumer_tells_changes_of_tables_from_rows(
    broker: Broker, data: Callable[..., DataClient], name: str
) -> None:
    data().execute(f"CREATE TOPIC {name} ONLY META AS DATABASE '{name}/#'")
    settings = {"group.id": name, "bootstrap.servers": f"127.0.0.1:{broker.data_port}", "auto.offset.reset": "earliest"}
    with contextlib.closing(Consumer(settings)) as consumer:
        consumer.subscribe([name])
        data().execute(f"CREATE TABLE {name} FROM '{name}/+/data' (n BIGINT FROM payload.n)")
        deadline = time.monotonic() + 30
        while (message := consumer.poll(1.0)) is None:
            assert time.monotonic() < deadline
        assert message.error() is None
        assert message.value() is None
        assert [(change["type"], change["table"]) for change in message.meta()] == [("create-table", name)]
