"""Rows: what becomes of those with an error, other forms of them, replay, and memory."""

from __future__ import annotations

import asyncio
import time
import tracemalloc

import pyarrow
import pytest

from penstock_client import AsyncConsumer, Consumer
from tests.support.worlds.application import until
from tests.support.worlds.datasub import DataWorld, next_message, read, read_rows, until_assigned

BAD = 'SELECT CAST(payload.n AS BIGINT) AS n, payload.k AS k FROM "{space}/#"'


def publish_bad(world: DataWorld) -> None:
    world.publish({"n": "1", "k": 1}, {"n": "two", "k": 2}, {"n": "3", "k": 3})


def test_row_errors_are_skipped(world: DataWorld) -> None:
    world.execute(f"CREATE TOPIC {{topic}} WITH (on_error = 'skip') AS {BAD}")
    publish_bad(world)
    assert read_rows(world.consumer(), 2) == [{"n": 1, "k": 1}, {"n": 3, "k": 3}]


def test_row_errors_are_null(world: DataWorld) -> None:
    world.execute(f"CREATE TOPIC {{topic}} WITH (on_error = 'null') AS {BAD}")
    publish_bad(world)
    assert read_rows(world.consumer(), 3) == [{"n": 1, "k": 1}, {"n": None, "k": 2}, {"n": 3, "k": 3}]


def test_row_errors_become_dead_letters(world: DataWorld) -> None:
    world.execute(f"CREATE TOPIC {{topic}} WITH (on_error = 'dead-letter') AS {BAD}")
    before = world.broker.counter("datasub_dead_letters")
    publish_bad(world)
    assert read_rows(world.consumer(), 2) == [{"n": 1, "k": 1}, {"n": 3, "k": 3}]
    until(lambda: world.broker.counter("datasub_dead_letters") > before)  # the rows do not wait for their append
    found = world.broker.command("log", "read", "tbmq.datasub.errors", "--from", "begin", "--json")
    assert world.topic in found, found


def test_elements_of_an_array_are_rows(world: DataWorld) -> None:
    """All rows of a message have its offset, and are committed with it."""
    world.create_topic('SELECT r.n::BIGINT AS n, "offset" AS o FROM "{space}/#", UNNEST(payload) AS r WHERE r.n <> 2')
    world.publish([{"n": 1}, {"n": 2}, {"n": 3}], [], {"n": 4}, [{"n": 5}])
    consumer = world.consumer(min_poll_rows=1)
    assert [row["n"] for row in read_rows(consumer, 3)] == [1, 3, 5]
    consumer.commit()
    consumer.close()
    world.publish([{"n": 6}, {"n": 7}])
    rows = read_rows(world.consumer(min_poll_rows=1), 2)
    assert [row["n"] for row in rows] == [6, 7]
    assert rows[0]["o"] == rows[1]["o"]


def test_forms(world: DataWorld) -> None:
    """The same rows as blocks, Python values, Arrow and pandas."""
    world.create_topic(
        "SELECT ts, payload.n::BIGINT AS n, payload.x::DOUBLE AS x, payload.s::VARCHAR AS s, payload.b::BOOLEAN AS b, "
        'payload.j AS j, payload, user_properties AS p FROM "{space}/#"'
    )
    world.publish({"n": 1, "x": 0.5, "s": "ä", "b": True, "j": [1]}, {"n": None, "s": ""}, {"n": 3, "b": False})
    consumer = world.consumer()
    until_assigned([consumer], [4])
    messages = []
    while sum(map(len, messages)) < 3:
        messages.append(next_message(consumer))
    values = [row for message in messages for row in message.to_pylist()]
    assert [row["n"] for row in values] == [1, None, 3]
    assert [row["j"] for row in values] == [[1], None, None]
    assert [row["b"] for row in values] == [True, None, False]
    assert [row["s"] for row in values] == ["ä", "", None]
    assert abs(values[0]["ts"] - time.time_ns()) < 600e9
    message = messages[0]
    (block, *_) = message.value() or []
    assert [field.name for field in block.fields()] == ["ts", "n", "x", "s", "b", "j", "payload", "p"]
    assert [field.type for field in block.fields()][1:5] == ["BIGINT", "DOUBLE", "VARCHAR", "BOOLEAN"]
    assert (block.ncols(), block.table()) == (8, world.topic)
    assert block.fetchall()[0][:2] == (values[0]["ts"], 1)
    assert message.database() == f"{world.space}/#"
    assert message.timestamp()[1] == message.timestamp_ns() // 1_000_000
    table = pyarrow.concat_tables([each.to_arrow() for each in messages])
    assert table.column("n").to_pylist() == [1, None, 3]
    assert table.column("x").to_pylist() == [0.5, None, None]
    assert table.column("s").to_pylist() == ["ä", "", None]
    assert table.column("b").to_pylist() == [True, None, False]
    assert table.column("ts").cast(pyarrow.int64()).to_pylist() == [row["ts"] for row in values]
    assert table.column("payload").to_pylist() == [row["payload"] for row in values]
    frame = messages[0].to_pandas()
    assert list(frame["s"])[:1] == ["ä"]


