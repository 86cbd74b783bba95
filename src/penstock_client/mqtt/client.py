"""A small asyncio MQTT client for versions 3.1, 3.1.1 and 5."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.core.errors import PenstockError
from penstock.core.tasks import TaskSet
from penstock_client.mqtt import packets
from penstock_client.mqtt.packets import (
    CONNACK,
    DISCONNECT,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
    Message,
)
from penstock_client.mqtt.reasons import FIRST_FAILURE, describe_refusal, reason_name
from penstock_client.mqtt.stream import Stream, Target, open_stream

CONNACK_SECONDS = 30.0
_QUEUE = 1_000


@dataclass(frozen=True)
class ConnectRequest:
    """The fields of CONNECT."""

    client_id: str
    version: int = 4
    clean_start: bool = True
    keep_alive: int = 60
    username: str | None = None
    password: bytes | None = None
    will: packets.Will | None = None
    properties: Mapping[str, Any] = field(default_factory=dict)


class Answer(NamedTuple):
    """The broker's code for each filter, or for the message, and what MQTT 5 brokers say about it in words."""

    reasons: list[int]
    words: str = ""

    def refusal(self, which: int = 0) -> str:
        """Why it was refused, nothing if it was not."""
        reason = self.reasons[which]
        if reason < FIRST_FAILURE:
            return ""
        return f"{reason_name(reason)}: {self.words}" if self.words else reason_name(reason)


class ConnectionClosed(PenstockError):
    """The broker ended the connection."""


