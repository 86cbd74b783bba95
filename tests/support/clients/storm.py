"""Many clients at once that do random things, some of which are watched: what they were promised must hold.

Three kinds, all in one asyncio loop:

  WatchedPublisher    numbers its messages on o/<name>, comes back after each broken connection and sends again
  WatchedSubscriber   has a persistent session on o/#, comes and goes, acknowledges as the protocol says
  chaos()             everything else: take-overs, wills, shares, aliases, tiny limits, half packets, no reading, resets
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

from tests.support.clients.packets import (
    PINGREQ,
    V5,
    V311,
    Packet,
    PacketType,
    Will,
    pack_ack,
    pack_connect,
    pack_disconnect,
    pack_publish,
    pack_subscribe,
    pack_unsubscribe,
    subscription_options,
    unpack,
)

LONG = 3_600
WATCHED_WINDOW = 5
GONE = (OSError, asyncio.IncompleteReadError, ConnectionError, EOFError)
Address = tuple[str, int]


class Link:
    """One connection, plain or WebSocket, that hands out whole packets and checks each of them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: int, is_ws: bool) -> None:
        self._reader, self._writer = reader, writer
        self.version = version
        self._is_ws = is_ws
        self._bytes = bytearray()
        self._frames = bytearray()
        self._aliases: dict[int, str] = {}
        self.largest_packet = 1 << 28

    @classmethod
    async def open(cls, address: Address, version: int, websocket: Address | None = None) -> Link:
        reader, writer = await asyncio.open_connection(*(websocket or address))
        if websocket is not None:
            writer.write(
                b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
                b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
            )
            await reader.readuntil(b"\r\n\r\n")
        return cls(reader, writer, version, websocket is not None)

    def write(self, data: bytes) -> None:
        if self._is_ws:
            size = len(data)
            if size < 126:
                head = struct.pack("!BB", 0x82, 0x80 | size)
            elif size < 65_536:
                head = struct.pack("!BBH", 0x82, 0x80 | 126, size)
            else:
                head = struct.pack("!BBQ", 0x82, 0x80 | 127, size)
            data = head + b"\0\0\0\0" + data  # a mask of zeros
        self._writer.write(data)

    # Cancelled at any moment it loses nothing: there is one await, and it leaves the bytes where they are.
    async def _more(self) -> None:
        data = await self._reader.read(65_536)
        if not data:
            raise EOFError
        if not self._is_ws:
            self._bytes += data
            return
        self._frames += data
        while (frame := self._take_frame()) is not None:
            if frame[0] == 0x88:
                raise EOFError
            self._bytes += frame[1]

    def _take_frame(self) -> tuple[int, bytes] | None:
        if len(self._frames) < 2:
            return None
        assert self._frames[0] in (0x82, 0x88), f"frame {bytes(self._frames[:10])!r}"
        size, start = self._frames[1], 2
        assert size < 0x80, "the server masked a frame"
        if size >= 126:
            start = 4 if size == 126 else 10
            if len(self._frames) < start:
                return None
            size = int.from_bytes(self._frames[2:start], "big")
        if len(self._frames) < start + size:
            return None
        frame = self._frames[0], bytes(self._frames[start : start + size])
        del self._frames[: start + size]
        return frame

    async def packet(self) -> Packet:
        while (whole := self._take()) is None:
            await self._more()
        assert len(whole.raw) <= self.largest_packet, "larger than the client's Maximum Packet Size [MQTT-3.1.2-24]"
        if whole.type == PacketType.PUBLISH:
            alias = whole.properties.get("topic_alias")
            if alias is not None and whole.topic:
                self._aliases[alias] = whole.topic
            elif not whole.topic:
                assert alias in self._aliases, f"alias {alias} was never announced"
                whole.topic = self._aliases[alias]
        return whole

    def _take(self) -> Packet | None:
        size = shift = 0
        for at in range(1, min(len(self._bytes), 5)):
            size |= (self._bytes[at] & 0x7F) << shift
            shift += 7
            if self._bytes[at] < 0x80:
                break
        else:
            assert len(self._bytes) < 5, "a remaining length of five bytes"
            return None
        if len(self._bytes) < at + 1 + size:
            return None
        raw = bytes(self._bytes[: at + 1 + size])
        del self._bytes[: at + 1 + size]
        return unpack(raw, raw[0], raw[at + 1 :], self.version)

    async def drain(self) -> None:
        await self._writer.drain()

    def close(self, *, reset: bool = False) -> None:
        if reset and (sock := self._writer.get_extra_info("socket")) is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    def half_close(self) -> None:
        with contextlib.suppress(OSError):
            self._writer.write_eof()


