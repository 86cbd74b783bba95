"""Settlements that another node has to answer: what their answers do to those behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock._ext.hub.connection import Connection, DurableQueue
from penstock._ext.wire import packets
from penstock.broker.life import Broker
from tests.support.brokers.loop_broker import run_with_broker

PUBACK, PUBREC, PUBCOMP = 4, 5, 7
QUOTA_EXCEEDED = 0x97
ACK = "$queue/q/$ack"
NOT_STORED = b"the log cannot store messages now: publish it again later"
AWAY = b"the node that serves the queue cannot be reached now"


class World:
    """A hub whose log and whose other node answer when they are told to, and one client."""

    def __init__(self, broker: Broker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.hub = broker.hub
        self._reader = reader
        self._writer = writer
        self.relayed: asyncio.Queue[tuple[Connection, bytes, bytes, int]] = asyncio.Queue()
        self.tickets: asyncio.Queue[int] = asyncio.Queue()
        queue = DurableQueue(self.hub, "q")
        queue.is_elsewhere = True
        self.hub.queues.serve(
            lambda topic, is_settlement: queue,
            lambda groups: None,
            lambda session: None,
            lambda *settlement: self.relayed.put_nowait(settlement),
        )
        self.hub.log_to(lambda ticket, *_: self.tickets.put_nowait(ticket), mode="all", partitions=1)

    def publish(self, topic: str, packet_id: int, qos: int = 1) -> None:
        pairs = [("message-id", "q:7"), ("group-id", "g")]
        self._writer.write(packets.build_publish(topic, qos=qos, packet_id=packet_id, user_properties=pairs))

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def expect(self, packet_type: int, packet_id: int, reason: int = 0, words: bytes = b"") -> None:
        first, size = await self._reader.readexactly(2)
        body = await self._reader.readexactly(size)
        found = (first >> 4, int.from_bytes(body[:2], "big"), body[2] if size > 2 else 0)
        assert found == (packet_type, packet_id, reason)
        assert body[7:] == words

    async def expect_nothing(self) -> None:
        self._writer.write(packets.build_pingreq())
        assert await self._reader.readexactly(2) == packets.build_pingresp()


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def use(broker: Broker, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(packets.build_connect("consumer"))
        _, size = await reader.readexactly(2)
        await reader.readexactly(size)
        await scenario(World(broker, reader, writer))

    run_with_broker(use, seconds=30)


def test_what_the_log_refuses_behind_them_is_refused() -> None:
    """A message is in a batch that fails while an answer before it waits for the other node: it is not acknowledged as
    if it were in the log. Answers keep their order [MQTT-4.6.0-2]."""

    async def scenario(world: World) -> None:
        world.publish(ACK, 1)
        connection, topic, properties, token = await world.relayed.get()
        assert topic == ACK.encode()
        assert packets.decode_publish_properties(properties)["user_properties"][0] == ("message-id", "q:7")
        for packet_id, failures in ((2, 0), (3, 1), (4, 0)):
            world.publish("t", packet_id)
            world.hub.log_committed(await world.tickets.get(), 0, failures)
        world.publish("t", 5, qos=2)
        world.hub.log_committed(await world.tickets.get(), 0, 1)
        await world.expect_nothing()
        connection.answer_relayed(token, 0, b"")
        await world.expect(PUBACK, 1)
        await world.expect(PUBACK, 2, 0x10)  # no subscribers
        await world.expect(PUBACK, 3, QUOTA_EXCEEDED, NOT_STORED)
        await world.expect(PUBACK, 4, 0x10)
        await world.expect(PUBREC, 5, QUOTA_EXCEEDED, NOT_STORED)
        world.publish("t", 6)  # as before
        world.hub.log_committed(await world.tickets.get(), 0, 0)
        await world.expect(PUBACK, 6, 0x10)

    run(scenario)


@pytest.mark.parametrize("is_last_first", [False, True])
def test_each_gets_its_own_answer(is_last_first: bool) -> None:
    async def scenario(world: World) -> None:
        world.publish(ACK, 1)
        world.publish(ACK, 2, qos=2)
        world.publish(ACK, 3, qos=2)
        world.publish(ACK, 4, qos=1)
        settlements = [await world.relayed.get() for _ in range(4)]
        answers = [(0, b""), (0x80, AWAY), (0, b""), (0x80, b"words of a newer node")]
        asked = list(zip(settlements, answers, strict=True))
        for (connection, _, _, token), (reason, words) in reversed(asked) if is_last_first else asked:
            connection.answer_relayed(token, reason, words)
        await world.expect(PUBACK, 1)
        await world.expect(PUBREC, 2, 0x80, AWAY)
        await world.expect(PUBREC, 3)
        await world.expect(PUBACK, 4, 0x80)
        for packet_id, reason in ((2, 0x92), (3, 0)):  # the one that was refused is not held
            world.write(packets.build_ack(6, packet_id))
            await world.expect(PUBCOMP, packet_id, reason)

    run(scenario)


def test_an_answer_for_a_client_that_has_gone() -> None:
    async def scenario(world: World) -> None:
        world.publish(ACK, 1)
        world.publish(ACK, 2, qos=2)
        connection, _, _, token = await world.relayed.get()
        _, _, _, other = await world.relayed.get()
        world.write(packets.build_disconnect())
        while world.hub.connection_count:  # noqa: ASYNC110  # the compiled side has no events
            await asyncio.sleep(0.01)
        connection.answer_relayed(other, 0x80, AWAY)
        connection.answer_relayed(token, 0, b"")
        connection.answer_relayed(token, 0, b"")

    run(scenario)
