from typing import Any

from penstock._ext.query.block import Block as Block
from penstock._ext.record.segment import RecordPack

FUNCTION_NAMES: tuple[str, ...]
UNIT_NAMES: tuple[str, ...]

class RowError:
    query: int
    offset: int
    column: str
    message: str

class QuerySet:
    """Many queries over one stream: a message's topic, and its values that queries compare for equality, choose the few
    that are evaluated; its JSON is read once for all of them."""

    passed_over: int  # records that were no envelopes
    next_offset: int  # behind the last record that `evaluate` looked at, -1 if it looked at none
    def __init__(self) -> None: ...
    def add(self, plan: Any) -> int:
        """A Plan of subscribers/query/plan.py; returns the query's number. ValueError or KeyError for a plan that says
        what the evaluator does not know."""
    def remove(self, query: int) -> None: ...
    def __len__(self) -> int: ...
    def evaluate(
        self,
        pack: RecordPack,
        partition: int,
        from_offset: int = -1,
        max_records: int = 0xFFFFFFFF,
        max_bytes: int = 0x10000000,
        max_ns: int = 0x7FFFFFFFFFFFFFFF,
    ) -> list[tuple[int, Block]]:
        """Those queries that have rows, with them. Records that are no envelopes are passed over and counted. Ends
        behind the record (one at least) that reached a limit: `max_bytes` of texts in rows, `max_ns` of time."""
    def take_errors(self) -> list[RowError]:
        """At most 1,000 since the last call, of queries whose policy is dead-letter; see `counts` for how many."""
    def counts(self, query: int) -> tuple[int, int, int]:
        """evaluated, rows, errors"""