@dataclass
class Storm:
    """The broker under test, the dice, and what went wrong so far."""

    address: Address
    websocket: Address | None
    dice: random.Random
    failures: list[str] = field(default_factory=list)
    is_over: bool = False

    def fail(self, text: str) -> None:
        if len(self.failures) < 20:
            self.failures.append(text)


def connect_packet(version: int, client_id: str, *, clean: bool, properties: dict[str, Any], **rest: Any) -> bytes:
    return pack_connect(version, client_id, clean_start=clean, properties=properties if version == V5 else None, **rest)


class Watched:
    """A client with a persistent session that survives its connections."""

    def __init__(self, storm: Storm, name: str, version: int, qos: int) -> None:
        self.storm, self.name, self.version, self.qos = storm, name, version, qos
        self.known = False
        self.stays = False  # comes back for good: no more broken connections
        self.done = False

    async def connect(self) -> Link:
        link = await Link.open(self.storm.address, self.version, self._websocket())
        try:
            clean = self.version == V5 and not self.known  # in 3.1.1 it would end the session with the connection
            link.write(connect_packet(self.version, self.name, clean=clean, properties=self._properties()))
            answer = await asyncio.wait_for(link.packet(), 60)
            assert (answer.type, answer.reason) == (PacketType.CONNACK, 0), f"{self.name}: {answer}"
            assert not self.known or answer.session_present, f"{self.name}: the session was lost"
        except BaseException:
            link.close()
            raise
        return link

    def _websocket(self) -> Address | None:
        return self.storm.websocket if self.storm.dice.random() < 0.3 else None

    def _properties(self) -> dict[str, Any]:
        properties: dict[str, Any] = {"session_expiry_interval": LONG}
        dice = self.storm.dice
        if dice.random() < 0.5:
            properties["topic_alias_maximum"] = 3
        if dice.random() < 0.3:
            properties["receive_maximum"] = dice.choice([1, 2, 20])
        return properties

    async def run(self) -> None:
        while not self.done:
            link = None
            try:
                link = await self.connect()
                lifetime = LONG if self.stays else self.storm.dice.uniform(0.05, 1.0)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.talk(link), lifetime)
                if self.storm.dice.random() < 0.3:
                    link.write(pack_disconnect(self.version))
                    await asyncio.sleep(0)
            except GONE:
                await asyncio.sleep(0.01)
            except AssertionError as error:
                self.storm.fail(f"{self.name}: {error}")
                return
            finally:
                if link is not None:
                    link.close(reset=self.storm.dice.random() < 0.5)
            if not self.stays:
                await asyncio.sleep(self.storm.dice.choice([0, 0, 0.02, 0.1]))

    async def talk(self, link: Link) -> None:
        raise NotImplementedError


