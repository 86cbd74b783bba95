"""INFER TABLE: looks at the newest messages of a filter, and proposes the table they would fit."""

from __future__ import annotations

import asyncio
from collections import deque

from penstock._ext.record.columns import match_filter
from penstock._ext.record.envelope import EnvelopeError, decode
from penstock._ext.record.segment import RecordPack
from penstock.subscribers.query.source import Source
from penstock.subscribers.query.sql.infer import Sample, infer_table
from penstock.subscribers.query.sql.statements import InferTable
from penstock_client.errors import OutOfRange

# Records that are looked at for each message that is wanted: others may be between them.
LOOKED_AT = 20
MOST_LOOKED_AT = 100_000
READ_SECONDS = 2.0


class Sampler:
    """One at a time: it is work beside that for consumers."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._turn = asyncio.Lock()

    async def infer(self, statement: InferTable) -> str:
        """The statement that declares the table. Raises NotFound if nothing fits, and Unavailable."""
        async with self._turn:
            partitions = await self._source.partitions()
            found: deque[Sample] = deque(maxlen=statement.sample)
            window = max(1, min(LOOKED_AT * statement.sample, MOST_LOOKED_AT) // len(partitions))
            wanted = statement.filter.encode()
            for partition in partitions:
                await self._look(partition, window, wanted, found)
        return infer_table(statement.name, statement.filter, found).to_sql()

    async def _look(self, partition: int, window: int, wanted: bytes, found: deque[Sample]) -> None:
        begin, end = await self._source.watermarks(partition)
        position = max(begin, end - window)
        if position == end:
            return
        try:
            async with self._source.readers.at(self._source.place(partition), position) as reader:
                while reader.position < end:
                    packs = await reader.read(READ_SECONDS)
                    if not packs:
                        return  # the rest are marks that a log keeps for itself
                    for pack in packs:
                        _take(pack, wanted, found)
                    await asyncio.sleep(0)
        except OutOfRange:
            return  # retention was faster


def _take(pack: RecordPack, wanted: bytes, found: deque[Sample]) -> None:
    for record in pack:
        try:
            message = decode(record.value or b"")
        except EnvelopeError:
            continue
        if match_filter(wanted, message.topic.encode()):
            found.append((message.topic, message.payload, message.user_properties))
