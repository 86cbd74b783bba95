"""Dispatch over a memory log: order, offsets that follow what is durable, and a log that fails for a while."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock._ext.connection import Feed, Hub, Round, Session
from penstock._ext.envelope import decode, encode
from penstock._ext.segment import RecordPack
from penstock.dispatch import dispatcher as module
from penstock.dispatch.dispatcher import Dispatcher
from penstock.logs.base import Appended, Committed, LogError, LogUnavailable, RecordTooLarge, TopicPartition
from penstock.logs.memory import MemoryLog
from penstock.logs.sending import send
from penstock.logs.topics import now_ms
from penstock.persistence.log_names import DISPATCH_GROUP
from tests.support.lanes import LaneClient

INGEST = "tbmq.msg.all"
PARTITIONS = 2
OF_ANOTHER_BROKER = bytes([10 << 3 | 5]) + (2).to_bytes(4, "little")  # a field behind a record, see put_origin


class FailingLog(MemoryLog):
    """Appends to a topic, or commits, fail as long as a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: dict[str, LogError] = {}
        self.commit_failure: LogError | None = None
        self.create_failure: LogError | None = None
        self.attempts = 0
        self.commits: list[dict[TopicPartition, int]] = []
        take = self._producer.append

        def append(topic: str, partition: int, pack: RecordPack, on_done: Callable | None = None) -> None:
            self.attempts += 1
            if topic in self.failures:
                if on_done is not None:
                    asyncio.get_running_loop().call_soon(on_done, self.failures[topic])
                return
            take(topic, partition, pack, on_done)

        async def send_pack(topic: str, partition: int, pack: RecordPack) -> Appended:
            return await send(self._producer, topic, partition, pack)

        self._producer.append = append  # the fault this is about
        self._producer.send = send_pack

    async def commit(self, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
        if self.commit_failure is not None:
            raise self.commit_failure
        self.commits.append({place: committed.offset for place, committed in offsets.items()})
        await super().commit(group, offsets)


class Stage:
    def __init__(self, log: FailingLog) -> None:
        self.log = log
        self.hub = Hub(asyncio.get_running_loop())
        self.sessions: dict[str, Session] = {}
        self.missing: list[str] = []
        self.is_wanted = True
        self.dispatcher = Dispatcher(self.hub, log, INGEST, self.make_topic)

    async def start(self, *, from_now: bool = False) -> None:
        self.dispatcher.start()
        await self.dispatcher.activate(from_now=from_now)

    async def make_topic(self, topic: str) -> bool:
        self.missing.append(topic)
        if self.log.create_failure is not None:
            raise self.log.create_failure
        if self.is_wanted:
            await self.log.admin.create(topic)
        return self.is_wanted

    async def client(self, name: str, topic_filter: bytes = b"#", options: int = 2) -> Session:
        session = self.sessions[name] = Session(self.hub, name)
        topic = f"app.{name}"
        await self.log.admin.create(topic)
        session.feed = Feed(topic)
        self.hub.trie.subscribe(session, topic_filter, options)
        return session

    async def publish(self, topic: str, *payloads: bytes, qos: int = 1, partition: int = 0) -> None:
        pack = RecordPack()
        for payload in payloads:
            pack.append(encode(topic, payload, qos, received_at=now_ms()))
        self.log.topics[INGEST].partitions[partition].add(pack)
        self.log.watchers.wake([TopicPartition(INGEST, partition)])

    def payloads(self, name: str) -> list[bytes]:
        """What is in the client's log."""
        return [
            decode(value).payload
            for pack in self.log.topics[f"app.{name}"].partitions[0].run
            for value in pack.values()
        ]

    def committed(self, partition: int = 0) -> int:
        found = self.log.get_committed(DISPATCH_GROUP, TopicPartition(INGEST, partition))
        return -1 if found is None else found.offset

    async def until(self, condition: Callable[[], bool], seconds: float = 30.0) -> None:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - there is no event for what is in a log
                await asyncio.sleep(0.005)


@asynccontextmanager
async def staged() -> AsyncIterator[Stage]:
    log = FailingLog()
    await log.start()
    await log.admin.create(INGEST, PARTITIONS)
    stage = Stage(log)
    try:
        async with asyncio.timeout(60):
            yield stage
    finally:
        await stage.dispatcher.stop()
        await log.close()


def run(scenario: Callable[[Stage], Awaitable[None]]) -> None:
    async def main() -> None:
        async with staged() as stage:
            await scenario(stage)

    asyncio.run(main())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMMIT_SECONDS", 0.05)
    monkeypatch.setattr(module, "LONGEST_PAUSE", 0.1)


def numbers(*values: int) -> list[bytes]:
    return [str(value).encode() for value in values]


def test_to_everybody_who_is_to_have_it_in_order() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.client("a")
        await stage.client("b", b"x/+", 1)
        await stage.client("none", b"y")
        await stage.start()
        for start in range(0, 50, 10):
            await stage.publish("x/1", *numbers(*range(start, start + 10)), qos=2)
        await stage.publish("z", b"only a")
        await stage.until(lambda: len(stage.payloads("a")) == 51 and len(stage.payloads("b")) == 50)
        assert stage.payloads("a") == [*numbers(*range(50)), b"only a"]
        assert stage.payloads("b") == numbers(*range(50))
        assert stage.payloads("none") == []
        await stage.until(lambda: stage.committed() == 51)
        assert stage.hub.counters_now()["application_dispatched"] == 101

    run(scenario)


def test_only_what_has_a_qos() -> None:
    """QoS 0, published or subscribed, goes to the client at once and not through its log."""

    async def scenario(stage: Stage) -> None:
        await stage.client("a")
        await stage.client("zero", b"#", 0)
        await stage.start()
        await stage.publish("x", b"no", qos=0)
        await stage.publish("x", b"yes", qos=1)
        await stage.until(lambda: stage.payloads("a") == [b"yes"])
        assert stage.payloads("zero") == []

    run(scenario)


def test_records_nobody_can_read_are_counted_and_passed() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.client("a")
        await stage.start()
        pack = RecordPack()
        for value in (b"garbage", None, encode("x", b"good", 1), b"\xff" * 20):
            pack.append(value)
        stage.log.topics[INGEST].partitions[0].add(pack)
        await stage.publish("x", b"next")
        await stage.until(lambda: stage.payloads("a") == [b"good", b"next"])
        assert stage.dispatcher.counters()["dispatch_damaged"] == 3
        await stage.until(lambda: stage.committed() == 5)

    run(scenario)


def test_goes_on_where_it_was() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.client("a")
        await stage.start()
        await stage.publish("x", b"1", b"2")
        await stage.until(lambda: len(stage.payloads("a")) == 2 and not stage.dispatcher.is_busy)
        await stage.dispatcher.stop()
        assert stage.committed() == 2
        await stage.publish("x", b"3")
        await stage.start()
        await stage.until(lambda: len(stage.payloads("a")) == 3)
        assert stage.payloads("a") == numbers(1, 2, 3)

    run(scenario)


def test_from_now_passes_over_what_nobody_was_to_have() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.publish("x", *numbers(*range(100)))
        await stage.publish("x", b"other", partition=1)
        await stage.client("a")
        await stage.start(from_now=True)
        assert (stage.committed(0), stage.committed(1)) == (100, 1)
        await stage.publish("x", b"new", partition=1)
        await stage.until(lambda: stage.payloads("a") == [b"new"])

    run(scenario)


def test_a_member_that_is_not_active_reads_nothing() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.client("a")
        stage.dispatcher.start()
        await stage.publish("x", b"1")
        await asyncio.sleep(0.05)
        assert (stage.payloads("a"), stage.committed(), stage.dispatcher.rounds) == ([], -1, 0)
        await stage.dispatcher.activate(from_now=False)
        await stage.until(lambda: stage.payloads("a") == [b"1"])

    run(scenario)


def test_started_by_two_clients_at_once() -> None:
    """Two first clients connect in the same moment: the slower must not pass over what the faster is to have."""

    async def scenario(stage: Stage) -> None:
        await stage.client("a")
        describe, pauses = stage.log.admin.describe, [0.0, 0.1]

        async def slow(topic: str) -> object:
            await asyncio.sleep(pauses.pop(0) if pauses else 0)
            return await describe(topic)

        stage.log.admin.describe = slow  # Kafka takes its time
        stage.dispatcher.start()
        both = [asyncio.create_task(stage.dispatcher.activate(from_now=True)) for _ in range(2)]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        # the first client is connected and published to, while the log is slow
        stage.log.failures["app.a"] = LogUnavailable("slow")
        await stage.publish("x", b"1")
        await stage.until(lambda: stage.dispatcher.retries > 0)
        await stage.publish("x", b"2")
        await asyncio.gather(*both)
        stage.log.failures.clear()
        await stage.publish("x", b"3")
        await stage.until(lambda: b"3" in stage.payloads("a"))
        assert stage.payloads("a") == numbers(1, 2, 3)

    run(scenario)


def test_an_append_that_fails_is_tried_again() -> None:
    """Order is kept, nobody's messages are skipped, and the offset waits for all of them."""

    async def scenario(stage: Stage) -> None:
        for name in "abc":
            await stage.client(name)
        await stage.start()
        stage.log.failures["app.b"] = LogUnavailable("the disk is full")
        for value in range(5):
            await stage.publish("x", *numbers(2 * value, 2 * value + 1))
        await stage.until(lambda: stage.dispatcher.retries >= 3)
        await asyncio.sleep(0.1)
        assert stage.payloads("b") == []
        assert stage.committed() <= 0
        stage.log.failures.clear()
        await stage.until(lambda: all(len(stage.payloads(name)) == 10 for name in "abc"))
        assert all(stage.payloads(name) == numbers(*range(10)) for name in "abc")
        await stage.until(lambda: stage.committed() == 10)

    run(scenario)


def test_what_waits_in_the_log_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.logs.lag_watch.LOOK_SECONDS", 0.01)

    async def scenario(stage: Stage) -> None:
        await stage.client("a")
        await stage.start()
        stage.log.failures["app.a"] = LogUnavailable("the disk is full")
        await stage.publish("x", *numbers(1))
        await stage.until(lambda: stage.dispatcher.retries >= 1)
        await stage.publish("x", *numbers(2, 3, 4))
        await stage.until(lambda: stage.dispatcher.counters()["dispatch_lag"] == 3)
        stage.log.failures.clear()
        await stage.until(lambda: stage.dispatcher.counters()["dispatch_lag"] == 0)
        assert stage.payloads("a") == numbers(1, 2, 3, 4)

    run(scenario)


def test_a_message_larger_than_one_topic_takes_stops_nobody() -> None:
    """It is lost for that client alone and counted; what came with it keeps its order."""

    async def scenario(stage: Stage) -> None:
        for name in "ab":
            await stage.client(name)
        take = stage.log._producer.append

        def append(topic: str, partition: int, pack: RecordPack, on_done: Callable | None = None) -> None:
            if topic == "app.b" and any(len(value) > 1_000 for value in pack.values()):
                assert on_done is not None
                asyncio.get_running_loop().call_soon(on_done, RecordTooLarge("more than 1000 bytes"))
            else:
                take(topic, partition, pack, on_done)

        stage.log._producer.append = append  # the fault this is about
        await stage.start()
        large = bytes(2_000)
        await stage.publish("x", b"0", b"1", large, b"2", large, b"3")
        await stage.until(lambda: stage.payloads("b") == numbers(0, 1, 2, 3))
        await stage.until(lambda: stage.payloads("a") == [b"0", b"1", large, b"2", large, b"3"])
        await stage.until(lambda: stage.committed() == 6)
        assert stage.dispatcher.counters()["dispatch_too_large"] == 2

    run(scenario)


def test_a_commit_that_fails_is_tried_again() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.client("a")
        stage.log.commit_failure = LogUnavailable("Kafka is away")
        await stage.start()
        for value in range(6):
            await stage.publish("x", str(value).encode())
            await asyncio.sleep(0.04)
        await stage.until(lambda: stage.payloads("a") == numbers(*range(6)))
        assert stage.committed() == -1
        stage.log.commit_failure = None
        await stage.until(lambda: stage.committed() == 6)
        assert stage.payloads("a") == numbers(*range(6))

    run(scenario)


def test_a_poll_that_fails_is_tried_again() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.client("a")
        await stage.start()
        read = stage.log.try_read
        failures = 3

        def broken(*arguments: object) -> list[RecordPack]:
            nonlocal failures
            if failures:
                failures -= 1
                raise LogUnavailable("not now")
            return read(*arguments)

        stage.log.try_read = broken  # the fault this is about
        await stage.publish("x", *numbers(*range(9)))
        await stage.until(lambda: len(stage.payloads("a")) == 9)
        assert failures == 0
        assert stage.payloads("a") == numbers(*range(9))

    run(scenario)


def test_a_topic_that_somebody_removed_is_made_again() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.client("a")
        await stage.client("b")
        await stage.log.admin.delete("app.a")
        await stage.start()
        await stage.publish("x", b"1", b"2")
        await stage.until(lambda: "app.a" in stage.log.topics and len(stage.payloads("a")) == 2)
        assert stage.missing == ["app.a"]
        assert stage.payloads("b") == numbers(1, 2)

    run(scenario)


def test_a_topic_nobody_wants_any_more_is_passed_over() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.client("a")
        await stage.client("b")
        await stage.log.admin.delete("app.a")
        stage.is_wanted = False
        await stage.start()
        await stage.publish("x", b"1")
        await stage.until(lambda: stage.payloads("b") == [b"1"] and stage.committed() == 1)
        assert "app.a" not in stage.log.topics

    run(scenario)


def test_a_topic_that_cannot_be_made_now_loses_nothing() -> None:
    """The log is away when the topic is to be made again: the round is not given up, for nobody."""

    async def scenario(stage: Stage) -> None:
        await stage.client("a")
        await stage.client("b")
        await stage.log.admin.delete("app.a")
        stage.log.failures["app.b"] = LogUnavailable("away")
        stage.log.create_failure = LogUnavailable("away")
        await stage.start()
        await stage.publish("x", b"1", b"2")
        await stage.until(lambda: len(stage.missing) >= 1)
        await asyncio.sleep(0.05)
        await stage.publish("x", b"3")
        await asyncio.sleep(0.2)
        stage.log.failures.clear()
        stage.log.create_failure = None
        await stage.publish("x", b"4")
        await stage.until(lambda: "app.a" in stage.log.topics and b"4" in stage.payloads("a"))
        assert stage.payloads("b") == numbers(1, 2, 3, 4)
        assert stage.payloads("a") == numbers(1, 2, 3, 4)

    run(scenario)


def test_an_error_that_is_not_of_the_log_does_not_end_dispatch() -> None:
    """Whatever breaks in one round, the messages of the next still reach their clients."""

    async def scenario(stage: Stage) -> None:
        await stage.client("a")
        await stage.start()
        stage.log.failures["app.a"] = MemoryError("for a moment")  # no LogError
        await stage.publish("x", b"1")
        await asyncio.sleep(0.1)
        stage.log.failures.clear()
        await stage.publish("x", b"2")
        await stage.until(lambda: b"2" in stage.payloads("a"))
        assert stage.payloads("a") == numbers(1, 2)

    run(scenario)


def test_after_a_crash_rounds_come_again_with_the_same_sources() -> None:
    """The offset was not committed: the copies say where they come from, so their reader passes over the second."""

    async def scenario(stage: Stage) -> None:
        await stage.client("a")
        stage.log.commit_failure = LogUnavailable("it crashes before")
        await stage.start()
        await stage.publish("x", *numbers(0, 1))
        await stage.until(lambda: len(stage.payloads("a")) == 2)
        await stage.dispatcher.stop()
        for consumer in list(stage.log._consumers):
            await consumer.close()
        stage.log.commit_failure = None
        again = Dispatcher(stage.hub, stage.log, INGEST, stage.make_topic)
        again.start()
        await again.activate(from_now=False)
        try:
            await stage.until(lambda: len(stage.payloads("a")) == 4)
        finally:
            await again.stop()
        assert stage.payloads("a") == numbers(0, 1, 0, 1)
        values = [value for pack in stage.log.topics["app.a"].partitions[0].run for value in pack.values()]
        assert values[:2] == values[2:]

    run(scenario)


def test_stop_in_the_middle_of_a_round_commits_only_what_is_durable() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.client("a")
        await stage.start()
        await stage.publish("x", b"0")
        await stage.until(lambda: stage.committed() == 1)
        stage.log.failures["app.a"] = LogUnavailable("away")
        await stage.publish("x", b"1")
        await stage.until(lambda: stage.dispatcher.retries > 0)
        await stage.dispatcher.stop()
        assert stage.committed() == 1
        stage.log.failures.clear()
        await stage.start()
        await stage.until(lambda: stage.payloads("a") == numbers(0, 1))

    run(scenario)


def test_a_last_commit_that_fails_does_not_keep_the_member_in_the_group() -> None:
    """Otherwise the others wait for its session timeout before they go on with its partitions."""

    async def scenario(stage: Stage) -> None:
        await stage.client("a")
        stage.log.commit_failure = LogUnavailable("away")
        await stage.start()
        await stage.publish("x", b"0")
        await stage.until(lambda: stage.payloads("a") == [b"0"])
        await stage.dispatcher.stop()
        assert not stage.log.coordinator.members_of(DISPATCH_GROUP)

    run(scenario)


def test_shared_feed_gets_one_copy_for_all_share_names() -> None:
    async def scenario(stage: Stage) -> None:
        first, second = await stage.client("a", b"$share/g/x"), await stage.client("b", b"$share/h/x")
        await stage.log.admin.create("app.shared", 3)
        feed = Feed("app.shared", 3)
        assert stage.hub.feed_group(b"$share/g/x", feed)
        assert stage.hub.feed_group(b"$share/h/x", feed)
        assert not stage.hub.feed_group(b"$share/nobody/x", feed)
        await stage.start()
        await stage.publish("x", *numbers(*range(30)))
        topic = stage.log.topics["app.shared"]
        await stage.until(lambda: sum(partition.end for partition in topic.partitions) == 30)
        await asyncio.sleep(0.05)
        assert [partition.end for partition in topic.partitions] == [10, 10, 10]
        assert stage.payloads("a") == stage.payloads("b") == []
        assert first.feed is not None
        assert second.feed is not None

    run(scenario)


class Devices:
    """Who takes what a round has for the store, and looks on its own account, as the sweep of DEVICE clients does."""

    is_busy = False

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.given: list[bytes] = []
        self.stray: list[bytes] = []

    def give(self, _: Round) -> None:
        self.given += self._take()

    def sweep(self) -> None:
        self.stray += self._take()

    def _take(self) -> list[bytes]:
        stashed, groups = self._hub.take_stashed()
        packs = [pack for _, pack, _, _ in stashed] + list(groups.values())
        return [decode(value).payload for pack in packs for value in pack.values()]


def test_what_is_dispatched_before_a_stall_is_handed_over_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A subscriber that cannot take what other brokers send makes dispatch wait in the middle of a pack. Meanwhile
    others look what there is for stores and logs: they must not take what belongs to the round, which is committed when
    it is stored."""

    async def scenario(stage: Stage) -> None:
        hub = stage.hub
        hub.store_devices(lambda _: None, lambda _: None, persist_after=0.1)
        hub.join(1)
        await stage.client("a")
        for name, topic_filter in (("d", b"#"), ("e", b"$share/g/#")):
            stage.sessions[name] = session = Session(hub, name)
            session.via_log = True
            hub.trie.subscribe(session, topic_filter, 1)
        slow = Session(hub, "slow")
        hub.trie.subscribe(slow, b"stalls", 0)
        client = LaneClient(hub, slow)
        devices = stage.dispatcher._devices = Devices(hub)
        client.transport.is_stuck = True
        hub.trie.subscribe(slow, b"much", 0)
        hub.publish("much", bytes(2_000_000))
        await stage.until(lambda: hub.counters_now()["congested_subscribers"])
        await stage.start()
        for topic, payload in (("x", b"1"), ("stalls", b"2")):
            pack = RecordPack()
            pack.append(encode(topic, payload, 1, received_at=now_ms()) + OF_ANOTHER_BROKER)
            stage.log.topics[INGEST].partitions[0].add(pack)
        stage.log.watchers.wake([TopicPartition(INGEST, 0)])
        await stage.until(lambda: hub.dispatch_position >= 0)
        devices.sweep()
        await stage.until(lambda: stage.payloads("a") == [b"1"])
        client.transport.is_stuck = False
        client.connection.resume_writing()
        await stage.until(lambda: stage.payloads("a") == numbers(1, 2))
        assert (sorted(devices.given), devices.stray) == (numbers(1, 1, 2, 2), [])

    run(scenario)


def test_a_round_that_was_not_finished_stays() -> None:
    """Messages under way to devices point to it."""

    async def scenario(stage: Stage) -> None:
        await stage.client("a")
        seen: list[Round] = []
        dispatch = stage.hub.dispatch

        class Recorder:
            def __getattr__(self, name: str) -> Any:
                return getattr(stage.hub, name)

            def dispatch(self, pack: RecordPack, partition: int, dispatched: Round, *rest: Any) -> int:
                seen.append(dispatched)
                return dispatch(pack, partition, dispatched, *rest)

        stage.dispatcher._hub = Recorder()  # type: ignore[assignment]  # the hub, and what it was given
        await stage.start()
        stage.log.failures["app.a"] = MemoryError("for a moment")  # type: ignore[assignment]  # no LogError
        await stage.publish("x", b"1")
        await stage.until(lambda: len(seen) >= 2)
        broken = seen[0]
        seen.clear()
        gc.collect()
        assert sys.getrefcount(broken) > 2  # more than this function's
        stage.log.failures.clear()
        await stage.until(lambda: b"1" in stage.payloads("a"))

    run(scenario)
