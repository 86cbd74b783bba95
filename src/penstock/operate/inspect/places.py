"""Places in a log as a person writes them: an offset, `begin`, `end`, a time, N before the end, a time ago."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from penstock.core.errors import UsageError
from penstock.storage.log.base import Consumer, TopicPartition, Watermarks

FORMS = "an offset, begin, end, -N (N before the end), 2026-11-16T12:30 or @SECONDS (a time), 10m (ago: s, m, h or d)"
LONGEST_SHOWN = 60
MOST_NAMED = 5
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_AGO = re.compile(r"(\d+)([smhd])", re.ASCII)
_EPOCH = re.compile(r"@(\d+(?:\.\d+)?)", re.ASCII)
# Of the years that can be written, 1 to 9999.
_EARLIEST_MS, _LATEST_MS = -62_135_596_800_000, 253_402_300_799_999


@dataclass(frozen=True, slots=True)
class Place:
    """One of the three: an offset (negative: counted from the end), the end, or a time in ms."""

    offset: int | None = None
    time_ms: int | None = None
    is_end: bool = False


BEGIN = Place(offset=0)
END = Place(is_end=True)


def parse_place(text: str, flag: str) -> Place:
    """Raises UsageError that says what can be written."""
    if text in {"begin", "end"}:
        return BEGIN if text == "begin" else END
    try:
        if re.fullmatch(r"-?\d+", text, re.ASCII):
            return Place(offset=int(text))
        time_ms = _parse_time(text)
    except (ValueError, OverflowError):
        raise UsageError(f"{flag} {_shorten(text)} is not a place in a log", f"Write {FORMS}.") from None
    if not _EARLIEST_MS <= time_ms <= _LATEST_MS:
        raise UsageError(f"{flag} {_shorten(text)} is not a time between the years 1 and 9999")
    return Place(time_ms=max(0, time_ms))  # before 1970 is before every record


def _parse_time(text: str) -> int:
    if ago := _AGO.fullmatch(text):
        return int((time.time() - int(ago[1]) * _SECONDS[ago[2]]) * 1000)
    if epoch := _EPOCH.fullmatch(text):
        return int(float(epoch[1]) * 1000)
    # a time without a zone is the time of this machine's clock on the wall
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def _shorten(text: str) -> str:
    return repr(text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…")


def check_offset(place: Place, flag: str, marks: Mapping[TopicPartition, Watermarks]) -> None:
    """Raises UsageError for an offset that a partition does not reach: most likely another one was meant."""
    if place.offset is None:
        return
    short = [(partition.partition, mark.end) for partition, mark in marks.items() if place.offset > mark.end]
    if short:
        ends = ", ".join(f"partition {number} ends at {end}" for number, end in short[:MOST_NAMED])
        more = f" and {len(short) - MOST_NAMED} more before it" if len(short) > MOST_NAMED else ""
        raise UsageError(
            f"{flag} {place.offset}: {ends}{more}",
            f"Choose partitions with -p, or write {flag} end for everything. Nothing was deleted.",
        )


def name_partitions(numbers: Collection[int]) -> str:
    """`partition 7`, `partitions 1, 2`."""
    named = sorted(set(numbers))
    return f"partition{'s' if len(named) > 1 else ''} {', '.join(map(str, named))}"


def describe_ends(topic: str, marks: Mapping[TopicPartition, Watermarks]) -> str:
    """Describe in one line where a topic ends, for a reader that asked for a later offset."""
    ends = {partition.partition: mark.end for partition, mark in marks.items()}
    if len(ends) == 1:
        [(number, end)] = ends.items()
        return f"{topic} ends at {end} in partition {number}"
    furthest = max(ends, key=lambda number: ends[number])
    return f"the partitions of {topic} end at {ends[furthest]} (partition {furthest}) or before"


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
