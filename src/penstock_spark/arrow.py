"""Arrow batches of messages, from the compiled decoder's memory or from rows of Python values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped] # it has no types of its own

from penstock_spark import schema
from penstock_spark.errors import OptionError

if TYPE_CHECKING:
    from penstock._ext.record.columns import Decoder, Memory

# Column: the decoder's text that holds its values, and the bits that say which rows have one.
_TEXTS = {
    "topic": ("topic", "good"),
    "payload": ("payload", "good"),
    # the same bytes again, where they are UTF-8
    "payload_text": ("payload", "payload_text"),
    "client_id": ("client_id", "good"),
    "username": ("username", "username"),
    "content_type": ("content_type", "content_type"),
    "response_topic": ("response_topic", "response_topic"),
    "correlation_data": ("correlation_data", "correlation_data"),
    "error": ("error", "error"),
    "raw": ("raw", "error"),
}
_NUMBERS = {
    "qos": "good",
    "received_at": "good",
    "expires_at": "expires_at",
    "payload_format": "payload_format",
    "schema_version": "good",
    "log_partition": "",
    "log_offset": "",
    "log_time": "",
}


class _Parts:
    """What a decoder handed over."""

    def __init__(self, parts: Mapping[str, Memory], rows: int, nulls: Mapping[str, int]) -> None:
        self._parts = parts
        self.rows = rows
        self._nulls = nulls

    def buffer(self, name: str) -> pa.Buffer:
        return pa.py_buffer(self._parts[name])

    def valid(self, bits: str) -> tuple[pa.Buffer | None, int]:
        nulls = self._nulls.get(bits, 0)
        return (self.buffer(f"{bits}.bits") if nulls else None), nulls

    def text(self, name: str, kind: pa.DataType, bits: str) -> pa.Array:
        valid, nulls = self.valid(bits)
        buffers = [valid, self.buffer(f"{name}.offsets"), self.buffer(f"{name}.data")]
        return pa.Array.from_buffers(kind, self.rows, buffers, nulls)

    def inner(self, name: str) -> pa.Array:
        """All the names or values of user properties, of all rows."""
        offsets = self.buffer(f"{name}.offsets")
        count = offsets.size // 4 - 1
        return pa.Array.from_buffers(pa.string(), count, [None, offsets, self.buffer(f"{name}.data")], 0)

    def nested(self, which: str, kind: pa.DataType) -> pa.Array:
        """The user properties as `map` or `list`."""
        names, values = self.inner(f"{which}_name"), self.inner(f"{which}_value")
        pair = kind.value_type if which == "list" else pa.struct([kind.key_field, kind.item_field])
        pairs = pa.Array.from_buffers(pair, len(names), [None], 0, children=[names, values])
        valid, nulls = self.valid("good")
        buffers = [valid, self.buffer(f"{which}.numbers")]
        return pa.Array.from_buffers(kind, self.rows, buffers, nulls, children=[pairs])

    def column(self, name: str) -> pa.Array:
        kind = schema.ARROW_TYPES[name]
        if name in _TEXTS:
            return self.text(_TEXTS[name][0], kind, _TEXTS[name][1])
        if name in _NUMBERS:
            valid, nulls = self.valid(_NUMBERS[name])
            return pa.Array.from_buffers(kind, self.rows, [valid, self.buffer(f"{name}.numbers")], nulls)
        if name == "retain":
            valid, nulls = self.valid("good")
            return pa.Array.from_buffers(kind, self.rows, [valid, self.buffer("retain.bits")], nulls)
        return self.nested("map" if name == "user_properties" else "list", kind)


def take_batch(
    decoder: Decoder, columns: Sequence[str], log_topic: str, given: Mapping[str, pa.Array] | None = None
) -> pa.RecordBatch:
    """What the decoder has, as a batch; `given` are columns that it has not (the place in Kafka)."""
    parts = _Parts(*decoder.take())
    wanted = schema.arrow_schema(columns)
    arrays = []
    for name in wanted.names:
        if given is not None and name in given:
            arrays.append(given[name])
        elif name == "log_topic":
            arrays.append(pa.repeat(pa.scalar(log_topic, pa.string()), parts.rows))
        else:
            arrays.append(parts.column(name))
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def batch_of_rows(rows: Sequence[tuple[Any, ...]], columns: Sequence[str]) -> pa.RecordBatch:
    """Rows of schema.MESSAGES as a batch of the columns."""
    wanted = schema.arrow_schema(columns)
    by_name = dict(zip(schema.NAMES, zip(*rows, strict=True), strict=True))
    arrays = [_array_of(by_name[name], schema.ARROW_TYPES[name]) for name in wanted.names]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _array_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_map(kind):
        return pa.array([None if one is None else list(one.items()) for one in values], kind)
    return pa.array(values, kind)


def load_decoder(wanted: str = "auto") -> Callable[..., Decoder] | None:
    """The compiled decoder that the option `decoder` means: None for that in Python."""
    if wanted == "python":
        return None
    try:
        from penstock._ext.record import columns  # noqa: PLC0415 - optional: jobs run without compiled code as well
    except ImportError:
        if wanted == "compiled":
            raise OptionError("decoder=compiled: penstock's compiled modules are not installed here") from None
        return None
    return columns.Decoder
