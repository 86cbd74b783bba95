"""Connections inside one process: errors of our own, idle memory, partial packets, announced sizes."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from penstock._ext.hub.connection import Connection, Session
from penstock._ext.wire import packets
from penstock.broker.build import build_broker
from penstock.broker.life import Broker
from penstock.settings.loader import load_settings
from tests.support.machine.waiting import until

Scenario = Callable[[Broker, int], Awaitable[None]]


def run(scenario: Scenario, **settings: str) -> None:
    """A broker on a free port and the scenario in the same loop."""

    async def main() -> None:
        overrides = {
            "listeners.0.address": "127.0.0.1:0",
            "admin.address": "",
            "sys.interval": "0",
            "ingest.log": "none",
            "server.data_dir": tempfile.mkdtemp(),
        }
        broker = build_broker(load_settings(None, {}, {**overrides, "logging.level": "error", **settings}))
        for listener in broker.listeners:
            await listener.start()
        try:
            async with asyncio.timeout(60):
                await scenario(broker, int(broker.listeners[0].address.rpartition(":")[2]))
        finally:
            await broker.close()

    uvloop.run(main())


async def connect(port: int, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(packets.build_connect(name, version=4))
    assert (await reader.readexactly(4))[0] == 0x20
    return reader, writer


async def ping(streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    streams[1].write(packets.build_pingreq())
    assert await streams[0].readexactly(2) == packets.build_pingresp()


def test_an_error_of_our_own_costs_one_connection() -> None:
    """[MQTT3-4.8.0-2]: the handler breaks; its connection is closed, the loop and the others go on."""

    async def scenario(broker: Broker, port: int) -> None:
        def broken(connection: object, flags: int, body: bytes) -> None:
            raise ZeroDivisionError

        bystander, victim = await connect(port, "bystander"), await connect(port, "victim")
        broker.frontend.on_subscribe = broken  # type: ignore[method-assign]  # the fault this test is about
        victim[1].write(packets.build_subscribe(1, [("a", 0)], version=4))
        assert await victim[0].read() == b""
        await ping(bystander)
        assert broker.hub.connection_count == 1
        assert broker.frontend.registry.get("victim") is None

    run(scenario)


AFTER_ITS_SESSION = {
    "PUBACK": packets.build_ack(4, 1),
    "PUBREC": packets.build_ack(5, 1),
    "PUBREL": packets.build_ack(6, 1),
    "PUBCOMP": packets.build_ack(7, 1),
    "PUBLISH": packets.build_publish("a", b"x", qos=2, packet_id=1),
    "PUBLISH to a queue": packets.build_publish("$queue/q", b"x", qos=1, packet_id=1),
    "SUBSCRIBE": packets.build_subscribe(1, [("a", 0)]),
    "UNSUBSCRIBE": packets.build_unsubscribe(1, ["a"]),
    "PINGREQ": packets.build_pingreq(),
    "DISCONNECT": packets.build_disconnect(),
}


@pytest.mark.parametrize("name", AFTER_ITS_SESSION)
def test_a_connection_ends_with_its_session(name: str) -> None:
    """Whoever ends a session whose connection is still open: no packet of it finds a session that is gone."""

    async def scenario(broker: Broker, port: int) -> None:
        bystander = await connect(port, "bystander")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(packets.build_connect("victim"))
        assert (await reader.readexactly(2))[0] == 0x20
        session = broker.frontend.registry.get("victim")
        assert session is not None
        connection = session.connection
        session.end(hand_over=False)
        assert not connection.is_open
        feed(broker, connection, AFTER_ITS_SESSION[name])
        assert (await reader.read()).endswith(bytes((0xE0, 2, packets.Reason.SESSION_TAKEN_OVER, 0)))
        await ping(bystander)
        assert broker.hub.connection_count == 1

    run(scenario)


def feed(broker: Broker, connection: Connection, data: bytes) -> None:
    """Bytes of the client that were read already when its session ended."""
    view = connection.get_buffer(len(data))
    view[: len(data)] = data
    connection.buffer_updated(len(data))


def test_a_connection_whose_session_went_before_connack_is_closed() -> None:
    async def scenario(broker: Broker, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await until(lambda: broker.hub.connection_count == 1)
        (connection,) = broker.hub.connections()
        session = Session(broker.hub, "victim")
        session.attach(connection, version=5, keeps=True)
        session.end(hand_over=False)
        connection.accept(session, packets.build_connack(5, False))
        assert await reader.read() == b""
        writer.close()

    run(scenario)


def test_an_idle_connection_owns_no_buffers() -> None:
    async def scenario(broker: Broker, port: int) -> None:
        streams = await connect(port, "idle")
        await ping(streams)
        await asyncio.sleep(0.05)
        (connection,) = broker.hub.connections()
        assert connection.memory() == {"out": 0, "partial": 0}

    run(scenario)


def test_an_output_buffer_is_as_large_as_what_was_sent_of_late() -> None:
    """One that is large at once need not grow in steps, and one large message is forgotten after some small ones. What
    waits for a client that does not read now gets no more than it needs."""

    async def scenario(broker: Broker, port: int) -> None:
        streams = await connect(port, "client")
        (connection,) = broker.hub.connections()

        async def out_for(size: int) -> int:
            connection.send(bytes(size))
            held = connection.memory()["out"]
            await streams[0].readexactly(size)
            return held

        assert await out_for(100) < 1_000
        await out_for(100_000)
        assert 100_000 < await out_for(100) < 200_000
        assert 80_000 < await out_for(100) < 200_000
        connection.pause_writing()
        connection.send(b"waits")
        assert connection.memory()["out"] < 1_000
        connection.resume_writing()
        assert await streams[0].readexactly(5) == b"waits"
        await out_for(10_000_000)
        assert await out_for(100) < 200_000
        for _ in range(60):
            held = await out_for(100)
        assert held < 1_000

    run(scenario)


def test_room_for_the_output_of_many_is_bounded() -> None:
    """Connections that sent much and now send little: what all of them get at once is no more than 16 MiB."""

    async def scenario(broker: Broker, port: int) -> None:
        clients = [await connect(port, f"client {i}") for i in range(24)]
        for connection in broker.hub.connections():
            connection.send(bytes(130_000))
        for reader, _ in clients:
            await reader.readexactly(130_000)

        def held_by_all() -> list[int]:
            """Seven small outputs of each in one iteration, flushed early; what each of them had."""
            held = []
            for connection in broker.hub.connections():
                for _ in range(7):
                    connection.send(b"little")
                    held.append(connection.memory()["out"])
                    connection.resume_writing()
            return held

        held = held_by_all()
        assert max(held[:7]) > 130_000
        assert max(held[-7:]) < 1_000
        assert 16 << 20 <= sum(held) < 17 << 20
        await clients[0][0].readexactly(7 * len(b"little"))
        await ping(clients[0])  # the next iteration has room again
        assert max(held_by_all()[:7]) > 40_000

    run(scenario)


def test_a_partial_packet_is_kept_only_while_it_is_partial() -> None:
    async def scenario(broker: Broker, port: int) -> None:
        streams = await connect(port, "slow")
        packet = packets.build_publish("topic", b"x" * 50, qos=1, packet_id=7, version=4)
        for byte in packet[:-1]:
            streams[1].write(bytes([byte]))
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        (connection,) = broker.hub.connections()
        assert 0 < connection.memory()["partial"] <= 2 * len(packet)
        streams[1].write(packet[-1:])
        assert await streams[0].readexactly(4) == packets.build_ack(4, 7, version=4)
        assert connection.memory()["partial"] == 0

    run(scenario)


def test_memory_is_not_reserved_for_what_was_only_announced() -> None:
    async def scenario(broker: Broker, port: int) -> None:
        streams = await connect(port, "boaster")
        streams[1].write(b"\x30\xff\xff\xff\x7f" + b"\x00\x01t" + b"x" * 1_000)  # 268,435,455 bytes to come
        await asyncio.sleep(0.05)
        (connection,) = broker.hub.connections()
        assert connection.memory()["partial"] < 10_000

    run(scenario, **{"limits.max_packet_size": "268435461"})


def test_a_packet_larger_than_the_headroom_is_put_together() -> None:
    """Pieces of a packet over many reads, larger than what fits in front of the shared read buffer."""

    async def scenario(broker: Broker, port: int) -> None:
        subscriber, publisher = await connect(port, "subscriber"), await connect(port, "publisher")
        subscriber[1].write(packets.build_subscribe(1, [("big", 0)], version=4))
        await subscriber[0].readexactly(5)
        payload = bytes(range(256)) * 3_000
        packet = packets.build_publish("big", payload, version=4)
        for start in range(0, len(packet), 50_000):
            publisher[1].write(packet[start : start + 50_000])
            await publisher[1].drain()
            await asyncio.sleep(0.002)
        assert await subscriber[0].readexactly(len(packet)) == packet
        await ping(publisher)

    run(scenario)


def test_a_packet_id_is_free_when_its_release_is_stored() -> None:
    """[MQTT-4.3.3-12]: a PUBREL that comes again over a new connection waits for the first one. Else a crash would
    bring the id back, and the next message with it would count as received."""

    async def scenario(broker: Broker, port: int) -> None:
        tickets: asyncio.Queue[int] = asyncio.Queue()

        def submit(ticket: int, *_: object) -> None:
            tickets.put_nowait(ticket)

        await broker.start_only("sessions")
        broker.hub.log_to(
            submit, mode="all", partitions=1, hash_function="murmur3_128", max_pending=1 << 20, keeps_state=True
        )

        async def open_session() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(packets.build_connect("keeper", version=4, clean_start=False))
            assert (await reader.readexactly(4))[3] == 0
            return reader, writer

        reader, writer = await open_session()
        writer.write(b"\x34\x05\x00\x01t\x00\x01")
        broker.hub.log_committed(await tickets.get(), 0, 0)
        assert await reader.readexactly(4) == b"\x50\x02\x00\x01"
        writer.write(b"\x62\x02\x00\x01")
        released = await tickets.get()
        writer.close()
        reader, writer = await open_session()
        writer.write(b"\x62\x02\x00\x01" + packets.build_pingreq())
        assert await reader.readexactly(2) == packets.build_pingresp()
        broker.hub.log_committed(released, 0, 0)
        assert await reader.readexactly(4) == b"\x70\x02\x00\x01"

    run(scenario)
