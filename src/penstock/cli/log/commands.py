"""What the `log` commands do, each as a coroutine that gives the exit code."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from penstock._ext.record.envelope import Envelope
from penstock._ext.record.segment import Record
from penstock.cli.log.access import (
    check_exists,
    check_unlocked,
    find_partitions,
    list_names,
    name_some,
    note_emptiness,
    open_log,
)
from penstock.cli.log.append import NewRecord, append_all, read_values
from penstock.cli.progress import Progress
from penstock.cli.tables import ask, print_table
from penstock.core import exit_codes
from penstock.core.errors import PenstockError, UsageError
from penstock.core.text import counted
from penstock.operate.inspect.decoders import Decoder, Fields, describe_own, find_decoder, render_own
from penstock.operate.inspect.places import Place, check_offset, describe_ends, find_span, name_partitions
from penstock.operate.inspect.reading import read_on, read_span
from penstock.operate.inspect.records import Decode, decode_publish, describe, render, to_json
from penstock.operate.inspect.rows import (
    ReadFiles,
    add_lag,
    count_records,
    describe_report,
    find_watermarks,
    in_one_line,
    offsets_of,
    render_report,
    sum_up,
    unsound,
    verify_topic,
)
from penstock.settings import Settings
from penstock.settings.providers import log_capabilities
from penstock.storage.log.base import (
    Log,
    LogError,
    TopicNotFound,
    TopicPartition,
    Watermarks,
)
from penstock_schema import topic_filter

if TYPE_CHECKING:
    pass

LOOK_SECONDS = 0.2
VERIFIED = ("topic", "segments", "bytes", "records", "problem")
R = TypeVar("R")


@dataclass(frozen=True)
class ReadOptions:
    """What `read` was asked for."""

    topic: str
    partitions: list[int] | None
    start: Place
    stop: Place
    count: int | None
    follow: bool
    decode: Decode
    topic_filter: str | None
    as_json: bool


def _print_rows(columns: tuple[str, ...], rows: Sequence[Mapping[str, Any]]) -> None:
    """With the problems, when there are any."""
    if _has_problems(rows):
        columns += ("problem",)
    print_table(columns, [[row.get(column) for column in columns] for row in rows])


def _has_problems(rows: Sequence[Mapping[str, Any]]) -> bool:
    return any(row.get("problem") is not None for row in rows)


def _exit_code(rows: Sequence[Mapping[str, Any]]) -> int:
    return exit_codes.FAILURE if _has_problems(rows) else exit_codes.OK


async def list_topics(settings: Settings, *, as_json: bool) -> int:
    found = []
    async with open_log(settings) as log:
        consumer = log.consumer("")
        with Progress("reading topics", unit="topics") as progress:
            for name in await log.admin.list():
                row = await sum_up(log, consumer, name)
                if row is not None:
                    found.append(row)
                progress.step()
        await consumer.close()
    if not found:
        note_emptiness(settings)
    if as_json:
        print(to_json(found))
    elif found:
        _print_rows(("topic", "partitions", "records"), found)
    return _exit_code(found)


async def show_topic(settings: Settings, topic: str, *, as_json: bool) -> int:
    async with open_log(settings) as log:
        partitions = await find_partitions(log, settings, topic, None)
        properties = dict((await log.admin.describe(topic)).properties)
        consumer = log.consumer("")
        marks = await find_watermarks(consumer, partitions)
        await consumer.close()
        rows = [(one.partition, mark.first, mark.end, count_records(log, one, mark)) for one, mark in marks.items()]
        # Kafka does not tell how many records compaction has left
        is_known = isinstance(log, ReadFiles) or "compact" not in properties.get("cleanup.policy", "")
    headings = ("partition", "first", "end", "records")
    if as_json:
        described = {"topic": topic, "provider": settings.log.provider, "properties": properties}
        print(to_json({**described, "partitions": [dict(zip(headings, row, strict=True)) for row in rows]}))
        return exit_codes.OK
    total = counted(sum(row[3] for row in rows), "record")
    print(f"topic {topic} ({settings.log.provider}), {total if is_known else f'at most {total}'}")
    for name, value in sorted(properties.items()):
        print(f"  {name} = {value}")
    print_table(headings, rows)
    return exit_codes.OK


async def read_topic(settings: Settings, options: ReadOptions) -> int:
    async with open_log(settings) as log:
        partitions = await find_partitions(log, settings, options.topic, options.partitions)
        consumer = log.consumer("")
        try:
            consumer.assign(partitions)
            spans = await find_span(consumer, partitions, options.start, options.stop)
            total = sum(stop - start for start, stop in spans.values())
            left = options.count
            own = find_decoder(settings, options.topic) if options.decode == "auto" else None
            if not total and not options.follow:
                _note_ends(options, await find_watermarks(consumer, partitions))
            with Progress(f"reading {options.topic}", total) as progress:
                left = await _print_records(read_span(consumer, spans), options, own, progress, left)
            if options.follow and left != 0:
                # nobody waits for the end of this one, so there is no bar
                await _print_records(read_on(consumer, spans), options, own, None, left, flush=True)
        finally:
            await consumer.close()
    return exit_codes.OK


def _note_ends(options: ReadOptions, marks: Mapping[TopicPartition, Watermarks]) -> None:
    """For an offset behind the last record, which nobody asks for who knows: nothing would be printed."""
    offset = options.start.offset
    if offset and all(offset > mark.end for mark in marks.values()):
        print(f"penstock: nothing at --from {offset}: {describe_ends(options.topic, marks)}", file=sys.stderr)


async def _print_records(
    records: AsyncIterator[tuple[TopicPartition, Record]],
    options: ReadOptions,
    own: Decoder | None,
    progress: Progress | None,
    left: int | None,
    *,
    flush: bool = False,
) -> int | None:
    """Prints what is wanted; how many may follow, None when there is no limit."""
    async for partition, record in records:
        if progress is not None:
            progress.advance()
        fields = None if own is None else own(record)
        publish = decode_publish(record.value, options.decode) if fields is None else None
        if options.topic_filter is not None and (
            publish is None or not topic_filter.matches(options.topic_filter, publish.topic)
        ):
            continue
        sys.stdout.write(f"{_line_of(partition.partition, record, publish, fields, as_json=options.as_json)}\n")
        if flush:
            sys.stdout.flush()
        if left is not None:
            left -= 1
            if left == 0:
                break
    sys.stdout.flush()
    return left


def _line_of(partition: int, record: Record, publish: Envelope | None, fields: Fields | None, *, as_json: bool) -> str:
    if fields is not None:
        return to_json(describe_own(partition, record, fields)) if as_json else render_own(partition, record, fields)
    return to_json(describe(partition, record, publish)) if as_json else render(partition, record, publish)


async def append_records(
    settings: Settings,
    record: NewRecord,
    message: str | None,
    *,
    from_lines: bool,
    create: int | None,
    as_json: bool,
) -> int:
    if create is not None and record.partition is not None and record.partition >= create:
        raise UsageError(f"-p {record.partition}: with --create {create} there are the partitions 0 to {create - 1}")
    async with open_log(settings, to_write=True) as log:
        if create is not None:
            await _create_topic(log, record.topic, create)
        wanted = None if record.partition is None else [record.partition]
        advice = "Create it with --create PARTITIONS, as in --create 1."
        await find_partitions(log, settings, record.topic, wanted, advice)
        count = (await log.admin.describe(record.topic)).partitions
        partition = record.choose_partition(count, settings.ingest.hash_function)
        outcome = await append_all(log, record, partition, read_values(message, from_lines=from_lines))
    told = {
        "topic": record.topic,
        "partition": partition,
        "appended": outcome.appended,
        "first_offset": outcome.first_offset,
        "last_offset": outcome.last_offset,
        "interrupted": outcome.is_interrupted,
    }
    if as_json:
        print(to_json(told))
    else:
        offsets = (
            f", offsets {outcome.first_offset} to {outcome.last_offset}" if outcome.first_offset is not None else ""
        )
        end = "; interrupted before the end of the lines" if outcome.is_interrupted else ""
        print(f"{outcome.appended:,} appended to {record.topic}, partition {partition}{offsets}{end}")
    return exit_codes.OK


async def _create_topic(log: Log, topic: str, partitions: int) -> None:
    """Unless it is there already, as it is wanted."""
    try:
        there = (await log.admin.describe(topic)).partitions
    except TopicNotFound:
        await log.admin.create(topic, partitions)
        return
    if there != partitions:
        raise UsageError(
            f"--create {partitions}: topic {topic!r} is there already, with {counted(there, 'partition')}",
            "Leave --create out to append to it. Nothing was appended.",
        )


async def truncate_topic(
    settings: Settings, topic: str, wanted: list[int] | None, place: Place, *, is_sure: bool, as_json: bool
) -> int:
    check_exists(settings)
    async with open_log(settings, to_write=True) as log:
        partitions = await find_partitions(log, settings, topic, wanted)
        consumer = log.consumer("")
        consumer.assign(partitions)
        marks = await find_watermarks(consumer, partitions)
        check_offset(place, "--before", marks)
        spans = await find_span(consumer, partitions, place, place)
        await consumer.close()
        rows = [(one.partition, marks[one].first, spans[one][0], marks[one].end) for one in partitions]
        deleted = sum(new - old for _, old, new, _ in rows)
        where = f"{topic}, {name_partitions(wanted)}" if wanted else topic
        if deleted and not is_sure:
            of_all = f"{deleted:,} of {sum(end - old for _, old, _, end in rows):,} records"
            question = f"delete {of_all} of {where}?"
            await asyncio.to_thread(ask, question, "nothing was deleted")
        with Progress(f"truncating {topic}", len(rows), "partitions") as progress:
            for partition, (_, old, new, _) in zip(partitions, rows, strict=True):
                if new > old:
                    await log.admin.truncate(partition, new)
                progress.step()
    if as_json:
        first = {str(number): new for number, _, new, _ in rows}
        print(to_json({"topic": topic, "deleted": deleted, "first_offsets": first}))
    else:
        print(f"{counted(deleted, 'record')} deleted from {where}")
        print_table(("partition", "first before", "first now", "end"), rows)
    return exit_codes.OK


async def show_offsets(
    settings: Settings, group: str | None, topic: str | None, *, with_lag: bool, as_json: bool
) -> int:
    async with open_log(settings) as log:
        known = await log.admin.groups()
        if not known and not await log.admin.list():
            note_emptiness(settings)
        if group is not None and group not in known:
            hint = name_some(known) if known else "No group has committed anything yet."
            raise PenstockError(f"there is no group {group!r}", hint)
        rows = []
        with Progress("reading offsets", unit="groups") as progress:
            for name in [group] if group is not None else known:
                rows += await offsets_of(log, name, topic)
                progress.step()
        if with_lag:
            with Progress("reading ends", unit="partitions") as progress:
                rows = await add_lag(log, rows, progress.step)
    shown = [{name: value for name, value in row.items() if not with_lag or name != "metadata"} for row in rows]
    if as_json:
        print(to_json(shown))
        return _exit_code(shown)
    _print_rows(("group", "topic", "partition", "offset", *(("end", "lag") if with_lag else ("metadata",))), shown)
    if with_lag and len(shown) > 1:
        print(f"{counted(sum(row['lag'] or 0 for row in shown), 'record')} in all")
    return _exit_code(shown)


async def repair_topics(settings: Settings, topic: str | None, *, as_json: bool) -> int:
    if not log_capabilities(settings).has_files:
        raise PenstockError(
            f"log.provider = {settings.log.provider}: only the files of an embedded log can be repaired here",
            "Kafka repairs its own files; see the documentation of its brokers.",
        )
    data_dir = settings.server.data_dir
    check_exists(settings)
    check_unlocked(data_dir)
    names, bad = await list_names(settings)
    reports: list[dict[str, Any]] = []
    with Progress("repairing", len(names) if topic is None else 1, "topics") as progress:
        for name in names if topic is None else [topic]:
            repair = import_module("penstock.storage.log.embedded").repair_topic
            try:
                report = await _in_thread(progress, repair, data_dir, name)
                reports.append(describe_report(report))
                text = render_report(report)
            except LogError as error:
                error = bad.get(name, error)
                if topic is not None:
                    raise error from None
                if isinstance(error, TopicNotFound):
                    continue  # deleted meanwhile
                reports.append({"topic": name, "is_sound": False, "problem": in_one_line(error)})
                text = f"{name}: not repaired: {in_one_line(error)}"
            if not as_json:
                print(text)
            progress.advance()
    if as_json:
        print(to_json(reports))
    return _exit_code(reports)


async def _in_thread(progress: Progress, function: Callable[..., R], *arguments: object) -> R:
    """So that the bar moves while a large topic is read."""
    work = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    while not (await asyncio.wait({work}, timeout=LOOK_SECONDS))[0]:
        progress.look()
    return work.result()


async def verify_topics(settings: Settings, topic: str | None, *, as_json: bool) -> int:
    if not log_capabilities(settings).has_files:
        raise PenstockError(
            f"log.provider = {settings.log.provider}: only the files of an embedded log can be verified here",
            "Kafka compares its own checksums when records are read.",
        )
    check_exists(settings)
    names, bad = await list_names(settings)
    results: list[dict[str, Any]] = []
    with Progress("verifying", len(names) if topic is None else 1, "topics") as progress:
        for name in names if topic is None else [topic]:
            if name in bad:
                results.append(unsound(name, bad[name]))
            else:
                result = await _in_thread(progress, verify_topic, settings.server.data_dir, name)
                if result is None and topic is not None:
                    raise PenstockError(f"there is no topic {name!r} in {settings.server.data_dir}")
                results += [] if result is None else [result]
            progress.advance()
    if as_json:
        print(to_json(results))
    else:
        print_table(VERIFIED, [[result[column] for column in VERIFIED] for result in results])
    return _exit_code(results)
