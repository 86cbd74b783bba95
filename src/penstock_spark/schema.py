"""The columns of a message: for Spark and for Arrow, in one order. docs/spark-reading.md explains each."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa  # type: ignore[import-untyped] # it has no types of its own
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock_spark.errors import OptionError

_TEXT, _BYTES, _INT, _LONG, _TIME = StringType(), BinaryType(), IntegerType(), LongType(), TimestampType()
_PAIR = StructType([StructField("name", _TEXT, False), StructField("value", _TEXT, False)])
_COLUMNS: tuple[tuple[str, DataType, bool], ...] = (
    ("topic", _TEXT, True),
    ("payload", _BYTES, True),
    ("payload_text", _TEXT, True),
    ("qos", _INT, True),
    ("retain", BooleanType(), True),
    ("client_id", _TEXT, True),
    ("username", _TEXT, True),
    ("received_at", _TIME, True),
    ("expires_at", _TIME, True),
    ("payload_format", _INT, True),
    ("content_type", _TEXT, True),
    ("response_topic", _TEXT, True),
    ("correlation_data", _BYTES, True),
    ("user_properties", MapType(_TEXT, _TEXT, False), True),
    ("user_property_list", ArrayType(_PAIR, False), True),
    ("schema_version", _INT, True),
    ("log_topic", _TEXT, False),
    ("log_partition", _INT, False),
    ("log_offset", _LONG, False),
    ("log_time", _TIME, False),
    ("error", _TEXT, True),
    ("raw", _BYTES, True),
)
MESSAGES = StructType([StructField(name, kind, nullable) for name, kind, nullable in _COLUMNS])
NAMES = tuple(name for name, _, _ in _COLUMNS)

_ARROW_TIME = pa.timestamp("us", tz="UTC")
_ARROW_PAIR = pa.struct([pa.field("name", pa.string(), False), pa.field("value", pa.string(), False)])
ARROW_TYPES: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "payload": pa.binary(),
    "payload_text": pa.string(),
    "qos": pa.int32(),
    "retain": pa.bool_(),
    "client_id": pa.string(),
    "username": pa.string(),
    "received_at": _ARROW_TIME,
    "expires_at": _ARROW_TIME,
    "payload_format": pa.int32(),
    "content_type": pa.string(),
    "response_topic": pa.string(),
    "correlation_data": pa.binary(),
    "user_properties": pa.map_(pa.string(), pa.field("value", pa.string(), False)),
    "user_property_list": pa.list_(pa.field("element", _ARROW_PAIR, False)),
    "schema_version": pa.int32(),
    "log_topic": pa.string(),
    "log_partition": pa.int32(),
    "log_offset": pa.int64(),
    "log_time": _ARROW_TIME,
    "error": pa.string(),
    "raw": pa.binary(),
}


def select(columns: Sequence[str]) -> StructType:
    """The schema of these columns (all of them if none is named), in the order of the whole."""
    unknown = [name for name in columns if name not in NAMES]
    if unknown:
        raise OptionError(f"columns: there is no column {', '.join(unknown)}", f"There are {', '.join(NAMES)}")
    return StructType([field for field in MESSAGES.fields if not columns or field.name in columns])


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([pa.field(field.name, ARROW_TYPES[field.name], field.nullable) for field in select(columns)])
