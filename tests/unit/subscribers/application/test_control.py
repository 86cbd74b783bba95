"""What the admin API and the metrics say about APPLICATION clients, and what they change."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from penstock.core.errors import ConflictError, NotFoundError
from penstock.storage.log.base import TopicPartition, Watermarks
from penstock.subscribers.application.control import ResetTo
from tests.support.brokers.app_node import Node, Reader, run
from tests.support.worlds.lanes import PUBACK, LaneClient

TOPIC = "tbmq.msg.app.a"


async def client_with(node: Node, count: int, acknowledged: int = 0) -> LaneClient:
    client = await node.connect("a")
    await node.subscribe(client, b"t")
    await node.publish("t", range(count))
    await Reader(client, says_nothing=True).until(count)
    for packet_id in range(1, acknowledged + 1):
        client.say(PUBACK, packet_id)
    return client


def test_list_and_show() -> None:
    async def scenario(node: Node) -> None:
        overview = node.applications.overview
        assert await overview.list() == []
        await client_with(node, 10, 4)
        await node.connect("b")
        entries = {entry["client_id"]: entry for entry in await overview.list()}
        assert set(entries) == {"a", "b"}
        shown = await overview.show("a")
        assert shown["packet_ids"] == [(4, 5, 6, "sent")]
        expected = {
            "topic": TOPIC,
            "connected": True,
            "subscriptions": 1,
            "lag": 6,
            "end_offset": 10,
            "committed_offset": 4,
            "in_flight": 6,
            "packs_in_flight": 1,
            "delivered": 10,
            "acknowledged": 4,
            "shared": [],
        }
        assert {name: shown[name] for name in expected} == expected
        assert entries["b"]["lag"] == 0

    run(scenario)


def test_a_client_that_loses_its_log_meanwhile_is_not_found() -> None:
    """It becomes a DEVICE while the log is asked for the end of its topic."""

    async def scenario(node: Node) -> None:
        client = await client_with(node, 3)
        overview = node.applications.overview
        watermarks = overview.watermarks
        feed = client.session.feed

        async def slowly(place: TopicPartition) -> Watermarks:
            found = await watermarks(place)
            client.session.intake = None
            return found

        overview.watermarks = slowly  # type: ignore[method-assign]
        with pytest.raises(NotFoundError):
            await overview.show("a")
        client.session.intake = feed
        assert await overview.list() == []
        client.session.intake = feed

    run(scenario)


def test_of_a_client_that_is_away() -> None:
    async def scenario(node: Node) -> None:
        client = await client_with(node, 5, 2)
        client.lose()
        shown = await node.applications.overview.show("a")
        assert (shown["connected"], shown["lag"], shown["committed_offset"]) == (False, 3, 2)
        assert shown["packet_ids"] == [(2, 3, 3, "sent")]

    run(scenario)


def test_unknown_clients() -> None:
    async def scenario(node: Node) -> None:
        overview = node.applications.control
        for call in (overview.show("x"), overview.reset("x", "end"), overview.delete("x")):
            with pytest.raises(NotFoundError, match="'x'"):
                await call

    run(scenario)


@pytest.mark.parametrize(
    ("to", "left"), [("begin", 10), ("end", 0), (3, 7), (-4, 4), (datetime.now(UTC) - timedelta(hours=1), 10)]
)
def test_reset(to: ResetTo, left: int) -> None:
    async def scenario(node: Node) -> None:
        client = await client_with(node, 10, 6)
        client.lose()
        entry = await node.applications.control.reset("a", to)
        assert entry["lag"] == left
        reader = Reader(await node.connect("a"))
        await reader.until(left)
        await reader.rest(0.03)
        assert reader.numbers == list(range(10 - left, 10))

    run(scenario)


@pytest.mark.parametrize("to", [11, -11])
def test_reset_to_where_nothing_is(to: int) -> None:
    async def scenario(node: Node) -> None:
        client = await client_with(node, 10)
        client.lose()
        with pytest.raises(ConflictError, match="not within"):
            await node.applications.control.reset("a", to)
        assert (await node.applications.overview.show("a"))["committed_offset"] == 0

    run(scenario)


def test_reset_of_a_connected_client() -> None:
    async def scenario(node: Node) -> None:
        await client_with(node, 2)
        with pytest.raises(ConflictError, match="connected"):
            await node.applications.control.reset("a", "end")

    run(scenario)


@pytest.mark.parametrize("setting", ["session-end", "never"])
def test_delete(setting: str) -> None:
    async def scenario(node: Node) -> None:
        await client_with(node, 3)
        entry = await node.applications.control.delete("a")
        assert (entry["client_id"], entry["lag"]) == ("a", 3)
        assert TOPIC not in node.log.topics
        assert await node.applications.overview.list() == []
        assert node.delivery.find("a") is None

    run(scenario, remove_topics=setting)


def test_shared_subscriptions_are_shown() -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect("a")
        await node.subscribe(client, b"$share/g/s/+")
        share = node.delivery.shared.shares_of(client.session)[0]
        await node.until(lambda: len(share.lanes) == 2)
        await node.publish("s/1", range(8))
        await Reader(client, says_nothing=True).until(8)
        shown = (await node.applications.overview.show("a"))["shared"]
        assert shown == [
            {
                "share": "g",
                "filter": "s/+",
                "topic": "tbmq.msg.app.shared.s.slw",
                "group": "application-shared-msg-consumer-group-g-tbmq.msg.app.shared.s.slw",
                "partitions": 2,
                "lag": 8,
            }
        ]
        client.lose()
        assert (await node.applications.overview.show("a"))["shared"][0]["lag"] == 8

    run(scenario, shared_partitions=2)


def test_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.subscribers.application.control.REFRESH_SECONDS", 0.02)

    async def scenario(node: Node) -> None:
        overview = node.applications.overview
        client = await client_with(node, 10, 4)
        await node.until(lambda: overview.counters()["application_lag_total"] == 6)
        counters = node.applications.counters()
        assert counters["application_clients"] == counters["application_connected"] == 1
        assert counters["application_delivered_total"] == 10
        assert counters["application_acknowledged_total"] == 4
        assert counters["application_in_flight"] == 6
        (sample,) = overview.samples()
        assert (sample[0], sample[1], sample[2]) == ("a", 6, 6)
        client.lose()
        assert overview.counters()["application_connected"] == 0
        assert overview.counters()["application_delivered_total"] == 10  # counters never go back
        node.end(client.session)
        await asyncio.sleep(0.05)
        await node.until(lambda: overview.counters()["application_lag_total"] == 0)
        assert list(overview.samples()) == []

    run(scenario)


def test_metrics_of_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits in shared topics is counted once for each share name, whoever is connected."""
    monkeypatch.setattr("penstock.subscribers.application.control.REFRESH_SECONDS", 0.02)

    async def scenario(node: Node) -> None:
        overview = node.applications.overview
        client = await node.connect("a")
        await node.subscribe(client, b"$share/g/s/+")
        share = node.delivery.shared.shares_of(client.session)[0]
        await node.until(lambda: len(share.lanes) == 2)
        await node.publish("s/1", range(8))
        await Reader(client, says_nothing=True).until(8)
        await node.until(lambda: overview.counters()["application_shared_lag_total"] == 8)
        assert overview.counters()["application_lag_total"] == 0
        assert list(overview.share_samples()) == [("$share/g/s/+", 8, 8, 1)]
        client.lose()
        assert list(overview.share_samples()) == [("$share/g/s/+", 8, 0, 1)]
        other = await node.connect("b")
        await node.subscribe(other, b"$share/h/s/+")  # begins at the end
        await node.until(lambda: len(overview.share_samples()) == 2)
        await asyncio.sleep(0.05)
        assert overview.counters()["application_shared_lag_total"] == 8
        node.end(client.session)
        await node.until(lambda: overview.counters()["application_shared_lag_total"] == 0)
        assert list(overview.share_samples()) == [("$share/h/s/+", 0, 0, 1)]

    run(scenario, shared_partitions=2)