class WatchedSubscriber(Watched):
    def __init__(self, storm: Storm, name: str, version: int, qos: int, topic_filter: str = "o/#") -> None:
        super().__init__(storm, name, version, qos)
        self.topic_filter = topic_filter
        self.subscribed = asyncio.Event()
        self.received: list[tuple[str, int]] = []
        self.unreleased: set[int] = set()
        self.last_arrival = 0.0

    async def talk(self, link: Link) -> None:
        if not self.known:
            options = subscription_options(self.qos)
            link.write(pack_subscribe(self.version, 1, [(self.topic_filter, options)]))
            while (packet := await link.packet()).type != PacketType.SUBACK:
                pass
            self.known = True
            self.subscribed.set()
        while True:
            packet = await link.packet()
            self.last_arrival = asyncio.get_running_loop().time()
            if packet.type == PacketType.PUBLISH:
                self._take(link, packet)
            elif packet.type == PacketType.PUBREL:
                self.unreleased.discard(packet.packet_id)
                link.write(pack_ack(PacketType.PUBCOMP, self.version, packet.packet_id))
            elif packet.type == PacketType.DISCONNECT:
                raise AssertionError(f"disconnected: {packet}")

    def _take(self, link: Link, packet: Packet) -> None:
        assert packet.topic.startswith("o/"), f"a foreign message: {packet.topic}"
        name, number = packet.payload.split(b" ")[:2]
        assert packet.topic == f"o/{name.decode()}", "topic and payload do not belong together"
        if packet.qos == 2:
            link.write(pack_ack(PacketType.PUBREC, self.version, packet.packet_id))
            if packet.packet_id in self.unreleased:
                assert packet.dup, "the id of a message under way was used again [MQTT-2.2.1-4]"
                return
            self.unreleased.add(packet.packet_id)
        elif packet.qos == 1:
            link.write(pack_ack(PacketType.PUBACK, self.version, packet.packet_id))
        self.received.append((name.decode(), int(number)))


class WatchedPublisher(Watched):
    def __init__(self, storm: Storm, name: str, version: int, qos: int, pause: float) -> None:
        super().__init__(storm, name, version, qos)
        self.pause = pause
        self.next_number = 0
        self.open: dict[int, tuple[int, str]] = {}  # packet id: number, "sent" or "released"; in order of sending
        self.acknowledged: set[int] = set()
        self.is_stopping = False

    def _packet(self, packet_id: int, number: int, *, dup: bool) -> bytes:
        size = random.Random(number).choice([0, 10, 230, 3_000])
        payload = f"{self.name} {number} ".encode() + bytes(size)
        return pack_publish(self.version, f"o/{self.name}", payload, qos=self.qos, packet_id=packet_id, dup=dup)

    async def talk(self, link: Link) -> None:
        self.known = True
        for packet_id, (number, state) in list(self.open.items()):  # [MQTT-4.4.0-1]
            if state == "sent":
                link.write(self._packet(packet_id, number, dup=True))
            else:
                link.write(pack_ack(PacketType.PUBREL, self.version, packet_id))
        reading = asyncio.ensure_future(self._read(link))
        try:
            while not (self.is_stopping and not self.open):
                if reading.done():
                    reading.result()
                if not self.is_stopping and len(self.open) < WATCHED_WINDOW:
                    number, self.next_number = self.next_number, self.next_number + 1
                    packet_id = number % 60_000 + 1
                    self.open[packet_id] = (number, "sent")
                    link.write(self._packet(packet_id, number, dup=False))
                    await link.drain()
                await asyncio.sleep(self.pause)
            self.done = True
        finally:
            reading.cancel()

    async def _read(self, link: Link) -> None:
        while True:
            packet = await link.packet()
            entry = self.open.get(packet.packet_id)
            assert packet.type in (PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBCOMP), f"{packet}"
            if packet.type == PacketType.PUBCOMP:
                self.open.pop(packet.packet_id, None)
            elif entry is not None:
                assert packet.reason is None or packet.reason < 0x80, f"{packet}"
                self.acknowledged.add(entry[0])
                if packet.type == PacketType.PUBACK:
                    del self.open[packet.packet_id]
                else:
                    self.open[packet.packet_id] = (entry[0], "released")
                    link.write(pack_ack(PacketType.PUBREL, self.version, packet.packet_id))


