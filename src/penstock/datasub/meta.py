"""Changes of tables, for topics WITH META and ONLY META: messages of the broker's own in the source itself.

So they have an offset there, are in order with the data of their partition, and are read again like everything else. A
table over `plant/+/data` is announced at `$datasub/meta/plant/*/data`: a topic of the namespace `plant/#` reads
`$datasub/meta/plant/#` besides. Only the broker writes without a client id, so no client can announce anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from penstock.datasub.plan import Plan
from penstock.datasub.types import SqlType

if TYPE_CHECKING:
    from penstock.datasub.catalogue import QueryTopic
    from penstock.datasub.ports import Identity
    from penstock.datasub.sql.tables import TableDefinition

BEGINNING = "$datasub/meta/"
COLUMN = "meta"

Publish = Callable[[str, bytes], None]


class TableChange(msgspec.Struct):
    """The payload, as JSON."""

    type: str  # create-table, drop-table
    table: str
    filter: str
    sql: str
    user: str | None
    time: int  # ms


class Announcer:
    """Tells of changes of tables once they are durable."""

    def __init__(self, publish: Publish) -> None:
        self._publish = publish

    def __call__(self, kind: str, table: TableDefinition, who: Identity) -> None:
        now = time.time_ns() // 1_000_000
        change = TableChange(kind, table.name, table.filter, table.to_sql(), who.user, now)
        self._publish(topic_of(table.filter), msgspec.json.encode(change))


def topic_of(table_filter: str) -> str:
    """A name that exactly the filters match that cover the table's. `#` becomes two levels, so that `+` is not enough
    for it."""
    names = {"+": "*", "#": "*/*"}
    return BEGINNING + "/".join(names.get(level, level) for level in table_filter.split("/"))


def plans_of(topic: QueryTopic) -> tuple[Plan, ...]:
    """What is evaluated for the topic."""
    if topic.meta == "with":
        return topic.plan, _meta_plan(topic.plan.filter)
    return (_meta_plan(topic.plan.filter),) if topic.meta == "only" else (topic.plan,)


@lru_cache(maxsize=10_000)
def _meta_plan(namespace: str) -> Plan:
    source = BEGINNING + namespace
    columns = ((COLUMN, int(SqlType.JSON), ("json", int(SqlType.JSON), ())),)
    client = ("field", int(SqlType.VARCHAR), "client_id")
    is_own = ("eq", int(SqlType.BOOLEAN), client, ("literal", int(SqlType.VARCHAR), ""))
    return Plan(f"META {source}", source, columns, is_own, "skip")
