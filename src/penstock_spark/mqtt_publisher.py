"""Publishes to an MQTT 5 broker from a job: a blocking socket, a window of unacknowledged QoS 1, nothing else."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass

from penstock_schema.decode import Publish
from penstock_spark.errors import PenstockSparkError

CONNECT, CONNACK, PUBLISH, PUBACK, PINGREQ, PINGRESP, DISCONNECT = 0x10, 0x20, 0x30, 0x40, 0xC0, 0xD0, 0xE0
RECEIVE_MAXIMUM, MAXIMUM_PACKET_SIZE = 0x21, 0x27
SECONDS = 30.0
WINDOW = 100
LARGEST_PACKET = 268_435_460  # the largest that MQTT can say the length of


@dataclass(frozen=True)
class Address:
    host: str = "127.0.0.1"
    port: int = 1883
    username: str | None = None
    password: str | None = None
    tls: bool = False
    client_id: str = "penstock-replay"


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    return bytes([*encoded, number])


def _text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return len(data).to_bytes(2, "big") + data


def _packet(kind: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return bytes([kind]) + _varint(len(body)) + body


def build_connect(address: Address) -> bytes:
    flags = 0x02  # clean start
    payload = [_text(address.client_id)]
    for bit, value in ((0x80, address.username), (0x40, address.password)):
        if value is not None:
            flags |= bit
            payload.append(_text(value))
    return _packet(CONNECT, _text("MQTT"), bytes([5, flags, 0, 0]), b"\0", *payload)


def build_properties(record: Publish, expiry: int | None = None) -> bytes:
    """The properties that the record has, and the seconds it has left to live."""
    parts = []
    if record.payload_format is not None:
        parts.append(bytes([0x01, record.payload_format]))
    if expiry is not None:
        parts.append(b"\x02" + expiry.to_bytes(4, "big"))
    for identifier, value in (
        (0x03, record.content_type),
        (0x08, record.response_topic),
        (0x09, record.correlation_data),
    ):
        if value is not None:
            parts.append(bytes([identifier]) + _text(value))
    parts += [b"\x26" + _text(name) + _text(value) for name, value in record.user_properties]
    body = b"".join(parts)
    return _varint(len(body)) + body


def build_publish(record: Publish, packet_id: int, expiry: int | None = None) -> bytes:
    """QoS 2 of the record becomes 1: the replay is at least once anyway."""
    qos = min(record.qos, 1)
    kind = PUBLISH | qos << 1 | int(record.retain)
    number = packet_id.to_bytes(2, "big") if qos else b""
    return _packet(kind, _text(record.topic), number, build_properties(record, expiry), record.payload)


class MqttPublisher:
    """`send` returns when the message is on its way, `flush` when all of them have arrived: those of QoS 1 are
    acknowledged, and for those of QoS 0 the broker has answered what was sent behind them."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._waiting: set[int] = set()
        self._last_id = 0
        self._is_sure = True  # that what was sent with QoS 0 has arrived
        self.refused = 0
        try:
            plain = socket.create_connection((address.host, address.port), timeout=SECONDS)
            context = ssl.create_default_context() if address.tls else None
            self._socket = context.wrap_socket(plain, server_hostname=address.host) if context else plain
            self._stream = self._socket.makefile("rb")
            self._socket.sendall(build_connect(address))
            kind, body = self._read()
        except OSError as error:
            raise PenstockSparkError(f"no MQTT broker at {address.host}:{address.port}: {error}") from None
        if kind != CONNACK or body[1] != 0:
            code = f"0x{body[1]:02X}" if len(body) > 1 else "none"
            raise PenstockSparkError(f"the broker at {address.host}:{address.port} refuses us: reason code {code}")
        limits = _limits_of(body)
        self._window = min(WINDOW, limits.get(RECEIVE_MAXIMUM, WINDOW))
        self._largest = limits.get(MAXIMUM_PACKET_SIZE, LARGEST_PACKET)

    def _read(self) -> tuple[int, bytes]:
        first = self._stream.read(1)
        if not first:
            raise ConnectionError("the broker closed the connection")
        size = shift = 0
        while True:
            byte = self._stream.read(1)[0]
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        return first[0] & 0xF0, self._stream.read(size)

    def send(self, record: Publish, expiry: int | None = None) -> None:
        while len(self._waiting) >= self._window:
            self._take_acknowledgement()
        # [MQTT-2.2.1-3]: an id that is not in use
        packet_id = self._last_id % 65_535 + 1
        try:
            packet = build_publish(record, packet_id, expiry)
        except OverflowError:
            packet = b""  # a topic that has become longer than topics are
        # [MQTT-3.2.2-15]: nothing larger than the broker takes
        if not packet or len(packet) > self._largest:
            self.refused += 1
            return
        if record.qos:
            self._last_id = packet_id
            self._waiting.add(packet_id)
        else:
            self._is_sure = False
        try:
            self._socket.sendall(packet)
        except OSError as error:
            raise PenstockSparkError(f"the connection to the broker is lost: {error}") from None

    def _take_acknowledgement(self) -> None:
        try:
            kind, body = self._read()
        except (OSError, IndexError) as error:
            raise PenstockSparkError(f"the connection to the broker is lost: {error}") from None
        if kind == PUBACK:
            self._waiting.discard(int.from_bytes(body[:2], "big"))
            self.refused += len(body) > 2 and body[2] >= 0x80
        elif kind == PINGRESP:
            self._is_sure = True
        elif kind == DISCONNECT:
            raise PenstockSparkError(f"the broker ends the connection: reason code 0x{body[0] if body else 0:02X}")

    def flush(self) -> None:
        if not self._is_sure:
            try:
                self._socket.sendall(_packet(PINGREQ))
            except OSError as error:
                raise PenstockSparkError(f"the connection to the broker is lost: {error}") from None
        while self._waiting or not self._is_sure:
            self._take_acknowledgement()

    def close(self) -> None:
        try:
            self.flush()
            self._socket.sendall(_packet(DISCONNECT))
        finally:
            self._stream.close()
            self._socket.close()


def _limits_of(connack: bytes) -> dict[int, int]:
    """The numbers among the properties of a CONNACK, by their identifiers."""
    found = {}
    at, end = 2, len(connack)
    while at < end and connack[at] & 128:
        at += 1  # the length of the properties has one to four bytes
    at += 1
    lengths = {0x11: 4, 0x21: 2, 0x24: 1, 0x25: 1, 0x27: 4, 0x22: 2, 0x28: 1, 0x29: 1, 0x2A: 1, 0x13: 2}
    while at < end:
        identifier = connack[at]
        if identifier in lengths:
            found[identifier] = int.from_bytes(connack[at + 1 : at + 1 + lengths[identifier]], "big")
            at += 1 + lengths[identifier]
            continue
        size = int.from_bytes(connack[at + 1 : at + 3], "big")
        at += 3 + size
        if identifier == 0x26:
            at += 2 + int.from_bytes(connack[at : at + 2], "big")
    return found
