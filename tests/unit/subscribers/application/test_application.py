"""APPLICATION clients over a memory log and store: from the session's first moment to the end of its topic."""

from __future__ import annotations

import asyncio

import pytest

from penstock._ext.application.context import read_context, write_context
from penstock.services.housekeeper import CLIENT, DELETED, SHARE, Task, Undecided, Use
from penstock.storage.log.base import LogError, LogUnavailable
from penstock.storage.state.memory import MemoryStateStore
from penstock.subscribers.application.contexts import OWN, TABLE, make_key
from tests.support.brokers.app_node import Node, Reader, SlowStore, restart, run
from tests.support.worlds.lanes import PUBACK, PUBLISH, PUBREC, PUBREL, Packet

TOPIC = "tbmq.msg.app.a"
KEY = make_key(OWN, "a", TOPIC, 0)


def sent(packets: list[Packet]) -> list[tuple[int, int, bool]]:
    """Packet id, number and DUP of each PUBLISH."""
    return [(packet.packet_id, int(packet.payload), packet.dup) for packet in packets if packet.kind == PUBLISH]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("version", [4, 5])
def test_live_and_from_the_backlog(version: int, qos: int) -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect("a", version=version)
        await node.subscribe(client, b"t/#")
        await node.publish("t/1", range(300), qos=qos)
        reader = Reader(client)
        await reader.until(300)
        await node.until(lambda: reader.look() and node.delivery.committed_of(client.session) == 300)
        client.lose()
        await node.publish("t/2", range(300, 700), qos=qos)
        client = await node.connect("a", version=version)
        again = Reader(client)
        await again.until(400)
        assert reader.numbers + again.numbers == list(range(700))
        await node.until(lambda: again.look() and node.delivery.committed_of(client.session) == 700)
        assert client.session.inflight == 0

    run(scenario)


def test_a_new_session_begins_at_the_end_of_a_topic_that_is_there() -> None:
    async def scenario(node: Node) -> None:
        await node.log.admin.create(TOPIC)
        await node.fill(TOPIC, range(50))
        client = await node.connect("a")
        await node.subscribe(client, b"t")
        await node.publish("t", [50])
        assert await Reader(client).until(1) == [50]

    run(scenario)


def test_clean_start_drops_the_backlog() -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect("a")
        await node.subscribe(client, b"t")
        await node.publish("t", range(5), qos=2)
        reader = Reader(client, says_nothing=True)
        await reader.until(5)
        client = await node.connect("a", clean=True)
        await node.subscribe(client, b"t")
        await node.publish("t", [9])
        reader = Reader(client)
        await reader.until(1)
        assert sent(reader.packets) == [(1, 9, False)]

    run(scenario, remove_topics="never")


def test_the_topic_goes_with_the_session() -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect("a")
        await node.subscribe(client, b"t")
        await node.publish("t", range(3))
        await Reader(client).until(3)
        node.end(client.session)
        await node.until(lambda: TOPIC not in node.log.topics)
        await node.until(lambda: not node.state.tables.get(TABLE))
        assert len(node.delivery) == 0
        # and comes again with the next one
        client = await node.connect("a")
        await node.subscribe(client, b"t")
        await node.publish("t", [7])
        assert await Reader(client).until(1) == [7]

    run(scenario)


@pytest.mark.parametrize("setting", ["session-end", "never"])
def test_a_client_that_gives_up_while_its_topic_is_made_leaves_nothing(setting: str) -> None:
    """The connection ends between the making of the topic and CONNACK: there is no session, so there is no topic."""

    async def scenario(node: Node) -> None:
        await node.applications.prepare(None, "a", "application", 100, False)
        assert TOPIC in node.log.topics
        node.kinds.given_up("a")
        if setting == "never":
            await asyncio.sleep(0.05)
            assert TOPIC in node.log.topics
            return
        await node.until(lambda: TOPIC not in node.log.topics)
        client = await node.connect("a")
        node.kinds.given_up("a")  # another connection of the client, which came too late
        await node.subscribe(client, b"t")
        await node.publish("t", [1])
        assert await Reader(client).until(1) == [1]
        node.end(client.session)
        await node.until(lambda: TOPIC not in node.log.topics)

    run(scenario, remove_topics=setting)


