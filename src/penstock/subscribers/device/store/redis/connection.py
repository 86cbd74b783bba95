"""One connection to a Redis server: commands of one loop iteration leave as one write, answers come in their order."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, cast

import hiredis

ReplyError = hiredis.ReplyError
# Its stub says that a command has one word.
pack_command = cast(Callable[[tuple[object, ...]], bytes], hiredis.pack_command)
OnReply = Callable[[Any], None]
SHOWN_BYTES = 40


class NotRedis(OSError):
    """Who answers there speaks another protocol; an OSError because it is as good as nobody."""

    def __init__(self, sent: object) -> None:
        shown = sent[:SHOWN_BYTES] if isinstance(sent, bytes) else sent
        super().__init__(f"what answers there is not Redis: it sent {shown!r}")


class Endpoint(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Command:
    """A command on its way. `payload` is kept until it was answered, so that it can be sent again."""

    __slots__ = (
        "attempts",
        "deadline",
        "is_asking",
        "is_done",
        "is_sent",
        "number",
        "on_reply",
        "payload",
        "slot",
    )

    def __init__(self, payload: bytes, slot: int, on_reply: OnReply, number: int, deadline: float) -> None:
        self.payload = payload
        self.slot = slot
        self.on_reply = on_reply
        self.number = number  # the order in which commands were given; -1: of the connection itself
        self.deadline = deadline
        self.is_done = False  # nobody waits for the answer any more
        self.is_asking = False  # for a slot that the server does not have yet
        self.attempts = 0  # that ended in an error which passes
        self.is_sent = False  # once; it may have been carried out


class ConnectionOwner(Protocol):
    """Told about everything that comes."""

    def on_answer(self, command: Command, reply: Any) -> None: ...

    def on_error_reply(self, connection: RedisConnection, command: Command, error: hiredis.ReplyError) -> None: ...

    def on_connection_lost(self, connection: RedisConnection) -> None: ...

    def on_idle(self, connection: RedisConnection) -> None:
        """Everything that was sent is answered."""
        ...


class RedisConnection(asyncio.Protocol):
    """`outstanding` is in the order of the answers. What is on its way is bounded by the client's backlog, so nothing
    is done when the transport says that its buffer is full."""

    def __init__(self, endpoint: Endpoint, owner: ConnectionOwner, loop: asyncio.AbstractEventLoop) -> None:
        self.endpoint = endpoint
        self.outstanding: deque[Command] = deque()
        self.is_open = False
        self.failure: Exception = ConnectionResetError("it closed the connection without an answer")
        self.last_answer = 0.0
        self._owner = owner
        self._loop = loop
        self._reader = hiredis.Reader()
        self._unwritten: list[bytes] = []
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True
        self.last_answer = self._loop.time()

    def connection_lost(self, error: Exception | None) -> None:
        if self.is_open:
            self.is_open = False
            self._owner.on_connection_lost(self)

    def send(self, command: Command) -> None:
        """Only while `is_open`."""
        if not self.outstanding:
            self.last_answer = self._loop.time()
        command.is_sent = True
        self.outstanding.append(command)
        if not self._unwritten:
            self._loop.call_soon(self._flush)
        self._unwritten.append(command.payload)

    def _flush(self) -> None:
        payloads, self._unwritten = self._unwritten, []
        if self._transport is not None and self.is_open:
            self._transport.write(b"".join(payloads) if len(payloads) > 1 else payloads[0])

    def data_received(self, data: bytes) -> None:
        reader, outstanding, on_answer = self._reader, self.outstanding, self._owner.on_answer
        self.last_answer = self._loop.time()
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not False:
                command = outstanding.popleft()
                if isinstance(reply, ReplyError):
                    self._owner.on_error_reply(self, command, reply)
                else:
                    on_answer(command, reply)
                if not self.is_open:
                    return
        except (hiredis.ProtocolError, IndexError):  # not RESP, or an answer that nobody has asked for
            self.failure = NotRedis(data)
            self.abort()
            return
        if not outstanding:
            self._owner.on_idle(self)

    def abort(self) -> None:
        """Closes at once; the owner is told."""
        if self._transport is not None:
            self._transport.abort()
        self.connection_lost(None)

    async def call(self, *arguments: str | bytes | int, timeout: float) -> Any:
        """Sends a command and waits for its answer; raises ReplyError, OSError or TimeoutError."""
        done: asyncio.Future[Any] = self._loop.create_future()

        def finish(reply: Any) -> None:
            if not done.done():
                done.set_result(reply)

        if not self.is_open:
            raise self.failure
        self.send(Command(pack_command(arguments), -1, finish, -1, self._loop.time() + timeout))
        async with asyncio.timeout(timeout):
            reply = await done
        if isinstance(reply, Exception):
            raise reply
        return reply


async def connect(
    endpoint: Endpoint, owner: ConnectionOwner, tls: ssl.SSLContext | None, timeout: float
) -> RedisConnection:
    """Raises OSError (a failed TLS handshake is one) or TimeoutError."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(timeout):
        _, connection = await loop.create_connection(
            lambda: RedisConnection(endpoint, owner, loop), endpoint.host, endpoint.port, ssl=tls
        )
    return connection
