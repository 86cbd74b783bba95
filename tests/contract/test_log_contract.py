"""What every log does, whatever its provider: the port of penstock.storage.log.base, one test per promise."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

from penstock._ext.record.segment import Record, RecordPack
from penstock.storage.log.base import (
    EARLIEST,
    LATEST,
    Appended,
    Committed,
    Consumer,
    Fetched,
    Log,
    LogError,
    LogUnavailable,
    TopicNotFound,
    TopicPartition,
    Watermarks,
    parse_properties,
    read_state,
)
from penstock.storage.log.embedded import EmbeddedLog
from tests.contract.log_scenarios import numbered, pack_of, read_from, read_partition, run, until
from tests.contract.providers import Provider


def test_offsets_follow_each_other(provider: Provider, topic: str) -> None:
    async def scenario(log: Log) -> None:
        await log.admin.create(topic, 2)
        first = await log.producer.send(topic, 0, numbered(0, 3))
        other = await log.producer.send(topic, 1, numbered(0, 1))
        second = await log.producer.send(topic, 0, numbered(3, 2))
        assert first == Appended(topic, 0, 0, 3)
        assert other == Appended(topic, 1, 0, 1)
        assert second == Appended(topic, 0, 3, 2)
        records = await read_partition(log, TopicPartition(topic, 0), 5)
        assert [record.offset for record in records] == [0, 1, 2, 3, 4]
        assert [record.value for record in records] == [b"0", b"1", b"2", b"3", b"4"]

    run(provider, scenario)


def test_packs_become_durable_in_order_and_are_told_once(provider: Provider, topic: str) -> None:
    async def scenario(log: Log) -> None:
        await log.admin.create(topic, 1)
        told: list[Appended | LogError] = []
        done = asyncio.Event()

        def on_done(result: Appended | LogError) -> None:
            told.append(result)
            if len(told) == 200:
                done.set()

        for number in range(200):
            log.producer.append(topic, 0, numbered(number, 1), on_done)
        assert not told
        assert log.producer.pending_bytes > 0
        await asyncio.wait_for(done.wait(), 60)
        await asyncio.sleep(0.05)
        assert told == [Appended(topic, 0, number, 1) for number in range(200)]
        assert log.producer.pending_bytes == 0

    run(provider, scenario)


def test_an_empty_pack_is_refused(provider: Provider, topic: str) -> None:
    async def scenario(log: Log) -> None:
        await log.admin.create(topic, 1)
        with pytest.raises(ValueError, match="pack"):
            log.producer.append(topic, 0, RecordPack())

    run(provider, scenario)


def test_a_pack_that_is_appended_takes_nothing_more_from_that_moment(provider: Provider, topic: str) -> None:
    """Others read it from then on, in other threads too: of what grows meanwhile they would know a part."""

    async def scenario(log: Log) -> None:
        await log.admin.create(topic, 1)
        pack = numbered(0, 3)
        done: asyncio.Future[Appended | LogError] = asyncio.get_running_loop().create_future()
        log.producer.append(topic, 0, pack, done.set_result)
        with pytest.raises(ValueError, match="appended already"):
            pack.append(b"one more")
        assert await asyncio.wait_for(done, 20) == Appended(topic, 0, 0, 3)

    run(provider, scenario)


def test_everything_of_a_record_comes_back(provider: Provider, topic: str) -> None:
    async def scenario(log: Log) -> None:
        await log.admin.create(topic, 1)
        now = int(time.time() * 1000)
        pack = RecordPack()
        pack.append(b"value", b"key", [("name", b"1"), ("näme", b""), ("name", b"\x00\xff")], now)
        pack.append(None, b"gone", timestamp=now + 5)
        pack.append(b"", b"", timestamp=now - 5)
        pack.append(b"bare", timestamp=now)
        await log.producer.send(topic, 0, pack)
        records = await read_partition(log, TopicPartition(topic, 0), 4)
        assert records == [
            Record(0, now, b"key", b"value", [("name", b"1"), ("näme", b""), ("name", b"\x00\xff")]),
            Record(1, now + 5, b"gone", None, []),
            Record(2, now - 5, b"", b"", []),
            Record(3, now, None, b"bare", []),
        ]

    run(provider, scenario)


def test_big_records(provider: Provider, topic: str) -> None:
    async def scenario(log: Log) -> None:
        await log.admin.create(topic, 1, {"max.message.bytes": "8388608"})
        values = [bytes([number]) * 900_000 for number in range(4)]
        for value in values:
            await log.producer.send(topic, 0, pack_of(value))
        await log.producer.send(topic, 0, pack_of(b"small"))
        records = await read_partition(log, TopicPartition(topic, 0), 5)
        assert [record.value for record in records] == [*values, b"small"]

    run(provider, scenario)


def test_poll_gives_no_more_than_asked_for(provider: Provider, topic: str) -> None:
    async def scenario(log: Log) -> None:
        await log.admin.create(topic, 2)
        for partition in range(2):
            await log.producer.send(topic, partition, numbered(0, 50))
            await log.producer.send(topic, partition, numbered(50, 50))
        consumer = log.consumer("")
        consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
        seen: dict[int, list[int]] = {0: [], 1: []}
        while sum(map(len, seen.values())) < 200:
            fetched = await consumer.poll(7, 5.0)
            assert 0 < sum(each.pack.count for each in fetched) <= 7
            for each in fetched:
                seen[each.partition] += each.pack.offsets().tolist()
        assert seen == {0: list(range(100)), 1: list(range(100))}
        await consumer.close()

    run(provider, scenario)


def test_pause_and_resume(provider: Provider, topic: str) -> None:
    async def scenario(log: Log) -> None:
        await log.admin.create(topic, 2)
        quiet, loud = TopicPartition(topic, 0), TopicPartition(topic, 1)
        consumer = log.consumer("")
        consumer.assign([quiet, loud])
        consumer.pause([quiet])
        await log.producer.send(topic, 0, pack_of(b"quiet"))
        await log.producer.send(topic, 1, pack_of(b"loud"))
        assert [record.value for record in await read_from(consumer, 1)] == [b"loud"]
        assert await consumer.poll(timeout=0.3) == []
        consumer.resume([quiet])
        assert [record.value for record in await read_from(consumer, 1)] == [b"quiet"]
        await consumer.close()

    run(provider, scenario)


def test_seek_and_position(provider: Provider, topic: str) -> None:
    async def scenario(log: Log) -> None:
        await log.admin.create(topic, 1)
        partition = TopicPartition(topic, 0)
        await log.producer.send(topic, 0, numbered(0, 100))
        consumer = log.consumer("")
        consumer.assign([partition])
        assert len(await read_from(consumer, 10, max_records=10)) == 10
        assert consumer.position(partition) == 10
        await consumer.seek(partition, 95)
        assert consumer.position(partition) == 95
        assert [record.offset for record in await read_from(consumer, 5)] == [95, 96, 97, 98, 99]
        await consumer.seek(partition, EARLIEST)
        assert (await read_from(consumer, 1, max_records=1))[0].offset == 0
        await consumer.seek(partition, LATEST)
        assert await consumer.poll(timeout=0.3) == []
        await log.producer.send(topic, 0, pack_of(b"new"))
        assert (await read_from(consumer, 1))[0].offset == 100
        await consumer.close()

    run(provider, scenario)


def test_seek_to_a_time(provider: Provider, topic: str) -> None:
    async def scenario(log: Log) -> None:
        await log.admin.create(topic, 1)
        partition, base = TopicPartition(topic, 0), int(time.time() * 1000) - 100_000
        for number in range(10):
            pack = RecordPack()
            for step in range(10):
                pack.append(b"%d" % number, timestamp=base + number * 1_000 + step * 100)
            await log.producer.send(topic, 0, pack)
        consumer = log.consumer("")
        consumer.assign([partition])
        await consumer.poll(1, 1.0)
        assert await consumer.seek_to_time(partition, base + 4_250) == 43
        assert (await read_from(consumer, 1, max_records=1))[0].timestamp == base + 4_300
        assert await consumer.seek_to_time(partition, base + 4_300) == 43
        assert await consumer.seek_to_time(partition, base - 5) == 0
        assert await consumer.seek_to_time(partition, -1) == 0, "a time before all others, not Kafka's name of the end"
        assert await consumer.seek_to_time(partition, base + 50_000) == 100
        await consumer.close()

    run(provider, scenario)


def test_committed_offsets_survive_with_their_metadata(provider: Provider, topic: str, group: str) -> None:
    partition, other = TopicPartition(topic, 0), TopicPartition(topic, 1)

    async def before(log: Log) -> None:
        await log.admin.create(topic, 2)
        await log.producer.send(topic, 0, numbered(0, 20))
        consumer = log.consumer(group)
        consumer.assign([partition])
        assert await consumer.committed([partition]) == {partition: None}
        await read_from(consumer, 10, max_records=10)
        await consumer.commit()
        assert (await consumer.committed([partition]))[partition] == Committed(10)
        await consumer.commit({partition: Committed(12, "a note")})
        await consumer.close()

    async def after(log: Log) -> None:
        consumer = log.consumer(group)
        assert await consumer.committed([partition, other]) == {partition: Committed(12, "a note"), other: None}
        consumer.assign([partition])
        assert (await read_from(consumer, 8))[0].offset == 12
        await consumer.close()
        assert group in await log.admin.groups()
        assert await log.admin.group_offsets(group) == {partition: Committed(12, "a note")}
        await log.admin.delete_group(group)
        assert group not in await log.admin.groups()

    run(provider, before, after)


def test_records_survive(provider: Provider, topic: str) -> None:
    async def before(log: Log) -> None:
        await log.admin.create(topic, 3)
        for number in range(30):
            await log.producer.send(topic, number % 3, numbered(number, 1))

    async def after(log: Log) -> None:
        for partition in range(3):
            records = await read_partition(log, TopicPartition(topic, partition), 10)
            assert [int(record.value or b"") for record in records] == list(range(partition, 30, 3))
        assert (await log.producer.send(topic, 0, numbered(0, 1))).base_offset == 10

    run(provider, before, after)


def test_watermarks_and_lag(provider: Provider, topic: str, group: str) -> None:
    async def scenario(log: Log) -> None:
        await log.admin.create(topic, 1)
        partition = TopicPartition(topic, 0)
        consumer = log.consumer(group)
        assert await consumer.watermarks(partition) == Watermarks(0, 0)
        await log.producer.send(topic, 0, numbered(0, 30))
        assert await consumer.watermarks(partition) == Watermarks(0, 30)
        consumer.assign([partition])
        await read_from(consumer, 10, max_records=10)
        assert await consumer.lag() == {partition: 20}
        await consumer.close()

    run(provider, scenario)


def test_auto_offset_reset(provider: Provider, topic: str, group: str) -> None:
    async def scenario(log: Log) -> None:
        await log.admin.create(topic, 1)
        partition = TopicPartition(topic, 0)
        await log.producer.send(topic, 0, numbered(0, 5))
        late = log.consumer(group, auto_offset_reset="latest")
        late.assign([partition])
        assert await late.poll(timeout=0.5) == []
        await log.producer.send(topic, 0, numbered(5, 1))
        assert [record.offset for record in await read_from(late, 1)] == [5]
        await late.close()

    run(provider, scenario)


class Worker:
    """A member of a group that notes what happens to it."""

    def __init__(self, log: Log, group: str, topic: str) -> None:
        self.consumer = log.consumer(group)
        self.events: list[tuple[str, tuple[int, ...]]] = []
        self.owned: set[int] = set()
        self.seen: list[tuple[int, int]] = []
        self.consumer.subscribe([topic], self._on_assigned, self._on_revoked)

    def _on_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        self.events.append(("+", tuple(partition.partition for partition in partitions)))
        self.owned |= {partition.partition for partition in partitions}

    def _on_revoked(self, partitions: Iterable[TopicPartition]) -> None:
        self.events.append(("-", tuple(partition.partition for partition in partitions)))
        self.owned -= {partition.partition for partition in partitions}

    async def poll(self) -> list[Fetched]:
        fetched = await self.consumer.poll(timeout=0.1)
        for each in fetched:
            assert each.partition in self.owned
            self.seen += [(each.partition, record.offset) for record in each.pack]
        if fetched:
            await self.consumer.commit()
        return fetched


def test_members_share_a_topic_and_hand_over(provider: Provider, topic: str, group: str) -> None:
    """Nothing is lost, nothing is processed twice, and only what must move is revoked."""

    async def scenario(log: Log) -> None:
        await log.admin.create(topic, 4)
        first = Worker(log, group, topic)
        await until(lambda: len(first.owned) == 4, first.poll, patience=provider.patience)
        for number in range(4):
            await log.producer.send(topic, number, numbered(0, 10))
        await until(lambda: len(first.seen) == 40, first.poll, patience=provider.patience)
        second = Worker(log, group, topic)
        await until(
            lambda: len(first.owned) == len(second.owned) == 2, first.poll, second.poll, patience=provider.patience
        )
        assert first.owned | second.owned == {0, 1, 2, 3}
        assert [sign for sign, _ in first.events] == ["+", "-"]
        assert len(first.events[1][1]) == 2
        for number in range(4):
            await log.producer.send(topic, number, numbered(10, 10))
        await until(
            lambda: len(first.seen) + len(second.seen) >= 80, first.poll, second.poll, patience=provider.patience
        )
        await first.consumer.close()
        await until(lambda: len(second.owned) == 4, second.poll, patience=provider.patience)
        for number in range(4):
            await log.producer.send(topic, number, numbered(20, 5))
        await until(lambda: len(first.seen) + len(second.seen) >= 100, second.poll, patience=provider.patience)
        await second.poll()
        everything = sorted(first.seen + second.seen)
        assert everything == [(partition, offset) for partition in range(4) for offset in range(25)]
        await second.consumer.close()

    run(provider, scenario)


def test_groups_do_not_disturb_each_other(provider: Provider, topic: str, group: str) -> None:
    async def scenario(log: Log) -> None:
        await log.admin.create(topic, 2)
        workers = [Worker(log, f"{group}-{number}", topic) for number in range(2)]
        polls = [worker.poll for worker in workers]
        await until(lambda: all(len(w.owned) == 2 for w in workers), *polls, patience=provider.patience)
        await log.producer.send(topic, 0, numbered(0, 5))
        await until(lambda: all(len(w.seen) == 5 for w in workers), *polls, patience=provider.patience)
        for worker in workers:
            await worker.consumer.close()

    run(provider, scenario)


def test_a_consumer_without_a_group_only_assigns(provider: Provider, topic: str) -> None:
    async def scenario(log: Log) -> None:
        await log.admin.create(topic, 1)
        partition = TopicPartition(topic, 0)
        await log.producer.send(topic, 0, numbered(0, 2))
        consumer = log.consumer("")
        with pytest.raises(LogError):
            consumer.subscribe([topic])
        consumer.assign([partition])
        assert consumer.assignment() == [partition]
        assert len(await read_from(consumer, 2)) == 2
        with pytest.raises(LogError):
            await consumer.commit()
        await consumer.close()

    run(provider, scenario)


def test_topics_are_created_described_listed_and_deleted(provider: Provider, topic: str) -> None:
    async def scenario(log: Log) -> None:
        properties = parse_properties("retention.ms:604800000; segment.bytes:26214400;")
        await log.admin.create(topic, 3, properties)
        await log.admin.create(topic, 3, properties)
        with pytest.raises(LogError):
            await log.admin.create(topic, 3, exist_ok=False)
        described = await log.admin.describe(topic)
        assert (described.name, described.partitions) == (topic, 3)
        assert described.properties["retention.ms"] == "604800000"
        assert topic in await log.admin.list()
        await log.producer.send(topic, 0, numbered(0, 1))
        await log.admin.delete(topic)
        assert topic not in await log.admin.list()
        with pytest.raises(TopicNotFound):
            await log.admin.describe(topic)

    run(provider, scenario)


def test_properties_of_a_topic_are_changed(provider: Provider, topic: str) -> None:
    """All of them: what is not said any more is as if it never was. The records stay."""
    wanted = {"retention.ms": "-1", "retention.bytes": "-1", "min.insync.replicas": "1"}

    async def scenario(log: Log) -> None:
        await log.admin.create(topic, 2, {"retention.ms": "3600000", "flush.ms": "1000"})
        await log.producer.send(topic, 1, numbered(0, 3))
        await log.admin.alter(topic, wanted)
        with pytest.raises(TopicNotFound):
            await log.admin.alter(f"{topic}-none", wanted)
        await log.producer.send(topic, 1, numbered(3, 1))
        assert len(await read_partition(log, TopicPartition(topic, 1), 4)) == 4
        await check(log)

    async def check(log: Log) -> None:
        described = await log.admin.describe(topic)
        assert (described.partitions, described.properties) == (2, wanted)

    run(provider, scenario, check)


def test_truncate_moves_the_first_offset(provider: Provider, topic: str) -> None:
    partition = TopicPartition(topic, 0)

    async def scenario(log: Log) -> None:
        await log.admin.create(topic, 1)
        await log.producer.send(topic, 0, numbered(0, 10))
        await log.producer.send(topic, 0, numbered(10, 10))
        await log.admin.truncate(partition, 15)
        records = await read_partition(log, partition, 5)
        assert [record.offset for record in records] == [15, 16, 17, 18, 19]
        consumer = log.consumer("")
        assert await consumer.watermarks(partition) == Watermarks(15, 20)
        await consumer.close()

    async def after(log: Log) -> None:
        consumer = log.consumer("")
        assert await consumer.watermarks(partition) == Watermarks(15, 20)
        await consumer.close()

    run(provider, scenario, after)


def test_retention_waits_for_what_is_held(provider: Provider, topic: str) -> None:
    """Where the log itself decides what it keeps; Kafka does not let itself be told, and says so."""
    partition = TopicPartition(topic, 0)

    async def first(log: Log, tidy: Callable[[], Awaitable[None]]) -> int:
        await tidy()
        consumer = log.consumer("")
        try:
            return (await consumer.watermarks(partition)).first
        finally:
            await consumer.close()

    async def scenario(log: Log) -> None:
        tidy = log.maintenance.tidy if isinstance(log, EmbeddedLog) else _no_maintenance
        if not await log.admin.hold(partition, 60):  # it may be told before the topic is there
            assert provider.name.startswith("kafka")
            return
        await log.admin.create(topic, 1, {"segment.bytes": "2048", "retention.bytes": "4096"})
        for _ in range(20):
            await log.producer.send(topic, 0, pack_of(*[b"x" * 100] * 10))
        assert 0 < await first(log, tidy) <= 60
        await log.admin.hold(partition, 120)
        assert 60 < await first(log, tidy) <= 120
        await log.admin.hold(partition, None)
        assert await first(log, tidy) > 120

    run(provider, scenario)


async def _no_maintenance() -> None:
    """The memory's log looks at every append."""