def test_a_topic_without_a_beginning_is_not_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was made, but where it ends could not be found out: the client is refused."""

    async def scenario(node: Node) -> None:
        async def broken(*_: object) -> None:
            raise LogError("nobody answers")

        monkeypatch.setattr(node.delivery, "_find_start", broken)
        with pytest.raises(LogError):
            await node.connect("a")
        await node.until(lambda: TOPIC not in node.log.topics)

    run(scenario)


@pytest.mark.parametrize("comes_back", ["nowhere", "here", "elsewhere"])
def test_a_topic_that_cannot_be_removed_now(comes_back: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka is away when the session ends: the topic goes when it is back, unless the client is back as well."""
    monkeypatch.setattr("penstock.subscribers.application.delivery.REMOVE_AGAIN_SECONDS", 0.2)

    async def scenario(node: Node) -> None:
        client = await node.connect("a")
        delete = node.log.admin.delete
        tries = 0

        async def broken(topic: str) -> None:
            nonlocal tries
            tries += 1
            raise LogUnavailable("away")

        node.log.admin.delete = broken  # the fault this is about
        node.end(client.session)
        await node.until(lambda: tries == 1 and not node.delivery._removals)
        node.log.admin.delete = delete
        if comes_back == "here":
            await node.connect("a")
        elif comes_back == "elsewhere":
            node.others.clients.add("a")
        if comes_back == "nowhere":
            await node.until(lambda: TOPIC not in node.log.topics)
        else:
            await asyncio.sleep(0.5)
            assert TOPIC in node.log.topics

    run(scenario)


LEFT = Task(CLIENT, "a", TOPIC)


@pytest.mark.parametrize("use", Use)
def test_a_topic_that_was_left_behind(use: Use) -> None:
    """Nobody here has the client: the topic goes, unless another broker uses it."""

    async def scenario(node: Node) -> None:
        async def use_elsewhere(task: Task) -> Use:
            assert task == LEFT
            return use

        await node.log.admin.create(TOPIC)
        node.others.ask = use_elsewhere
        await node.delivery.tidy(LEFT)
        assert (TOPIC in node.log.topics) is (use is not Use.NONE)
        await node.delivery.tidy(LEFT)  # a task may come twice

    run(scenario)


def test_a_client_that_has_come_back_keeps_its_topic() -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect("a")
        await node.delivery.tidy(LEFT)
        assert await node.delivery.use_of(LEFT) is Use.ALL
        await node.subscribe(client, b"t")
        await node.publish("t", [1])
        assert await Reader(client).until(1) == [1]

    run(scenario)


def test_a_client_that_comes_while_its_topic_is_looked_at_waits() -> None:
    """Others are asked whether they use it: who connects meanwhile has a topic after that, and everything in it."""

    async def scenario(node: Node) -> None:
        asked, answered = asyncio.Event(), asyncio.Event()

        async def use_elsewhere(_: Task) -> Use:
            asked.set()
            await answered.wait()
            return Use.NONE

        await node.log.admin.create(TOPIC)
        node.others.ask = use_elsewhere
        tidying = asyncio.ensure_future(node.delivery.tidy(LEFT))
        await asked.wait()
        connecting = asyncio.ensure_future(node.connect("a"))
        await asyncio.sleep(0.05)
        assert not connecting.done()
        answered.set()
        await tidying
        client = await connecting
        await node.subscribe(client, b"t")
        await node.publish("t", [1])
        assert await Reader(client).until(1) == [1]

    run(scenario)


def test_what_cannot_be_decided_stays_and_is_tried_again() -> None:
    async def scenario(node: Node) -> None:
        async def use_elsewhere(_: Task) -> Use:
            raise Undecided("a broker does not answer")

        await node.log.admin.create(TOPIC)
        node.others.ask = use_elsewhere
        with pytest.raises(Undecided):
            await node.delivery.tidy(LEFT)
        assert TOPIC in node.log.topics
        await node.connect("a")

    run(scenario)


