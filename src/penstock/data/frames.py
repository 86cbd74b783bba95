"""Frames of the data listener: a length, and a MessagePack array."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from penstock_client.errors import BadRequest, DataError, OutOfRange, SqlError
from penstock_client.wire import METHODS, Failure

LENGTH = 4

_head = msgspec.msgpack.Decoder(tuple[int, str, msgspec.Raw])
_parameters = {name: msgspec.msgpack.Decoder(type_) for name, type_ in METHODS.items()}
_encoder = msgspec.msgpack.Encoder()


class BadFrame(Exception):
    """What was sent is no frame of this protocol: nothing after it can be trusted."""


class FrameReader:
    """Cuts a stream of bytes into frames."""

    def __init__(self, largest: int) -> None:
        self.largest = largest
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The frames that are whole now. Raises BadFrame for one that is too large, before it is there."""
        buffer = self._buffer
        buffer += data
        at = 0
        try:
            while len(buffer) - at >= LENGTH:
                size = int.from_bytes(buffer[at : at + LENGTH], "big")
                if size > self.largest:
                    raise BadFrame(f"a request of {size} bytes is over the limit of {self.largest}")
                if len(buffer) - at < LENGTH + size:
                    return
                body = bytes(buffer[at + LENGTH : at + LENGTH + size])
                at += LENGTH + size
                yield body
        finally:
            del buffer[:at]


def parse(frame: bytes) -> tuple[int, str, msgspec.Raw]:
    """Id, method and parameters of a request; raises BadFrame."""
    try:
        number, method, parameters = _head.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadFrame(f"a request is the MessagePack array [id, method, parameters]: {error}") from None
    return number, method, parameters


def parse_parameters(method: str, raw: msgspec.Raw) -> msgspec.Struct:
    """Raises BadRequest for a method that is none, and for parameters it does not have."""
    decoder = _parameters.get(method)
    if decoder is None:
        raise BadRequest(f"there is no method {method[:64]!r}")
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the parameters of {method} are wrong: {error}") from None


def build_answer(number: int, result: Any) -> bytes:
    return _build([number, None, result])


def build_failure(number: int, error: DataError) -> bytes:
    failure = Failure(code=error.code, message=error.message, retryable=error.is_retryable)
    if isinstance(error, SqlError):
        failure.line, failure.column = error.line, error.column
    elif isinstance(error, OutOfRange):
        failure.begin, failure.end = error.begin, error.end
    return _build([number, failure, None])


def _build(answer: list[Any]) -> bytes:
    frame = bytearray(LENGTH)
    _encoder.encode_into(answer, frame, LENGTH)
    frame[:LENGTH] = (len(frame) - LENGTH).to_bytes(LENGTH, "big")
    return bytes(frame)