def test_unknown_topics(provider: Provider, topic: str) -> None:
    async def scenario(log: Log) -> None:
        with pytest.raises(TopicNotFound):
            await log.admin.describe(topic)
        with pytest.raises(TopicNotFound):
            await log.admin.delete(topic)
        with pytest.raises(LogError):
            await log.producer.send(topic, 0, numbered(0, 1))
        await log.admin.create(topic, 1)
        with pytest.raises(LogError):
            await log.producer.send(topic, 7, numbered(0, 1))

    run(provider, scenario)


def test_a_name_that_is_no_text_is_refused(provider: Provider, topic: str) -> None:
    """As an argument of a command is that was not UTF-8. Before, an append to it was never answered on Kafka."""

    async def scenario(log: Log) -> None:
        with pytest.raises(LogError, match="cannot be created"):
            await log.admin.create(f"{topic}\udcff")
        with pytest.raises(LogError):
            await asyncio.wait_for(log.producer.send(f"{topic}\udcff", 0, numbered(0, 1)), 60)

    run(provider, scenario)


def test_state_is_read_to_its_end(provider: Provider, topic: str) -> None:
    async def scenario(log: Log) -> None:
        await log.admin.create(topic, 2, {"cleanup.policy": "compact"})
        for number in range(20):
            await log.producer.send(topic, number % 2, pack_of(b"%d" % number, key=b"key%d" % (number % 6)))
        await log.producer.send(topic, 0, pack_of(None, key=b"key0"))
        state: dict[bytes | None, bytes | None] = {}
        count = await read_state(log, topic, state.__setitem__)
        assert count <= 21
        assert state == {
            b"key0": None,
            b"key1": b"19",
            b"key2": b"14",
            b"key3": b"15",
            b"key4": b"16",
            b"key5": b"17",
        }

    run(provider, scenario)


