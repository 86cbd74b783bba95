"""A synchronous MQTT client of bare bytes: it does what a test says and nothing else.

Nothing is acknowledged unless asked. Every wait has a limit. Packets from the server are checked strictly
(see packets.py); a test takes them in the order in which they came.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Self

from tests.support.clients.packets import (
    PINGREQ,
    V5,
    Packet,
    PacketType,
    Reason,
    pack_ack,
    pack_connect,
    pack_disconnect,
    pack_publish,
    pack_subscribe,
    pack_unsubscribe,
    subscription_options,
    unpack,
)
from tests.support.clients.properties import PropertyInput
from tests.support.clients.streams import Stream
from tests.support.clients.wire_types import WireError

# Costs nothing where what is awaited comes: machines are busy.
TIMEOUT = 60.0


class ClosedByServer(AssertionError):
    """The server closed the connection where a packet was expected."""


class NothingCame(AssertionError):
    """No whole packet within the time allowed."""


class RawClient:
    """One network connection that speaks MQTT."""

    def __init__(self, stream: Stream, version: int = V5, timeout: float = TIMEOUT) -> None:
        self.stream = stream
        self.version = version
        self.timeout = timeout
        self.client_id = ""
        self.connack: Packet | None = None
        self._bytes = bytearray()
        self._inbox: deque[Packet] = deque()
        self._next_packet_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the network connection without a DISCONNECT."""
        self.stream.close()

    # Sending

    def send_raw(self, data: bytes) -> None:
        self.stream.sendall(data)

    def try_send_raw(self, data: bytes) -> None:
        """Send to a server that may close meanwhile; what it does about it is the next expectation's business."""
        with contextlib.suppress(OSError):
            self.stream.sendall(data)

    def new_packet_id(self) -> int:
        self._next_packet_id = self._next_packet_id % 65_535 + 1
        return self._next_packet_id

    def send_connect(self, client_id: str = "", **options: Any) -> None:
        self.client_id = client_id
        self.send_raw(pack_connect(self.version, client_id, **options))

    def connect(self, client_id: str = "", *, reason: int = 0, **options: Any) -> Packet:
        """CONNECT and its CONNACK, which must carry `reason`."""
        self.send_connect(client_id, **options)
        self.connack = self.expect(PacketType.CONNACK, reason=reason)
        self.client_id = self.connack.properties.get("assigned_client_identifier", client_id)
        return self.connack

    def send_publish(self, topic: str | bytes, payload: bytes = b"", **options: Any) -> int | None:
        """PUBLISH without waiting for its acknowledgement; gives the packet id used."""
        if options.get("qos") and options.get("packet_id") is None:
            options["packet_id"] = self.new_packet_id()
        self.send_raw(pack_publish(self.version, topic, payload, **options))
        return options.get("packet_id")

    def publish(self, topic: str | bytes, payload: bytes = b"", *, qos: int = 0, **options: Any) -> Packet | None:
        """PUBLISH and its whole acknowledgement; gives the PUBACK or PUBREC."""
        packet_id = self.send_publish(topic, payload, qos=qos, **options)
        if qos == 0:
            return None
        if qos == 1:
            return self.await_packet(PacketType.PUBACK, packet_id)
        pubrec = self.await_packet(PacketType.PUBREC, packet_id)
        if pubrec.reason < 0x80:
            self.send_ack(PacketType.PUBREL, packet_id)
            self.await_packet(PacketType.PUBCOMP, packet_id)
        return pubrec

    def send_ack(
        self, packet_type: PacketType, packet_id: int, reason: int = 0, properties: PropertyInput = None
    ) -> None:
        self.send_raw(pack_ack(packet_type, self.version, packet_id, reason, properties))

    def ack(self, publish: Packet) -> None:
        """Acknowledge a PUBLISH of the server completely."""
        if publish.qos == 1:
            self.send_ack(PacketType.PUBACK, publish.packet_id)
        elif publish.qos == 2:
            self.send_ack(PacketType.PUBREC, publish.packet_id)
            self.await_packet(PacketType.PUBREL, publish.packet_id)
            self.send_ack(PacketType.PUBCOMP, publish.packet_id)

    def send_subscribe(self, *filters: tuple[str, int], properties: PropertyInput = None) -> int:
        packet_id = self.new_packet_id()
        self.send_raw(pack_subscribe(self.version, packet_id, filters, properties))
        return packet_id

    def subscribe(
        self, *topic_filters: str, qos: int = 0, properties: PropertyInput = None, **options: Any
    ) -> list[int]:
        """SUBSCRIBE to each filter with the same options; gives the reason codes of the SUBACK."""
        pairs = [(name, subscription_options(qos, **options)) for name in topic_filters]
        packet_id = self.send_subscribe(*pairs, properties=properties)
        return self.await_packet(PacketType.SUBACK, packet_id).reasons

    def unsubscribe(self, *topic_filters: str) -> list[int]:
        packet_id = self.new_packet_id()
        self.send_raw(pack_unsubscribe(self.version, packet_id, topic_filters))
        return self.await_packet(PacketType.UNSUBACK, packet_id).reasons

    def disconnect(self, reason: int = 0, properties: PropertyInput = None) -> None:
        """DISCONNECT; the server must close then."""
        self.send_raw(pack_disconnect(self.version, reason, properties))
        self.expect_closed()
        self.close()

    def ping(self) -> None:
        """A round trip: everything the server did for earlier packets of this connection is done."""
        self.send_raw(PINGREQ)
        self.await_packet(PacketType.PINGRESP)

    # Receiving

    def receive(self, timeout: float | None = None) -> Packet:
        """The next packet, whatever it is."""
        if self._inbox:
            return self._inbox.popleft()
        return self._read_packet(self.timeout if timeout is None else timeout)

    def expect(self, packet_type: PacketType, timeout: float | None = None, **fields: Any) -> Packet:
        """The next packet, which must be of this type and have these fields."""
        packet = self.receive(timeout)
        assert packet.type == packet_type, f"{packet_type.name} expected, got {packet}"
        for name, value in fields.items():
            if value is not None:
                assert getattr(packet, name) == value, f"{name}={value!r} expected, got {packet}"
        return packet

    def expect_publish(
        self,
        topic: str | None = None,
        payload: bytes | None = None,
        *,
        qos: int | None = None,
        retain: bool | None = None,
        dup: bool | None = False,
        properties: dict[str, Any] | None = None,
        timeout: float | None = None,
        ack: bool = False,
    ) -> Packet:
        """The next packet, which must be this PUBLISH; what is None may be anything."""
        fields = {
            "topic": topic,
            "payload": payload,
            "qos": qos,
            "retain": retain,
            "dup": dup,
            "properties": properties,
        }
        publish = self.expect(PacketType.PUBLISH, timeout, **fields)
        if ack:
            self.ack(publish)
        return publish

    def expect_payloads(self, payloads: Iterable[bytes], *, ack: bool = True, **fields: Any) -> list[Packet]:
        """PUBLISH packets with these payloads, in this order."""
        return [self.expect_publish(payload=payload, ack=ack, **fields) for payload in payloads]

    def expect_nothing(self, seconds: float = 0.2) -> None:
        """No packet and no close. A round trip comes first, so that what was caused already has arrived."""
        self.ping()
        try:
            packet = self.receive(seconds)
        except NothingCame:
            return
        raise AssertionError(f"nothing expected, got {packet}")

    def take_rest(self, seconds: float = 0.2) -> list[Packet]:
        """Everything that comes until nothing does for so long."""
        self.ping()
        found = []
        while True:
            try:
                found.append(self.receive(seconds))
            except NothingCame:
                return found

    def expect_closed(self, timeout: float | None = None) -> None:
        """The server closes without a further packet."""
        try:
            packet = self.receive(timeout)
        except ClosedByServer:
            return
        raise AssertionError(f"end of connection expected, got {packet}")

    def expect_disconnect(self, reason: int | Collection[int], timeout: float | None = None) -> Packet | None:
        """The server ends the connection: MQTT 5 with a DISCONNECT of this reason, earlier versions without a word."""
        packet = None
        if self.version == V5:
            packet = self.expect(PacketType.DISCONNECT, timeout)
            self._check_reason(packet, reason)
        self.expect_closed(timeout)
        return packet

    def expect_refused_connect(self, reason: int | Collection[int], code: int | None = None) -> Packet | None:
        """CONNECT is refused: MQTT 5 with this reason, earlier versions with this code or, None, without a word."""
        packet = None
        if self.version == V5:
            packet = self.expect(PacketType.CONNACK)
            self._check_reason(packet, reason)
        elif code is not None:
            packet = self.expect(PacketType.CONNACK, reason=code)
        self.expect_closed()
        return packet

    def receive_all(self, seconds: float = 0.3, *, at_least: int = 0) -> list[Packet]:
        """Everything that arrives until `seconds` pass without a packet. `at_least`: so many must come, however long
        that takes; only behind them silence is the end."""
        packets: list[Packet] = []
        with contextlib.suppress(NothingCame, ClosedByServer):
            while True:
                packets.append(self.receive(self.timeout if len(packets) < at_least else seconds))
        return packets

    def receive_until_closed(self) -> list[Packet]:
        """Everything that arrives until the server closes, which it must."""
        packets: list[Packet] = []
        with contextlib.suppress(ClosedByServer):
            while True:
                packets.append(self.receive())
        return packets

    def received(self) -> list[Packet]:
        """What came aside while something else was awaited, and is still to be taken."""
        return list(self._inbox)

    def forget_received(self) -> None:
        """Drop what came aside while something else was awaited."""
        self._inbox.clear()

    @staticmethod
    def _check_reason(packet: Packet, reason: int | Collection[int]) -> None:
        allowed = {reason} if isinstance(reason, int) else set(reason)
        wanted = ", ".join(Reason(item).name for item in sorted(allowed))
        assert packet.reason in allowed, f"{wanted} expected, got {Reason(packet.reason).name}: {packet}"

    def await_packet(self, packet_type: PacketType, packet_id: int | None = None) -> Packet:
        """The next packet of this type; others that come first stay in the inbox, in order."""
        for packet in self._inbox:
            if packet.type == packet_type and packet.packet_id == packet_id:
                self._inbox.remove(packet)
                return packet
        deadline = time.monotonic() + self.timeout
        while True:
            packet = self._read_packet(max(0.01, deadline - time.monotonic()))
            if packet.type == packet_type and packet.packet_id == packet_id:
                return packet
            assert packet.type != PacketType.DISCONNECT, f"{packet_type.name} expected, got {packet}"
            self._inbox.append(packet)

    def _read_packet(self, timeout: float) -> Packet:
        deadline = time.monotonic() + timeout
        while (packet := self._parse_packet()) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise NothingCame(f"no packet within {timeout} s; bytes so far: {bytes(self._bytes)!r}")
            self._bytes += self._receive_bytes(left)
        return packet

    def _receive_bytes(self, timeout: float) -> bytes:
        self.stream.settimeout(timeout)
        try:
            data = self.stream.recv(65_536)
        except TimeoutError:
            return b""
        except (OSError, ConnectionError) as error:
            raise ClosedByServer(f"{error}; bytes before: {bytes(self._bytes)!r}") from None
        finally:
            with contextlib.suppress(OSError):
                self.stream.settimeout(self.timeout)
        if not data:
            raise ClosedByServer(f"bytes before: {bytes(self._bytes)!r}")
        return data

    def _parse_packet(self) -> Packet | None:
        """The first whole packet of the bytes received, which it takes away."""
        size, shift, at = 0, 0, 1
        while True:
            if at >= len(self._bytes):
                return None
            digit = self._bytes[at]
            size |= (digit & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if digit < 0x80:
                break
            if at > 4:
                raise WireError(f"remaining length of more than four bytes: {bytes(self._bytes[:8])!r}")
        if at > 2 and digit == 0:
            raise WireError("remaining length longer than needed [MQTT-1.5.5-1]")
        if len(self._bytes) < at + size:
            return None
        raw = bytes(self._bytes[: at + size])
        del self._bytes[: at + size]
        return unpack(raw, raw[0], raw[at:], self.version)


def receive_from(
    clients: Sequence[RawClient], at_least: int, *, seconds: float = 0.3, ack: bool = False, limit: float = TIMEOUT
) -> list[list[Packet]]:
    """What each of the clients gets, in whatever way they share it: until all together have so many publishes, and then
    until `seconds` pass without another one."""
    found: list[list[Packet]] = [[] for _ in clients]

    def take(silence: float) -> None:
        for mine, client in zip(found, clients, strict=True):
            for packet in client.receive_all(silence):
                if packet.type == PacketType.PUBLISH:
                    mine.append(packet)
                    if ack:
                        client.ack(packet)

    deadline = time.monotonic() + limit
    while sum(map(len, found)) < at_least and time.monotonic() < deadline:
        take(0.01)
    for client in clients:
        client.ping()  # what was caused already has arrived
    take(seconds)
    return found