@pytest.mark.parametrize("topic", ["tbmq.msg.all", "tbmq.msg.app.b", "tbmq.msg.app.shared.a"])
def test_a_task_about_a_topic_that_is_not_of_its_client_removes_nothing(topic: str) -> None:
    """Whoever wrote it: only what the client's own session would have had can go."""

    async def scenario(node: Node) -> None:
        await node.log.admin.create(topic)
        await node.delivery.tidy(Task(CLIENT, "a", topic))
        await node.delivery.tidy(Task(SHARE, "$share/group/a/b", topic))
        assert topic in node.log.topics

    run(scenario)


def test_what_the_settings_keep_goes_only_when_somebody_deletes_it() -> None:
    async def scenario(node: Node) -> None:
        await node.log.admin.create(TOPIC)
        await node.delivery.tidy(LEFT)
        assert TOPIC in node.log.topics
        await node.delivery.tidy(Task(DELETED, "a", TOPIC))
        assert TOPIC not in node.log.topics

    run(scenario, remove_topics="never")


@pytest.mark.parametrize("use", [Use.NONE, Use.ALL, None])
def test_a_session_ends_while_another_broker_may_have_the_client(use: Use | None) -> None:
    """Its topic goes at once only if nobody has it; what is not known is left to the housekeeper."""

    async def scenario(node: Node) -> None:
        asked = 0

        async def use_elsewhere(task: Task) -> Use:
            nonlocal asked
            asked += 1
            # The other broker asks as well, and is not kept waiting.
            assert await asyncio.wait_for(node.delivery.use_of(task), 30) is Use.NONE
            if use is None:
                raise Undecided("a broker does not answer")
            return use

        noted: list[tuple[str, str, str]] = []
        node.noted = noted
        node.others.ask = use_elsewhere
        client = await node.connect("a")
        node.end(client.session)
        await node.delivery.removed("a")
        assert (asked, noted) == (1, [(CLIENT, "a", TOPIC)])
        assert (TOPIC in node.log.topics) is (use is not Use.NONE)

    run(scenario)


def test_the_end_of_a_session_is_noted_for_the_housekeeper_once() -> None:
    async def scenario(node: Node) -> None:
        noted: list[tuple[str, str, str]] = []
        node.noted = noted
        client = await node.connect("a")
        node.end(client.session)
        await node.until(lambda: TOPIC not in node.log.topics)
        assert noted == [(CLIENT, "a", TOPIC)]
        await node.connect("a")
        await node.connect("a", clean=True)  # the next one has the topic already
        await asyncio.sleep(0.05)
        assert len(noted) == 1

    run(scenario)


def test_watching_costs_no_consumer_for_each_new_client() -> None:
    """Thousands of clients do not cost a consumer each."""

    async def scenario(node: Node) -> None:
        await node.connect("first")
        before = len(node.log._consumers)
        for number in range(20):
            await node.connect(f"c{number}")
        assert len(node.log._consumers) <= before + 1

    run(scenario)


@pytest.mark.parametrize("qos", [1, 2])
def test_crash_with_a_pack_under_way(qos: int) -> None:
    """Same packet ids, DUP, in order; the sequence goes on."""

    async def scenario(node: Node) -> None:
        client = await node.connect("a")
        await node.subscribe(client, b"t")
        await node.publish("t", range(6), qos=qos)
        reader = Reader(client, says_nothing=True)
        await reader.until(6)
        if qos == 1:
            client.say(PUBACK, 1)
        await asyncio.sleep(0.15)  # the context is written behind
        other = await restart(node)
        try:
            client = await other.connect("a")
            await other.publish("t", [6], qos=qos)
            again = Reader(client)
            await again.until(6 if qos == 1 else 7)
            expected = [(number + 1, number, True) for number in range(1 if qos == 1 else 0, 6)]
            assert sent(again.packets) == [*expected, (7, 6, False)]
        finally:
            await other.stop()

    run(scenario)


def test_crash_between_pubrec_and_pubcomp() -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect("a")
        await node.subscribe(client, b"t")
        await node.publish("t", range(3), qos=2)
        reader = Reader(client, says_nothing=True)
        await reader.until(3)
        client.say(PUBREC, 2)
        await node.until(lambda: any(packet.kind == PUBREL for packet in client.take()))
        other = await restart(node)
        try:
            client = await other.connect("a")
            again = Reader(client)
            await again.until(2)
            await again.rest()
            assert (again.packets[0].kind, again.packets[0].packet_id) == (PUBREL, 2)  # first [MQTT-4.4.0-1]
            assert sent(again.packets) == [(1, 0, True), (3, 2, True)]
        finally:
            await other.stop()

    run(scenario)