def test_state_of_an_empty_topic(provider: Provider, topic: str) -> None:
    async def scenario(log: Log) -> None:
        await log.admin.create(topic, 2, {"cleanup.policy": "compact"})
        assert await read_state(log, topic, lambda *_: None) == 0

    run(provider, scenario)


def test_a_state_that_cannot_be_read_leaves_no_consumer(provider: Provider, topic: str) -> None:
    """Who starts without its log tries again and again; on Kafka each consumer has threads of its own."""

    async def scenario(log: Log) -> None:
        await log.admin.create(topic, 1)
        await log.producer.send(topic, 0, numbered(0, 5))
        opened, closed = [], []
        make = log.consumer

        def watched(group: str, **options: Any) -> Consumer:
            consumer = make(group, **options)
            close = consumer.close

            async def refuse(_: TopicPartition) -> Watermarks:
                raise LogUnavailable("not now")

            async def note_close() -> None:
                closed.append(consumer)
                await close()

            consumer.watermarks, consumer.close = refuse, note_close
            opened.append(consumer)
            return consumer

        log.consumer = watched
        with pytest.raises(TopicNotFound):
            await read_state(log, f"{topic}-none", lambda *_: None)
        with pytest.raises(LogUnavailable):
            await read_state(log, topic, lambda *_: None)
        assert opened
        assert closed == opened
        del log.consumer
        assert await read_state(log, topic, lambda *_: None) == 5

    run(provider, scenario)


def test_a_closed_consumer_gives_nothing(provider: Provider, topic: str) -> None:
    async def scenario(log: Log) -> None:
        await log.admin.create(topic, 1)
        consumer = log.consumer("")
        consumer.assign([TopicPartition(topic, 0)])
        await consumer.close()
        with pytest.raises(LogError):
            await consumer.poll(timeout=0.1)
        await consumer.close()

    run(provider, scenario)


def test_health_and_counters(provider: Provider, topic: str) -> None:
    async def scenario(log: Log) -> None:
        await log.admin.create(topic, 1)
        await log.producer.send(topic, 0, numbered(0, 5))
        assert log.check() is True
        assert log.counters()["appended_records"] >= 5

    run(provider, scenario)
