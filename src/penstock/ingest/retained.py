"""Retained messages across a restart: the last of each topic is in a compacted topic of the log."""

from __future__ import annotations

import asyncio
from functools import partial

from penstock._ext.hub.connection import Hub
from penstock.core.logging import get_logger
from penstock.services.log_names import RETAINED_TOPIC
from penstock.storage.log.base import EARLIEST, Log, TopicPartition
from penstock.storage.log.waiting import until_available

log = get_logger("penstock.retained")

PROPERTIES = {"cleanup.policy": "compact", "segment.bytes": "26214400"}
RECORDS_AT_ONCE = 5_000
# The last records may have been compacted away, then nothing comes any more.
SILENCE_SECONDS = 2.0


async def restore_retained(hub: Hub, log_provider: Log, topic: str = RETAINED_TOPIC) -> int:
    """Read the retained messages into the hub before clients can subscribe; return how many there are."""
    return await until_available(partial(_read, hub, log_provider, topic), "restore retained messages")


async def _read(hub: Hub, log_provider: Log, topic: str) -> int:
    await log_provider.admin.create(topic, 1, PROPERTIES)
    place = TopicPartition(topic, 0)
    consumer = log_provider.consumer("")
    damaged = 0
    try:
        marks = await consumer.watermarks(place)
        if marks.first < marks.end:
            await consumer.add({place: EARLIEST})
            position = marks.first
            while position < marks.end:
                fetched = await consumer.poll(RECORDS_AT_ONCE, SILENCE_SECONDS)
                for item in fetched:
                    damaged += hub.restore_retained(item.pack)
                    position = item.next_offset
                if not fetched:
                    await consumer.watermarks(place)  # raises if nothing came because the log is unavailable
                    break
                await asyncio.sleep(0)
    finally:
        await consumer.close()
    if damaged:
        log.error("retained messages could not be read and are lost", messages=damaged)
    return hub.retained.count
