"""Messages and expressions for the tests of the query evaluator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from penstock._ext.query.evaluator import Block, QuerySet
from penstock._ext.record import envelope
from penstock._ext.record.segment import RecordPack
from penstock.subscribers.query.plan import Expression, Plan
from penstock_client.types import SqlType

NULL, BOOLEAN, BIGINT, DOUBLE, VARCHAR, TIMESTAMP, BLOB, JSON, PROPERTIES = (int(kind) for kind in SqlType)
RECEIVED_AT = 1_700_000_000_123
ERROR = object()  # what `value_of` gives for a row error


def text(value: str | None) -> Expression:
    return ("literal", VARCHAR, value)


def whole(value: int | None) -> Expression:
    return ("literal", BIGINT, value)


def real(value: float | None) -> Expression:
    return ("literal", DOUBLE, value)


def truth(value: bool | None) -> Expression:
    return ("literal", BOOLEAN, value)


def moment(ns: int | None) -> Expression:
    return ("literal", TIMESTAMP, ns)


def path(*steps: str | int) -> Expression:
    return ("json", JSON, steps)


def cast(kind: int, expression: Expression) -> Expression:
    return ("cast", kind, expression)


def call(kind: int, name: str, *arguments: Expression) -> Expression:
    return ("call", kind, name, *arguments)


def make_plan(
    columns: Sequence[Expression] = (("field", BIGINT, "offset"),),
    where: Expression | None = None,
    topic_filter: str = "#",
    on_error: str = "skip",
) -> Plan:
    named = tuple((f"c{i}", expression[1], expression) for i, expression in enumerate(columns))
    return Plan(repr((topic_filter, named, where, on_error)), topic_filter, named, where, on_error)


def make_message(topic: str = "t", payload: str | bytes = b"{}", **fields: Any) -> bytes:
    return envelope.encode(topic, payload, **{"client_id": "c", "received_at": RECEIVED_AT, **fields})


def make_pack(records: Iterable[bytes | None], base_offset: int = 0) -> RecordPack:
    pack = RecordPack()
    for record in records:
        pack.append(record, timestamp=RECEIVED_AT)
    pack.place(base_offset)
    return pack


def rows_of(plan: Plan, *records: bytes) -> list[tuple[Any, ...]]:
    queries = QuerySet()
    queries.add(plan)
    return [row for _, block in queries.evaluate(make_pack(records), 0) for row in block_rows(block)]


def block_rows(block: Block) -> list[tuple[Any, ...]]:
    return list(zip(*(block.column(i) for i in range(len(block.names))), strict=True))


def value_of(expression: Expression, payload: str | bytes = b"{}", topic: str = "t", **fields: Any) -> Any:
    """The value of an expression on one message, or ERROR."""
    rows = rows_of(make_plan([expression]), make_message(topic, payload, **fields))
    return rows[0][0] if rows else ERROR
