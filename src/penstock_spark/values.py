"""Rows in plain Python: for where the compiled decoder is not installed, and as what it is measured and tested against.

Slow, and exactly the same rows: what `penstock._ext.record.envelope` refuses is refused here too.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from penstock_schema.decode import Publish, SchemaError, decode
from penstock_spark.checksum import crc32c
from penstock_spark.segments import HEADER
from penstock_spark.topic_filter import Matcher

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EARLIEST_MS, LATEST_MS = -62_135_596_800_000, 253_402_300_799_999
LONGEST_STRING = 65_535
# of payloads in a batch of Arrow, as in the compiled decoder: they may have megabytes each
BATCH_BYTES = 8_388_608


class Record(NamedTuple):
    """A record where it lies in a log."""

    partition: int
    offset: int
    time_ms: int
    value: bytes | None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def records_of(batch: bytes) -> Iterator[Record]:
    """The records of one whole batch, whose header was checked; ValueError when its checksum is wrong."""
    _, _, size, crc, partition, base, _, _, base_time, _, _, _, _ = HEADER.unpack_from(batch)
    if crc32c(batch[12:size], 0) != crc:
        raise ValueError("the checksum of a batch is wrong")
    at = HEADER.size
    while at < size:
        rest, at = _varint(batch, at)
        end = at + rest
        ticks, at = _varint(batch, at)
        delta, at = _varint(batch, at)
        key, at = _varint(batch, at)
        headers, at = _varint(batch, at + max(0, key - 1))
        length, at = _varint(batch, at + headers)
        value = batch[at : at + length - 1] if length else None
        yield Record(partition, base + delta, base_time + (ticks >> 1 ^ -(ticks & 1)), value)
        at = end


def timestamps_of(batch: bytes) -> Iterator[tuple[int, int]]:
    """Offset and time of each record of a batch."""
    for record in records_of(batch):
        yield record.offset, record.time_ms


def _is_mqtt_text(text: str) -> bool:
    return "\0" not in text and len(text.encode()) <= LONGEST_STRING


def find_fault(record: Publish) -> str | None:
    """Why a record that could be decoded is no publish all the same."""
    if record.qos > 2:
        return "there is no such QoS"
    if not _is_mqtt_text(record.topic) or "+" in record.topic or "#" in record.topic:
        return "the topic is not a topic name"
    if not _is_mqtt_text(record.client_id):
        return "the client id is not an MQTT string"
    if record.username is not None and not _is_mqtt_text(record.username):
        return "the user name is not an MQTT string"
    response, kind, data = record.response_topic, record.content_type, record.correlation_data
    if response is not None and (not _is_mqtt_text(response) or "+" in response or "#" in response or not response):
        return "the properties are not those of a PUBLISH"
    texts = [kind or "", *(part for pair in record.user_properties for part in pair)]
    if not all(map(_is_mqtt_text, texts)) or len(data or b"") > LONGEST_STRING or (record.payload_format or 0) > 1:
        return "the properties are not those of a PUBLISH"
    if not all(EARLIEST_MS <= at <= LATEST_MS for at in (record.received_at, record.expires_at)):
        return "a time outside the years 1 to 9999"
    return None


def to_time(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def _text_of(payload: bytes) -> str | None:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None


def row_of(record: Record, log_topic: str, wanted: Matcher) -> tuple[Any, ...] | None:
    """The columns of schema.MESSAGES, in their order; None when the topic filter does not match."""
    at = record.time_ms if EARLIEST_MS <= record.time_ms <= LATEST_MS else 0
    place = (log_topic, record.partition, record.offset, to_time(at))
    if record.value is None:
        return (*[None] * 16, *place, "a tombstone", b"")
    try:
        publish = decode(record.value)
    except SchemaError as error:
        return (*[None] * 16, *place, str(error), record.value)
    fault = find_fault(publish)
    if fault is not None:
        return (*[None] * 16, *place, fault, record.value)
    if not wanted(publish.topic):
        return None
    return (
        publish.topic,
        publish.payload,
        _text_of(publish.payload),
        publish.qos,
        publish.retain,
        publish.client_id,
        publish.username,
        to_time(publish.received_at),
        to_time(publish.expires_at) if publish.expires_at else None,
        publish.payload_format,
        publish.content_type,
        publish.response_topic,
        publish.correlation_data,
        _map_of(publish.user_properties),
        [{"name": name, "value": value} for name, value in publish.user_properties],
        publish.schema_version,
        *place,
        None,
        None,
    )


def size_of(row: tuple[Any, ...]) -> int:
    """The bytes of what is large in a row: its payload, or what could not be read."""
    return len(row[1] or row[-1] or b"")


def _map_of(properties: list[tuple[str, str]]) -> dict[str, str]:
    """The last of each name, in the order of those."""
    found: dict[str, str] = {}
    for name, value in properties:
        found.pop(name, None)
        found[name] = value
    return found
