"""The consumer manager: partitions given, taken, failing, stuck, deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from penstock._ext.record.segment import RecordPack
from penstock.services.consumers import ConsumerManager, ConsumerOptions, GivenBack
from penstock.services.discovery import LogDiscovery
from penstock.services.model import ServiceInfo, ServiceType, TopicPartitionInfo
from penstock.services.topic_creator import TopicCreator
from penstock.settings.services import ServiceSettings
from penstock.storage.log.base import Committed, Fetched, LogError, TopicNotFound, TopicPartition
from penstock.storage.log.memory import MemoryLog
from tests.support.machine.waiting import until
from tests.support.worlds.memory_log import with_memory_log

INFOS = [TopicPartitionInfo("tb_core", partition=i) for i in range(4)]
QUICK = ConsumerOptions(poll_seconds=0.2, retry_seconds=0.02, stop_seconds=2.0)
SHARED = ConsumerOptions(is_per_partition=False, poll_seconds=0.2, retry_seconds=0.02, stop_seconds=2.0)


def group_of(info: TopicPartitionInfo | None) -> str:
    return "group" if info is None else f"group-{info.partition}"


class Handled:
    """A handler that writes down what it got; a test may make it slow or fail."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.before: Callable[[], Awaitable[None]] | None = None

    async def __call__(self, packs: Sequence[Fetched]) -> None:
        if self.before is not None:
            await self.before()
        self.values += [record.value for fetched in packs for record in fetched.pack]


async def put(log: MemoryLog, info: TopicPartitionInfo, *values: bytes) -> None:
    pack = RecordPack()
    for value in values:
        pack.append(value, b"key")
    await log.producer.send(info.full_topic_name, 0, pack)


def with_log(scenario: Callable[[MemoryLog], Awaitable[None]]) -> None:
    async def run(log: MemoryLog) -> None:
        for info in INFOS:
            await log.admin.create(info.full_topic_name)
        await scenario(log)

    with_memory_log(run)


def test_what_fails_again_and_again_is_said_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    class NoTopic:
        attempts = 0

        def __call__(self, info: TopicPartitionInfo) -> asyncio.Future[None] | None:
            self.attempts += 1
            raise LogError("topic properties make no sense")

        def forget(self, topic: str) -> None:
            pass

    async def scenario(log: MemoryLog) -> None:
        no_topic = NoTopic()
        manager = ConsumerManager(log, group_of, Handled(), QUICK, ensure_topic=no_topic)
        manager.update([INFOS[0]])
        await until(lambda: no_topic.attempts >= 5)
        await manager.stop()
        assert caplog.text.count("a consumer failed") == 1

    with_log(scenario)


@pytest.mark.parametrize("options", [QUICK, SHARED], ids=["per-partition", "shared"])
def test_consumes_what_it_is_given_and_commits(options: ConsumerOptions) -> None:
    async def scenario(log: MemoryLog) -> None:
        handled = Handled()
        manager = ConsumerManager(log, group_of, handled, options)
        for info in INFOS:
            await put(log, info, b"%d" % info.partition)
        manager.update(INFOS[:3])
        await until(lambda: sorted(handled.values) == [b"0", b"1", b"2"])
        assert manager.running() == set(INFOS[:3])
        manager.update(INFOS[2:])
        await until(lambda: b"3" in handled.values)
        await manager.settled()
        assert manager.running() == set(INFOS[2:])
        await put(log, INFOS[0], b"later")
        await put(log, INFOS[2], b"more")
        await until(lambda: b"more" in handled.values)
        await manager.stop()
        assert sorted(handled.values) == [b"0", b"1", b"2", b"3", b"more"]
        assert manager.running() == frozenset()
        group = "group" if options is SHARED else "group-2"
        assert (await log.admin.group_offsets(group))[TopicPartition("tb_core.2", 0)].offset == 2

    with_log(scenario)


def test_a_pack_that_is_given_back_comes_again_and_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(log: MemoryLog) -> None:
        handled = Handled()
        times = 0

        async def not_yet() -> None:
            nonlocal times
            times += 1
            if times < 3:
                raise GivenBack

        handled.before = not_yet
        manager = ConsumerManager(log, group_of, handled, QUICK)
        await put(log, INFOS[0], b"x")
        manager.update(INFOS[:1])
        await until(lambda: handled.values == [b"x"])
        await manager.stop()
        assert times == 3

    with_log(scenario)
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


def test_of_many_updates_the_last_wins() -> None:
    async def scenario(log: MemoryLog) -> None:
        asked: list[int | None] = []

        def note(info: TopicPartitionInfo | None) -> str:
            if info is not None:
                asked.append(info.partition)
            return group_of(info)

        manager = ConsumerManager(log, note, Handled(), QUICK)
        for i in range(100):
            manager.update([INFOS[i % 4]])
        await manager.settled()
        assert manager.running() == {INFOS[3]}
        assert asked == [3]
        await manager.stop()

    with_log(scenario)


