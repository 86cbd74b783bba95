"""Where a group goes on: commits by hand and by themselves, seeking, and what a killed broker still knows."""

from __future__ import annotations

import asyncio
import time

import pytest

from penstock_client import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    AsyncConsumer,
    DataError,
    TopicPartition,
)
from tests.support.worlds.datasub import DataWorld, next_message, read, read_error, read_rows, until_assigned, wait_for


@pytest.mark.both_logs
def test_commit_at_three_goes_on_with_the_fourth(world: DataWorld) -> None:
    """[seed] "submitting the progress when consuming the 3rd data … it will start from the 4th data"."""
    world.create_topic()
    world.publish(*({"n": number} for number in range(1, 7)))
    first = world.consumer()
    rows = read_rows(first, 6)
    assert [row["n"] for row in rows] == [1, 2, 3, 4, 5, 6]
    third = rows[2]
    first.commit(offsets=[TopicPartition(world.topic, third["partition"], third["offset"] + 1)])
    first.close()
    second = world.consumer()
    assert read(second, 3) == [4, 5, 6]


@pytest.mark.both_logs
def test_a_group_goes_on_after_close(world: DataWorld) -> None:
    """Automatic commits: closing stores what was returned; with none of them, the setting decides."""
    world.create_topic()
    world.spread(range(8))
    with world.consumer(enable_auto_commit=True) as first:
        assert sorted(read(first, 8)) == list(range(8))
    world.spread(range(8, 12))
    with world.consumer(enable_auto_commit=True, auto_offset_reset="latest") as second:
        assert sorted(read(second, 4)) == [8, 9, 10, 11], "the stored offset wins over auto.offset.reset"


def test_latest_begins_at_the_end(world: DataWorld) -> None:
    """[seed] auto.offset.reset: latest (the default) means what is written from now on."""
    world.create_topic()
    world.spread(range(4))
    consumer = world.consumer(auto_offset_reset="latest")
    until_assigned([consumer], [4])
    assert consumer.poll(0.2) is None
    world.spread([7])
    assert read(consumer, 1) == [7]


def test_none_is_an_error(world: DataWorld) -> None:
    world.create_topic()
    world.publish({"n": 1})
    consumer = world.consumer(auto_offset_reset="none")
    assert read_error(consumer).code == "out-of-range"
    wait_for(lambda: len(consumer.assignment()) == 4)
    consumer.seek_to_beginning()
    wait_for(lambda: (message := consumer.poll(0.1)) is not None and message.error() is None)


def test_a_message_is_committed_by_its_offset_plus_one(world: DataWorld) -> None:
    world.create_topic()
    world.publish(*({"n": number} for number in range(5)))
    consumer = world.consumer(min_poll_rows=2)
    message = next_message(consumer)
    place = TopicPartition(message.topic(), message.partition())
    assert message.to_pylist()[-1]["offset"] == message.offset()
    assert consumer.commit(message) == [place]
    assert consumer.committed([place])[0].offset == message.offset() + 1
    assert consumer.position([place])[0].offset == message.next_offset()


@pytest.mark.parametrize("keys", [{"enable_auto_commit": False}, {"enable_replay": True}], ids=["off", "replay"])
def test_nothing_is_committed_when_that_is_off(world: DataWorld, keys: dict[str, bool]) -> None:
    """[reference] enable.auto.commit=false is respected: not by time, not by poll, not by close."""
    world.create_topic()
    world.publish(*({"n": number} for number in range(3)))
    with world.consumer(auto_commit_interval_ms=0, **keys) as consumer:
        read(consumer, 3)
        consumer.poll(0.1)
        places = consumer.assignment()
    with world.consumer() as looker:
        assert {each.offset for each in looker.committed(places)} == {OFFSET_INVALID}
        assert read(looker, 3) == [0, 1, 2]


def test_nothing_is_committed_by_the_asynchronous_one(world: DataWorld) -> None:
    world.create_topic()
    world.publish({"n": 1})

    async def consume() -> list[TopicPartition]:
        async with AsyncConsumer(world.config(auto_commit_interval_ms=0)) as consumer:
            await consumer.subscribe([world.topic])
            assert await consumer.poll(30) is not None
            await consumer.poll(0.1)
            return await consumer.committed()

    assert {each.offset for each in asyncio.run(consume())} == {OFFSET_INVALID}
    assert read(world.consumer(), 1) == [1]


def test_automatic_commits_never_run_ahead(world: DataWorld) -> None:
    """[reference] "commit never runs ahead of what the application got": what poll returned last is not done yet."""
    world.create_topic()
    world.publish(*({"n": number} for number in range(4)))
    consumer = world.consumer(enable_auto_commit=True, auto_commit_interval_ms=0, min_poll_rows=1, fetch_max_bytes=1024)
    rows = next_message(consumer).to_pylist()
    place = TopicPartition(world.topic, rows[0]["partition"])
    deadline = time.monotonic() + 1.5  # the timer of the consumer looks once a second
    while time.monotonic() < deadline:
        stored = consumer.committed([place])[0].offset
        assert stored <= rows[0]["offset"], "not before the next poll"
        time.sleep(0.05)
    consumer.poll(0.5)
    done = rows[-1]["offset"] + 1
    wait_for(lambda: consumer.committed([place])[0].offset >= done, what="the commit of what is done")


def test_an_exception_leaves_the_last_message_uncommitted(world: DataWorld) -> None:
    world.create_topic()
    world.publish({"n": 1})
    consumer = world.consumer(enable_auto_commit=True)
    with pytest.raises(ZeroDivisionError), consumer:
        _fail_after(read(consumer, 1))
    assert read(world.consumer(), 1) == [1]