def test_push(world: DataWorld) -> None:
    """[seed] Once new data is written it is pushed at once: a parked fetch does not wait for its deadline."""
    world.create_topic()
    consumer = world.consumer(fetch_max_wait_ms=30_000)
    until_assigned([consumer], [4])
    times = []
    for number in range(5):
        assert consumer.poll(0.1) is None  # the fetch is parked
        start = time.monotonic()
        world.publish({"n": number})
        assert read(consumer, 1) == [number]
        times.append(time.monotonic() - start)
    assert min(times) < 5, f"far below the deadline: {times}"


def test_replay(world: DataWorld) -> None:
    """[reference] At the speed the messages came, progress is never stored."""
    world.create_topic()
    for number, gap in enumerate([0.0, 0.8, 0.4]):
        time.sleep(gap)
        world.publish({"n": number})
    started = time.monotonic()
    consumer = world.consumer(enable_replay=True, enable_auto_commit=True)
    assert [read(consumer, 1) for _ in range(3)] == [[0], [1], [2]]
    # A busy machine makes it longer, never shorter.
    assert time.monotonic() - started > 1.15
    with pytest.raises(Exception, match="replay"):
        consumer.commit()


def test_asynchronous_consumer(world: DataWorld) -> None:
    world.create_topic()
    world.spread(range(8))
    seen: list[str] = []

    async def note(consumer: AsyncConsumer, partitions: list[object]) -> None:
        await asyncio.sleep(0)
        seen.append(f"assigned {len(partitions)}")

    async def consume() -> list[int]:
        found: list[int] = []
        async with AsyncConsumer(world.config(enable_auto_commit=True)) as consumer:
            await consumer.subscribe([world.topic], on_assign=note)
            async with asyncio.timeout(30):
                async for message in consumer:
                    found += [row["n"] for row in message]
                    if len(found) >= 8:
                        break
                while sum((await consumer.lag()).values()):
                    assert await consumer.poll(0.05) is None
            assert world.topic in await consumer.list_topics()
        return found

    assert sorted(asyncio.run(consume())) == list(range(8))
    assert seen == ["assigned 4"]
    world.spread([9])
    assert read(world.consumer(), 1) == [9], "closing has committed"


def test_several_messages_at_once(world: DataWorld) -> None:
    world.create_topic()
    world.spread(range(24))
    consumer = world.consumer()
    until_assigned([consumer], [4])
    found: list[int] = []
    while len(found) < 24:
        messages = consumer.consume(10, 30)
        assert messages
        found += [row["n"] for message in messages for row in message]
    assert sorted(found) == list(range(24))
    assert consumer.consume(10, 0.05) == []


def test_polling_does_not_leak(world: DataWorld) -> None:
    """[reference] A memory leak in poll was a complaint: neither the client nor the broker grows."""
    world.create_topic()
    world.publish(*({"n": number, "filling": "x" * 2_000} for number in range(50)))
    consumer = world.consumer()
    until_assigned([consumer], [4])
    _go_round(consumer, 60)
    broker_before = world.broker.resident_bytes()
    tracemalloc.start()
    try:
        _go_round(consumer, 20)
        before, _ = tracemalloc.get_traced_memory()
        _go_round(consumer, 150)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # 150 rounds are 7,500 rows; a leak of any of them would be far over this.
    assert after - before < 200_000, f"{after - before} bytes more in the client"
    grown = world.broker.resident_bytes() - broker_before
    assert grown < 20_000_000, f"{grown} bytes more in the broker"


def _go_round(consumer: Consumer, times: int) -> None:
    for _ in range(times):
        consumer.seek_to_beginning()
        read(consumer, 50)
