"""A kind of subscriber that is added from outside, and receives published messages with back-pressure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from penstock._ext.wire import packets
from penstock.broker.build import build_broker
from penstock.broker.life import Broker
from penstock.settings.loader import load_settings
from penstock.subscribers.surroundings import Surroundings
from tests.support.machine.waiting import until
from tests.support.toys.receiving import CREDIT, ReceivingSubscriber, Tap

PUBACK, SUBACK, UNSUBACK = 0x40, 0x90, 0xB0
FILTER = "toy/#"
FULL = 2 * CREDIT  # then publishers wait


class Client:
    """One connection of MQTT 3.1.1, packet by packet."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, broker: Broker, client_id: str) -> Client:
        client = cls(*await asyncio.open_connection(*broker.listeners[0].address.rsplit(":", 1)))
        client.send(packets.build_connect(client_id, version=4))
        assert (await client.read())[0] == 0x20
        return client

    def send(self, packet: bytes) -> None:
        self._writer.write(packet)

    async def read(self) -> tuple[int, bytes]:
        first, size = await self._reader.readexactly(2)
        return first & 0xF0, await self._reader.readexactly(size)

    async def subscribe(self, topic_filter: str, qos: int = 1) -> int:
        self.send(packets.build_subscribe(1, [(topic_filter, qos)], version=4))
        kind, body = await self.read()
        assert kind == SUBACK
        return body[-1]

    def publish(self, number: int, topic: str = "toy/x") -> None:
        self.send(packets.build_publish(topic, b"%d" % number, version=4, qos=1, packet_id=number))

    async def acknowledged(self, number: int) -> None:
        assert await self.read() == (PUBACK, number.to_bytes(2, "big"))

    def close(self) -> None:
        self._writer.close()


class World:
    """A broker with the toy kind."""

    def __init__(self) -> None:
        self.kinds: list[ReceivingSubscriber] = []
        self.around: list[Surroundings] = []
        self.taps: list[Tap] = []

    def make(self, around: Surroundings) -> ReceivingSubscriber:
        self.around.append(around)
        self.kinds.append(ReceivingSubscriber(around))
        return self.kinds[0]

    @property
    def congested(self) -> int:
        return self.around[0].hub.counters_now()["congested_subscribers"]

    def start(self, broker: Broker) -> None:
        self.broker = broker

    async def open_tap(self) -> tuple[Client, Tap]:
        client = await Client.connect(self.broker, "owner")
        assert await client.subscribe(FILTER) == 1
        (tap,) = self.kinds[0].taps.values()
        self.taps.append(tap)
        return client, tap

    async def fill(self, publisher: Client, tap: Tap) -> None:
        """Publish until publishers wait, each message when the one before is at the tap."""
        for number in range(1, FULL + 1):
            publisher.publish(number)
            await publisher.acknowledged(number)
            await until(lambda count=number: tap.outlet.unsettled + tap.outlet.waiting == count)  # type: ignore[misc]
        assert self.congested == 1

    def counter(self, name: str) -> float:
        return sum(part.counters().get(name, 0) for part in self.broker.parts)


Scenario = Callable[[World], Awaitable[None]]


def run(tmp_path: Path, scenario: Scenario, log: str = "all") -> World:
    world = World()

    async def main() -> None:
        overrides = {
            "listeners.0.address": "127.0.0.1:0",
            "admin.address": "",
            "sys.interval": "0",
            "ingest.log": log,
            "log.provider": "memory",
            "data_subscription.enabled": "false",
            "server.data_dir": str(tmp_path / "data"),
            "logging.level": "error",
        }
        broker = build_broker(load_settings(None, {}, overrides), more_kinds=[world.make])
        await broker.start_only("log", "node", "ingest", "sessions")
        await broker.listeners[0].start()
        world.start(broker)
        try:
            await scenario(world)
        finally:
            await broker.close()

    uvloop.run(asyncio.wait_for(main(), 60))
    return world


