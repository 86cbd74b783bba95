"""Changes of tables, for topics WITH META and ONLY META: messages of the broker's own in the source itself.

So they have an offset there, are in order with the data of their partition, and are read again like everything else.
Each change is written to every partition, and the statement is answered when all of them have it: messages that are
published after that have the declaration before them, whatever their partition.

A table over `plant/+/data` is announced at `$datasub/meta/plant/*/data`: a topic of the namespace `plant/#` reads
`$datasub/meta/plant/#` besides. Only the broker writes without a client id, so no client can announce anything.
"""

from __future__ import annotations

import asyncio
import uuid
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from penstock._ext.record import envelope
from penstock._ext.record.segment import RecordPack
from penstock.core.clock import now_ms
from penstock.storage.log.base import LogError
from penstock.subscribers.query.plan import Plan
from penstock_client.errors import Unavailable
from penstock_client.types import SqlType

if TYPE_CHECKING:
    from penstock.subscribers.query.catalogue import QueryTopic
    from penstock.subscribers.query.ports import Identity
    from penstock.subscribers.query.source import Source
    from penstock.subscribers.query.sql.tables import TableDefinition

BEGINNING = "$datasub/meta/"
COLUMN = "meta"

ANNOUNCE_SECONDS = 30.0


class TableChange(msgspec.Struct):
    """The payload, as JSON."""

    type: str  # create-table, drop-table
    table: str
    filter: str
    sql: str
    user: str | None
    time: int  # ms
    id: str  # of the change: the same in every partition


class Announcer:
    """Writes a change of a table to every partition of the source, once the change itself is durable."""

    def __init__(self, source: Source) -> None:
        self._source = source

    async def __call__(self, kind: str, table: TableDefinition, who: Identity) -> None:
        """Raises Unavailable if a partition of the log does not take the change."""
        now = now_ms()
        change = TableChange(kind, table.name, table.filter, table.to_sql(), who.user, now, uuid.uuid4().hex)
        topic = topic_of(table.filter)
        record = envelope.encode(topic, msgspec.json.encode(change), qos=1, received_at=now)
        try:
            partitions = await self._source.partitions()
            async with asyncio.timeout(ANNOUNCE_SECONDS):
                await asyncio.gather(*(self._write(topic, record, now, number) for number in partitions))
        except (LogError, TimeoutError, Unavailable) as error:
            raise Unavailable(
                f"{kind} of {table.name} is done, but topics WITH META were not informed in every partition, because "
                f"the log did not store it: {str(error) or 'no answer'}. Create or drop the table again to announce it"
            ) from None

    async def _write(self, topic: str, record: bytes, now: int, partition: int) -> None:
        pack = RecordPack()
        pack.append(record, topic.encode(), timestamp=now)
        await self._source.log.producer.send(self._source.topic, partition, pack)


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
