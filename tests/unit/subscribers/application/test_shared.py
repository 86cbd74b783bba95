"""Shared subscriptions of APPLICATION clients: who gets what, and what happens to messages whose partition moves."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from penstock._ext.application.context import read_context, write_context
from penstock.services.housekeeper import JOIN, SHARE, Task, Undecided, Use
from penstock.storage.log.base import LogUnavailable
from penstock.storage.state.memory import MemoryStateStore
from penstock.subscribers.application.contexts import CLAIMED, OWN, SHARED, TABLE, make_key
from tests.support.brokers.app_node import Node, Reader, restart, run
from tests.support.worlds.lanes import PUBCOMP, PUBLISH, PUBREC, PUBREL, LaneClient, Packet

FILTER = b"$share/g/s"
TOPIC = "tbmq.msg.app.shared.s"
GROUP = f"application-shared-msg-consumer-group-g-{TOPIC}"


def sent(packets: list[Packet]) -> list[tuple[int, int, bool]]:
    return [(packet.packet_id, int(packet.payload), packet.dup) for packet in packets if packet.kind == PUBLISH]


async def join(node: Node, name: str, topic_filter: bytes = FILTER, *, options: int = 2) -> LaneClient:
    client = await node.connect(name)
    await node.subscribe(client, topic_filter, options)
    return client


def owners(node: Node, topic_filter: bytes = FILTER) -> dict[int, str]:
    share = node.delivery.shared._shares[topic_filter]
    return {partition: lane.session.client_id for partition, lane in share.lanes.items()}


async def settled(node: Node, count: int, topic_filter: bytes = FILTER) -> None:
    """All partitions of the topic have an owner."""
    await node.until(lambda: len(owners(node, topic_filter)) == count)


@pytest.mark.parametrize("qos", [1, 2])
def test_members_split_the_messages(qos: int) -> None:
    async def scenario(node: Node) -> None:
        readers = [Reader(await join(node, name)) for name in "abc"]
        await settled(node, 6)
        await node.publish("s", range(120), qos=qos)
        await node.until(lambda: sum(len(reader.look()) for reader in readers) == 120)
        numbers = sorted(number for reader in readers for number in reader.numbers)
        assert numbers == list(range(120))
        assert all(len(reader.numbers) == 40 for reader in readers)
        await asyncio.gather(*(reader.rest(0.05) for reader in readers))
        assert all(lane.in_flight == 0 for lane in node.delivery.book)

    run(scenario, shared_partitions=6)


def test_everybody_offline_and_back() -> None:
    async def scenario(node: Node) -> None:
        first = await join(node, "a")
        await settled(node, 4)
        first.lose()
        assert owners(node) == {}
        await node.publish("s", range(40))
        await asyncio.sleep(0.05)
        reader = Reader(await node.connect("a"))
        await reader.until(40)
        assert sorted(reader.numbers) == list(range(40))

    run(scenario, shared_partitions=4)


def test_a_new_group_begins_at_the_end() -> None:
    async def scenario(node: Node) -> None:
        reader = Reader(await join(node, "a"))
        await settled(node, 2)
        await node.publish("s", range(10))
        await reader.until(10)
        other = Reader(await join(node, "b", b"$share/h/s"))
        await settled(node, 2, b"$share/h/s")
        await node.publish("s", range(10, 20))
        await node.until(lambda: len(reader.look()) == 20 and len(other.look()) == 10)
        assert sorted(other.numbers) == list(range(10, 20))

    run(scenario, shared_partitions=2)


def test_a_member_leaves_and_another_goes_on() -> None:
    """QoS 1: what it had not acknowledged goes to the others, with packet ids of theirs."""

    async def scenario(node: Node) -> None:
        first, second = await join(node, "a"), await join(node, "b")
        await settled(node, 2)
        await node.publish("s", range(20))
        quiet, reader = Reader(first, says_nothing=True), Reader(second)
        await node.until(lambda: len(quiet.look()) == 10 and len(reader.look()) == 10)
        first.lose()
        await reader.until(20)
        assert sorted(reader.numbers) == list(range(20))
        ids = [packet.packet_id for packet in reader.packets if packet.kind == PUBLISH]
        assert len(set(ids)) == 20
        assert not any(packet.dup for packet in reader.packets)

    run(scenario, shared_partitions=2)


def test_qos_2_under_way_stays_with_its_client() -> None:
    """[MQTT-4.8.2-4] [MQTT-4.8.2-5]"""

    async def scenario(node: Node) -> None:
        first, second = await join(node, "a"), await join(node, "b")
        await settled(node, 2)
        await node.publish("s", range(20), qos=2)
        quiet, reader = Reader(first, says_nothing=True), Reader(second)
        await node.until(lambda: len(quiet.look()) == 10 and len(reader.look()) == 10)
        had = sent(quiet.packets)
        first.say(PUBREC, had[0][0])
        await node.until(lambda: any(packet.kind == PUBREL for packet in first.take()))
        first.lose()
        await reader.rest(0.2)
        assert len(reader.numbers) == 10
        again = Reader(await node.connect("a"))
        await again.until(9)
        await again.rest(0.1)
        assert sorted(sent(again.packets)) == sorted((packet_id, number, True) for packet_id, number, _ in had[1:])
        assert (again.packets[0].kind, again.packets[0].packet_id) == (PUBREL, had[0][0])
        await node.until(lambda: not node.delivery.contexts.keys(CLAIMED, "a"))
        await node.publish("s", range(20, 40), qos=2)
        await node.until(lambda: len(again.look()) + len(reader.look()) == 39)

    run(scenario, shared_partitions=2)


def test_a_partition_that_moves_while_its_client_is_connected() -> None:
    """A member joins: QoS 2 messages under way to the first are finished with it, on the connection it has, and do not
    come again when it reconnects."""

    async def scenario(node: Node) -> None:
        first = await join(node, "a")
        await settled(node, 2)
        await node.publish("s", range(10), qos=2)
        quiet = Reader(first, says_nothing=True)
        await quiet.until(10)
        await join(node, "b")
        await node.until(lambda: set(owners(node).values()) == {"a", "b"})
        held = [packet_id for packet_id, _, _ in sent(quiet.packets)]
        for packet_id in held:
            first.say(PUBREC, packet_id)
        released: list[Packet] = []

        def all_released() -> bool:
            released.extend(packet for packet in first.take() if packet.kind == PUBREL)
            return len(released) == len(held)

        await node.until(all_released)
        assert not any(packet.reason for packet in released), "the broker has forgotten packet ids in flight"
        for packet_id in held:
            first.say(PUBCOMP, packet_id)
        await asyncio.sleep(0.2)
        first.lose()
        again = Reader(await node.connect("a"))
        await again.rest(0.3)
        assert again.numbers == []

    run(scenario, shared_partitions=2)


@pytest.mark.parametrize("qos", [2])
def test_ids_of_a_partition_that_moved_are_not_used_while_they_are_in_flight(qos: int) -> None:
    """[MQTT-2.2.1-3]: the client has not acknowledged them yet. Those of QoS 1 go to the other member under new ids;
    the old ones come up again after 65,535 others."""

    async def scenario(node: Node) -> None:
        first = await join(node, "a")
        await node.subscribe(first, b"own")
        await settled(node, 2)
        await node.publish("s", range(10), qos=qos)
        quiet = Reader(first, says_nothing=True)
        await quiet.until(10)
        await join(node, "b")
        await node.until(lambda: set(owners(node).values()) == {"a", "b"})
        assert first.session.inflight == 10

    run(scenario, shared_partitions=2)


def test_claims_of_two_absences_are_both_kept() -> None:
    """A client leaves with QoS 2 messages under way, comes back, gets others, and leaves before it finished any."""

    async def scenario(node: Node) -> None:
        first = await join(node, "a")
        await settled(node, 1)
        await node.publish("s", [0], qos=2)
        await Reader(first, says_nothing=True).until(1)
        first.lose()
        second = await join(node, "b")
        await node.until(lambda: owners(node) == {0: "b"})
        second.lose()
        first = await node.connect("a")
        quiet = Reader(first, says_nothing=True)
        await quiet.until(1)
        await node.until(lambda: owners(node) == {0: "a"})
        await node.publish("s", [1], qos=2)
        await quiet.until(2)
        first.lose()
        second = await node.connect("b")
        await node.until(lambda: owners(node) == {0: "b"})
        again = Reader(await node.connect("a"))
        await again.rest(0.5)
        assert sorted(again.numbers) == [0, 1]
        assert all(packet.dup for packet in again.packets if packet.kind == PUBLISH)

    run(scenario, shared_partitions=1)


def test_claims_of_two_groups_on_one_filter_are_both_kept() -> None:
    async def scenario(node: Node) -> None:
        first = await join(node, "a")
        await node.subscribe(first, b"$share/h/s")
        await settled(node, 1)
        await settled(node, 1, b"$share/h/s")
        await node.publish("s", [0], qos=2)
        quiet = Reader(first, says_nothing=True)
        await quiet.until(2)
        had = sorted(packet_id for packet_id, _, _ in sent(quiet.packets))
        first.lose()
        second = await join(node, "b")
        await node.subscribe(second, b"$share/h/s")
        await node.until(lambda: owners(node) == owners(node, b"$share/h/s") == {0: "b"})
        again = Reader(await node.connect("a"))
        await again.rest(0.5)
        assert sorted(sent(again.packets)) == [(had[0], 0, True), (had[1], 0, True)]

    run(scenario, shared_partitions=1)


def test_a_shared_lane_that_comes_late_after_a_crash_keeps_its_ids() -> None:
    """After a restart the client's own log is there before its partitions of a shared one are: packet ids that the
    shared context says are in flight must not be given away meanwhile, or a QoS 2 message comes twice."""
    state = MemoryStateStore()
    own, shared = make_key(OWN, "a", "tbmq.msg.app.a", 0), make_key(SHARED, GROUP, TOPIC, 0)
    first = {"committed": 0, "end": 0, "last_packet_id": 0, "seen": {}, "in_flight": []}
    state.tables[TABLE] = {
        own: write_context(first),
        shared: b"a\0" + write_context({**first, "end": 2, "last_packet_id": 2, "in_flight": [(0, 1, 2, "received")]}),
    }

    async def scenario(node: Node) -> None:
        for topic in ("tbmq.msg.app.a", TOPIC):
            await node.log.admin.create(topic)
            await node.fill(topic, range(3), qos=2)
        session = node._new_session("a")
        node.hub.trie.subscribe(session, FILTER, 2)
        await node.delivery.contexts.load()  # those without a session were given away when the node started
        assert await node.delivery.restore([session]) == 1
        client = await node.connect("a")
        reader = Reader(client, says_nothing=True)
        await reader.until(4)  # three of its own, and the third of the shared topic
        await reader.rest(0.1)
        released = sorted(packet.packet_id for packet in reader.packets if packet.kind == PUBREL)
        assert released == [1, 2]
        assert sorted(packet_id for packet_id, _, _ in sent(reader.packets)) == [3, 4, 5, 6]

    run(scenario, state=state, shared_partitions=1)


def test_more_partitions_by_setting_than_the_topic_has() -> None:
    """The setting was raised between two starts: messages go to the partitions that are there."""

    async def scenario(node: Node) -> None:
        reader = Reader(await join(node, "a"))
        await settled(node, 2)
        await node.publish("s", range(4))
        await reader.until(4)
        await asyncio.sleep(0.15)
        other = await restart(node, shared_partitions=5)
        try:
            again = Reader(await other.connect("a"))
            await other.publish("s", range(100, 120))
            await other.until(lambda: sum(number >= 100 for number in again.look()) == 20, 30.0)
        finally:
            await other.stop()

    run(scenario, shared_partitions=2)


def test_the_topic_goes_with_the_last_member() -> None:
    async def scenario(node: Node) -> None:
        first, second = await join(node, "a"), await join(node, "b")
        third = await join(node, "c", b"$share/h/s")
        await settled(node, 2)
        node.unsubscribe(first, FILTER)
        await node.until(lambda: set(owners(node).values()) == {"b"})
        node.unsubscribe(second, FILTER)
        await asyncio.sleep(0.05)
        assert TOPIC in node.log.topics
        node.end(third.session)
        await node.until(lambda: TOPIC not in node.log.topics)
        assert not node.delivery.contexts.keys(SHARED, GROUP)
        reader = Reader(await join(node, "d"))
        await settled(node, 2)
        await node.publish("s", range(5))
        assert sorted(await reader.until(5)) == list(range(5))

    run(scenario, shared_partitions=2)


def test_the_topic_was_removed_by_somebody() -> None:
    """It is made again, its offsets begin anew, and so does what the broker has of them, also after a restart."""

    async def scenario(node: Node) -> None:
        client = await join(node, "a")
        await settled(node, 2)
        reader = Reader(client)
        await node.publish("s", range(10))
        assert sorted(await reader.until(10)) == list(range(10))
        await node.log.admin.delete(TOPIC)
        await node.publish("s", range(10, 16))
        assert sorted(await reader.until(16)) == list(range(16))
        await node.until(lambda: node.delivery.shared.committed_of(node.delivery.shared.shares()[0], 0) == 3)
        client.lose()
        await node.publish("s", range(16, 20))
        other = await restart(node, shared_partitions=2)
        try:
            assert sorted(await Reader(await other.connect("a")).until(4)) == list(range(16, 20))
        finally:
            await other.stop()

    run(scenario, shared_partitions=2)


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_topic_that_cannot_be_removed_now(comes_back: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.subscribers.application.shared.removal.REMOVE_AGAIN_SECONDS", 0.2)

    async def scenario(node: Node) -> None:
        client = await join(node, "a")
        await settled(node, 2)
        delete, tries = node.log.admin.delete, 0

        async def broken(topic: str) -> None:
            nonlocal tries
            tries += 1
            raise LogUnavailable("away")

        node.log.admin.delete = broken  # the fault this is about
        node.unsubscribe(client, FILTER)
        await node.until(lambda: tries == 1 and not node.delivery.shared.removals._removals)
        node.log.admin.delete = delete
        if comes_back:
            await node.subscribe(client, FILTER)
            await asyncio.sleep(0.5)
            await node.publish("s", range(5))
            assert sorted(await Reader(client).until(5)) == list(range(5))
        else:
            await node.until(lambda: TOPIC not in node.log.topics)

    run(scenario, shared_partitions=2)


def test_the_topic_stays_while_another_group_reads_it_at_another_broker() -> None:
    """The topic is one for all groups of a filter; what waits there for others must not go with this one."""

    async def scenario(node: Node) -> None:
        async def use_elsewhere(task: Task) -> Use:
            assert task == Task(SHARE, FILTER.decode(), TOPIC)
            return Use.TOPIC

        shared = node.delivery.shared
        node.others.ask = use_elsewhere
        client = await join(node, "a")
        await settled(node, 2)
        node.unsubscribe(client, FILTER)
        await node.until(lambda: not shared.removals._removals)
        assert TOPIC in node.log.topics

    run(scenario, shared_partitions=2)


@pytest.mark.parametrize("use", Use)
def test_what_a_share_left_behind(use: Use) -> None:
    async def scenario(node: Node) -> None:
        async def use_elsewhere(task: Task) -> Use:
            assert task == Task(SHARE, FILTER.decode(), TOPIC)
            return use

        deleted: list[str] = []

        async def delete_group(group: str) -> None:
            deleted.append(group)

        node.log.admin.delete_group = delete_group
        await node.log.admin.create(TOPIC, 2)
        node.others.ask = use_elsewhere
        await node.delivery.tidy(Task(SHARE, FILTER.decode(), TOPIC))
        assert (TOPIC in node.log.topics) is (use > Use.NONE)
        assert bool(deleted) is (use < Use.ALL)

    run(scenario, shared_partitions=2)


@pytest.mark.parametrize("way", ["shares it", "is about to", "joins meanwhile"])
def test_the_last_member_leaves_while_another_broker_gets_one(way: str) -> None:
    """Nothing goes: not at once, and not when it is the housekeeper's turn."""

    async def scenario(node: Node) -> None:
        removals = node.delivery.shared.removals

        async def use_elsewhere(task: Task) -> Use:
            if way == "joins meanwhile":
                await node.delivery.use_of(Task(JOIN, "", f"other {TOPIC}"))
                return Use.NONE
            if way == "is about to":
                raise Undecided("a broker does not answer")
            return Use.ALL

        async def delete_group(group: str) -> None:
            raise AssertionError(group)

        noted: list[tuple[str, str, str]] = []
        node.noted = noted
        node.others.ask = use_elsewhere
        client = await join(node, "a")
        await settled(node, 2)
        node.log.admin.delete_group = delete_group
        node.unsubscribe(client, FILTER)
        await removals.done(TOPIC)
        assert noted == [(SHARE, FILTER.decode(), TOPIC)]
        with contextlib.nullcontext() if way == "shares it" else pytest.raises(Undecided):
            await node.delivery.tidy(Task(*noted[0]))
        assert TOPIC in node.log.topics

    run(scenario, shared_partitions=2)


