"""Appends what the command line or standard input says to a topic of a log."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from penstock._ext.match.partition import partition_of
from penstock._ext.record.envelope import encode
from penstock._ext.record.segment import RecordPack
from penstock.cli.client_runner import stdin_lines
from penstock.cli.progress import Progress
from penstock.core import exit_codes
from penstock.core.clock import now_ms
from penstock.core.errors import PenstockError, UsageError
from penstock.core.text import counted
from penstock.storage.log.base import Appended, Log, LogError

# Records on their way at once: the log writes them to the disk together.
UNDER_WAY = 5_000
LONGEST_TEXT = 65_535


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
    is_interrupted: bool = False

    def note(self, result: Appended | LogError) -> None:
        if isinstance(result, LogError):
            self.failure = self.failure or result
            return
        self.appended += result.count
        if result.base_offset < 0:
            return  # they are there, and Kafka did not say where
        if self.first_offset is None:
            self.first_offset = result.base_offset
        self.last_offset = result.base_offset + result.count - 1


def check_length(flag: str, text: str | None) -> None:
    """Of a text in an MQTT packet. Raises UsageError."""
    size = len((text or "").encode())
    if size > LONGEST_TEXT:
        raise UsageError(f"{flag}: it has {size:,} bytes, and MQTT has room for {LONGEST_TEXT:,}")


def parse_headers(headers: list[str] | None) -> list[tuple[str, bytes]]:
    parsed = []
    for header in headers or []:
        name, equals, value = header.partition("=")
        if not equals or not name:
            raise UsageError(f"-H {header!r}: write NAME=VALUE")
        if not is_text(name):
            raise UsageError(f"-H {header!r}: the name is not UTF-8")
        parsed.append((name, os.fsencode(value)))
    return parsed


def is_text(argument: str) -> bool:
    """Whether an argument was UTF-8: other bytes are lone surrogates here."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


async def read_values(message: str | None, *, from_lines: bool) -> AsyncIterator[bytes]:
    if message is not None:
        yield os.fsencode(message)
    elif from_lines:
        async for line in stdin_lines():
            yield line


async def append_all(log: Log, record: NewRecord, partition: int, values: AsyncIterator[bytes]) -> Outcome:
    """Appends every value and waits until all are durable; raises PenstockError that says how many are when one cannot
    be appended. Cancelled, it takes no more values and waits for those under way, cancelled again it does not."""
    outcome = Outcome()
    room = asyncio.Semaphore(UNDER_WAY)

    def on_done(result: Appended | LogError) -> None:
        outcome.note(result)
        room.release()

    with Progress(f"appending to {record.topic}") as progress:
        try:
            async for value in values:
                await room.acquire()
                if outcome.failure is not None:
                    room.release()
                    break
                try:
                    log.producer.append(record.topic, partition, record.build(value), on_done)
                except BaseException:
                    room.release()
                    raise
                progress.advance()
        except ValueError as error:  # a line or a record that is longer than anything can be
            outcome.failure = outcome.failure or LogError(str(error))
        except asyncio.CancelledError:
            outcome.is_interrupted = True
        await _wait_for_all(room, outcome, record.topic, partition)
    if outcome.failure is not None:
        raise _describe_failure(outcome, record.topic, partition)
    return outcome


async def _wait_for_all(room: asyncio.Semaphore, outcome: Outcome, topic: str, partition: int) -> None:
    under_way = UNDER_WAY
    try:
        while under_way:
            await room.acquire()
            under_way -= 1
    except asyncio.CancelledError:
        raise PenstockError(
            f"interrupted: {counted(outcome.appended, 'record')} appended to {topic}, partition {partition};"
            f" {under_way:,} more were under way, and may be appended or not",
            exit_code=exit_codes.INTERRUPTED,
        ) from None


def _describe_failure(outcome: Outcome, topic: str, partition: int) -> PenstockError:
    assert outcome.failure is not None
    if not outcome.appended:
        return outcome.failure
    done = f"{counted(outcome.appended, 'record')} appended to {topic}, partition {partition}"
    known = outcome.first_offset is not None
    offsets = f", offsets {outcome.first_offset} to {outcome.last_offset}" if known else ""
    return PenstockError(f"{outcome.failure.message}; {done} before that{offsets}", outcome.failure.hint)