def test_counters_of_a_client_last_as_long_as_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.subscribers.application.control.REFRESH_SECONDS", 0.02)

    async def scenario(node: Node) -> None:
        overview = node.applications.overview
        client = await client_with(node, 10, 4)
        client.lose()
        await Reader(client := await node.connect("a")).until(6)
        shown = await overview.show("a")
        assert (shown["delivered"], shown["acknowledged"]) == (16, 10)
        client.lose()
        shown = await overview.show("a")
        assert (shown["delivered"], shown["acknowledged"]) == (16, 10)
        node.end(client.session)
        await node.connect("a")
        assert (await overview.show("a"))["delivered"] == 0
        node.end(client.session)
        await node.until(lambda: not list(node.delivery.book.clients_known()))

    run(scenario)


def test_given_up_messages_are_counted() -> None:
    async def scenario(node: Node) -> None:
        client = await client_with(node, 3)
        (lane,) = client.session.outlets_now
        await asyncio.sleep(0.02)
        node.hub.tick()
        lane.sweep(1, 0, 0, True)
        client.lose()
        assert (await node.applications.overview.show("a"))["given_up"] == 3
        assert node.applications.counters()["application_given_up_total"] == 3
        (sample,) = node.applications.overview.samples()
        assert sample.given_up == 3

    run(scenario)


def test_a_topic_that_is_gone_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lag of one client is not known: those of the others are."""
    monkeypatch.setattr("penstock.subscribers.application.control.REFRESH_SECONDS", 0.02)

    async def scenario(node: Node) -> None:
        for name in ("a", "b"):
            await node.subscribe(await node.connect(name), b"t")
        await node.log.admin.delete(TOPIC)
        await node.fill("tbmq.msg.app.b", range(5))
        samples = node.applications.overview.samples
        await node.until(lambda: {sample[0]: sample[1] for sample in samples()}["b"] == 5, 30.0)

    run(scenario)
