"""Rows as the broker sends them, read in plain Python: used where the compiled reader is not installed.

ext/penstock/_ext/query/block.pxd describes the layout.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import struct
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from penstock_client.types import SqlType

_MAGIC = b"PQB1"
_HEADER = struct.Struct("<4sIII")
_COLUMN = struct.Struct("<BBHI")
_TEXTS = (SqlType.VARCHAR, SqlType.BLOB, SqlType.JSON, SqlType.PROPERTIES)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NS = 1_000_000_000


class _Column(NamedTuple):
    """A column where it lies in the block."""

    kind: int
    valid: memoryview | None
    values: memoryview
    text: memoryview


class Rows:
    """Rows of one query and one partition: the part of `penstock._ext.query.block.Block` that a client uses."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self.rows: int
        magic, self.rows, columns, names_size = _HEADER.unpack(self._take(_HEADER.size))
        if magic != _MAGIC:
            raise ValueError("the bytes are not a block")
        heads = list(_COLUMN.iter_unpack(self._take(_COLUMN.size * columns)))
        names = bytes(self._take(names_size))
        if any(kind > max(SqlType) or valid > 1 for kind, valid, _, _ in heads):
            raise ValueError("the block has a column of an unknown kind")
        if sum(size for _, _, size, _ in heads) != names_size:
            raise ValueError("the block has names without columns")
        self.names: tuple[str, ...] = ()
        start = 0
        for _, _, size, _ in heads:
            self.names += (names[start : start + size].decode(),)
            start += size
        self.types = tuple(kind for kind, _, _, _ in heads)
        self._offsets = self._take(8 * self.rows)
        self._times = self._take(8 * self.rows)
        self._columns = [self._take_column(kind, has_valid, text_size) for kind, has_valid, _, text_size in heads]
        if self._at != len(data):
            raise ValueError("the block is followed by something else")

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Rows:
        """Return the rows in the bytes. Raises ValueError."""
        try:
            return cls(bytes(data))
        except struct.error:
            raise ValueError("the block is cut off") from None

    def _take(self, size: int) -> memoryview:
        """Return the next part; each is padded to eight bytes."""
        start, self._at = self._at, self._at + (size + 7 & ~7)
        if self._at > len(self._data):
            raise ValueError("the block is cut off")
        return memoryview(self._data)[start : start + size]

    def _take_column(self, kind: int, has_valid: int, text_size: int) -> _Column:
        bits = self.rows + 7 >> 3
        sizes = {SqlType.NULL: 0, SqlType.BOOLEAN: bits, **dict.fromkeys(_TEXTS, 4 * (self.rows + 1))}
        valid = self._take(bits) if has_valid else None
        column = _Column(kind, valid, self._take(sizes.get(SqlType(kind), 8 * self.rows)), self._take(text_size))
        if kind in _TEXTS:
            ends = struct.unpack(f"<{self.rows + 1}I", column.values)
            if ends[0] != 0 or ends[-1] != text_size or list(ends) != sorted(ends):
                raise ValueError("a column of the block is damaged")
        elif text_size:
            raise ValueError("a column of the block has bytes that do not belong to it")
        return column

    @property
    def size(self) -> int:
        return len(self._data)

    @property
    def first_offset(self) -> int:
        return self.offsets()[0] if self.rows else -1

    @property
    def last_offset(self) -> int:
        return self.offsets()[-1] if self.rows else -1

    def __len__(self) -> int:
        return self.rows

    def offsets(self) -> list[int]:
        return list(struct.unpack(f"<{self.rows}q", self._offsets))

    def times(self) -> list[int]:
        return list(struct.unpack(f"<{self.rows}q", self._times))

    def column(self, number: int) -> list[Any]:
        """Return the values as Python values; TIMESTAMP as nanoseconds, JSON decoded, PROPERTIES as pairs."""
        column = self._columns[number]
        values = self._values(column)
        if column.valid is None:
            return values
        valid = column.valid
        return [value if valid[row >> 3] >> (row & 7) & 1 else None for row, value in enumerate(values)]

    def _values(self, column: _Column) -> list[Any]:
        kind = column.kind
        if kind == SqlType.NULL:
            return [None] * self.rows
        if kind == SqlType.BOOLEAN:
            return [bool(column.values[row >> 3] >> (row & 7) & 1) for row in range(self.rows)]
        if kind == SqlType.DOUBLE:
            return list(struct.unpack(f"<{self.rows}d", column.values))
        if kind not in _TEXTS:
            return list(struct.unpack(f"<{self.rows}q", column.values))
        ends = struct.unpack(f"<{self.rows + 1}I", column.values)
        blobs = [bytes(column.text[start:end]) for start, end in itertools.pairwise(ends)]
        if kind == SqlType.BLOB:
            return blobs
        texts = [blob.decode() for blob in blobs]
        if kind == SqlType.VARCHAR:
            return texts
        values = [_read_json(text) if text else None for text in texts]  # an empty text is the place of a null
        if kind == SqlType.PROPERTIES:
            return [None if pairs is None else [(name, value) for name, value in pairs] for pairs in values]
        return values

    def buffers(self, number: int) -> tuple[memoryview | None, memoryview | None, memoryview | None]:
        """Return validity, values or ends, and bytes: for pyarrow.Array.from_buffers."""
        column = self._columns[number]
        values = None if column.kind == SqlType.NULL else column.values
        return column.valid, values, column.text if column.kind in _TEXTS else None

    def to_pylist(self) -> list[dict[str, Any]]:
        columns = [self.column(number) for number in range(len(self.names))]
        if not columns:
            return [{} for _ in range(self.rows)]
        return [dict(zip(self.names, row, strict=True)) for row in zip(*columns, strict=True)]

    def to_json(self) -> bytes:
        """Return a JSON array of objects; BLOB as base64, TIMESTAMP as ISO 8601, numbers that JSON lacks as null."""
        columns = [[_to_json(kind, value) for value in self.column(number)] for number, kind in enumerate(self.types)]
        rows = [dict(zip(self.names, row, strict=True)) for row in zip(*columns, strict=True)] or [{}] * self.rows
        return json.dumps(rows, ensure_ascii=False, separators=(",", ":")).encode()


def _read_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # Python limits the digits of an int
        return json.loads(text, parse_int=float)


def _to_json(kind: int, value: Any) -> Any:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if kind == SqlType.BLOB:
        return base64.b64encode(value).decode()
    if kind == SqlType.TIMESTAMP:
        return _format_time(value)
    return value


def _format_time(ns: int) -> str:
    seconds, fraction = divmod(ns, _NS)
    text = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    digits = f"{fraction:09d}"
    while digits.endswith("000"):
        digits = digits[:-3]
    return f"{text}.{digits}Z" if digits else f"{text}Z"