def test_a_stop_waits_for_the_pack_in_hand() -> None:
    async def scenario(log: MemoryLog) -> None:
        handled, may_end = Handled(), asyncio.Event()
        handled.before = may_end.wait
        manager = ConsumerManager(log, group_of, handled, QUICK)
        await put(log, INFOS[0], b"a")
        manager.update(INFOS[:1])
        await asyncio.sleep(0.05)
        manager.update([])
        manager.update(INFOS[:1])
        manager.update([])
        await asyncio.sleep(0.05)
        assert manager.running() == {INFOS[0]}
        may_end.set()
        await manager.settled()
        assert handled.values == [b"a"]
        assert (await log.admin.group_offsets("group-0"))[TopicPartition("tb_core.0", 0)].offset == 1
        assert manager.cancelled_packs == 0
        await manager.stop()

    with_log(scenario)


def test_a_stop_ends_a_long_poll_at_once() -> None:
    async def scenario(log: MemoryLog) -> None:
        manager = ConsumerManager(log, group_of, Handled(), ConsumerOptions(poll_seconds=60))
        manager.update(INFOS)
        await manager.settled()
        await asyncio.sleep(0.05)
        await asyncio.wait_for(manager.stop(), 30)

    with_log(scenario)


def test_a_pack_that_does_not_end_is_cancelled_and_comes_again() -> None:
    async def scenario(log: MemoryLog) -> None:
        handled = Handled()
        handled.before = lambda: asyncio.sleep(60)
        manager = ConsumerManager(log, group_of, handled, ConsumerOptions(poll_seconds=0.2, stop_seconds=0.05))
        await put(log, INFOS[0], b"a")
        manager.update(INFOS[:1])
        await asyncio.sleep(0.05)
        manager.update([])
        await manager.settled()
        assert manager.cancelled_packs == 1
        assert manager.running() == frozenset()
        handled.before = None
        manager.update(INFOS[:1])
        await until(lambda: handled.values == [b"a"])
        await manager.stop()

    with_log(scenario)


def test_a_pack_that_ignores_its_cancellation_keeps_its_partition() -> None:
    """Otherwise it would run twice at once."""

    async def scenario(log: MemoryLog) -> None:
        handled, may_end = Handled(), asyncio.Event()

        async def stubborn() -> None:
            while not may_end.is_set():
                try:
                    await may_end.wait()
                except asyncio.CancelledError:
                    continue

        handled.before = stubborn
        manager = ConsumerManager(log, group_of, handled, ConsumerOptions(poll_seconds=0.2, stop_seconds=0.02))
        await put(log, INFOS[0], b"a")
        manager.update(INFOS[:1])
        await asyncio.sleep(0.05)
        manager.update([])
        await manager.settled()
        assert manager.running() == {INFOS[0]}
        manager.update(INFOS[:2])
        await asyncio.sleep(0.1)
        assert handled.values == []
        assert manager.running() == set(INFOS[:2])
        await put(log, INFOS[0], b"b")
        may_end.set()
        await asyncio.wait_for(manager.settled(), 30)
        await until(lambda: handled.values[-1:] == [b"b"])
        await manager.stop()

    with_log(scenario)


def test_a_failing_pack_comes_again() -> None:
    async def scenario(log: MemoryLog) -> None:
        handled, failures = Handled(), [RuntimeError("1"), RuntimeError("2")]

        async def fail_twice() -> None:
            if failures:
                raise failures.pop()

        handled.before = fail_twice
        manager = ConsumerManager(log, group_of, handled, QUICK)
        await put(log, INFOS[0], b"a", b"b")
        manager.update(INFOS[:1])
        await until(lambda: handled.values == [b"a", b"b"])
        await manager.stop()

    with_log(scenario)


def test_a_missing_topic_is_created_or_waited_for() -> None:
    async def scenario(log: MemoryLog) -> None:
        handled = Handled()
        late, created = TopicPartitionInfo("late", partition=0), TopicPartitionInfo("tb_edge", partition=0)
        waiting = ConsumerManager(log, group_of, handled, QUICK)
        waiting.update([late])
        creating = ConsumerManager(log, group_of, handled, QUICK, ensure_topic=TopicCreator(log, ServiceSettings()))
        creating.update([created])
        await until(lambda: created.full_topic_name in log.topics)
        await log.admin.create(late.full_topic_name)
        await put(log, late, b"late")
        await put(log, created, b"created")
        await until(lambda: sorted(handled.values) == [b"created", b"late"])
        await waiting.stop()
        await creating.stop()

    with_log(scenario)


def test_delete_drains_and_then_deletes() -> None:
    async def scenario(log: MemoryLog) -> None:
        handled, drained = Handled(), Handled()
        manager = ConsumerManager(log, group_of, handled, QUICK)
        await put(log, INFOS[0], b"handled")
        manager.update(INFOS[:2])
        await until(lambda: handled.values == [b"handled"])
        await manager.stop()
        await put(log, INFOS[0], b"left")
        await put(log, INFOS[1], b"left too")
        assert await manager.delete(log.admin, INFOS[:2], drained, drain_seconds=5) == []
        assert sorted(drained.values) == [b"left", b"left too"]
        with pytest.raises(TopicNotFound):
            await log.admin.describe("tb_core.0")
        assert "tb_core.2" in await log.admin.list()

    with_log(scenario)


