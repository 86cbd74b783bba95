"""INFER TABLE: the newest messages of a filter, and nothing else, say what a table would be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock._ext.record.envelope import encode
from penstock._ext.record.segment import RecordPack
from penstock.storage.log.memory import MemoryLog
from penstock.subscribers.query.sampling import Sampler
from penstock.subscribers.query.source import Source
from penstock.subscribers.query.sql.statements import CreateTable, InferTable, parse_statement
from penstock_client.errors import NotFound

TOPIC = "tbmq.msg.all"


def with_log(work: Callable[[MemoryLog, Sampler], Awaitable[None]]) -> None:
    async def run() -> None:
        log = MemoryLog()
        await log.start()
        await log.admin.create(TOPIC, 2)
        source = Source(log, TOPIC, 2)
        try:
            await work(log, Sampler(source))
        finally:
            await source.close()
            await log.close()

    asyncio.run(run())


async def publish(log: MemoryLog, partition: int, topic: str, *payloads: Any) -> None:
    pack = RecordPack()
    for payload in payloads:
        pack.append(encode(topic, payload if isinstance(payload, bytes) else json.dumps(payload)))
    await log.producer.send(TOPIC, partition, pack)


def test_a_table_is_proposed() -> None:
    async def work(log: MemoryLog, sampler: Sampler) -> None:
        await publish(log, 0, "plant/a/meter", {"old": 1})
        await publish(log, 0, "plant/a/meter", *({"value": number} for number in range(1_500)))
        await publish(log, 1, "plant/b/meter", {"value": 1.5, "unit": "V"}, b"no JSON")
        await publish(log, 1, "other", {"secret": True})
        damaged = RecordPack()
        damaged.append(b"\xff\xff\xff")
        await log.producer.send(TOPIC, 1, damaged)
        sql = await sampler.infer(InferTable("meters", "plant/+/meter", 100))
        statement = parse_statement(sql)
        assert isinstance(statement, CreateTable)
        columns = {column.name: (column.type.name, column.is_tag) for column in statement.table.columns}
        assert columns == {"value": ("DOUBLE", False), "unit": ("VARCHAR", False), "level_2": ("VARCHAR", True)}

    with_log(work)


def test_nothing_is_proposed_from_nothing() -> None:
    async def work(log: MemoryLog, sampler: Sampler) -> None:
        with pytest.raises(NotFound):
            await sampler.infer(InferTable("meters", "plant/+/meter", 100))
        await publish(log, 0, "other", {"a": 1})
        with pytest.raises(NotFound):
            await sampler.infer(InferTable("meters", "plant/+/meter", 100))

    with_log(work)
