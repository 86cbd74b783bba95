"""Places in a log as a person writes them: an offset, `begin`, `end`, a time, so many before the end, so long ago."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from penstock.core.errors import UsageError
from penstock.logs.base import Consumer, TopicPartition, Watermarks

FORMS = "an offset, begin, end, -N (N before the end), 2026-11-16T12:30 or @SECONDS (a time), 10m (ago: s, m, h or d)"
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_AGO = re.compile(r"(\d+)([smhd])")
_EPOCH = re.compile(r"@(\d+(?:\.\d+)?)")


@dataclass(frozen=True, slots=True)
class Place:
    """One of the three: an offset (negative: so many before the end), the end, or a time in ms."""

    offset: int | None = None
    time_ms: int | None = None
    is_end: bool = False


BEGIN = Place(offset=0)
END = Place(is_end=True)


def parse_place(text: str, flag: str) -> Place:
    """Raises UsageError that says what can be written."""
    if text in {"begin", "end"}:
        return BEGIN if text == "begin" else END
    if re.fullmatch(r"-?\d+", text):
        return Place(offset=int(text))
    if ago := _AGO.fullmatch(text):
        return Place(time_ms=int((time.time() - int(ago[1]) * _SECONDS[ago[2]]) * 1000))
    if epoch := _EPOCH.fullmatch(text):
        return Place(time_ms=int(float(epoch[1]) * 1000))
    try:
        # a time without a zone is the time of this machine's clock on the wall
        return Place(time_ms=int(datetime.fromisoformat(text).timestamp() * 1000))
    except (ValueError, OverflowError):
        raise UsageError(f"{flag} {text!r} is not a place in a log", f"Write {FORMS}.") from None


async def find_offset(consumer: Consumer, partition: TopicPartition, place: Place, marks: Watermarks) -> int:
    """The place as an offset between the first and the end. The partition must be assigned to the consumer."""
    if place.is_end:
        return marks.end
    if place.time_ms is not None:
        found = await consumer.seek_to_time(partition, place.time_ms)
    else:
        found = place.offset or 0
        found = found if found >= 0 else marks.end + found
    return min(max(found, marks.first), marks.end)


async def find_span(
    consumer: Consumer, partitions: Sequence[TopicPartition], start: Place, stop: Place
) -> Mapping[TopicPartition, tuple[int, int]]:
    """For each partition where reading begins and the offset before which it ends."""
    spans = {}
    for partition in partitions:
        marks = await consumer.watermarks(partition)
        first = await find_offset(consumer, partition, start, marks)
        spans[partition] = first, max(first, await find_offset(consumer, partition, stop, marks))
    return spans