def test_what_cannot_be_drained_in_time_is_kept() -> None:
    async def scenario(log: MemoryLog) -> None:
        drained = Handled()
        drained.before = lambda: asyncio.sleep(60)
        manager = ConsumerManager(log, group_of, Handled(), QUICK)
        await put(log, INFOS[0], b"left")
        assert await manager.delete(log.admin, INFOS[:2], drained, drain_seconds=0.1) == [INFOS[0]]
        assert "tb_core.0" in await log.admin.list()
        assert "tb_core.1" not in await log.admin.list()

    with_log(scenario)


def test_with_claims_two_nodes_never_run_a_partition_at_once() -> None:
    """Both nodes want everything for a while, as happens while they disagree about the members."""

    async def scenario(log: MemoryLog) -> None:
        running: dict[int, str] = {}
        run_twice: list[int] = []
        seen: list[bytes] = []

        def handler_of(node: str) -> Callable[[Sequence[Fetched]], Awaitable[None]]:
            async def handle(packs: Sequence[Fetched]) -> None:
                for fetched in packs:
                    number = int(fetched.topic.rpartition(".")[2])
                    if number in running:
                        run_twice.append(number)
                    running[number] = node
                    await asyncio.sleep(0.005)
                    running.pop(number, None)
                    seen.extend(record.value for record in fetched.pack)

            return handle

        nodes = []
        for name in ("a", "b"):
            info = ServiceInfo(service_id=name, service_types=frozenset([ServiceType.TB_CORE]))
            member = LogDiscovery(log, info, interval=0.03, timeout=0.5)
            await member.start(lambda others: None)
            options = ConsumerOptions(max_records=1, poll_seconds=0.1, retry_seconds=0.02)
            nodes.append((member, ConsumerManager(log, group_of, handler_of(name), options, claims=member)))
        sent = [b"%d-%d" % (info.partition, i) for info in INFOS for i in range(20)]
        for value in sent:
            await put(log, INFOS[int(value[:1])], value)
        for _, manager in nodes:
            manager.update(INFOS)
        await asyncio.sleep(0.05)
        nodes[0][1].update(INFOS[:2])
        nodes[1][1].update(INFOS[2:])
        await until(lambda: len(seen) >= len(sent))
        assert sorted(seen) == sorted(sent)
        assert run_twice == []
        for member, manager in nodes:
            await manager.stop()
            await member.stop()

    with_log(scenario)


def test_offsets_of_the_other_kind_of_group_are_taken_forward_only() -> None:
    """A partition that its own group has read further than the common one ever did stays where it is."""

    async def scenario(log: MemoryLog) -> None:
        handled = Handled()
        places = [info.log_partition for info in INFOS]
        for info in INFOS[:3]:
            await put(log, info, b"a", b"b", b"c")
        for group, offsets in {
            "group": {places[0]: 1, places[1]: 2, places[3]: 0},
            "group-1": {places[1]: 1, places[2]: 3},
            "group-0": {places[0]: 2},
        }.items():
            consumer = log.consumer(group)
            await consumer.commit({place: Committed(offset) for place, offset in offsets.items()})
            await consumer.close()
        manager = ConsumerManager(log, group_of, handled, QUICK)
        manager.update(INFOS[:3])
        await until(lambda: len(handled.values) >= 5)
        await manager.stop()
        assert sorted(handled.values) == [b"a", b"b", b"c", b"c", b"c"], "2 has no group that knows it: from the start"

    with_log(scenario)


def test_offsets_are_taken_over_once() -> None:
    """Who puts a group back wants its records again; so does one whose partition has lost its end and goes on."""

    async def scenario(log: MemoryLog) -> None:
        handled = Handled()
        place = INFOS[0].log_partition
        await put(log, INFOS[0], b"a", b"b", b"c", b"d")
        old, own = log.consumer("group"), log.consumer("group-0")
        await old.commit({place: Committed(3)})
        manager = ConsumerManager(log, group_of, handled, QUICK)
        manager.update(INFOS[:1])
        await until(lambda: handled.values == [b"d"])
        await manager.stop()
        await own.commit({place: Committed(1)})
        manager = ConsumerManager(log, group_of, handled, QUICK)
        manager.update(INFOS[:1])
        await until(lambda: handled.values[1:] == [b"b", b"c", b"d"])
        await manager.stop()
        # and back again: the common group goes on where the other one is
        await put(log, INFOS[0], b"e")
        manager = ConsumerManager(log, group_of, handled, SHARED)
        manager.update(INFOS[:1])
        await until(lambda: handled.values[4:] == [b"e"])
        await manager.stop()
        await old.close()
        await own.close()

    with_log(scenario)
