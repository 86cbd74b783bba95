"""Messages of the queues: a key, headers and data, and how they lie in a record of the log.

record key    the UUID as text; a longer or other key as it is: its order must not get lost
requestId     16 bytes, the UUID in network order       responseTopic   UTF-8
expireTs      8 bytes, ms since the epoch, big-endian   correlationId   16 bytes
producerId    UTF-8, always                             ts              as expireTs, always
threadName, stackTrace   UTF-8, only when debugging
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from penstock._ext.record.segment import Record, RecordPack
from penstock.core.errors import PenstockError

REQUEST_ID = "requestId"
RESPONSE_TOPIC = "responseTopic"
EXPIRE_TS = "expireTs"
CORRELATION_ID = "correlationId"
PRODUCER_ID = "producerId"
TS = "ts"
THREAD_NAME = "threadName"
STACK_TRACE = "stackTrace"

LENGTHS = 10
"""Bytes of the two lengths before a header's name and value, however large."""

Key = UUID | str | bytes


class UndecodableMessage(PenstockError):
    """A record that is no message of a queue. It alone is set aside; `record` is None where only a header is bad."""

    def __init__(self, reason: str, record: Record | None = None) -> None:
        super().__init__(reason)
        self.record = record


@dataclass(frozen=True, slots=True)
class QueueMessage:
    key: Key
    data: bytes
    headers: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def request_id(self) -> UUID | None:
        value = self.headers.get(REQUEST_ID)
        return None if value is None else decode_uuid(REQUEST_ID, value)

    @property
    def response_topic(self) -> str | None:
        value = self.headers.get(RESPONSE_TOPIC)
        return None if value is None else decode_text(RESPONSE_TOPIC, value)

    @property
    def expire_ts(self) -> int | None:
        value = self.headers.get(EXPIRE_TS)
        return None if value is None else decode_time(EXPIRE_TS, value)

    @property
    def producer_id(self) -> str | None:
        value = self.headers.get(PRODUCER_ID)
        return None if value is None else decode_text(PRODUCER_ID, value)

    @property
    def ts(self) -> int | None:
        value = self.headers.get(TS)
        return None if value is None else decode_time(TS, value)


def encode_time(milliseconds: int) -> bytes:
    return milliseconds.to_bytes(8, "big", signed=True)


def decode_time(name: str, value: bytes) -> int:
    if len(value) != 8:
        raise UndecodableMessage(f"the header {name} has {len(value)} bytes instead of 8")
    return int.from_bytes(value, "big", signed=True)


def decode_uuid(name: str, value: bytes) -> UUID:
    if len(value) != 16:
        raise UndecodableMessage(f"the header {name} has {len(value)} bytes instead of 16")
    return UUID(bytes=value)


def decode_text(name: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise UndecodableMessage(f"the header {name} is not UTF-8") from None


def request_headers(request_id: UUID, response_topic: str, expire_ts: int) -> dict[str, bytes]:
    return {
        REQUEST_ID: request_id.bytes,
        RESPONSE_TOPIC: response_topic.encode(),
        EXPIRE_TS: encode_time(expire_ts),
    }


def encode_key(key: Key) -> bytes:
    return key if isinstance(key, bytes) else str(key).encode()


def decode_key(key: bytes) -> Key:
    """A UUID if writing it out gives the same bytes again; else the text, else the bytes."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return key
    if len(text) == 36:
        try:
            uuid = UUID(text)
        except ValueError:
            return text
        return uuid if str(uuid) == text else text
    return text


def record_size(message: QueueMessage) -> int:
    """At most, of the record as a log counts it: the headers with the lengths that stand before each part."""
    return encoded_size(message) + LENGTHS * (1 + len(message.headers))


def encoded_size(message: QueueMessage) -> int:
    """Bytes of what the message brings, as a bound is meant: key, headers and data."""
    headers = sum(len(name) + len(value) for name, value in message.headers.items())
    return len(encode_key(message.key)) + headers + len(message.data)


def stamped(message: QueueMessage, *, producer_id: str, now_ms: int, debug: bool = False) -> QueueMessage:
    """With the headers that every message has when it is sent. Those it has already stay as they are."""
    headers = {PRODUCER_ID: producer_id.encode(), TS: encode_time(now_ms)}
    if debug:
        headers[THREAD_NAME] = threading.current_thread().name.encode()
        headers[STACK_TRACE] = "".join(traceback.format_stack(limit=18)[:-1]).encode()
    headers.update(message.headers)
    return QueueMessage(message.key, message.data, headers)


def encode_message(message: QueueMessage, pack: RecordPack, now_ms: int) -> None:
    """Appends the message to a pack, as it is."""
    pack.append(message.data, encode_key(message.key), list(message.headers.items()), now_ms)


def decode_message(record: Record) -> QueueMessage:
    """Raises UndecodableMessage for this record alone. Of two headers with one name the last counts."""
    if record.key is None:
        raise UndecodableMessage(f"the record at offset {record.offset} has no key", record)
    if record.value is None:
        raise UndecodableMessage(f"the record at offset {record.offset} has no value", record)
    return QueueMessage(decode_key(record.key), record.value, dict(record.headers))
