"""One consumer of many partitions, whatever the provider: they come and go, take turns and are held back one by one."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable

import pytest

from penstock.storage.log.base import (
    EARLIEST,
    LATEST,
    Committed,
    Consumer,
    Fetched,
    Log,
    LogError,
    TopicPartition,
    Watermarks,
)
from tests.contract.log_scenarios import numbered, pack_of, run
from tests.contract.providers import Provider

Seen = dict[TopicPartition, list[int]]


def note(seen: Seen, fetched: Iterable[Fetched]) -> None:
    for each in fetched:
        seen.setdefault(TopicPartition(each.topic, each.partition), []).extend(each.pack.offsets().tolist())


async def read_until(
    consumer: Consumer, seen: Seen, count: int, max_per_partition: int | None = None, patience: float = 20.0
) -> None:
    """Polls until so many records were seen in all."""
    deadline = time.monotonic() + patience
    while sum(map(len, seen.values())) < count:
        assert time.monotonic() < deadline, f"{ {str(key): len(got) for key, got in seen.items()} } of {count} came"
        note(seen, await consumer.poll(100, 0.5, max_per_partition))


async def fill(log: Log, topic: str, partitions: int, count: int) -> list[TopicPartition]:
    await log.admin.create(topic, partitions)
    places = [TopicPartition(topic, number) for number in range(partitions)]
    await asyncio.gather(*(log.producer.send(*place, numbered(0, count)) for place in places))
    return places


def test_partitions_are_added_at_their_offsets(provider: Provider, topic: str) -> None:
    async def scenario(log: Log) -> None:
        places = await fill(log, topic, 4, 10)
        consumer = log.consumer("")
        await consumer.add({places[0]: 7, places[1]: EARLIEST})
        await consumer.add({places[2]: LATEST})
        assert consumer.assignment() == places[:3]
        seen: Seen = {}
        await read_until(consumer, seen, 13)
        await log.producer.send(*places[2], numbered(10, 2))
        await log.producer.send(*places[3], numbered(10, 2))
        await read_until(consumer, seen, 15)
        assert await consumer.poll(100, 0.3) == []
        assert seen == {places[0]: [7, 8, 9], places[1]: list(range(10)), places[2]: [10, 11]}
        assert consumer.position(places[2]) == 12
        await consumer.close()

    run(provider, scenario)


def test_what_is_assigned_already_is_not_added(provider: Provider, topic: str) -> None:
    async def scenario(log: Log) -> None:
        places = await fill(log, topic, 2, 3)
        consumer = log.consumer("")
        consumer.assign(places[:1])
        with pytest.raises(LogError, match="already"):
            await consumer.add({places[1]: 0, places[0]: 0})
        with pytest.raises(ValueError, match="offset"):
            await consumer.add({places[1]: -7})
        assert consumer.assignment() == places[:1]
        await consumer.add({places[1]: 1})
        seen: Seen = {}
        await read_until(consumer, seen, 5)
        assert seen == {places[0]: [0, 1, 2], places[1]: [1, 2]}
        await consumer.close()

    run(provider, scenario)


def test_a_group_decides_alone(provider: Provider, topic: str, group: str) -> None:
    async def scenario(log: Log) -> None:
        await log.admin.create(topic, 1)
        consumer = log.consumer(group)
        consumer.subscribe([topic])
        with pytest.raises(LogError, match="group"):
            await consumer.add({TopicPartition(topic, 0): 0})
        with pytest.raises(LogError, match="group"):
            await consumer.remove([TopicPartition(topic, 0)])
        await consumer.close()

    run(provider, scenario)


def test_a_poll_that_waits_gives_records_of_what_is_added(provider: Provider, topic: str) -> None:
    async def scenario(log: Log) -> None:
        places = await fill(log, topic, 2, 3)
        consumer = log.consumer("")
        await consumer.add({places[0]: 3})
        await consumer.poll(10, 0.3)
        waiting = asyncio.create_task(consumer.poll(10, 20.0))
        await asyncio.sleep(0.2)
        started = time.monotonic()
        await consumer.add({places[1]: 0})
        fetched = await waiting
        assert time.monotonic() - started < 15
        assert [(each.partition, each.pack.count) for each in fetched] == [(1, 3)]
        await consumer.close()

    run(provider, scenario)


def test_coming_and_going_disturbs_nobody(provider: Provider, topic: str) -> None:
    """Partitions are added and removed without a pause, and the two that stay are read once, in order, whole."""

    async def scenario(log: Log) -> None:
        await log.admin.create(topic, 8)
        places = [TopicPartition(topic, number) for number in range(8)]
        consumer = log.consumer("")
        await consumer.add({places[0]: 0, places[1]: 0})
        seen: Seen = {}
        is_over = False

        async def write() -> None:
            for number in range(60):
                for place in places:
                    log.producer.append(*place, numbered(number * 10, 10))
                await asyncio.sleep(0.01)

        async def change() -> None:
            while not is_over:
                await consumer.add(dict.fromkeys(places[2:], EARLIEST))
                await asyncio.sleep(0.02)
                await consumer.remove(places[2:])
                await asyncio.sleep(0.005)

        writing, changing = asyncio.create_task(write()), asyncio.create_task(change())
        deadline = time.monotonic() + 30
        while sum(len(seen.get(place, ())) for place in places[:2]) < 1_200:
            assert time.monotonic() < deadline, f"{ {str(key): len(got) for key, got in seen.items()} }"
            note(seen, await consumer.poll(100, 0.5, 50))
        is_over = True
        await asyncio.gather(writing, changing)
        assert seen[places[0]] == seen[places[1]] == list(range(600))
        await consumer.close()

    run(provider, scenario)


def test_nothing_comes_of_what_was_removed(provider: Provider, topic: str) -> None:
    async def scenario(log: Log) -> None:
        places = await fill(log, topic, 3, 50)
        consumer = log.consumer("")
        await consumer.add(dict.fromkeys(places, 0))
        seen: Seen = {}
        while len(seen) < 3:  # of each some, though one of them may be quicker
            note(seen, await consumer.poll(1, 0.5))
        await consumer.remove([places[1], TopicPartition("never had it", 0)])
        assert consumer.assignment() == [places[0], places[2]]
        before = list(seen[places[1]])
        await read_until(consumer, seen, 100 + len(before), max_per_partition=5)
        await log.producer.send(*places[1], numbered(50, 5))
        note(seen, await consumer.poll(100, 0.5))
        assert seen == {places[0]: list(range(50)), places[1]: before, places[2]: list(range(50))}
        await consumer.add({places[1]: 20})
        again: Seen = {}
        await read_until(consumer, again, 35)
        assert again == {places[1]: list(range(20, 55))}
        await consumer.close()

    run(provider, scenario)


def test_a_poll_under_way_gives_nothing_of_what_is_removed(provider: Provider, topic: str) -> None:
    async def scenario(log: Log) -> None:
        places = await fill(log, topic, 2, 1)
        consumer = log.consumer("")
        await consumer.add(dict.fromkeys(places, LATEST))
        waiting = asyncio.create_task(consumer.poll(10, 10.0))
        await asyncio.sleep(0.2)
        await consumer.remove(places[:1])
        await log.producer.send(*places[0], pack_of(b"not for you"))
        await log.producer.send(*places[1], pack_of(b"for you"))
        assert [each.pack.values() for each in await waiting] == [[b"for you"]]
        await consumer.close()

    run(provider, scenario)


def test_a_busy_partition_leaves_room_for_the_others(provider: Provider, topic: str) -> None:
    """Of what is at hand: the brokers of a Kafka cluster do not all answer at the same time, so it has three tries. Who
    reads the busy partition first does so every time."""

    async def scenario(log: Log) -> None:
        await log.admin.create(topic, 4)
        places = [TopicPartition(topic, number) for number in range(4)]
        consumer = log.consumer("")
        await consumer.add(dict.fromkeys(places, 0))
        seen: Seen = {}
        tries = []
        for turn in range(3):
            for number in range(10):
                await log.producer.send(*places[0], numbered(2_000 * turn + 200 * number, 200))
            for place in places[1:]:
                await log.producer.send(*place, numbered(10 * turn, 10))
            tries.append(await _polls_until_others(consumer, places, seen, turn + 1))
            if tries[-1] < 15:
                break
        busy, others = 2_000 * len(tries), 10 * len(tries)
        assert seen == {places[0]: list(range(busy)), **{place: list(range(others)) for place in places[1:]}}
        assert tries[-1] < 15, tries
        await consumer.close()

    run(provider, scenario)


async def _polls_until_others(consumer: Consumer, places: list[TopicPartition], seen: Seen, turn: int) -> int:
    """Reads everything, at most 100 records of a partition at once; how many polls it took to have all of the small
    partitions."""
    deadline = time.monotonic() + 60
    polls = 0
    while sum(map(len, seen.values())) < 2_030 * turn:
        assert time.monotonic() < deadline
        fetched = await consumer.poll(500, 1.0, max_per_partition=100)
        counts = Counter[int]()
        for each in fetched:
            counts[each.partition] += each.pack.count
        assert all(count <= 100 for count in counts.values()), counts
        polls += any(len(seen.get(place, ())) < 10 * turn for place in places[1:])
        note(seen, fetched)
    return polls


def test_a_poll_of_large_records_is_bounded_per_partition(provider: Provider, topic: str) -> None:
    async def scenario(log: Log) -> None:
        await log.admin.create(topic, 1, {"max.message.bytes": "8388608"})
        value = bytes(200_000)
        for _ in range(5):
            await log.producer.send(topic, 0, pack_of(*[value] * 4))
        consumer = log.consumer("")
        await consumer.add({TopicPartition(topic, 0): 0})
        offsets: list[int] = []
        while len(offsets) < 20:
            fetched = await consumer.poll(500, 5.0)
            assert fetched
            assert sum(each.pack.size for each in fetched) <= 1_300_000
            for each in fetched:
                offsets += each.pack.offsets().tolist()
        assert offsets == list(range(20))
        await consumer.close()

    run(provider, scenario)


def test_what_was_read_ahead_of_a_pause_comes_after_it(provider: Provider, topic: str) -> None:
    async def scenario(log: Log) -> None:
        places = await fill(log, topic, 2, 300)
        consumer = log.consumer("")
        await consumer.add(dict.fromkeys(places, 0))
        seen: Seen = {}
        await read_until(consumer, seen, 40, max_per_partition=20)
        for _ in range(3):
            consumer.pause(places[:1])
            held = len(seen.get(places[0], ()))
            for _ in range(4):
                note(seen, await consumer.poll(100, 0.1, 10))
            assert len(seen.get(places[0], ())) == held
            consumer.resume(places[:1])
            for _ in range(2):
                note(seen, await consumer.poll(100, 0.5, 10))
        await read_until(consumer, seen, 600, max_per_partition=30)
        assert seen == {place: list(range(300)) for place in places}
        await consumer.close()

    run(provider, scenario)


def test_resume_wakes_a_poll_that_waits(provider: Provider, topic: str) -> None:
    async def scenario(log: Log) -> None:
        places = await fill(log, topic, 1, 10)
        consumer = log.consumer("")
        await consumer.add({places[0]: 0})
        seen: Seen = {}
        await read_until(consumer, seen, 5, max_per_partition=5)
        consumer.pause(places)
        assert await consumer.poll(10, 0.3) == []
        waiting = asyncio.create_task(consumer.poll(10, 20.0))
        await asyncio.sleep(0.1)
        consumer.resume(places)
        started = time.monotonic()
        note(seen, await waiting)
        assert time.monotonic() - started < 15
        assert seen == {places[0]: list(range(10))}
        await consumer.close()

    run(provider, scenario)


def test_one_poll_at_a_time(provider: Provider, topic: str) -> None:
    """Before, on the logs of this process the first of two never ended."""

    async def scenario(log: Log) -> None:
        await log.admin.create(topic, 1)
        async with asyncio.timeout(60):
            consumer = log.consumer("")
            consumer.assign([TopicPartition(topic, 0)])
            first = asyncio.create_task(consumer.poll(10, 0.5))
            await asyncio.sleep(0)
            with pytest.raises(LogError, match="polled already"):
                await consumer.poll(10, 1.0)
            assert await first == []
            assert await consumer.poll(10, 0.0) == []
            await consumer.close()

    run(provider, scenario)


def test_a_seek_forgets_what_was_read_ahead(provider: Provider, topic: str) -> None:
    async def scenario(log: Log) -> None:
        places = await fill(log, topic, 1, 300)
        consumer = log.consumer("")
        await consumer.add({places[0]: 0})
        seen: Seen = {}
        await read_until(consumer, seen, 10, max_per_partition=10)
        await consumer.seek(places[0], 5)
        assert consumer.position(places[0]) == 5
        again: Seen = {}
        await read_until(consumer, again, 295, max_per_partition=50)
        assert again == {places[0]: list(range(5, 300))}
        await consumer.close()

    run(provider, scenario)


def test_an_error_names_its_partition_and_the_others_go_on(provider: Provider, topic: str) -> None:
    async def scenario(log: Log) -> None:
        places = await fill(log, topic, 2, 5)
        await log.admin.truncate(places[0], 3)
        consumer = log.consumer("", auto_offset_reset="none")
        await consumer.add(dict.fromkeys(places, 0))
        seen: Seen = {}
        deadline = time.monotonic() + 60
        blamed: list[TopicPartition | None] = []
        while not blamed or len(seen.get(places[1], ())) < 5:
            assert time.monotonic() < deadline
            try:
                note(seen, await consumer.poll(100, 0.5))
            except LogError as error:
                blamed.append(error.partition)
                await consumer.remove(places[:1])
        assert blamed == places[:1]
        assert seen == {places[1]: list(range(5))}
        await log.producer.send(*places[1], numbered(5, 1))
        await read_until(consumer, seen, 6)
        await consumer.close()

    run(provider, scenario)


def test_what_is_asked_of_a_consumer_that_is_closing_is_done_or_refused(provider: Provider, topic: str) -> None:
    """By a LogError, whatever the client of the log has to say."""

    async def scenario(log: Log) -> None:
        await log.admin.create(topic, 1)
        partition = TopicPartition(topic, 0)
        for turns in range(6):
            consumer = log.consumer(f"{topic}-{turns}")
            closing = asyncio.create_task(consumer.close())
            for _ in range(turns):
                await asyncio.sleep(0)
            asked = (consumer.commit({partition: Committed(0)}), consumer.committed([partition]))
            answers = await asyncio.gather(*asked, return_exceptions=True)
            assert all(isinstance(one, LogError) or not isinstance(one, BaseException) for one in answers), answers
            await closing

    run(provider, scenario)


def test_a_group_ends_with_its_last_topic(provider: Provider, topic: str, group: str) -> None:
    """Before, the logs of this process kept its name until their end, however many came and went."""
    if provider.name.startswith("kafka"):
        pytest.skip("Kafka keeps a group for some time")

    async def scenario(log: Log) -> None:
        for name in (topic, f"{topic}-2"):
            await log.admin.create(name, 1)
            await log.consumer(group).commit({TopicPartition(name, 0): Committed(0)})
        await log.admin.delete(topic)
        assert group in await log.admin.groups()
        await log.admin.delete(f"{topic}-2")
        assert group not in await log.admin.groups()

    run(provider, scenario)


def test_ends_of_a_topic_that_was_asked_for_before_it_was_there(provider: Provider, topic: str) -> None:
    """The consumer must not remember that there was no such topic."""

    async def scenario(log: Log) -> None:
        consumer, partition = log.consumer(""), TopicPartition(topic, 0)
        (known,) = await fill(log, f"{topic}-other", 1, 3)
        assert await consumer.watermarks(known) == Watermarks(0, 3)
        with pytest.raises(LogError):
            await consumer.watermarks(partition)
        await log.admin.create(topic, 1)
        await log.producer.send(topic, 0, numbered(0, 3))
        assert await consumer.watermarks(partition) == Watermarks(0, 3)
        await consumer.close()

    run(provider, scenario)
