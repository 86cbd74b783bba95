"""One connection to a data listener: requests by number, answers in any order."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

import msgspec

from penstock_client.errors import DataError, Unavailable, make_error
from penstock_client.wire import Assignment, Failure, Fetched, Hello, Table, Welcome

_LENGTH = 4
# A fetch ends with the block that reached its limit, and a block is as large as a pack of messages: far below this.
_LARGEST_ANSWER = 1 << 30
CLOSED_WITHOUT_ANSWER = (
    "the connection was closed before the broker answered: is this its data listener (data_subscription.address), and "
    "not its MQTT port?"
)


class _Answer(msgspec.Struct, array_like=True):
    number: int
    failure: Failure | None
    result: msgspec.Raw


class ConnectionLost(Unavailable):
    """Whether the broker did what was asked is not known."""


class BadPeer(DataError):
    """The server is not a broker's data listener, or its certificate is not accepted: a retry does not help."""

    code = "bad-peer"


class NoAnswer(Unavailable):
    """The same, and the connection is still there."""


_ANSWERS = msgspec.msgpack.Decoder(_Answer)
_ENCODER = msgspec.msgpack.Encoder()
_RESULTS: dict[str, msgspec.msgpack.Decoder[Any]] = {
    "hello": msgspec.msgpack.Decoder(Welcome),
    "execute": msgspec.msgpack.Decoder(Table),
    "subscribe": msgspec.msgpack.Decoder(Assignment),
    "ask": msgspec.msgpack.Decoder(Assignment | None),
    "heartbeat": msgspec.msgpack.Decoder(Assignment | None),
    "fetch": msgspec.msgpack.Decoder(Fetched),
    "committed": msgspec.msgpack.Decoder(list[int | None]),
    "watermarks": msgspec.msgpack.Decoder(list[tuple[int, int]]),
    "times": msgspec.msgpack.Decoder(list[int]),
}
_ANYTHING = msgspec.msgpack.Decoder()


class BrokerConnection(asyncio.Protocol):
    def __init__(self, on_lost: Callable[[BrokerConnection], None]) -> None:
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._waiting: dict[int, tuple[str, asyncio.Future[Any]]] = {}
        self._last = 0
        self.welcome: Welcome | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def request(self, method: str, parameters: msgspec.Struct) -> Any:
        """The answer. Raises what the broker answered, or ConnectionLost. Cancelled, its answer is thrown away."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionLost("the connection to the broker is lost")
        self._last += 1
        number = self._last
        frame = _ENCODER.encode((number, method, parameters))
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = (method, answer)
        self._transport.write(len(frame).to_bytes(_LENGTH, "big") + frame)
        try:
            return await answer
        finally:
            self._waiting.pop(number, None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        at = 0
        while len(received) - at >= _LENGTH:
            end = at + _LENGTH + int.from_bytes(received[at : at + _LENGTH], "big")
            if end - at > _LARGEST_ANSWER:
                self._break("this does not speak the protocol of a data listener")
                return
            if len(received) < end:
                break
            try:
                self._take(bytes(received[at + _LENGTH : end]))
            except msgspec.MsgspecError as error:
                self._break(f"this does not speak the protocol of a data listener: {error}")
                return
            at = end
        if at:
            del received[:at]

    def _take(self, frame: bytes) -> None:
        answer = _ANSWERS.decode(frame)
        method, future = self._waiting.get(answer.number, ("", None))
        if future is None or future.done():
            return
        if answer.failure is not None:
            future.set_exception(make_error(answer.failure))
        else:
            future.set_result(_RESULTS.get(method, _ANYTHING).decode(answer.result))

    def _break(self, why: str) -> None:
        assert self._transport is not None
        self._received.clear()
        self._fail(BadPeer(why) if self.welcome is None else ConnectionLost(why))
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None and self.welcome is None:
            self._fail(ConnectionLost(CLOSED_WITHOUT_ANSWER))
        else:
            self._fail(ConnectionLost(f"the connection to the broker is lost{f': {exc}' if exc else ''}"))
        self._on_lost(self)

    def _fail(self, error: DataError) -> None:
        for _, future in self._waiting.values():
            if not future.done():
                future.set_exception(error)


async def open_connection(
    address: tuple[str, int], tls: ssl.SSLContext | None, hello: Hello, on_lost: Callable[[BrokerConnection], None]
) -> BrokerConnection:
    """After its hello. Raises OSError, or NotAllowed when the broker does not want this user."""
    _, connection = await asyncio.get_running_loop().create_connection(
        lambda: BrokerConnection(on_lost), *address, ssl=tls
    )
    try:
        connection.welcome = await connection.request("hello", hello)
    except BaseException:
        connection.close()
        raise
    return connection
