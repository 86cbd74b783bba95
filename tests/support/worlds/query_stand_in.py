"""A slow evaluator with the interface of penstock._ext.query.evaluator, so that what is around it is tested without it.

A plan's `where` is None or ("ge", 1, ("json", 7, (name,)), ("literal", 2, number)), its column ("json", 7, (name,)).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from penstock._ext.record.envelope import decode
from penstock._ext.record.segment import RecordPack
from penstock.subscribers.query.plan import Plan
from tests.support.checkers.naive_topics import filter_matches


def plan_of(filter_: str = "#", least: int | None = None, *, column: str = "v", on_error: str = "skip") -> Plan:
    where = None if least is None else ("ge", 1, ("json", 7, (column,)), ("literal", 2, least))
    columns = ((column, 2, ("json", 7, (column,))),)
    return Plan(f"{filter_} {column} {least} {on_error}", filter_, columns, where, on_error)


@dataclass
class Row:
    offset: int
    time: int
    values: tuple[Any, ...]


class Block:
    def __init__(self, names: tuple[str, ...], rows: list[Row]) -> None:
        self.names = names
        self.types = (2,) * len(names)
        self._rows = rows

    @property
    def rows(self) -> int:
        return len(self._rows)

    @property
    def size(self) -> int:
        return 100 * len(self._rows)

    @property
    def first_offset(self) -> int:
        return self._rows[0].offset

    @property
    def last_offset(self) -> int:
        return self._rows[-1].offset

    def offsets(self) -> list[int]:
        return [row.offset for row in self._rows]

    def times(self) -> list[int]:
        return [row.time for row in self._rows]

    def slice(self, from_offset: int, max_rows: int = 0xFFFFFFFF) -> Block:
        return Block(self.names, [row for row in self._rows if row.offset >= from_offset][:max_rows])

    def encode(self) -> bytes:
        rows = [[row.offset, row.time, *row.values] for row in self._rows]
        return json.dumps([self.names, rows]).encode()


def decode_block(data: bytes) -> list[tuple[int, Any]]:
    """Offset and value of each row."""
    return [(row[0], row[2]) for row in json.loads(data)[1]]


@dataclass
class RowError:
    query: int
    offset: int
    column: str
    message: str


class QuerySet:
    def __init__(self) -> None:
        self._plans: dict[int, Plan] = {}
        self._counts: dict[int, list[int]] = {}
        self._errors: list[RowError] = []
        self._next = 0
        self.evaluations = 0
        self.next_offset = -1

    def __len__(self) -> int:
        return len(self._plans)

    def add(self, plan: Plan) -> int:
        self._next += 1
        self._plans[self._next] = plan
        self._counts[self._next] = [0, 0, 0]
        return self._next

    def remove(self, query: int) -> None:
        del self._plans[query], self._counts[query]

    def evaluate(
        self,
        pack: RecordPack,
        partition: int,
        from_offset: int = -1,
        max_records: int = 0xFFFFFFFF,
        *_: int,
    ) -> list[tuple[int, Block]]:
        self.evaluations += 1
        records = [record for record in pack if record.offset >= from_offset][:max_records]
        self.next_offset = records[-1].offset + 1 if records else -1
        found = []
        for query, plan in self._plans.items():
            rows = [row for record in records if (row := self._row(query, plan, record)) is not None]
            if rows:
                found.append((query, Block(tuple(name for name, _, _ in plan.columns), rows)))
        return found

    def _row(self, query: int, plan: Plan, record: Any) -> Row | None:
        message = decode(record.value)
        if not filter_matches(plan.filter.encode(), message.topic.encode()):
            return None
        self._counts[query][0] += 1
        value = json.loads(message.payload)
        name = plan.columns[0][2][2][0]
        if not isinstance(value.get(name), int | None):
            self._counts[query][2] += 1
            if plan.on_error == "dead-letter":
                self._errors.append(RowError(query, record.offset, name, "not a number"))
            return None
        if plan.where is not None and not (value.get(name) or 0) >= plan.where[3][2]:
            return None
        self._counts[query][1] += 1
        return Row(record.offset, message.received_at * 1_000_000, (value.get(name),))

    def take_errors(self) -> list[RowError]:
        errors, self._errors = self._errors, []
        return errors

    def counts(self, query: int) -> tuple[int, int, int]:
        evaluated, rows, errors = self._counts[query]
        return evaluated, rows, errors