def test_nothing_is_sent_that_a_crash_would_forget() -> None:
    async def scenario(node: Node) -> None:
        assert isinstance(node.state, SlowStore)
        client = await node.connect("a")
        await node.subscribe(client, b"t")
        await asyncio.sleep(0.15)
        node.state.is_held = True
        await node.publish("t", range(4), qos=2)
        reader = Reader(client)
        assert await reader.rest(0.3) == []
        node.state.let_go()
        await reader.until(4)
        node.state.is_held = True
        await reader.rest(0.2)
        assert not [packet for packet in reader.packets if packet.kind == PUBREL]
        node.state.let_go()
        await node.until(lambda: reader.look() and node.delivery.committed_of(client.session) == 4)

    run(scenario, state=SlowStore())


def test_pubrel_after_a_quick_reconnect_waits_for_the_store_too() -> None:
    """PUBREC came, nothing says so that would survive a crash, and the client is back already: after a PUBREL it would
    forget the packet id, and after a crash the broker would send the message again."""

    async def scenario(node: Node) -> None:
        assert isinstance(node.state, SlowStore)
        client = await node.connect("a")
        await node.subscribe(client, b"t")
        await node.publish("t", [0], qos=2)
        await Reader(client, says_nothing=True).until(1)
        await asyncio.sleep(0.15)
        node.state.is_held = True
        client.say(PUBREC, 1)
        await asyncio.sleep(0.01)
        client.lose()
        reader = Reader(await node.connect("a"))
        await reader.rest(0.05)
        assert not [packet for packet in reader.packets if packet.kind == PUBREL]
        node.state.let_go()
        await node.until(lambda: reader.look() == [] and node.delivery.committed_of(node.sessions["a"]) == 1)

    run(scenario, state=SlowStore())


def test_a_store_that_fails_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.subscribers.application.contexts.RETRY_SECONDS", 0.05)

    async def scenario(node: Node) -> None:
        client = await node.connect("a")
        await node.subscribe(client, b"t")
        node.state.failure = "the disk is full"
        await node.publish("t", range(500), qos=2)
        reader = Reader(client)
        assert await reader.rest(0.2) == []
        node.state.failure = ""
        await reader.until(500)
        await node.until(lambda: reader.look() and node.delivery.committed_of(client.session) == 500)
        assert reader.numbers == list(range(500))
        assert [packet.packet_id for packet in reader.packets if packet.kind == PUBLISH] == list(range(1, 501))

    run(scenario)


def test_a_context_nobody_can_read_loses_no_message() -> None:
    """Damaged in the store: the client gets everything again, as the log says."""

    async def scenario(node: Node) -> None:
        client = await node.connect("a")
        await node.subscribe(client, b"t")
        await node.publish("t", range(5))
        await Reader(client, says_nothing=True).until(5)
        client.lose()
        whole = node.delivery.contexts.get(KEY)
        assert whole is not None
        node.delivery.contexts.put(KEY, whole[:-2])
        client = await node.connect("a")
        assert await Reader(client).until(5) == [0, 1, 2, 3, 4]

    run(scenario)


def test_the_topic_was_removed_by_somebody() -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect("a")
        await node.subscribe(client, b"t")
        await node.publish("t", range(3))
        reader = Reader(client)
        await reader.until(3)
        await node.log.admin.delete(TOPIC)
        await node.publish("t", range(3, 6))
        await node.until(lambda: TOPIC in node.log.topics)
        assert await reader.until(6, 30.0) == list(range(6))

    run(scenario)


def test_a_topic_that_cannot_be_made_refuses_the_client() -> None:
    async def scenario(node: Node) -> None:
        create = node.log.admin.create

        async def broken(*arguments: object, **options: object) -> None:
            raise LogUnavailable("away")

        node.log.admin.create = broken  # the fault this is about
        with pytest.raises(LogUnavailable):
            await node.connect("a")
        assert len(node.delivery) == 0
        node.log.admin.create = create
        client = await node.connect("a")
        await node.subscribe(client, b"t")
        await node.publish("t", [1])
        assert await Reader(client).until(1) == [1]

    run(scenario)


