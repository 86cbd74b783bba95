"""Topics, groups and repairs of a log as rows for an operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from penstock.core.errors import PenstockError
from penstock.storage.log.base import (
    Consumer,
    Log,
    LogError,
    LogUnavailable,
    TopicNotFound,
    TopicPartition,
    Watermarks,
)

if TYPE_CHECKING:
    from penstock.storage.log.embedded import RepairReport


@runtime_checkable
class ReadFiles(Protocol):
    """A log that is read from its files: it knows more than the port."""

    @property
    def bad(self) -> Mapping[str, LogError]:
        """Topics that are listed but cannot be opened."""
        ...

    def count_records(self, partition: TopicPartition) -> int: ...


def count_records(log: Log, partition: TopicPartition, marks: Watermarks) -> int:
    """Return the number of records; of Kafka, which does not say, the number of offsets."""
    return log.count_records(partition) if isinstance(log, ReadFiles) else marks.end - marks.first


def in_one_line(error: PenstockError) -> str:
    """For a row of a table."""
    return ". ".join(filter(None, (error.message, error.hint))).replace("\n", " ")


async def find_watermarks(consumer: Consumer, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Watermarks]:
    return {partition: await consumer.watermarks(partition) for partition in partitions}


async def sum_up(log: Log, consumer: Consumer, topic: str) -> dict[str, Any] | None:
    """Return a row for a topic, damaged or not; None if it was deleted meanwhile."""
    try:
        count = (await log.admin.describe(topic)).partitions
        marks = await find_watermarks(consumer, [TopicPartition(topic, number) for number in range(count)])
        records = sum(count_records(log, partition, mark) for partition, mark in marks.items())
        return {"topic": topic, "partitions": count, "records": records}
    except TopicNotFound:
        return None
    except LogUnavailable:
        raise  # and so will all others be
    except LogError as error:
        return {"topic": topic, "partitions": None, "records": None, "problem": in_one_line(error)}


async def offsets_of(log: Log, group: str, topic: str | None) -> list[dict[str, Any]]:
    return [
        {
            "group": group,
            "topic": partition.topic,
            "partition": partition.partition,
            "offset": committed.offset,
            "metadata": committed.metadata,
        }
        for partition, committed in sorted((await log.admin.group_offsets(group, [topic] if topic else ())).items())
    ]


async def add_lag(log: Log, rows: list[dict[str, Any]], on_each: Callable[[], None]) -> list[dict[str, Any]]:
    """Add the end and the lag to rows of offsets; rows of topics that are gone are left out. `on_each` is called after
    each partition."""
    existing = set(await log.admin.list())
    ends: dict[TopicPartition, Watermarks | LogError] = {}
    consumer = log.consumer("")
    for partition in sorted({TopicPartition(row["topic"], row["partition"]) for row in rows}):
        try:
            if partition.topic in existing:
                ends[partition] = await consumer.watermarks(partition)
        except TopicNotFound:
            pass
        except LogUnavailable:
            raise
        except LogError as error:
            ends[partition] = error
        on_each()
    await consumer.close()
    kept = []
    for row in rows:
        marks = ends.get(TopicPartition(row["topic"], row["partition"]))
        if isinstance(marks, LogError):
            kept.append({**row, "end": None, "lag": None, "problem": in_one_line(marks)})
        elif marks is not None:
            # deleted records no longer count as lag
            kept.append({**row, "end": marks.end, "lag": max(0, marks.end - max(row["offset"], marks.first))})
    return kept


def unsound(topic: str, error: LogError) -> dict[str, Any]:
    return {"topic": topic, "segments": None, "bytes": None, "records": None, "problem": in_one_line(error)}


def verify_topic(data_dir: str, topic: str) -> dict[str, Any] | None:
    """Compare the checksums of a topic; None if it was deleted meanwhile."""
    verify, files = (import_module(f"penstock.storage.log.embedded.{name}") for name in ("verify", "files"))
    try:
        report = verify.verify_topic(files.log_directory(data_dir) / files.escape_topic(topic))
    except LogError as error:
        return unsound(topic, error)
    except FileNotFoundError:
        return None
    return {
        "topic": topic,
        "segments": report.segments,
        "bytes": report.size,
        "records": report.records,
        "problem": None,
    }


def describe_report(report: RepairReport) -> dict[str, Any]:
    return {
        "topic": report.topic,
        "is_sound": report.is_sound,
        "damaged_bytes": report.damaged_bytes,
        "missing_bytes": report.missing_bytes,
        "dropped_batches": report.dropped_batches,
        "missing_segments": report.missing_segments,
        "described_partitions": report.described_partitions,
        "set_aside": [str(path) for path in report.set_aside],
        "lost": [{"partition": lost.partition, "first": lost.first, "end": lost.end} for lost in report.lost],
    }


def render_report(report: RepairReport) -> str:
    if report.is_sound:
        return f"{report.topic}: nothing to repair"
    lines = []
    if report.described_partitions is not None:
        partitions = f"{report.described_partitions} partition{'s' if report.described_partitions > 1 else ''}"
        lines.append(f"topic.json rebuilt, {partitions}; the topic's properties are not known, it keeps everything")
    if report.missing_segments:
        is_one = report.missing_segments == 1
        lines.append(f"{report.missing_segments:,} {'segment is' if is_one else 'segments are'} missing")
    if report.damaged_bytes or not lines:
        lines.append(f"{report.damaged_bytes:,} damaged bytes set aside")
    lines = [f"{report.topic}: {lines[0]}", *(f"  {line}" for line in lines[1:])]
    lines += [f"  in {path}" for path in report.set_aside]
    if report.dropped_batches:
        lines.append(f"  {report.dropped_batches:,} batches that were there twice dropped")
    if report.missing_bytes:
        lines.append(f"  {report.missing_bytes:,} bytes that were stored are missing")
    for lost in report.lost:
        last = f"to {lost.end - 1}" if lost.end is not None else "and later, how many is not known"
        lines.append(f"  lost: partition {lost.partition}, offsets {lost.first} {last}")
    if not report.lost:
        lines.append("  no record that was stored before is lost")
    return "\n".join(lines)