def test_messages_wait_for_credit_and_then_publishers_do(tmp_path: Path) -> None:
    last = 40

    async def scenario(world: World) -> None:
        _, tap = await world.open_tap()
        publisher, other = await Client.connect(world.broker, "p"), await Client.connect(world.broker, "other")
        await world.fill(publisher, tap)
        assert (len(tap.received), tap.outlet.waiting) == (CREDIT, FULL - CREDIT)
        for number in range(FULL + 1, last + 1):
            publisher.publish(number)
        next_answer = asyncio.create_task(publisher.read())
        for number in range(1, 6):  # the broker takes its turns, and a publisher to other topics does not wait
            other.publish(number, "elsewhere")
            await other.acknowledged(number)
        assert not next_answer.done(), "nothing more is taken from the publisher"
        assert (len(tap.received), tap.outlet.waiting) == (CREDIT, FULL - CREDIT)
        tap.finish(CREDIT)
        await until(lambda: tap.outlet.waiting == 0)
        assert not next_answer.done()
        tap.finish()
        assert await next_answer == (PUBACK, (FULL + 1).to_bytes(2, "big"))
        for number in range(FULL + 2, last + 1):
            answer = asyncio.create_task(publisher.acknowledged(number))
            while not answer.done():
                await asyncio.sleep(0.001)
                if tap.outlet.unsettled:
                    tap.finish()
            await answer
        await until(lambda: len(tap.received) == last)
        tap.finish(tap.outlet.unsettled)
        assert tap.received == [b"%d" % number for number in range(1, last + 1)]
        assert (world.congested, tap.outlet.waiting) == (0, 0)
        await until(lambda: world.counter("dispatch_open_rounds") == 0)

    run(tmp_path, scenario)


@pytest.mark.parametrize("way", ["unsubscribe", "disconnect"])
def test_its_end_releases_everything(tmp_path: Path, way: str) -> None:
    async def scenario(world: World) -> None:
        owner, tap = await world.open_tap()
        publisher = await Client.connect(world.broker, "p")
        await world.fill(publisher, tap)
        publisher.publish(FULL + 1)
        next_answer = asyncio.create_task(publisher.acknowledged(FULL + 1))
        assert world.counter("dispatch_open_rounds") > 0
        if way == "unsubscribe":
            owner.send(packets.build_unsubscribe(2, [FILTER], version=4))
            assert (await owner.read())[0] == UNSUBACK
        else:
            owner.close()
        await next_answer
        assert (world.congested, world.counter("receiving_taps"), tap.outlet.is_open) == (0, 0, False)
        await until(lambda: world.counter("dispatch_open_rounds") == 0)
        assert len(tap.received) == CREDIT, "nothing comes after the end"

    run(tmp_path, scenario)


def test_a_broker_that_stops_closes_it(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        _, tap = await world.open_tap()
        await world.fill(await Client.connect(world.broker, "p"), tap)

    world = run(tmp_path, scenario)
    (tap,) = world.taps
    assert (tap.outlet.is_open, tap.session.outlets_now, world.congested, world.kinds[0].taps) == (False, [], 0, {})
    assert world.counter("dispatch_open_rounds") == 0


def test_it_needs_a_log_and_qos_1(tmp_path: Path) -> None:
    async def without_log(world: World) -> None:
        assert world.around[0].log is None
        assert await (await Client.connect(world.broker, "c")).subscribe(FILTER) == 0x80
        assert world.kinds[0].taps == {}

    async def with_log(world: World) -> None:
        assert world.around[0].log is not None
        client = await Client.connect(world.broker, "c")
        assert await client.subscribe(FILTER, qos=0) == 0x80
        assert world.around[0].find_session("c") is not None
        assert world.kinds[0].taps == {}

    run(tmp_path, without_log, log="none")
    run(tmp_path, with_log)