def test_take_over() -> None:
    """The second connection of the same client gets what the first had not acknowledged, under the same ids."""

    async def scenario(node: Node) -> None:
        client = await node.connect("a")
        await node.subscribe(client, b"t")
        await node.publish("t", range(4))
        await Reader(client, says_nothing=True).until(4)
        client.say(PUBACK, 2)
        second = await node.connect("a")
        reader = Reader(second)
        await reader.until(3)
        assert sent(reader.packets) == [(1, 0, True), (3, 2, True), (4, 3, True)]
        assert not client.is_open

    run(scenario)


def test_retained_messages_go_through_the_log() -> None:
    async def scenario(node: Node) -> None:
        node.hub.publish("t/1", b"1", qos=1, retain=True)
        node.hub.publish("t/0", b"0", qos=0, retain=True)
        client = await node.connect("a")
        await node.subscribe(client, b"t/#")
        node.delivery.send_retained(client.session, b"t/#", 1, 0)
        reader = Reader(client)
        await reader.until(2)
        await reader.rest()
        assert sorted((packet.payload, packet.qos, packet.retain) for packet in reader.packets) == [
            (b"0", 0, True),
            (b"1", 1, True),
        ]

    run(scenario)


def test_moved_by_an_administrator() -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect("a")
        await node.subscribe(client, b"t")
        await node.publish("t", range(10))
        await Reader(client, says_nothing=True).until(10)
        client.lose()
        node.delivery.move(client.session, 7)
        context = node.delivery.context_of(client.session)
        assert context is not None
        assert read_context(context)["in_flight"] == []
        assert node.delivery.committed_of(client.session) == 7
        client = await node.connect("a")
        reader = Reader(client)
        assert await reader.until(3) == [7, 8, 9]
        # the client may still know the ids of what it had in flight: they are not used at once
        assert {packet.packet_id for packet in reader.packets}.isdisjoint(range(1, 11))

    run(scenario)


def test_limits_and_who_is_served() -> None:
    async def scenario(node: Node) -> None:
        delivery = node.delivery
        assert delivery.serves("a", "application", 1)
        assert not delivery.serves("a", "application", 0)
        assert not delivery.serves("a", "device", 1)
        await node.connect("a")
        assert delivery.is_full("b")
        assert not delivery.is_full("a")
        assert delivery.find("a") is node.sessions["a"]
        assert delivery.is_ready("a")
        assert not delivery.is_ready("b")

    run(scenario, max_clients=1)


def test_sessions_restored_with_a_context_of_another_version() -> None:
    state = MemoryStateStore()
    state.tables[TABLE] = {KEY: b"\7garbage"}

    async def scenario(node: Node) -> None:
        client = await node.connect("b")
        node.end(client.session)
        await node.log.admin.create(TOPIC)
        await node.fill(TOPIC, range(3))
        session = node._new_session("a")
        assert await node.delivery.restore([session]) == 1
        client = await node.connect("a")
        assert await Reader(client).until(3) == [0, 1, 2]

    run(scenario, state=state)


def test_what_a_context_says_survives_a_restart_without_clients() -> None:
    context = write_context(
        {"committed": 2, "end": 4, "last_packet_id": 9, "seen": {0: 3}, "in_flight": [(2, 8, 1, "sent")]}
    )
    state = MemoryStateStore()
    state.tables[TABLE] = {KEY: context}

    async def scenario(node: Node) -> None:
        await node.log.admin.create(TOPIC)
        await node.fill(TOPIC, range(6))
        session = node._new_session("a")
        await node.delivery.restore([session])
        assert node.delivery.committed_of(session) == 2
        assert node.delivery.context_of(session) == context
        reader = Reader(await node.connect("a"))
        await reader.until(3)
        await reader.rest()
        assert sent(reader.packets) == [(8, 2, True), (10, 4, False), (11, 5, False)]

    run(scenario, state=state)
