"""A compiled Lane on a real Hub, Session and Connection: what it writes is kept, what the client says is fed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from penstock._ext.hub.connection import Connection, Hub, Session
from penstock._ext.record.envelope import encode
from penstock._ext.record.segment import RecordPack
from penstock._ext.wire import packets

CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 2, 3, 4, 5, 6, 7
PAST = 1_000  # ms since the epoch: whatever expired then
TOPIC = "tbmq.msg.app.client"


class StepLoop:
    """The part of a loop that a hub needs; a test says when an iteration ends."""

    def __init__(self) -> None:
        self._soon: list[Callable[[], object]] = []
        self.failures: list[Any] = []

    def call_soon(self, callback: Callable[..., object], *arguments: Any) -> None:
        self._soon.append(lambda: callback(*arguments))

    def call_exception_handler(self, context: Any) -> None:
        self.failures.append(context)

    def turn(self) -> None:
        while self._soon:
            soon, self._soon = self._soon, []
            for callback in soon:
                callback()


class KeptOutput:
    """A transport that takes everything at once, or (`is_stuck`) nothing."""

    def __init__(self) -> None:
        self.written = b""
        self.is_closed = False
        self.protocol: Connection | None = None
        self.is_stuck = False

    def get_extra_info(self, name: str) -> None:
        return None

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...

    def write(self, data: bytes) -> None:
        self.written += data
        if self.is_stuck and self.protocol is not None:
            self.protocol.pause_writing()

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        self.is_closed = True

    abort = close


class Packet(NamedTuple):
    """What the client got."""

    kind: int
    packet_id: int
    payload: bytes = b""
    qos: int = 0
    dup: bool = False
    retain: bool = False
    reason: int = 0
    properties: Any = None
    topic: str = ""


class Handler:
    """Nothing rare happens here; an error of our own is kept for the test to see."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []

    def on_open(self, connection: Connection) -> None: ...

    def on_denied(self, connection: Connection, topic: bytes, held: int) -> None: ...
    def on_closed(self, connection: Connection, session: Session | None) -> None: ...

    def on_disconnect(self, connection: Connection, flags: int, body: bytes) -> None:
        connection.shutdown("said so", clean=True)

    def on_error(self, connection: Connection, error: BaseException) -> None:
        self.errors.append(error)


class LaneClient:
    """A client connected to the session, from CONNACK on."""

    def __init__(
        self,
        hub: Hub,
        session: Session,
        *,
        version: int = 4,
        receive_maximum: int = 65_535,
        maximum_packet_size: int = 0,
        turn: Callable[[], None] | None = None,
    ) -> None:
        self.version = version
        self.session = session
        self.handler = Handler()
        self.transport = KeptOutput()
        self.connection = Connection(hub, self.handler)
        self.transport.protocol = self.connection
        self._turn = turn or (lambda: None)
        self._read = 0
        self.connection.connection_made(self.transport)
        session.attach(
            self.connection,
            version=version,
            keeps=True,
            receive_maximum=receive_maximum,
            maximum_packet_size=maximum_packet_size,
        )
        self.connection.accept(session, packets.build_connack(version, True))

    def take(self) -> list[Packet]:
        """What came since the last time."""
        self._turn()
        assert not self.handler.errors, self.handler.errors
        data = self.transport.written
        found = []
        while self._read < len(data):
            first, size, at, shift = data[self._read], 0, self._read + 1, 0
            while True:
                size |= (data[at] & 127) << shift
                shift, at = shift + 7, at + 1
                if data[at - 1] < 128:
                    break
            body = data[at : at + size]
            assert len(body) == size, "half a packet"
            self._read = at + size
            if first >> 4 != CONNACK:
                found.append(self._parse(first, body))
        return found

    def _parse(self, first: int, body: bytes) -> Packet:
        kind = first >> 4
        if kind != PUBLISH:
            reason = body[2] if len(body) > 2 else 0
            return Packet(kind, int.from_bytes(body[:2]), reason=reason)
        found = packets.parse_publish_packet(first & 15, body, self.version)
        return Packet(
            kind, found.packet_id, found.payload, found.qos, found.dup, found.retain, 0, found.properties, found.topic
        )

    def say(self, kind: int, packet_id: int, reason: int = 0) -> None:
        self.say_bytes(packets.build_ack(kind, packet_id, reason, version=self.version))

    def say_bytes(self, data: bytes) -> None:
        self.connection.get_buffer(-1)[: len(data)] = data
        self.connection.buffer_updated(len(data))
        assert not self.handler.errors, self.handler.errors

    def lose(self) -> None:
        """The network connection breaks."""
        self.connection.connection_lost(None)

    @property
    def is_open(self) -> bool:
        return self.connection.is_open


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    return bytes([*encoded, number])


def delivery(
    qos: int | None = None, source: tuple[int, int] | None = None, ids: Iterable[int] = (), *, retain: bool = False
) -> bytes:
    """What the dispatcher writes behind a record (delivery.proto)."""
    encoded = b"" if qos is None else _varint(21 << 3) + _varint(qos)
    encoded += _varint(22 << 3) + b"\1" if retain else b""
    packed = b"".join(_varint(number) for number in ids)
    encoded += _varint(23 << 3 | 2) + _varint(len(packed)) + packed if packed else b""
    if source is not None:
        encoded += _varint(24 << 3) + _varint(source[0]) + _varint(25 << 3) + _varint(source[1])
    return encoded


def record(
    payload: bytes,
    *,
    qos: int = 1,
    topic: str = "t",
    source: tuple[int, int] | None = None,
    expires_at: int = 0,
    ids: Iterable[int] = (),
    retain: bool = False,
) -> bytes:
    """A record of a client's topic."""
    return encode(topic, payload, max(qos, 1), expires_at=expires_at) + delivery(qos, source, ids, retain=retain)


def make_pack(values: Iterable[bytes | None], base_offset: int = 0) -> RecordPack:
    pack = RecordPack()
    for value in values:
        pack.append(value)
    pack.place(base_offset)
    return pack


def numbered(first: int, count: int, *, qos: int = 1) -> RecordPack:
    """Records whose payloads are their offsets."""
    return make_pack((record(str(first + i).encode(), qos=qos) for i in range(count)), first)
