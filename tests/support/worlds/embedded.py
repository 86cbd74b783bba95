"""The embedded log for tests: opened and closed again, packs of numbered records, and what a topic holds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from penstock._ext.record.segment import Record, RecordPack
from penstock.storage.log.base import TopicPartition
from penstock.storage.log.embedded import EmbeddedLog
from penstock.storage.log.embedded.files import escape_topic, list_segments, log_directory, segment_path
from penstock.storage.state.lmdb_kv import LmdbStore


@asynccontextmanager
async def opened(directory: Path, **options: Any) -> AsyncIterator[EmbeddedLog]:
    store = LmdbStore(directory / "state")
    log = EmbeddedLog(directory, store.space("groups"), **options)
    try:
        await log.start()
        yield log
    finally:
        await log.close()
        store.close()


def numbered(first: int, count: int, size: int = 0, timestamp: int | None = None) -> RecordPack:
    pack = RecordPack()
    for number in range(first, first + count):
        pack.append(b"%d" % number + b"." * size, timestamp=timestamp)
    return pack


def keyed(*pairs: tuple[bytes, bytes | None], timestamp: int | None = None) -> RecordPack:
    pack = RecordPack()
    for key, value in pairs:
        pack.append(value, key, timestamp=timestamp)
    return pack


def number_of(record: Record) -> int:
    return int((record.value or b"").rstrip(b"."))


async def read_all(log: EmbeddedLog, topic: str, partition: int = 0) -> list[Record]:
    consumer = log.consumer("")
    tp = TopicPartition(topic, partition)
    consumer.assign([tp])
    records: list[Record] = []
    while consumer.position(tp) < log.watermarks(tp).end:
        for fetched in await consumer.poll(10_000, 5.0):
            records += fetched.pack
    await consumer.close()
    return records


def topic_directory(directory: Path, topic: str) -> Path:
    return log_directory(directory) / escape_topic(topic)


def segments_of(directory: Path, topic: str) -> list[Path]:
    home = topic_directory(directory, topic)
    return [segment_path(home, sequence) for sequence in list_segments(home)]
