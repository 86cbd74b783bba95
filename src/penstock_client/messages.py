"""What a consumer gets: rows of one partition in blocks, or something that the application has to know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock_client.arrow import make_batch, make_frame, make_table
from penstock_client.errors import DataError
from penstock_client.partitions import OFFSET_INVALID
from penstock_client.types import SqlType

if TYPE_CHECKING:
    from penstock_client.rows import Rows
else:
    try:
        from penstock._ext.query.block import Block as Rows  # faster
    except ImportError:
        from penstock_client.rows import Rows

TIMESTAMP_NOT_AVAILABLE = 0
TIMESTAMP_LOG_APPEND_TIME = 2
_MILLISECOND = 1_000_000
META = ("meta",)


class Field(NamedTuple):
    """A column: its name and the name of its SQL type."""

    name: str
    type: str


class Block:
    """Rows with the same columns."""

    __slots__ = ("_rows", "_table")

    def __init__(self, rows: Rows, table: str) -> None:
        self._rows = rows
        self._table = table

    def fields(self) -> list[Field]:
        rows = self._rows
        return [Field(name, SqlType(number).name) for name, number in zip(rows.names, rows.types, strict=True)]

    def nrows(self) -> int:
        return self._rows.rows

    def ncols(self) -> int:
        return len(self._rows.names)

    def table(self) -> str:
        """The query topic that the rows are of. Which MQTT topic a row came from is its column `topic`, if selected."""
        return self._table

    def offsets(self) -> list[int]:
        """Of the message that each row was made of."""
        return self._rows.offsets()

    def times(self) -> list[int]:
        """When the message of each row was received: nanoseconds since 1970, UTC."""
        return self._rows.times()

    def fetchall(self) -> list[tuple[Any, ...]]:
        columns = [self._rows.column(number) for number in range(self.ncols())]
        return list(zip(*columns, strict=True)) if columns else []

    def to_pylist(self) -> list[dict[str, Any]]:
        return self._rows.to_pylist()

    def to_json(self) -> bytes:
        """An array of objects; BLOB as base64, TIMESTAMP as ISO 8601."""
        return self._rows.to_json()

    def to_arrow(self) -> Any:
        """A pyarrow.RecordBatch."""
        return make_batch(self._rows)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.fetchall())

    def __len__(self) -> int:
        return self._rows.rows

    def __repr__(self) -> str:
        return f"<Block of {self._table}: {self.nrows()} rows, {', '.join(self._rows.names)}>"


class Message:
    """Look at `error()` first: if it is not None there are no rows, and nothing to commit."""

    __slots__ = (
        "_blocks",
        "_database",
        "_error",
        "_meta",
        "_next",
        "_offset",
        "_partition",
        "_start",
        "_topic",
        "size",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        blocks: list[Rows],
        *,
        meta: Sequence[Rows] = (),
        start: int = OFFSET_INVALID,
        next_offset: int = OFFSET_INVALID,
        database: str = "",
        error: DataError | None = None,
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._blocks = blocks
        self._meta = meta
        self._start = start
        self._next = next_offset
        self._offset = max((block.last_offset for block in (*blocks, *meta)), default=OFFSET_INVALID)
        self._database = database
        self._error = error
        self.size = sum(block.size for block in (*blocks, *meta))

    def error(self) -> DataError | None:
        """Its `code` is one of penstock_client.errors, its text says what happened."""
        return self._error

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        """Of the message that the last row was made of. `commit(message)` stores the one after it."""
        return self._offset

    def start_offset(self) -> int:
        """Where the fetch began: all rows from there to `next_offset()` are in this message."""
        return self._start

    def next_offset(self) -> int:
        """Where the consumer reads on. Messages between `offset()` and this one did not pass the query."""
        return self._next

    def timestamp(self) -> tuple[int, int]:
        """TIMESTAMP_LOG_APPEND_TIME and when the message of the last row was received, in milliseconds."""
        time = self.timestamp_ns()
        return (TIMESTAMP_LOG_APPEND_TIME, time // _MILLISECOND) if time else (TIMESTAMP_NOT_AVAILABLE, 0)

    def timestamp_ns(self) -> int:
        return self._blocks[-1].times()[-1] if self._blocks else 0

    def first_time(self) -> int:
        """When the message of the first row was received, in nanoseconds."""
        return min((block.times()[0] for block in (*self._blocks, *self._meta)), default=0)

    def database(self) -> str:
        """The source of the topic: the MQTT filter that its query reads."""
        return self._database

    def value(self) -> list[Block] | None:
        """The rows in blocks; None when there are none, only meta()."""
        return [Block(rows, self._topic) for rows in self._blocks] or None

    def meta(self) -> list[dict[str, Any]]:
        """Changes of tables, of topics WITH META or ONLY META: {"type": "create-table", "table": …, "sql": …}."""
        return [event for block in self._meta for event in block.column(0)]

    def __len__(self) -> int:
        """Rows."""
        return sum(block.rows for block in self._blocks)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.to_pylist())

    def to_pylist(self) -> list[dict[str, Any]]:
        return [row for block in self._blocks for row in block.to_pylist()]

    def to_arrow(self) -> Any:
        """A pyarrow.Table, made without copying the columns; needs pyarrow."""
        return make_table(self._blocks)

    def to_pandas(self) -> Any:
        """A pandas.DataFrame; needs pyarrow and pandas."""
        return make_frame(self._blocks)

    def __repr__(self) -> str:
        if self._error is not None:
            return f"<Message of {self._topic}[{self._partition}]: {self._error.code}: {self._error}>"
        return f"<Message of {self._topic}[{self._partition}]: {len(self)} rows, offset {self._offset}>"


def decode_blocks(blocks: list[bytes], *, may_be_meta: bool) -> tuple[list[Rows], list[Rows]]:
    """Rows, and changes of tables: those blocks whose one column is `meta`, unless a topic's own rows are like that.
    Raises ValueError."""
    rows: list[Rows] = []
    meta: list[Rows] = []
    for data in blocks:
        block = Rows.decode(data)
        (meta if may_be_meta and block.names == META else rows).append(block)
    return rows, meta


def make_error_message(topic: str, partition: int, error: DataError) -> Message:
    return Message(topic, partition, [], error=error)
