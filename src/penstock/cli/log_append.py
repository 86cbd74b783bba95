"""Appends what the command line or standard input says to a topic of a log."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from penstock._ext.envelope import encode
from penstock._ext.partition import partition_of
from penstock._ext.segment import RecordPack
from penstock.cli.progress import Progress
from penstock.cli.standard_input import stdin_lines
from penstock.core.errors import UsageError
from penstock.logs.base import Appended, Log, LogError
from penstock.logs.topics import now_ms

# Records on their way at once: the log writes them to the disk together.
UNDER_WAY = 5_000


@dataclass(frozen=True)
class NewRecord:
    """What the records have in common; `mqtt_topic` makes each a publish, as the broker would have logged it."""

    topic: str
    partition: int | None
    key: bytes | None
    headers: list[tuple[str, bytes]]
    mqtt_topic: str | None
    qos: int
    retain: bool
    client_id: str
    username: str | None

    def build(self, value: bytes) -> RecordPack:
        pack = RecordPack()
        time = now_ms()
        key = self.key
        if self.mqtt_topic is not None:
            value = encode(
                self.mqtt_topic, value, self.qos, self.retain, self.client_id, self.username, received_at=time
            )
            key = self.mqtt_topic.encode() if key is None else key
        pack.append(value, key=key, headers=self.headers, timestamp=time)
        return pack

    def choose_partition(self, count: int, hash_function: str) -> int:
        """The one that was asked for, else by the MQTT topic as the broker does, else by the key, else the first."""
        if self.partition is not None:
            return self.partition
        hashed = self.mqtt_topic.encode() if self.mqtt_topic is not None else self.key
        return 0 if hashed is None else partition_of(hashed, count, hash_function)


@dataclass
class Outcome:
    """What became of the records."""

    appended: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    failure: LogError | None = field(default=None, repr=False)

    def note(self, result: Appended | LogError) -> None:
        if isinstance(result, LogError):
            self.failure = self.failure or result
            return
        self.appended += result.count
        if self.first_offset is None:
            self.first_offset = result.base_offset
        self.last_offset = result.base_offset + result.count - 1


def parse_headers(headers: list[str] | None) -> list[tuple[str, bytes]]:
    parsed = []
    for header in headers or []:
        name, equals, value = header.partition("=")
        if not equals or not name:
            raise UsageError(f"-H {header!r}: write NAME=VALUE")
        parsed.append((name, os.fsencode(value)))
    return parsed


async def read_values(message: str | None, *, from_lines: bool) -> AsyncIterator[bytes]:
    if message is not None:
        yield os.fsencode(message)
    elif from_lines:
        async for line in stdin_lines():
            yield line


async def append_all(log: Log, record: NewRecord, partition: int, values: AsyncIterator[bytes]) -> Outcome:
    """Appends every value and waits until all are durable; raises the first LogError."""
    outcome = Outcome()
    room = asyncio.Semaphore(UNDER_WAY)

    def on_done(result: Appended | LogError) -> None:
        outcome.note(result)
        room.release()

    with Progress(f"appending to {record.topic}") as progress:
        async for value in values:
            await room.acquire()
            if outcome.failure is not None:
                room.release()
                break
            log.producer.append(record.topic, partition, record.build(value), on_done)
            progress.advance()
        for _ in range(UNDER_WAY):
            await room.acquire()
    if outcome.failure is not None:
        raise outcome.failure
    return outcome
