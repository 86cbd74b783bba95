"""Does a message, or its acknowledgement, ever enter Python? A profiled broker counts every call while 10,000 pass."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import uvloop

from penstock._ext.wire import packets
from penstock.broker.build import build_broker
from penstock.settings.loader import load_settings

MESSAGES = 10_000
WINDOW = 100
PUBACK, PUBREC, PUBREL, PUBCOMP = 4, 5, 6, 7


class Client:
    """A client on the same loop whose own calls are not counted: it runs in another thread."""

    def __init__(self, port: int) -> None:
        import socket  # noqa: PLC0415  # only the thread that speaks needs it

        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.buffer = b""

    def take(self) -> tuple[int, bytes]:
        """The next packet: first byte, body (all are shorter than 16 KiB here)."""
        while len(self.buffer) < 3 or len(self.buffer) < sum(self._sizes()):
            received = self.socket.recv(1 << 16)
            assert received, "the broker closed the connection"
            self.buffer += received
        head, body = self._sizes()
        packet, self.buffer = self.buffer[: head + body], self.buffer[head + body :]
        return packet[0], packet[head:]

    def _sizes(self) -> tuple[int, int]:
        first, second = self.buffer[1:3]
        return (3, first - 128 + 128 * second) if first >= 128 else (2, first)

    def open(self, name: str, version: int, *, keeps: bool = False) -> None:
        expiry = 3_600 if keeps and version == 5 else None
        self.socket.sendall(packets.build_connect(name, version=version, clean_start=not keeps, session_expiry=expiry))
        assert self.take()[0] == 0x20


def publish_all(port: int, version: int, qos: int, messages: int, *, keeps: bool = False, window: int = WINDOW) -> None:
    """One publisher and one subscriber, everything acknowledged in batches; `keeps`: with a persistent session."""
    publisher, subscriber = Client(port), Client(port)
    publisher.open("publisher", version)
    subscriber.open("subscriber", version, keeps=keeps)
    subscriber.socket.sendall(packets.build_subscribe(1, [("bench/topic", qos)], version=version))
    assert subscriber.take()[0] == 0x90
    for start in range(0, messages, window):
        ids = [1 + (start + i) % 60_000 for i in range(window)]
        publisher.socket.sendall(
            b"".join(
                packets.build_publish("bench/topic", b"x" * 20, qos=qos, packet_id=i if qos else 0, version=version)
                for i in ids
            )
        )
        if qos == 1:
            for _ in ids:
                assert publisher.take()[0] >> 4 == PUBACK
        if qos == 2:
            for _ in ids:
                assert publisher.take()[0] >> 4 == PUBREC
            publisher.socket.sendall(b"".join(packets.build_ack(PUBREL, i, version=version) for i in ids))
            for _ in ids:
                assert publisher.take()[0] >> 4 == PUBCOMP
        receive_all(subscriber, qos, version, window)
    publisher.socket.close()
    subscriber.socket.close()


def receive_all(subscriber: Client, qos: int, version: int, count: int) -> None:
    received = []
    for _ in range(count):
        first, body = subscriber.take()
        assert first >> 4 == 3
        received.append(int.from_bytes(body[13:15]))
    if qos == 1:
        subscriber.socket.sendall(b"".join(packets.build_ack(PUBACK, i, version=version) for i in received))
    if qos == 2:
        subscriber.socket.sendall(b"".join(packets.build_ack(PUBREC, i, version=version) for i in received))
        for _ in received:
            assert subscriber.take()[0] >> 4 == PUBREL
        subscriber.socket.sendall(b"".join(packets.build_ack(PUBCOMP, i, version=version) for i in received))


def settle_all(port: int, batches: int, size: int) -> None:
    """Batches of messages through the default queue to one consumer, which settles each by a publish of its own."""
    publisher, consumer = Client(port), Client(port)
    publisher.open("publisher", 5)
    consumer.open("consumer", 5)
    group = [("consumer-group", "workers")]
    consumer.socket.sendall(packets.build_subscribe(1, [("$queue/mqtt", 1)], user_properties=group))
    assert consumer.take()[0] == 0x90
    for first in range(0, batches * size, size):
        ids = range(1, size + 1)
        publishes = [packets.build_publish("$queue/mqtt/key", b"x" * 20, qos=1, packet_id=i) for i in ids]
        publisher.socket.sendall(b"".join(publishes))
        for _ in ids:
            assert publisher.take()[0] >> 4 == PUBACK
        settlements = []
        for i in ids:
            first_byte, body = consumer.take()
            assert first_byte >> 4 == 3
            topic_size = int.from_bytes(body[:2])
            settlements.append(packets.build_ack(PUBACK, int.from_bytes(body[2 + topic_size : 4 + topic_size])))
            names = [("message-id", f"mqtt:{first + i - 1}"), ("group-id", "workers")]
            settlement = packets.build_publish("$queue/mqtt/$ack", qos=1, packet_id=i, user_properties=names)
            settlements.append(settlement)
        consumer.socket.sendall(b"".join(settlements))
        for _ in ids:
            assert consumer.take()[0] >> 4 == PUBACK
    publisher.socket.close()
    consumer.socket.close()


@contextmanager
def counted_calls() -> Iterator[list[int]]:
    """Counts every call of Python and C functions on this thread, the loop's."""
    calls = [0]

    def profile(frame: object, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            calls[0] += 1

    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def calls_of(
    version: int, qos: int, messages: int, log: str = "none", *, client_type: str = "device", window: int = WINDOW
) -> tuple[int, dict[str, int]]:
    is_kept = client_type == "application"
    return calls_while(
        lambda port: publish_all(port, version, qos, messages, keeps=is_kept, window=window),
        log,
        client_type,
        restores=is_kept,
    )


def calls_while(
    drive: Callable[[int], None], log: str, client_type: str = "device", *, restores: bool
) -> tuple[int, dict[str, int]]:
    """Calls and counters of a broker while the clients do that, in a thread of their own. What it `restores` are the
    logs of clients and the queues."""

    async def main() -> tuple[int, dict[str, int]]:
        overrides = {"listeners.0.address": "127.0.0.1:0", "admin.address": "", "sys.interval": "0"}
        overrides |= {"ingest.log": log, "log.provider": "memory", "logging.level": "error"}
        overrides["access.anonymous_type"] = client_type
        broker = build_broker(load_settings(None, {}, {**overrides, "server.data_dir": tempfile.mkdtemp()}))
        await broker.start_only("log", "node", "ingest")
        if restores:
            await broker.start_only("sessions")
        for listener in broker.listeners:
            await listener.start()
        port = int(broker.listeners[0].address.rpartition(":")[2])
        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        failures: list[BaseException] = []

        def run() -> None:
            try:
                drive(port)
            except BaseException as error:
                failures.append(error)
            finally:
                loop.call_soon_threadsafe(done.set)

        thread = threading.Thread(target=run)
        with counted_calls() as calls:
            thread.start()
            await done.wait()
        thread.join()
        if failures:
            raise failures[0]
        counters = {**broker.hub.counters_now(), **{k: v for part in broker.parts for k, v in part.counters().items()}}
        await broker.close()
        return calls[0], counters

    return uvloop.run(main())


@pytest.mark.parametrize("log", ["none", "all"])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [4, 5])
def test_calls_do_not_grow_with_messages(version: int, qos: int, log: str) -> None:
    few, _ = calls_of(version, qos, 1_000, log)
    many, counters = calls_of(version, qos, MESSAGES, log)
    assert counters["publish_logged"] == (MESSAGES if log == "all" else 0)
    assert counters[f"messages_received_qos{qos}"] == MESSAGES
    assert counters[f"messages_sent_qos{qos}"] == MESSAGES
    # What grows is loop iterations: reads, flushes and (with a log) batches, some calls each, never one per message.
    reads_and_flushes = counters["socket_reads"] + counters["flushes"]
    assert many - few < (40 if log == "all" else 6) * reads_and_flushes
    assert many < MESSAGES, f"{many} calls for {MESSAGES} messages"


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("version", [4, 5])
def test_calls_of_an_application_grow_with_packs(version: int, qos: int) -> None:
    """As many packs of nine times the size: through the log of all messages, dispatch, the client's own log, contexts
    and acknowledgements, calls are for the pack and not for the message."""
    packs, small, large = 40, 10, 90
    few, counters = calls_of(version, qos, packs * small, "all", client_type="application", window=small)
    assert counters["application_dispatched"] == packs * small
    many, counters = calls_of(version, qos, packs * large, "all", client_type="application", window=large)
    assert counters["application_dispatched"] == counters[f"messages_sent_qos{qos}"] == packs * large
    # A larger pack may come in some more reads and rounds; that is far from one call more for each message.
    assert many - few < packs * (large - small) / 2, f"{few} calls for packs of {small}, {many} for packs of {large}"


def test_calls_of_a_queue_grow_with_batches() -> None:
    """As many batches of nine times the size: into the queue's log, claimed, stored, delivered, settled and stored
    again, calls are for the batch and not for the message."""
    batches, small, large = 40, 10, 90
    few, counters = calls_while(lambda port: settle_all(port, batches, small), "all", restores=True)
    assert counters["queue_acknowledged"] == batches * small
    many, counters = calls_while(lambda port: settle_all(port, batches, large), "all", restores=True)
    assert counters["queue_published"] == counters["queue_acknowledged"] == batches * large
    assert many - few < batches * (large - small) / 2, f"{few} calls for {small} at a time, {many} for {large}"


def test_one_write_per_connection_and_iteration() -> None:
    """Output leaves with one write per connection and loop iteration: 10,000 deliveries and acknowledgements."""
    _, counters = calls_of(4, 1, MESSAGES)
    assert counters["socket_writes"] <= 2 * counters["flushes"] + 10
    assert counters["socket_writes"] < MESSAGES / 4