def _fail_after(_: object) -> None:
    raise ZeroDivisionError


def test_store_offsets(world: DataWorld) -> None:
    """What the application has finished is committed, whatever it was given."""
    world.create_topic()
    world.publish(*({"n": number} for number in range(5)))
    with world.consumer(enable_auto_commit=True) as consumer:
        rows = read_rows(consumer, 5)
        consumer.store_offsets(offsets=[TopicPartition(world.topic, rows[1]["partition"], rows[1]["offset"] + 1)])
    assert read(world.consumer(), 3) == [2, 3, 4]


def test_places(world: DataWorld) -> None:
    """assignment, position, watermarks, seek, lag, offsets for times, pause and resume."""
    world.create_topic()
    world.publish(*({"n": number} for number in range(3)))
    time.sleep(0.01)  # the times of the log are milliseconds
    middle = time.time_ns() // 1_000_000
    time.sleep(0.01)
    world.publish(*({"n": number} for number in range(3, 6)))
    consumer = world.consumer()
    rows = read_rows(consumer, 6)
    place = TopicPartition(world.topic, rows[0]["partition"])
    first, last = rows[0]["offset"], rows[-1]["offset"]
    begin, end = consumer.get_watermark_offsets(place)
    assert begin <= first
    assert end == last + 1
    assert consumer.position([place])[0].offset == end
    mine = next(each for each in consumer.assignment() if each == place)
    assert (mine.offset, mine.begin, mine.end) == (end, begin, end)
    assert consumer.offsets_for_times([TopicPartition(*place.key, middle)])[0].offset == rows[3]["offset"]

    consumer.seek(TopicPartition(*place.key, rows[3]["offset"]))
    assert consumer.lag()[place] == end - rows[3]["offset"]
    assert read(consumer, 3) == [3, 4, 5]
    assert consumer.lag()[place] == 0
    for outside in (end + 1, -5):
        with pytest.raises(DataError) as refused:
            consumer.seek(TopicPartition(*place.key, outside))
        assert refused.value.code == "out-of-range"
    consumer.commit(offsets=[TopicPartition(*place.key, rows[5]["offset"])])
    consumer.seek(TopicPartition(*place.key, OFFSET_STORED))
    assert read(consumer, 1) == [5]
    consumer.seek(TopicPartition(*place.key, OFFSET_END))
    consumer.pause([place])
    world.publish({"n": 6})
    assert consumer.poll(0.3) is None
    consumer.resume([place])
    assert read(consumer, 1) == [6]
    consumer.seek(TopicPartition(*place.key, OFFSET_BEGINNING))
    assert consumer.position([place])[0].offset == begin


def test_progress_moves_when_nothing_passes(world: DataWorld) -> None:
    """[reference] The offset advances also when the filter drops everything; otherwise lag never falls."""
    world.create_topic('SELECT payload.n AS n FROM "{space}/#" WHERE payload.n > 100')
    consumer = world.consumer(fetch_max_wait_ms=100)
    until_assigned([consumer], [4])
    world.spread(range(24))
    wait_for(lambda: consumer.poll(0.05) or sum(consumer.lag().values()) == 0, what="no lag")
    consumer.commit()
    ends = {each: consumer.get_watermark_offsets(each)[1] for each in consumer.assignment()}
    assert {each: each.offset for each in consumer.committed()} == ends
    lags = [row["lag"] for row in world.show("SUBSCRIPTIONS")]
    assert lags == [0, 0, 0, 0]


@pytest.mark.both_logs
def test_the_broker_is_killed(world: DataWorld) -> None:
    """Nothing committed is lost, nothing uncommitted skipped; a consumer goes on by itself."""
    world.create_topic()
    wanted = world.spread(range(12))
    done, undone = world.consumer(), world.consumer(group_id=f"{world.group}-undone")
    read(done, 12)
    done.commit()
    places = done.assignment()
    stored = {each: each.offset for each in done.committed(places)}
    read(undone, 12)
    world.broker.kill()
    world.forget_publishers()
    world.broker.restart()
    assert done.commit(offsets=places) == places, "who has its partitions again may commit what it got before"
    more = world.spread(range(12, 24))
    assert set(read(done, 12, 60)) == more, "a consumer that was there gets what is new"
    assert set(read(undone, 12, 60)) >= more
    undone.close()
    with world.consumer(group_id=f"{world.group}-undone") as again:
        got: set[int] = set()
        while got < wanted | more:
            got |= set(read(again, 1, 60))
        assert got == wanted | more, "what was not committed comes again"
        assert {each: each.offset for each in done.committed(places)} == stored, "what was committed is still there"


def test_the_broker_is_killed_under_automatic_commits(world: DataWorld) -> None:
    """At least once: with commits all the time, what the group goes on with joins what it had, without a hole."""
    world.create_topic()
    wanted = world.spread(range(30))
    with world.consumer(enable_auto_commit=True, auto_commit_interval_ms=0, min_poll_rows=1) as consumer:
        got = set(read(consumer, 10))
        world.broker.kill()
    world.forget_publishers()
    world.broker.restart()
    with world.consumer() as again:
        deadline = time.monotonic() + 60
        while got < wanted:
            assert time.monotonic() < deadline, f"{sorted(wanted - got)} never came"
            message = again.poll(1.0)
            got |= set() if message is None else {row["n"] for row in message}