def test_who_joins_elsewhere_waits_for_what_is_being_deleted() -> None:
    async def scenario(node: Node) -> None:
        deleting, may_go_on = asyncio.Event(), asyncio.Event()
        delete = node.log.admin.delete

        async def slow(topic: str) -> None:
            deleting.set()
            await may_go_on.wait()
            await delete(topic)

        node.log.admin.delete = slow
        client = await join(node, "a")
        await settled(node, 2)
        node.unsubscribe(client, FILTER)
        await deleting.wait()
        joining = asyncio.ensure_future(node.delivery.use_of(Task(JOIN, "", TOPIC)))
        await asyncio.sleep(0.05)
        assert not joining.done()
        may_go_on.set()
        await joining
        assert TOPIC not in node.log.topics

    run(scenario, shared_partitions=2)


def test_a_share_that_moves_to_another_broker_stays_until_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be over there as well by then: that it is in use would be the last word on it."""

    async def scenario(node: Node) -> None:
        async def use_elsewhere(task: Task) -> Use:
            return Use.NONE

        node.others.ask = use_elsewhere
        client = await join(node, "a")
        await settled(node, 2)
        node.delivery.moved_away(client.session)
        task = Task(SHARE, FILTER.decode(), TOPIC)
        other = Task(SHARE, "$share/other/s", TOPIC)
        for ask in (node.delivery.use_of, node.delivery.tidy):
            with pytest.raises(Undecided):
                await ask(task)
        assert await node.delivery.use_of(other) is Use.TOPIC
        await node.delivery.tidy(other)
        assert TOPIC in node.log.topics
        monkeypatch.setattr("penstock.subscribers.application.shared.removal.MOVE_SECONDS", 0.0)
        node.delivery.shared.removals.moved_away(FILTER)
        assert await node.delivery.use_of(task) is Use.NONE
        await node.delivery.tidy(task)
        assert TOPIC not in node.log.topics

    run(scenario, shared_partitions=2)


def test_a_share_that_lives_is_not_tidied_up() -> None:
    async def scenario(node: Node) -> None:
        client = await join(node, "a")
        task = Task(SHARE, FILTER.decode(), TOPIC)
        assert await node.delivery.use_of(task) is Use.ALL
        assert (
            await node.delivery.use_of(Task(SHARE, f"$share/other/{FILTER.decode().split('/', 2)[2]}", TOPIC))
            is Use.TOPIC
        )
        await node.delivery.tidy(task)
        await node.publish("s", range(5))
        assert sorted(await Reader(client).until(5)) == list(range(5))

    run(scenario, shared_partitions=2)


def test_topics_that_cannot_be_made_now() -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect("a")
        create = node.log.admin.create

        async def broken(*arguments: object, **options: object) -> None:
            raise LogUnavailable("away")

        node.log.admin.create = broken  # the fault this is about
        with pytest.raises(LogUnavailable):
            await node.subscribe(client, FILTER)
        node.log.admin.create = create
        await node.subscribe(client, FILTER)
        await settled(node, 2)
        await node.publish("s", [1])
        assert await Reader(client).until(1) == [1]

    run(scenario, shared_partitions=2)


def test_other_options_of_the_same_subscription() -> None:
    """[MQTT-3.8.4-3]: the new QoS holds for what is sent from then on."""

    async def scenario(node: Node) -> None:
        client = await join(node, "a", options=2)
        await settled(node, 1)
        await node.publish("s", [0], qos=2)
        reader = Reader(client)
        await reader.until(1)
        await reader.rest(0.05)
        await node.subscribe(client, FILTER, 1)
        await node.publish("s", [1], qos=2)
        await reader.until(2)
        assert [packet.qos for packet in reader.packets if packet.kind == PUBLISH] == [2, 1]

    run(scenario, shared_partitions=1)


def test_members_come_and_go_under_load() -> None:
    async def scenario(node: Node) -> None:
        readers = {name: Reader(await join(node, name)) for name in "ab"}
        await settled(node, 4)
        got: list[int] = []
        for turn in range(12):
            await node.publish("s", range(turn * 50, turn * 50 + 50))
            for reader in readers.values():
                reader.look()
            name = "abc"[turn % 3]
            if name in readers:
                reader = readers.pop(name)
                got += reader.numbers
                reader.client.lose()
            elif name in node.sessions:
                readers[name] = Reader(await node.connect(name))
            else:
                readers[name] = Reader(await join(node, name))
            await asyncio.sleep(0.01)

        def all_there() -> bool:
            now = got + [number for reader in readers.values() for number in reader.look()]
            return set(now) == set(range(600))

        await node.until(all_there)

    run(scenario, shared_partitions=4)


def test_a_context_says_whose_it_is() -> None:
    async def scenario(node: Node) -> None:
        client = await join(node, "a")
        await settled(node, 1)
        await node.publish("s", range(3))
        await Reader(client, says_nothing=True).until(3)
        stored = node.delivery.contexts.get(make_key(SHARED, GROUP, TOPIC, 0))
        assert stored is not None
        owner, _, context = stored.partition(b"\0")
        assert owner == b"a"
        assert read_context(context)["in_flight"][0][:3] == (0, 1, 3)

    run(scenario, shared_partitions=1)
