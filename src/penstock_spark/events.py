"""The broker's events (topic `tbmq.events`) as a DataFrame."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa  # type: ignore[import-untyped] # it has no types of its own
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock_schema.decode import SchemaError
from penstock_schema.event import TOPIC, Event, EventKind, decode_event

SCHEMA = (
    "kind string, at timestamp, client_id string, username string, topic string, qos int, reason int, cause string, "
    "count long, node string, protocol int, address string, event_error string, log_partition int, log_offset long"
)
_ARROW = pa.schema(
    [
        ("kind", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        *((name, pa.string()) for name in ("client_id", "username", "topic")),
        *((name, pa.int32()) for name in ("qos", "reason")),
        ("cause", pa.string()),
        ("count", pa.int64()),
        ("node", pa.string()),
        ("protocol", pa.int32()),
        *((name, pa.string()) for name in ("address", "event_error")),
        ("log_partition", pa.int32()),
        ("log_offset", pa.int64()),
    ]
)
_NOTHING = Event(schema_version=0)


def kind_name(number: int) -> str:
    """`connected`, `dropped` …; a kind of a later release has its number for a name."""
    try:
        return EventKind(number).name.lower()
    except ValueError:
        return f"kind {number}"


def _row_of(data: bytes | None, partition: int, offset: int) -> dict[str, object]:
    error: str | None = None
    event = _NOTHING
    try:
        event = decode_event(data or b"")
    except SchemaError as refused:
        error = str(refused)
    row: dict[str, object] = dict(event._asdict())
    row |= {
        "kind": kind_name(event.kind),
        "at": event.at * 1000,
        "count": max(1, event.count),
        "event_error": error,
        "log_partition": partition,
        "log_offset": offset,
    }
    return row


def _decode(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("raw", "log_partition", "log_offset"))
        rows = [_row_of(*values) for values in zip(*columns, strict=True)]
        yield pa.RecordBatch.from_arrays(
            [pa.array([row[field.name] for row in rows], field.type) for field in _ARROW], schema=_ARROW
        )


def events_of(records: DataFrame, topic: str = TOPIC) -> DataFrame:
    """The events among records that were read from several topics. One that cannot be read has `event_error`."""
    raw = records.filter((F.col("log_topic") == topic) & F.col("raw").isNotNull())
    return raw.select("raw", "log_partition", "log_offset").mapInArrow(_decode, SCHEMA)
