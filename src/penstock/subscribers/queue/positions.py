"""Where reading a queue begins: `x-stream-offset` of a subscription, and what an operator writes.

first                   the oldest message kept (also `begin`)
last, next, end         only what comes from now on
7, offset=7             the message with this offset
-7                      so many before the end
timestamp=1706745600000 the first message at or after this time, in ms; a number of seconds is seen as such
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from penstock.storage.log.base import EARLIEST, Log, TopicPartition

FORMS = "first, last, next, an offset, offset=N or timestamp=MILLISECONDS"
# Times in seconds stay below it until the year 5138; times in milliseconds are above it since 1973.
LEAST_MILLISECONDS = 100_000_000_000

_FIRST = frozenset(("first", "begin"))
_END = frozenset(("last", "next", "end"))
_NUMBER = re.compile(r"(?:(offset|timestamp)=)?(-?[0-9]{1,18})", re.ASCII)


class Position(NamedTuple):
    """`value` is an offset (negative: so many before the end) or a time in ms."""

    kind: Literal["first", "end", "offset", "time"]
    value: int = 0


FIRST = Position("first")
END = Position("end")


def parse_position(text: str) -> Position:
    """Raises ValueError that says what can be written."""
    plain = text.strip().lower()
    if plain in _FIRST:
        return FIRST
    if plain in _END:
        return END
    found = _NUMBER.fullmatch(plain)
    if found is None or (found[1] == "timestamp" and found[2].startswith("-")):
        raise ValueError(f"{text[:100]!r} is no position in a queue: use {FORMS}")
    number = int(found[2])
    if found[1] == "timestamp":
        return Position("time", number if number >= LEAST_MILLISECONDS else number * 1000)
    return Position("offset", number)


async def resolve(log: Log, topic: str, position: Position, head: int, tail: int) -> int:
    """The position as an offset between the first message kept and the end."""
    if position.kind == "first":
        return head
    if position.kind == "end":
        return tail
    offset = position.value
    if position.kind == "time":
        offset = await _find_time(log, TopicPartition(topic, 0), position.value)
    elif offset < 0:
        offset += tail
    return min(max(offset, head), tail)


async def _find_time(log: Log, partition: TopicPartition, time_ms: int) -> int:
    consumer = log.consumer(group="")
    try:
        await consumer.add({partition: EARLIEST})
        return await consumer.seek_to_time(partition, time_ms)
    finally:
        await consumer.close()
