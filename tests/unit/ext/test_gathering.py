"""When do publishes leave the hub for a log that writes one batch at a time?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from penstock._ext.record.segment import RecordPack
from penstock._ext.wire import packets
from penstock.broker.life import Broker
from tests.support.brokers.loop_broker import run_with_broker

FOR_EVER = 3_600_000  # ms
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class World:
    """A hub whose log takes batches, and finishes them when a test says so."""

    def __init__(self, broker: Broker, port: int) -> None:
        self.hub = broker.hub
        self._port = port
        self.batches: asyncio.Queue[tuple[int, int]] = asyncio.Queue()  # ticket, records

    def log(self, **times: Any) -> None:
        self.hub.log_to(self._take, mode="all", partitions=4, gathers=True, **times)

    def _take(self, ticket: int, packs: list[tuple[int, RecordPack]], size: int, beside: Any) -> None:
        self.batches.put_nowait((ticket, sum(pack.count for _, pack in packs)))

    async def connect(self, name: str) -> Stream:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(packets.build_connect(name, version=4))
        await reader.readexactly(4)
        return reader, writer

    async def commit(self, records: int) -> None:
        """The next batch has so many records; it is durable."""
        ticket, found = await self.batches.get()
        assert found == records
        self.hub.log_committed(ticket, 0, 0)


def publish(stream: Stream, qos: int, packet_id: int = 1, payload: bytes = b"x", topic: str = "t") -> None:
    stream[1].write(packets.build_publish(topic, payload, qos=qos, packet_id=packet_id if qos else 0, version=4))


async def puback(stream: Stream) -> None:
    assert (await stream[0].readexactly(4))[0] == 0x40


async def ping(stream: Stream) -> None:
    stream[1].write(packets.build_pingreq())
    assert await stream[0].readexactly(2) == packets.build_pingresp()


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    run_with_broker(lambda broker, port: scenario(World(broker, port)))


def test_qos_0_waits_for_company_and_no_longer_than_the_linger() -> None:
    async def scenario(world: World) -> None:
        world.log(linger_ms=300)
        client = await world.connect("c")
        began = time.monotonic()
        for number in range(5):
            publish(client, 0, topic=f"t/{number}")
            await ping(client)
        assert world.batches.empty() or time.monotonic() - began >= 0.29
        await world.commit(5)
        assert time.monotonic() - began >= 0.29
        publish(client, 0)
        await world.commit(1)

    run(scenario)


def test_64_kib_of_qos_0_do_not_wait() -> None:
    async def scenario(world: World) -> None:
        world.log(linger_ms=FOR_EVER)
        client = await world.connect("c")
        publish(client, 0, payload=bytes(60_000))
        await ping(client)
        assert world.batches.empty()
        publish(client, 0, payload=bytes(6_000))
        await world.commit(2)

    run(scenario)


def test_an_acknowledgement_does_not_wait_for_the_linger_and_takes_qos_0_along() -> None:
    async def scenario(world: World) -> None:
        world.log(linger_ms=FOR_EVER)
        client = await world.connect("c")
        for packet_id in range(1, 4):
            publish(client, 0)
            await ping(client)
            publish(client, 1, packet_id)
            await world.commit(2)
            await puback(client)

    run(scenario)


def test_what_comes_while_a_batch_is_under_way_is_the_next_batch() -> None:
    """An acknowledgement waits for that batch and for its own, for no third one."""

    async def scenario(world: World) -> None:
        world.log()
        first, second = await world.connect("a"), await world.connect("b")
        publish(first, 1)
        ticket, _ = await world.batches.get()
        for packet_id in range(1, 6):
            publish(second, 1, packet_id)
            await ping(second)
        assert world.batches.empty()
        world.hub.log_committed(ticket, 0, 0)
        assert world.batches.qsize() == 1  # at once, not in another iteration
        await world.commit(5)
        await puback(first)
        for _ in range(5):
            await puback(second)

    run(scenario)


def test_the_linger_ends_with_a_commit_that_takes_longer() -> None:
    async def scenario(world: World) -> None:
        world.log(linger_ms=20, ack_linger_ms=20)
        first, second = await world.connect("a"), await world.connect("b")
        publish(first, 1)
        ticket, _ = await world.batches.get()
        for packet_id, qos in ((1, 0), (2, 1), (3, 0)):
            publish(second, qos, packet_id)
            await ping(second)
            await asyncio.sleep(0.06)
        assert world.batches.empty()
        world.hub.log_committed(ticket, 0, 0)
        assert world.batches.qsize() == 1
        await world.commit(3)
        await puback(second)

    run(scenario)


def test_a_batch_that_nothing_waits_for_is_reported_when_the_next_one_is_due() -> None:
    async def scenario(world: World) -> None:
        collected: list[int] = []
        under_way: list[int] = []

        def collect() -> None:
            collected.append(under_way[0])
            world.hub.log_committed(under_way.pop(0), 0, 0)

        async def take(records: int, *, is_quiet: bool) -> None:
            ticket, found = await world.batches.get()
            under_way.append(ticket)
            assert (found, world.hub.is_quiet) == (records, is_quiet)

        world.log(linger_ms=20, collect=collect)
        client = await world.connect("c")
        publish(client, 0)
        await take(1, is_quiet=True)
        await asyncio.sleep(0.1)
        assert collected == []
        publish(client, 0)
        publish(client, 0)
        await take(2, is_quiet=True)  # the timer submits it, after the first was collected
        assert collected == [1]
        publish(client, 1)  # its answer waits: the one before is collected for it, and it is not quiet
        await take(1, is_quiet=False)
        assert collected == [1, 2]
        publish(client, 0)
        await ping(client)
        assert collected == [1, 2]
        world.hub.log_committed(under_way.pop(0), 0, 0)
        await puback(client)
        assert not world.hub.is_quiet
        await take(1, is_quiet=True)
        world.hub.stop_gathering()
        assert collected == [1, 2, 4]
        assert not world.hub.is_quiet

    run(scenario)


def test_a_log_that_reports_by_itself_is_not_asked_when_the_broker_stops() -> None:
    async def scenario(world: World) -> None:
        world.hub.log_to(world._take, mode="all", partitions=4)
        client = await world.connect("c")
        publish(client, 1)
        ticket, _ = await world.batches.get()
        world.hub.stop_gathering()
        world.hub.log_committed(ticket, 0, 0)
        await puback(client)

    run(scenario)


def test_a_quiet_batch_is_reported_to_publishers_that_wait_for_room() -> None:
    async def scenario(world: World) -> None:
        under_way: list[tuple[int, int]] = []

        def submit(ticket: int, _packs: Any, size: int, _beside: Any) -> None:
            under_way.append((ticket, size))
            if not world.hub.is_quiet:
                asyncio.get_running_loop().call_soon(collect)

        def collect() -> None:
            ticket, size = under_way.pop(0)
            world.hub.log_committed(ticket, size, 0)

        world.hub.log_to(submit, mode="all", partitions=4, gathers=True, linger_ms=1, max_pending=100, collect=collect)
        client = await world.connect("c")
        for _ in range(30):
            publish(client, 0, payload=bytes(90))
        await ping(client)

    run(scenario)


def test_a_repeated_qos_2_publish_waits_for_a_quiet_batch_to_be_reported() -> None:
    async def scenario(world: World) -> None:
        world.log(linger_ms=1, collect=lambda: world.hub.log_committed(2, 0, 0))
        client = await world.connect("c")
        publish(client, 2)
        await world.commit(1)
        assert (await client[0].readexactly(4))[0] == 0x50
        publish(client, 0)
        await world.batches.get()
        assert world.hub.is_quiet
        publish(client, 2)
        assert (await client[0].readexactly(4))[0] == 0x50

    run(scenario)


def test_a_log_that_does_not_gather_gets_every_iteration() -> None:
    async def scenario(world: World) -> None:
        world.hub.log_to(world._take, mode="all", partitions=4, linger_ms=FOR_EVER, ack_linger_ms=FOR_EVER)
        client = await world.connect("c")
        for packet_id in range(1, 4):
            publish(client, packet_id % 2, packet_id)
            await ping(client)
        assert [await world.batches.get() for _ in range(3)] == [(1, 1), (2, 1), (3, 1)]

    run(scenario)


def test_acknowledgements_of_several_publishers_share_a_commit() -> None:
    """Commits that only acknowledgements wait for are so far apart; the first one has nothing to wait for."""

    async def scenario(world: World) -> None:
        world.log(ack_linger_ms=400)
        clients = [await world.connect(f"c{number}") for number in range(4)]
        publish(clients[0], 1)
        await world.commit(1)
        began = time.monotonic()
        await puback(clients[0])
        for client in clients[1:]:
            publish(client, 1)
            await ping(client)
        await world.commit(3)
        assert time.monotonic() - began >= 0.35
        for client in clients[1:]:
            await puback(client)

    run(scenario)


def test_a_publisher_that_waits_for_each_acknowledgement_is_not_slowed() -> None:
    async def scenario(world: World) -> None:
        world.log(ack_linger_ms=1_000)
        client = await world.connect("c")
        began = time.monotonic()
        for packet_id in range(1, 31):  # a busy machine may take longer than EAGER_MS for some of them
            publish(client, 1, packet_id)
            await world.commit(1)
            await puback(client)
        assert time.monotonic() - began < 15

    run(scenario)


def test_nothing_waits_any_more_when_the_broker_stops() -> None:
    async def scenario(world: World) -> None:
        world.log(linger_ms=FOR_EVER)
        client = await world.connect("c")
        publish(client, 0)
        await ping(client)
        world.hub.stop_gathering()
        await world.commit(1)
        publish(client, 0)
        await world.commit(1)

    run(scenario)