CHAOS_TOPICS = [f"c/{number}" for number in range(8)] + ["c/deep/er/still", "c"]
CHAOS_FILTERS = [*CHAOS_TOPICS, "#", "c/#", "c/+", "+/+", "o/#", "$share/g/c/#", "$share/g/#", "$share/h/c/+", "$SYS/#"]
CHAOS_SIZES = [0, 1, 100, 236, 239, 245, 250, 300, 5_000, 70_000]


class Chaos:
    """One life of a client that does whatever comes to its mind."""

    def __init__(self, storm: Storm) -> None:
        self.storm, self.dice = storm, storm.dice
        self.version = self.dice.choice([V311, V5, V5])
        self.packet_id = 0
        self.unacknowledged: list[Packet] = []
        self.outstanding = 0
        self.receive_maximum = 65_535
        self.link: Link

    async def live(self) -> None:
        websocket = self.storm.websocket if self.dice.random() < 0.4 else None
        self.link = await Link.open(self.storm.address, self.version, websocket)
        try:
            self._connect()
            for _ in range(self.dice.choice([0, 1, 5, 30])):
                await self.dice.choice(
                    [self._subscribe, self._subscribe, self._unsubscribe, self._publish, self._publish, self._burst,
                     self._read, self._read, self._read, self._idle, self._acknowledge, self._spurious, self._garbage]
                )()  # fmt: skip
            self._leave()
        finally:
            self.link.close(reset=self.dice.random() < 0.5)

    def _connect(self) -> None:
        dice = self.dice
        properties: dict[str, Any] = {"session_expiry_interval": dice.choice([0, 0, 1, 2])}
        if dice.random() < 0.4:
            self.receive_maximum = properties["receive_maximum"] = dice.choice([1, 2, 3])
        if dice.random() < 0.3:
            limit = properties["maximum_packet_size"] = dice.choice([60, 131, 133, 256, 260, 1_000])
            if self.version == V5:
                self.link.largest_packet = limit
        if dice.random() < 0.5:
            properties["topic_alias_maximum"] = dice.choice([1, 2, 100])
        if self.version != V5:
            self.receive_maximum = 65_535
        will = None
        if dice.random() < 0.5:
            delay = {"will_delay_interval": dice.choice([0, 1])} if self.version == V5 else None
            will = Will(dice.choice(CHAOS_TOPICS), bytes(dice.choice(CHAOS_SIZES[:8])), dice.randrange(3),
                        dice.random() < 0.5, delay)  # fmt: skip
        client_id = f"chaos{dice.randrange(10)}"
        clean = self.version == V311 or dice.random() < 0.5  # 3.1.1 sessions would live too long
        self.link.write(
            connect_packet(self.version, client_id, clean=clean, properties=properties, will=will,
                           keep_alive=dice.choice([0, 1, 60]))
        )  # fmt: skip

    def _id(self) -> int:
        self.packet_id = self.packet_id % 65_535 + 1
        return self.packet_id

    def _options(self, name: str) -> int:
        if self.version != V5:
            return self.dice.randrange(3)
        return subscription_options(
            self.dice.randrange(3),
            no_local=not name.startswith("$share") and self.dice.random() < 0.2,
            retain_as_published=self.dice.random() < 0.3,
            retain_handling=self.dice.randrange(3),
        )

    async def _subscribe(self) -> None:
        names = self.dice.choices(CHAOS_FILTERS, k=self.dice.choice([1, 1, 3]))
        identifier = {"subscription_identifier": self.dice.choice([1, 200, 70_000])}
        self.link.write(
            pack_subscribe(self.version, self._id(), [(name, self._options(name)) for name in names],
                           identifier if self.version == V5 and self.dice.random() < 0.4 else None)
        )  # fmt: skip

    async def _unsubscribe(self) -> None:
        self.link.write(pack_unsubscribe(self.version, self._id(), self.dice.choices(CHAOS_FILTERS, k=2)))

    def _one_publish(self) -> bytes:
        dice = self.dice
        qos = dice.randrange(3)
        properties: dict[str, Any] = {}
        if self.version == V5 and dice.random() < 0.5:
            if dice.random() < 0.5:
                properties["topic_alias"] = dice.randrange(1, 17)
            if dice.random() < 0.3:
                properties["message_expiry_interval"] = dice.choice([0, 1, 100])
            if dice.random() < 0.3:
                properties["user_property"] = [("a", "b" * dice.choice([1, 100, 130]))]
        topic = "" if "topic_alias" in properties and dice.random() < 0.3 else dice.choice(CHAOS_TOPICS)
        return pack_publish(
            self.version, topic, bytes(dice.choice(CHAOS_SIZES)), qos=qos, retain=dice.random() < 0.2,
            packet_id=self._id() if qos else None, properties=properties,
        )  # fmt: skip

    async def _publish(self) -> None:
        self.link.write(self._one_publish())
        await asyncio.sleep(0)

    async def _burst(self) -> None:
        self.link.write(b"".join(self._one_publish() for _ in range(self.dice.choice([5, 40]))))
        await asyncio.sleep(0)

    async def _idle(self) -> None:
        await asyncio.sleep(self.dice.choice([0, 0.01, 0.1, 0.4]))

    async def _read(self) -> None:
        deadline = asyncio.get_running_loop().time() + self.dice.choice([0.005, 0.02, 0.1])
        while (left := deadline - asyncio.get_running_loop().time()) > 0:
            try:
                packet = await asyncio.wait_for(self.link.packet(), left)
            except TimeoutError:
                return
            if packet.type == PacketType.PUBLISH:
                if packet.qos:
                    self.outstanding += 1
                    assert self.outstanding <= self.receive_maximum, "over the Receive Maximum [MQTT-3.3.4-9]"
                    self.unacknowledged.append(packet)
                    if self.dice.random() < 0.8:
                        await self._acknowledge()
            elif packet.type == PacketType.PUBREL and self.dice.random() < 0.9:
                self.link.write(pack_ack(PacketType.PUBCOMP, self.version, packet.packet_id))
                self.outstanding = max(0, self.outstanding - 1)

    async def _acknowledge(self) -> None:
        while self.unacknowledged:
            packet = self.unacknowledged.pop(self.dice.randrange(len(self.unacknowledged)))
            if packet.qos == 1:
                self.link.write(pack_ack(PacketType.PUBACK, self.version, packet.packet_id))
                self.outstanding -= 1
            elif self.version == V5 and self.dice.random() < 0.1:
                self.link.write(pack_ack(PacketType.PUBREC, self.version, packet.packet_id, 0x83))
                self.outstanding -= 1
            else:
                self.link.write(pack_ack(PacketType.PUBREC, self.version, packet.packet_id))

    async def _spurious(self) -> None:
        """Acknowledgements of nothing, in particular."""
        kind = self.dice.choice([PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP])
        self.receive_maximum = 65_535  # it may have hit something: the count is no longer known
        self.link.write(pack_ack(kind, self.version, self.dice.choice([1, 2, 3, 999, 65_535])) + PINGREQ)

    async def _garbage(self) -> None:
        if self.dice.random() < 0.7:
            return
        whole = self._one_publish()
        self.link.write(
            self.dice.choice(
                [whole[: self.dice.randrange(len(whole))], self.dice.randbytes(20), b"\xff" * 9, b"\x30\x00"]
            )
        )
        await asyncio.sleep(self.dice.choice([0, 0.05]))

    def _leave(self) -> None:
        way = self.dice.randrange(5)
        if way == 0:
            self.link.write(pack_disconnect(self.version))
        elif way == 1 and self.version == V5:
            self.link.write(pack_disconnect(V5, 0x04))
        elif way == 2:
            self.link.half_close()


async def chaos(storm: Storm) -> None:
    while not storm.is_over:
        life = Chaos(storm)
        try:
            await asyncio.wait_for(life.live(), 5)
        except TimeoutError:
            pass
        except GONE:
            await asyncio.sleep(0.002)
        except AssertionError as error:
            storm.fail(f"chaos: {error}")
