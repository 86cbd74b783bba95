"""An MQTT 5 connection from one node of the cluster to another, on behalf of one client: relays.py says what for.

The node that is asked gives its address and a secret in its heartbeat, which only members can read. Who connects proves
that it knows the secret by an AUTH exchange: an HMAC over random numbers of both sides, so the secret is never sent.

Packets are read and written by `penstock_client.mqtt.packets`, but a link is not a `Client`: it passes the body of a
PUBLISH on undecoded (1 us a message instead of 14), stops reading when the client has no room, and writes once per loop
iteration.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
from collections import deque
from collections.abc import Callable, Iterable
from typing import cast

from penstock._ext.wire.packets import Reason, reason_name
from penstock.access.base import Identity
from penstock.core.errors import PenstockError
from penstock.core.refusal import Refusal
from penstock.mqtt.nodes.clients import describe_client
from penstock.services.membership import Door
from penstock.settings.address import parse_address
from penstock_client.mqtt import packets
from penstock_client.mqtt.packets import AUTH, CONNACK, DISCONNECT, LARGEST_PACKET_ID, PUBACK, PUBLISH, SUBACK

METHOD = "penstock-node"
CHALLENGE_BYTES = 32
NOBODY = Identity()
AWAY = b"the node that serves the queue cannot be reached now"
REFUSED = 0x80
OPEN_SECONDS = 5.0
KEEP_ALIVE = 20
PING_SECONDS = 5.0
MOST_WAITING = 1_000

REFUSALS = {
    Reason.IMPLEMENTATION_SPECIFIC_ERROR: Refusal.NOT_SUPPORTED,
    Reason.NOT_AUTHORIZED: Refusal.NOT_AUTHORISED,
    Reason.TOPIC_FILTER_INVALID: Refusal.INVALID_NAME,
    Reason.QUOTA_EXCEEDED: Refusal.QUOTA_EXCEEDED,
}
"""Refusals of another node by the reason code of its SUBACK."""

OnAnswer = Callable[[int, bytes], None]
"""Reason code and words of the other node."""


class LinkError(PenstockError):
    """The other node cannot be reached, or refuses."""

    def __init__(self, message: str, refusal: Refusal = Refusal.UNAVAILABLE) -> None:
        super().__init__(message)
        self.refusal = refusal


def prove(secret: str, asked: bytes, answered: bytes) -> bytes:
    """What only a member can calculate from the numbers of who connects and of who is connected to."""
    return hmac.digest(secret.encode(), asked + answered, "sha256")


class Link(asyncio.Protocol):
    """Opened once and closed once, by either side. On the loop."""

    def __init__(
        self,
        door: Door,
        node: str,
        client_id: str = "",
        *,
        identity: Identity = NOBODY,
        receive_maximum: int = 1,
        maximum_packet_size: int = 0,
        on_publish: Callable[[int, bytes], None] | None = None,
        on_closed: Callable[[], None] | None = None,
    ) -> None:
        """`node` is this one; `on_publish` takes flags and body of each delivery."""
        self._door = door
        self._node = node
        self._client_id = client_id
        self._identity = identity
        self._receive_maximum = receive_maximum
        self._maximum_packet_size = maximum_packet_size
        self._on_publish = on_publish
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._number = secrets.token_bytes(CHALLENGE_BYTES)
        self._transport: asyncio.Transport | None = None
        self._reader = packets.PacketReader()
        self._ids = packets.PacketIds()
        self._out: list[bytes] = []
        self._connected: asyncio.Future[None] = self._loop.create_future()
        self._subscribed: asyncio.Future[tuple[int, str]] = self._loop.create_future()
        self._waiting: deque[tuple[bytes, bytes, OnAnswer]] = deque()
        self._asked: dict[int, OnAnswer] = {}
        self._quota = 0
        self._heard_at = 0.0
        self._is_paused = False
        self._ping: asyncio.TimerHandle | None = None
        self.is_closed = False

    # ---- life ----

    async def open(self) -> None:
        """Raises LinkError."""
        try:
            address = parse_address(self._door.address)
            async with asyncio.timeout(OPEN_SECONDS):
                await self._loop.create_connection(lambda: self, address.host, address.port)
                await self._connected
        except (OSError, TimeoutError, ValueError) as error:
            self.close()
            raise LinkError(f"{self._door.address} cannot be reached: {str(error) or 'no answer'}") from None
        except BaseException:
            self.close()
            raise

    async def subscribe(self, topic_filter: str, qos: int, properties: Iterable[tuple[str, str]]) -> None:
        """Raises LinkError, with the words of the other node if it refuses."""
        self._write(
            packets.build_subscribe(self._ids.next(self._asked), [(topic_filter, qos)], user_properties=properties)
        )
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                reason, words = await self._subscribed
        except TimeoutError:
            raise LinkError(f"{self._door.address} does not answer") from None
        if reason >= REFUSED:
            raise LinkError(words or reason_name(reason), REFUSALS.get(reason, Refusal.UNAVAILABLE))

    def close(self) -> None:
        if self._transport is not None and not self.is_closed:
            self._out.append(packets.build_disconnect())
            self._flush()
            self._transport.close()
        self._end("closed")

    def _end(self, why: str) -> None:
        """Whatever was asked is answered now."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._ping is not None:
            self._ping.cancel()
        for future in (self._connected, self._subscribed):
            if not future.done():
                future.set_exception(LinkError(f"{self._door.address}: {why}"))
                future.exception()  # perhaps nobody waits for it
        answers = [*self._asked.values(), *(on_answer for _, _, on_answer in self._waiting)]
        self._asked.clear()
        self._waiting.clear()
        for on_answer in answers:
            on_answer(REFUSED, AWAY)
        if self._on_closed is not None:
            self._on_closed()

    # ---- asyncio's side ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.is_closed:
            self._transport.abort()
            return
        self._heard_at = self._loop.time()
        self._ping = self._loop.call_later(PING_SECONDS, self._look)
        self._write(
            packets.build_connect(
                self._client_id,
                keep_alive=KEEP_ALIVE,
                username=self._node,
                user_properties=describe_client(self._identity),
                receive_maximum=self._receive_maximum,
                maximum_packet_size=self._maximum_packet_size or None,
                authentication_method=METHOD,
                authentication_data=self._number,
            )
        )

    def connection_lost(self, error: BaseException | None) -> None:
        self._end("the connection is lost")

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        try:
            for packet_type, flags, body in self._reader.feed(data):
                if self.is_closed:
                    return
                self._take(packet_type, flags, body)
        except ValueError as error:
            self._end(f"what it says cannot be understood: {error}")
            if self._transport is not None:
                self._transport.abort()

    def _look(self) -> None:
        """Whether the other node still lives; while it is not read, nothing of it can be heard."""
        if not self._is_paused and self._loop.time() - self._heard_at > KEEP_ALIVE and self._transport is not None:
            self._end("it is silent")
            self._transport.abort()
            return
        self._write(packets.build_pingreq())
        self._ping = self._loop.call_later(PING_SECONDS, self._look)

    def pause(self, is_paused: bool) -> None:
        """Nothing more is read: there is no room for it."""
        if is_paused == self._is_paused or self._transport is None or self.is_closed:
            return
        self._is_paused = is_paused
        if is_paused:
            self._transport.pause_reading()
        else:
            self._heard_at = self._loop.time()
            self._transport.resume_reading()

    def _write(self, packet: bytes) -> None:
        """With everything else of this iteration, at its end."""
        if self._transport is not None and not self.is_closed:
            self._out.append(packet)
            if len(self._out) == 1:
                self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._out and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(self._out))
        self._out.clear()

    # ---- packets ----

    def _take(self, packet_type: int, flags: int, body: bytes) -> None:
        if packet_type == PUBLISH:
            if self._on_publish is not None:
                self._on_publish(flags, body)
        elif packet_type == PUBACK:
            self._answered(body)
        elif packet_type == AUTH:
            _, properties = packets.parse_reason(body)
            proof = prove(self._door.secret, self._number, properties.get("authentication_data", b""))
            self._write(
                packets.build_auth(
                    Reason.CONTINUE_AUTHENTICATION, authentication_method=METHOD, authentication_data=proof
                )
            )
        elif packet_type == CONNACK:
            connack = packets.parse_connack(body)
            if connack.reason:
                raise ValueError(f"refused, {reason_name(connack.reason)}")
            self._quota = connack.properties.get("receive_maximum", LARGEST_PACKET_ID)
            if not self._connected.done():
                self._connected.set_result(None)
            self._ask_waiting()
        elif packet_type == SUBACK:
            suback = packets.parse_suback(body)
            if not self._subscribed.done():
                self._subscribed.set_result((suback.reasons[0], suback.properties.get("reason_string", "")))
        elif packet_type == DISCONNECT:
            raise ValueError("it closes the connection")

    def acknowledge(self, packet_ids: Iterable[int], reason: int = 0) -> None:
        self._write(b"".join(packets.build_ack(PUBACK, packet_id, reason) for packet_id in packet_ids))

    # ---- settlements ----

    def ask(self, topic: bytes, properties: bytes, on_answer: OnAnswer) -> None:
        """A PUBLISH with QoS 1; its answer comes in any case. Before the link is open it waits."""
        if self.is_closed or len(self._waiting) >= MOST_WAITING:
            on_answer(REFUSED, AWAY)
            return
        self._waiting.append((topic, properties, on_answer))
        self._ask_waiting()

    def _ask_waiting(self) -> None:
        while self._waiting and len(self._asked) < self._quota:
            topic, properties, on_answer = self._waiting.popleft()
            packet_id = self._ids.next(self._asked)
            self._asked[packet_id] = on_answer
            head = packets.encode_text(topic) + packet_id.to_bytes(2)
            self._write(packets.build_packet(PUBLISH, 2, head, packets.encode_length(len(properties)), properties))

    def _answered(self, body: bytes) -> None:
        answer = packets.parse_ack(body)
        on_answer = self._asked.pop(answer.packet_id, None)
        if on_answer is not None:
            on_answer(answer.reasons[0], answer.properties.get("reason_string", "").encode())
        self._ask_waiting()


async def open_quietly(link: Link) -> None:
    """Who asked something hears of the failure by the answer."""
    with contextlib.suppress(LinkError):
        await link.open()
