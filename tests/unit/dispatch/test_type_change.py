"""APPLICATION clients as the front-ends see them: what has to be prepared, and clients whose type changes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.dispatch import type_change as module
from penstock.storage.log.base import LogUnavailable
from penstock.subscribers.application.contexts import TABLE
from penstock.subscribers.application.names import ApplicationNames
from tests.support.brokers.app_node import EXPIRY, Node, Reader, restart, run
from tests.support.worlds.lanes import PUBACK

TOPIC = "tbmq.msg.app.a"


def test_what_has_to_be_prepared() -> None:
    async def scenario(node: Node) -> None:
        applications = node.applications
        assert applications.must_prepare(None, "a", "application", EXPIRY, False)
        client = await node.connect("a")
        session = client.session
        assert not applications.must_prepare(None, "d", "device", EXPIRY, False)
        assert not applications.must_prepare(None, "a", "application", 0, True)
        assert not applications.must_prepare(session, "a", "application", EXPIRY, False)
        assert applications.must_prepare(session, "a", "application", EXPIRY, True)
        assert applications.must_prepare(session, "a", "device", EXPIRY, False)
        assert not applications.must_prepare(session, "a", "device", EXPIRY, True)

    run(scenario)


def test_served_as_a_device_where_the_id_makes_no_topic() -> None:
    async def scenario(node: Node) -> None:
        node.delivery._names = ApplicationNames(client_id_validation=False)
        assert await node.applications.prepare(None, "not plain!", "application", EXPIRY, False) == "device"
        assert await node.applications.prepare(None, "plain1", "application", EXPIRY, False) == "application"
        assert await node.applications.prepare(None, "d", "device", EXPIRY, False) == "device"
        assert sorted(node.log.topics) == ["tbmq.msg.all", "tbmq.msg.app.plain1"]

    run(scenario)


def test_limits() -> None:
    async def scenario(node: Node) -> None:
        await node.connect("a")
        assert node.applications.is_full("b", "application", EXPIRY)
        assert not node.applications.is_full("b", "device", EXPIRY)
        assert not node.applications.is_full("b", "application", 0)
        assert not node.applications.is_full("a", "application", EXPIRY)

    run(scenario, max_clients=1)


def test_an_application_with_nothing_in_its_log_becomes_a_device() -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect("a")
        await node.subscribe(client, b"t")
        await node.publish("t", range(3))
        reader = Reader(client)
        await reader.until(3)
        await reader.rest(0.05)
        client.lose()
        session = client.session
        await node.until(lambda: not node.applications.dispatcher.is_busy)
        assert await node.applications.prepare(session, "a", "device", EXPIRY, False) == "device"
        assert (session.feed, session.client_type, node.types) == (None, "device", [session])
        await node.until(lambda: TOPIC not in node.log.topics)
        assert not node.state.tables.get(TABLE)
        assert node.delivery.find("a") is None

    run(scenario)


def test_an_application_with_a_backlog_stays_one_until_it_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is dropped: it is served as an APPLICATION until its log is empty, then it changes by itself."""
    monkeypatch.setattr(module, "CHANGE_SECONDS", 0.03)

    async def scenario(node: Node) -> None:
        client = await node.connect("a")
        await node.subscribe(client, b"t")
        client.lose()
        await node.publish("t", range(5))
        session = client.session
        await node.until(lambda: node.log.topics[TOPIC].partitions[0].end == 5)
        assert await node.applications.prepare(session, "a", "device", EXPIRY, False) == "application"
        client = await node.connect("a")
        reader = Reader(client, says_nothing=True)
        await reader.until(5)
        await asyncio.sleep(0.1)
        assert session.feed is not None
        for packet_id in range(1, 6):
            client.say(PUBACK, packet_id)
        node.applications.changes._changing.add("a")  # what the front-end says again at each CONNECT
        await node.until(lambda: session.feed is None)
        lanes = node.delivery.book.lanes_of(session)
        assert (session.client_type, lanes, session.inflight) == ("device", [], 0)
        assert client.is_open
        await node.until(lambda: TOPIC not in node.log.topics)

    run(scenario)


def test_what_comes_while_a_client_becomes_a_device_is_not_lost_with_its_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message is dispatched, and committed, right after somebody has looked whether any waits."""

    async def scenario(node: Node) -> None:
        client = await node.connect("a")
        await node.subscribe(client, b"t")
        client.lose()
        show = node.applications.overview.show

        async def show_and_publish(client_id: str) -> dict[str, Any]:
            entry = await show(client_id)
            monkeypatch.setattr(node.applications.overview, "show", show)
            await node.publish("t", [7])
            await node.until(lambda: node.log.topics[TOPIC].partitions[0].end == 1)
            await node.until(lambda: node.applications.dispatcher.is_committed)
            return entry

        monkeypatch.setattr(node.applications.overview, "show", show_and_publish)
        assert await node.applications.prepare(client.session, "a", "device", EXPIRY, False) == "application"
        assert await Reader(await node.connect("a")).until(1) == [7]

    run(scenario)


def test_a_device_becomes_an_application() -> None:
    async def scenario(node: Node) -> None:
        session = node._new_session("a")
        session.client_type = "device"
        node.hub.trie.subscribe(session, b"t", 1)
        assert node.applications.must_prepare(session, "a", "application", EXPIRY, False)
        session.client_type = "application"
        client = await node.connect("a")
        assert session.feed is not None
        await node.publish("t", [1, 2])
        assert await Reader(client).until(2) == [1, 2]

    run(scenario)


def test_restored_sessions_go_on_from_the_last_commit() -> None:
    """What was published while the broker was down is dispatched, and what came before is not dispatched again."""

    async def scenario(node: Node) -> None:
        client = await node.connect("a")
        await node.subscribe(client, b"t")
        await node.publish("t", range(3))
        reader = Reader(client)
        await reader.until(3)
        await reader.rest(0.2)
        await node.applications.dispatcher.stop()
        await node.publish("t", range(3, 6))
        other = await restart(node)
        try:
            again = Reader(await other.connect("a"))
            await again.until(3)
            await again.rest(0.1)
            assert again.numbers == [3, 4, 5]
        finally:
            await other.stop()

    run(scenario)


def test_dispatched_twice_and_delivered_once() -> None:
    """A crash before the commit of the log of all messages: its records are dispatched again, the client's lane knows
    them by their source."""

    async def scenario(node: Node) -> None:
        async def no_commit(*arguments: object) -> None:
            raise LogUnavailable("it crashes before")

        client = await node.connect("a")
        commit, node.log.commit = node.log.commit, no_commit  # the fault
        await node.subscribe(client, b"t")
        await node.publish("t", range(3), qos=2)
        reader = Reader(client)
        await reader.until(3)
        await node.until(lambda: reader.look() and node.delivery.committed_of(client.session) == 3)
        await asyncio.sleep(0.15)
        for consumer in list(node.log._consumers):
            await consumer.close()
        node.log.commit = commit
        other = await restart(node)
        try:
            again = Reader(await other.connect("a"))
            await other.publish("t", [3], qos=2)
            await again.until(1)
            await again.rest(0.1)
            assert again.numbers == [3]
            assert node.log.topics[TOPIC].partitions[0].end == 7
            assert other.delivery.book.totals()["duplicates"] == 3
        finally:
            await other.stop()

    run(scenario)


def test_counters() -> None:
    async def scenario(node: Node) -> None:
        counters = node.applications.counters()
        assert counters["dispatch_rounds"] == counters["application_clients"] == 0

    run(scenario)
