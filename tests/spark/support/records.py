"""Publishes for the tests of Spark, written to either log by the broker's own providers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock._ext.record.envelope import encode
from penstock._ext.record.segment import RecordPack
from penstock.storage.log.base import Log
from penstock.storage.log.kafka import KafkaLog
from penstock.storage.log.kafka.settings import KafkaSettings
from tests.support.worlds.embedded import opened

TOPIC = "tbmq.msg.all"
T0 = 1_790_000_000_000
"""2026-09-21T14:13:20Z"""
# the records are older than what is kept by default
FOR_EVER = {"retention.ms": "-1"}


def props(*properties: tuple[int, Any]) -> bytes:
    """MQTT 5 properties in their encoding: (identifier, value), a pair for a user property."""
    encoded = b""
    for identifier, value in properties:
        if identifier == 1:
            encoded += bytes([identifier, value])
            continue
        encoded += bytes([identifier])
        for part in value if isinstance(value, tuple) else (value,):
            data = part if isinstance(part, bytes) else part.encode()
            encoded += len(data).to_bytes(2, "big") + data
    return encoded


@dataclass(frozen=True)
class Sent:
    """A record for a partition: a publish, or any other value."""

    topic: str = "a/b"
    payload: bytes = b"hi"
    partition: int = 0
    at: int = T0
    qos: int = 1
    retain: bool = False
    client_id: str = "client"
    username: str | None = None
    expires_at: int = 0
    properties: bytes = b""
    raw: bytes | None = None
    is_tombstone: bool = False

    def value(self) -> bytes | None:
        if self.is_tombstone:
            return None
        if self.raw is not None:
            return self.raw
        return encode(
            self.topic,
            self.payload,
            self.qos,
            self.retain,
            self.client_id,
            self.username,
            self.at,
            self.expires_at,
            self.properties,
        )


def packs_of(records: Iterable[Sent], size: int) -> list[tuple[int, RecordPack]]:
    """Packs of at most `size` records, each partition's in their order."""
    packs: list[tuple[int, RecordPack]] = []
    open_packs: dict[int, RecordPack] = {}
    for record in records:
        pack = open_packs.get(record.partition)
        if pack is None or pack.count >= size:
            pack = open_packs[record.partition] = RecordPack()
            packs.append((record.partition, pack))
        pack.append(record.value(), record.topic.encode(), timestamp=record.at)
    return packs


async def append(log: Log, topic: str, records: Iterable[Sent], size: int) -> None:
    for partition, pack in packs_of(records, size):
        await log.producer.send(topic, partition, pack)


def write_embedded(
    data_dir: Path,
    records: Iterable[Sent],
    *,
    topic: str = TOPIC,
    partitions: int = 4,
    properties: Mapping[str, str] | None = None,
    pack: int = 7,
) -> None:
    """Appends the records as a broker would; nobody else may have the directory open."""

    data_dir.mkdir(parents=True, exist_ok=True)

    async def work() -> None:
        async with opened(data_dir) as log:
            await log.admin.create(topic, partitions, {**FOR_EVER, **(properties or {})})
            await append(log, topic, records, pack)

    asyncio.run(work())


def write_kafka(bootstrap: str, topic: str, records: Iterable[Sent], *, partitions: int = 4, pack: int = 7) -> None:
    async def work() -> None:
        log = KafkaLog(KafkaSettings(bootstrap_servers=bootstrap))
        await log.start()
        try:
            await log.admin.create(topic, partitions, FOR_EVER)
            await append(log, topic, records, pack)
        finally:
            await log.close()

    asyncio.run(work())


def telemetry(count: int, devices: int = 5, partitions: int = 4, first: int = 0, step_ms: int = 100) -> list[Sent]:
    """Numbered readings of devices, as JSON."""
    found = []
    for number in range(first, first + count):
        device = number % devices
        payload = {"seq": number, "temperature": 20 + number % 7, "unit": "C"}
        found.append(
            Sent(
                topic=f"plant/d{device}/temp",
                payload=json.dumps(payload).encode(),
                partition=device % partitions,
                at=T0 + number * step_ms,
                client_id=f"d{device}",
            )
        )
    return found
