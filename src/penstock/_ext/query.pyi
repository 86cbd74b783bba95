from typing import Any

from penstock._ext.segment import RecordPack

class Block:
    """Rows of one query and one partition, in columns laid out as Arrow's: validity bits, fixed width values or 32-bit
    ends and bytes. Beside the columns each row has its source offset, and the time (ns) its message was received."""

    @property
    def rows(self) -> int: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def types(self) -> tuple[int, ...]: ...
    def encode(self) -> bytes: ...
    @staticmethod
    def decode(data: bytes | memoryview) -> Block: ...
    def offsets(self) -> list[int]: ...
    def times(self) -> list[int]: ...
    def column(self, number: int) -> list[Any]: ...
    def buffers(self, number: int) -> tuple[memoryview | None, memoryview | None, memoryview | None]:
        """validity, values or ends, bytes: for pyarrow.Array.from_buffers."""
    def to_pylist(self) -> list[dict[str, Any]]: ...
    def to_json(self) -> bytes:
        """A JSON array of objects; BLOB as base64, TIMESTAMP as ISO 8601 with nanoseconds when there are any."""
    def slice(self, from_offset: int, max_rows: int = 0xFFFFFFFF) -> Block: ...

class RowError:
    query: int
    offset: int
    column: str
    message: str

class QuerySet:
    """Many queries over one stream: a message's topic, and its values that queries compare for equality, choose the few
    that are evaluated; its JSON is read once for all of them."""

    def __init__(self) -> None: ...
    def add(self, plan: Any) -> int:
        """A penstock.datasub.plan.Plan; returns the query's number."""
    def remove(self, query: int) -> None: ...
    def __len__(self) -> int: ...
    def evaluate(
        self, pack: RecordPack, partition: int, from_offset: int = -1, max_records: int = 0xFFFFFFFF
    ) -> list[tuple[int, Block]]:
        """Those queries that have rows, with them. Records that are no envelopes are passed over and counted."""
    def take_errors(self) -> list[RowError]:
        """At most 1,000 since the last call, of queries whose policy is dead-letter; see `counts` for how many."""
    def counts(self, query: int) -> tuple[int, int, int]:
        """evaluated, rows, errors"""
