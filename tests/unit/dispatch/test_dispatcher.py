"""Dispatch over a memory log: order, and offsets that follow what is durable."""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import Any

import pytest

from penstock._ext.application.feed import Feed, feed_group
from penstock._ext.device.outlet import DeviceDesk
from penstock._ext.dispatch.desk import Round
from penstock._ext.hub.connection import Session
from penstock._ext.record.envelope import decode, encode
from penstock._ext.record.segment import RecordPack
from penstock.core.clock import now_ms
from penstock.dispatch.dispatcher import Dispatcher
from penstock.services.log_names import DISPATCH_GROUP
from penstock.storage.log.base import LogUnavailable
from tests.support.worlds.dispatch_stage import INGEST, OF_ANOTHER_BROKER, Stage, numbers, run
from tests.support.worlds.lanes import LaneClient

pytestmark = pytest.mark.usefixtures("quick_dispatch")


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
        assert feed_group(stage.hub, b"$share/g/x", feed)
        assert feed_group(stage.hub, b"$share/h/x", feed)
        assert not feed_group(stage.hub, b"$share/nobody/x", feed)
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

    def __init__(self, desk: DeviceDesk) -> None:
        self._desk = desk
        self.given: list[bytes] = []
        self.stray: list[bytes] = []

    def give(self, _: Round) -> None:
        self.given += self._take()

    def sweep(self) -> None:
        self.stray += self._take()

    def _take(self) -> list[bytes]:
        stashed, groups = self._desk.take_stashed()
        packs = [pack for _, pack, _, _ in stashed] + list(groups.values())
        return [decode(value).payload for pack in packs for value in pack.values()]


def test_what_is_dispatched_before_a_stall_is_handed_over_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A subscriber that cannot take what other brokers send makes dispatch wait in the middle of a pack. Meanwhile
    others look what there is for stores and logs: they must not take what belongs to the round, which is committed when
    it is stored."""

    async def scenario(stage: Stage) -> None:
        hub = stage.hub
        desk = DeviceDesk(hub, lambda _: None, lambda _: None, persist_after=0.1)
        hub.join(1)
        await stage.client("a")
        for name, topic_filter in (("d", b"#"), ("e", b"$share/g/#")):
            stage.sessions[name] = session = Session(hub, name)
            desk.of(session).open()
            hub.trie.subscribe(session, topic_filter, 1)
        slow = Session(hub, "slow")
        hub.trie.subscribe(slow, b"stalls", 0)
        client = LaneClient(hub, slow)
        devices = stage.dispatcher._devices = Devices(desk)
        client.transport.is_stuck = True
        hub.trie.subscribe(slow, b"much", 0)
        hub.publish("much", bytes(2_000_000))
        await stage.until(lambda: hub.counters_now()["congested_subscribers"])
        await stage.start()
        for topic, payload in (("x", b"1"), ("stalls", b"2")):
            pack = RecordPack()
            pack.append(encode(topic, payload, 1, received_at=now_ms()) + OF_ANOTHER_BROKER)
            stage.log.topics[INGEST].partitions[0].add(pack)
        stage.log.watchers.wake(INGEST, [0])
        await stage.until(lambda: stage.dispatcher._desk.position >= 0)
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
        dispatch = stage.dispatcher._desk.dispatch

        class Recorder:
            hub, position = stage.hub, -1

            def dispatch(self, pack: RecordPack, partition: int, dispatched: Round, *rest: Any) -> int:
                seen.append(dispatched)
                return dispatch(pack, partition, dispatched, *rest)

        stage.dispatcher._desk = Recorder()  # type: ignore[assignment]  # the desk, and what it was given
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