class Client:
    """One connection. Made by `connect`; `messages` must be read, or the broker is slowed down.

    A message is acknowledged when `acknowledge` is called, not when it arrives: messages that were not processed stay
    with the broker, for the next connection of the session.
    """

    def __init__(self, stream: Stream, request: ConnectRequest, *, max_inflight: int, debug: bool) -> None:
        self._stream = stream
        self._request = request
        self._version = request.version
        self._debug = debug
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self._connack: asyncio.Future[packets.Connack] = asyncio.get_running_loop().create_future()
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()
        self._room = asyncio.Event()
        self._incomplete: dict[int, bool] = {}  # packet ids of QoS 2: whether PUBREC was sent
        self._aliases: dict[int, str] = {}
        self._window = asyncio.Semaphore(max_inflight)
        self._ids = packets.PacketIds()
        self._ended: PenstockError | None = None
        self._is_closing = False
        self._awaits_pong = False
        self._tasks = TaskSet()

    @classmethod
    async def connect(
        cls, target: Target, request: ConnectRequest, *, max_inflight: int = 20, debug: bool = False
    ) -> Client:
        """Connect and wait for CONNACK; raises PenstockError with the broker's code as exit code, as mosquitto does."""
        client = cls(await open_stream(target), request, max_inflight=max_inflight, debug=debug)
        client._tasks.spawn(client._read(), is_awaited=True)
        client._send(
            "CONNECT",
            packets.build_connect(
                request.client_id,
                version=request.version,
                clean_start=request.clean_start,
                keep_alive=request.keep_alive,
                username=request.username,
                password=request.password,
                will=request.will,
                **request.properties,
            ),
        )
        try:
            async with asyncio.timeout(CONNACK_SECONDS):
                connack = await asyncio.shield(client._connack)  # a future that is cancelled would look answered
        except TimeoutError:
            client._stream.abort()
            await client.close()
            where = target.unix or f"{target.host}:{target.port}"
            raise ConnectionClosed(
                f"{where} does not answer: no CONNACK in {CONNACK_SECONDS:g} seconds", _hint_at_transport(target)
            ) from None
        except PenstockError as error:
            await client.close()
            raise ConnectionClosed(error.message, _hint_at_transport(target), exit_code=error.exit_code) from None
        if connack.reason:
            await client.close()
            words = connack.properties.get("reason_string", "")
            raise PenstockError(describe_refusal(connack.reason, request.version, words), exit_code=connack.reason)
        keep_alive = connack.properties.get("server_keep_alive", request.keep_alive)
        client._tasks.spawn(client._ping(keep_alive), is_awaited=True)
        return client

    async def subscribe(
        self, filters: Iterable[str], options: int, *, identifier: int = 0, user_properties: Any = None
    ) -> Answer:
        """The answer has for each filter the granted QoS, or 0x80 and above for a refusal."""
        packet_id, answer = self._expect_answer()
        entries = [(name, options) for name in filters]
        self._send(
            f"SUBSCRIBE (Mid: {packet_id}, {entries})",
            packets.build_subscribe(
                packet_id, entries, version=self._version, identifier=identifier, user_properties=user_properties
            ),
        )
        return await answer

    async def unsubscribe(self, filters: Iterable[str], *, user_properties: Any = None) -> Answer:
        packet_id, answer = self._expect_answer()
        self._send(
            f"UNSUBSCRIBE (Mid: {packet_id})",
            packets.build_unsubscribe(packet_id, list(filters), version=self._version, user_properties=user_properties),
        )
        return await answer

    async def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: int = 0,
        retain: bool = False,
        properties: Mapping[str, Any] | None = None,
    ) -> Answer:
        """Publish and wait until the broker has it (QoS 1 and 2); gives its reason code, 0 for QoS 0."""
        given = dict(properties or {}) if self._version == 5 else {}
        if qos == 0:
            self._send_publish(topic, payload, qos=0, retain=retain, **given)
            await self._stream.drain()
            return Answer([0])
        async with self._window:
            packet_id, answer = self._expect_answer()
            self._send_publish(topic, payload, qos=qos, retain=retain, packet_id=packet_id, **given)
            await self._stream.drain()
            return await answer

    def _send_publish(self, topic: str, payload: bytes, **fields: Any) -> None:
        self._send(
            f"PUBLISH ({topic!r}, {len(payload)} bytes, {fields})",
            packets.build_publish(topic, payload, version=self._version, **fields),
        )

    async def messages(self) -> AsyncIterator[Message]:
        """Messages as they come, until `close`; raises ConnectionClosed when the broker ends it."""
        while True:
            message = await self._messages.get()
            self._room.set()
            if message is None:
                if self._ended is not None and not self._is_closing:
                    raise self._ended
                return
            yield message

    def acknowledge(self, message: Message) -> None:
        """The message need not come again. It does when the connection has ended meanwhile."""
        if self._ended is not None:
            return
        if message.qos == 1:
            self._send(f"PUBACK (Mid: {message.packet_id})", self._ack(PUBACK, message.packet_id))
        elif message.qos == 2:
            self._incomplete[message.packet_id] = True
            self._send(f"PUBREC (Mid: {message.packet_id})", self._ack(PUBREC, message.packet_id))

    async def close(self, **properties: Any) -> None:
        """Say goodbye and hang up."""
        if not self._is_closing:
            self._is_closing = True
            if self._ended is None and self._connack.done() and not self._connack.exception():
                self._send("DISCONNECT", packets.build_disconnect(version=self._version, **properties))
                await self._stream.drain()
        await self._tasks.close()
        await self._stream.close()

    def _expect_answer(self) -> tuple[int, asyncio.Future[Answer]]:
        if self._ended is not None:
            raise self._ended
        packet_id = self._ids.next(self._answers)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answers[packet_id] = answer
        self._room.set()
        return packet_id, answer

    def _send(self, what: str, packet: bytes) -> None:
        self._note(f"sending {what}")
        if self._ended is not None:
            raise self._ended
        self._stream.write(packet)

    def _note(self, text: str) -> None:
        if self._debug:
            print(f"Client {self._request.client_id!r} {text}", file=sys.stderr)

    async def _ping(self, keep_alive: int) -> None:
        while keep_alive:
            await asyncio.sleep(keep_alive)
            if self._awaits_pong:
                self._ended = ConnectionClosed("the broker does not answer")
                self._stream.abort()
                return
            self._awaits_pong = True
            self._send("PINGREQ", packets.build_pingreq())

    async def _read(self) -> None:
        ended = ConnectionClosed("the broker closed the connection")
        reader = packets.PacketReader()
        try:
            while chunk := await self._stream.read():
                for packet_type, flags, body in reader.feed(chunk):
                    await self._handle(packet_type, flags, body)
        except packets.MalformedPacket as error:
            ended = ConnectionClosed(f"the broker sent a bad packet: {error}")
        except PenstockError as error:
            ended = ConnectionClosed(error.message, exit_code=error.exit_code)
        await self._end(ended)

    async def _end(self, reason: PenstockError) -> None:
        self._ended = self._ended or reason
        if not self._connack.done():
            self._connack.set_exception(self._ended)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(self._ended)
        self._answers.clear()
        await self._messages.put(None)

    async def _handle(self, packet_type: int, flags: int, body: bytes) -> None:
        if packet_type == PUBLISH:
            await self._handle_publish(flags, body)
        elif packet_type in (PUBACK, PUBREC, PUBREL, PUBCOMP):
            self._handle_ack(packet_type, body)
        elif packet_type in (SUBACK, UNSUBACK):
            answer = packets.parse_suback(body, self._version)
            self._note(f"received {'SUBACK' if packet_type == SUBACK else 'UNSUBACK'} {answer.reasons}")
            self._resolve(answer.packet_id, Answer(answer.reasons, answer.properties.get("reason_string", "")))
        elif packet_type == PINGRESP:
            self._awaits_pong = False
            self._note("received PINGRESP")
        elif packet_type == CONNACK and not self._connack.done():
            connack = packets.parse_connack(body, self._version)
            self._note(f"received CONNACK ({connack.reason})")
            self._connack.set_result(connack)
        elif packet_type == DISCONNECT and self._version == 5:
            reason, properties = packets.parse_reason(body)
            text = properties.get("reason_string") or reason_name(reason)
            raise ConnectionClosed(f"the broker closed the connection: {text}", exit_code=reason or 1)
        else:
            raise ConnectionClosed(f"the broker sent an unexpected packet of type {packet_type}")

    async def _handle_publish(self, flags: int, body: bytes) -> None:
        message = packets.parse_publish(flags, body, self._version)
        alias = message.properties.get("topic_alias")
        if alias is not None and message.topic:
            self._aliases[alias] = message.topic
        message = message._replace(topic=message.topic or self._aliases.get(alias or 0, ""))
        if not message.topic:
            raise ConnectionClosed("the broker used a topic alias it never defined")
        self._note(f"received PUBLISH (q{message.qos}, m{message.packet_id}, {message.topic!r})")
        if message.qos == 2 and message.packet_id in self._incomplete:
            if self._incomplete[message.packet_id]:
                self.acknowledge(message)
            return
        if message.qos == 2:
            self._incomplete[message.packet_id] = False
        self._messages.put_nowait(message)
        # A caller that waits for an answer does not read messages, and the answer may come after them.
        while self._messages.qsize() >= _QUEUE and not self._answers:
            self._room.clear()
            await self._room.wait()

    def _handle_ack(self, packet_type: int, body: bytes) -> None:
        packet_id, (reason,), properties = packets.parse_ack(body)
        self._note(
            f"received {({4: 'PUBACK', 5: 'PUBREC', 6: 'PUBREL', 7: 'PUBCOMP'})[packet_type]} (Mid: {packet_id})"
        )
        if packet_type == PUBREL:
            self._incomplete.pop(packet_id, None)
            self._send(f"PUBCOMP (Mid: {packet_id})", self._ack(PUBCOMP, packet_id))
        elif packet_type == PUBREC and reason < FIRST_FAILURE:
            self._send(f"PUBREL (Mid: {packet_id})", self._ack(PUBREL, packet_id))
        else:
            self._resolve(packet_id, Answer([reason], properties.get("reason_string", "")))

    def _ack(self, packet_type: int, packet_id: int) -> bytes:
        return packets.build_ack(packet_type, packet_id, version=self._version)

    def _resolve(self, packet_id: int, given: Answer) -> None:
        answer = self._answers.pop(packet_id, None)
        if answer is not None and not answer.done():
            answer.set_result(given)


def _hint_at_transport(target: Target) -> str:
    """Return what to try when a server answers there, but not with CONNACK."""
    if target.unix:
        return ""
    hints = ["does a broker listen for MQTT there?"]
    if target.tls is None:
        hints.append("if this is a TLS listener use --cafile FILE or --tls-use-os-certs")
    if not target.websocket_path:
        hints.append("for WebSocket use --ws")
    first, *others = hints
    return f"{first} {'; '.join(others)}".rstrip()
