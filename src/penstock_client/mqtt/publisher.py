"""Publishes to an MQTT 5 broker from blocking code: a socket and a window of unacknowledged QoS 1, nothing else."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass

from penstock.core.errors import PenstockError
from penstock_client.mqtt import packets
from penstock_client.mqtt.reasons import FIRST_FAILURE
from penstock_schema.decode import Publish

SECONDS = 30.0
WINDOW = 100
LARGEST_PACKET = 268_435_460  # the largest that MQTT can say the length of
READ_BYTES = 65_536


@dataclass(frozen=True)
class Address:
    """Where the broker is, and who connects."""

    host: str = "127.0.0.1"
    port: int = 1883
    username: str | None = None
    password: str | None = None
    tls: bool = False
    client_id: str = "penstock-replay"


class PublishError(PenstockError):
    """The broker cannot be reached, refuses the connection, or ended it."""


def build_publish(record: Publish, packet_id: int, expiry: int | None = None) -> bytes:
    """QoS 2 of the record becomes 1: the replay is at least once anyway."""
    return packets.build_publish(
        record.topic,
        record.payload,
        qos=min(record.qos, 1),
        retain=record.retain,
        packet_id=packet_id,
        payload_format=record.payload_format,
        message_expiry=expiry,
        content_type=record.content_type,
        response_topic=record.response_topic,
        correlation_data=record.correlation_data,
        user_properties=record.user_properties,
    )


class MqttPublisher:
    """`send` returns when the message is on its way, `flush` when all of them have arrived: those of QoS 1 are
    acknowledged, and for those of QoS 0 the broker has answered a ping that followed them."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._waiting: set[int] = set()
        self._ids = packets.PacketIds()
        self._reader = packets.PacketReader()
        self._arrived: list[tuple[int, int, bytes]] = []
        self._is_sure = True  # that what was sent with QoS 0 has arrived
        self.refused = 0
        try:
            plain = socket.create_connection((address.host, address.port), timeout=SECONDS)
            context = ssl.create_default_context() if address.tls else None
            self._socket = context.wrap_socket(plain, server_hostname=address.host) if context else plain
            self._socket.sendall(
                packets.build_connect(
                    address.client_id, keep_alive=0, username=address.username, password=address.password
                )
            )
            kind, body = self._read()
        except (OSError, packets.MalformedPacket) as error:
            raise PublishError(f"no MQTT broker at {address.host}:{address.port}: {error}") from None
        if kind != packets.CONNACK or body[1:2] != b"\0":
            code = f"0x{body[1]:02X}" if len(body) > 1 else "none"
            raise PublishError(f"the broker at {address.host}:{address.port} refuses us: reason code {code}")
        limits = packets.parse_connack(body).properties
        self._window = min(WINDOW, limits.get("receive_maximum", WINDOW))
        self._largest = limits.get("maximum_packet_size", LARGEST_PACKET)

    def _read(self) -> tuple[int, bytes]:
        while not self._arrived:
            data = self._socket.recv(READ_BYTES)
            if not data:
                raise ConnectionError("the broker closed the connection")
            self._arrived += self._reader.feed(data)
        kind, _, body = self._arrived.pop(0)
        return kind, body

    def send(self, record: Publish, expiry: int | None = None) -> None:
        while len(self._waiting) >= self._window:
            self._take_acknowledgement()
        packet_id = self._ids.next(self._waiting)
        try:
            packet = build_publish(record, packet_id, expiry)
        except ValueError:
            packet = b""  # a topic that has become longer than topics are
        # [MQTT-3.2.2-15]: nothing larger than the broker takes
        if not packet or len(packet) > self._largest:
            self.refused += 1
            return
        if record.qos:
            self._waiting.add(packet_id)
        else:
            self._is_sure = False
        try:
            self._socket.sendall(packet)
        except OSError as error:
            raise PublishError(f"the connection to the broker is lost: {error}") from None

    def _take_acknowledgement(self) -> None:
        try:
            kind, body = self._read()
        except (OSError, packets.MalformedPacket) as error:
            raise PublishError(f"the connection to the broker is lost: {error}") from None
        if kind == packets.PUBACK:
            answer = packets.parse_ack(body)
            self._waiting.discard(answer.packet_id)
            self.refused += answer.reasons[0] >= FIRST_FAILURE
        elif kind == packets.PINGRESP:
            self._is_sure = True
        elif kind == packets.DISCONNECT:
            raise PublishError(f"the broker ends the connection: reason code 0x{body[0] if body else 0:02X}")

    def flush(self) -> None:
        if not self._is_sure:
            try:
                self._socket.sendall(packets.build_pingreq())
            except OSError as error:
                raise PublishError(f"the connection to the broker is lost: {error}") from None
        while self._waiting or not self._is_sure:
            self._take_acknowledgement()

    def close(self) -> None:
        try:
            self.flush()
            self._socket.sendall(packets.build_disconnect())
        finally:
            self._socket.close()
