"""Blocks as Arrow tables and pandas frames. Their columns are laid out as Arrow's, so most are not copied."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from penstock_client.errors import DataError
from penstock_client.rows import Rows
from penstock_client.types import SqlType


class MissingLibrary(DataError, ImportError):
    """The client needs none of these for rows as Python values."""

    code = "missing-library"


def _pyarrow() -> Any:
    """Large, without types, and maybe not there."""
    try:
        return import_module("pyarrow")
    except ImportError:
        raise MissingLibrary("to_arrow() and to_pandas() need pyarrow: pip install pyarrow") from None


def _arrow_type(arrow: Any, number: int) -> Any:
    kinds = {
        SqlType.NULL: arrow.null(),
        SqlType.BOOLEAN: arrow.bool_(),
        SqlType.BIGINT: arrow.int64(),
        SqlType.DOUBLE: arrow.float64(),
        SqlType.VARCHAR: arrow.string(),
        SqlType.TIMESTAMP: arrow.timestamp("ns", tz="UTC"),
        SqlType.BLOB: arrow.binary(),
        SqlType.JSON: arrow.string(),
        SqlType.PROPERTIES: arrow.list_(arrow.struct([("name", arrow.string()), ("value", arrow.string())])),
    }
    return kinds[SqlType(number)]


def make_batch(block: Rows) -> Any:
    """A pyarrow.RecordBatch."""
    arrow = _pyarrow()
    arrays = [_make_array(arrow, block, number, kind) for number, kind in enumerate(block.types)]
    return arrow.RecordBatch.from_arrays(arrays, names=list(block.names))


def _make_array(arrow: Any, block: Rows, number: int, kind: int) -> Any:
    type_ = _arrow_type(arrow, kind)
    if kind == SqlType.NULL:
        return arrow.nulls(block.rows)
    if kind == SqlType.PROPERTIES:
        rows = block.column(number)
        pairs = [None if row is None else [{"name": name, "value": value} for name, value in row] for row in rows]
        return arrow.array(pairs, type=type_)
    buffers = [None if buffer is None else arrow.py_buffer(buffer) for buffer in block.buffers(number)]
    if kind not in (SqlType.VARCHAR, SqlType.BLOB, SqlType.JSON):
        buffers = buffers[:2]
    return arrow.Array.from_buffers(type_, block.rows, buffers)


def make_table(blocks: list[Rows]) -> Any:
    """A pyarrow.Table; of blocks with different columns, as after RELOAD TOPIC, one with all of them."""
    arrow = _pyarrow()
    batches = [make_batch(block) for block in blocks]
    if not batches:
        return arrow.table({})
    if all(batch.schema == batches[0].schema for batch in batches):
        return arrow.Table.from_batches(batches)
    return arrow.concat_tables([arrow.Table.from_batches([batch]) for batch in batches], promote_options="default")


def make_frame(blocks: list[Rows]) -> Any:
    """A pandas.DataFrame."""
    table = make_table(blocks)
    try:
        return table.to_pandas()
    except ImportError:
        raise MissingLibrary("to_pandas() needs pandas: pip install pandas") from None
