"""`replay`: selected history back to an MQTT broker or to a log, in its order, at a speed and below a rate."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any, Protocol

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from penstock_schema.decode import Publish
from penstock_spark import watch
from penstock_spark.errors import CheckpointError, OptionError
from penstock_spark.hadoop import Files
from penstock_spark.jobs.base import JobOutcome, MessageSource, Notify, only_good
from penstock_spark.lock import only_run
from penstock_spark.report import MOMENT, Chart, utc, write_report
from penstock_spark.source import ends_now

STATE = "replay.json"
SAVE_EVERY = 1_000
MARK_SECONDS = 0.5
MOST_MARKS = 400
COLUMNS = (
    "topic,payload,qos,retain,client_id,username,received_at,expires_at,payload_format,content_type,response_topic,"
    "correlation_data,user_property_list,log_topic,log_partition,log_offset,error"
)
# {topic: {partition: next offset}}, and (time in ms, topic, partition, offset) of a message.
Ends = Mapping[str, Mapping[str, int]]
Place = tuple[int, str, int, int]


class Sink(Protocol):
    """Where the messages go; `flush` returns when everything that was sent is safe there, but for what was refused."""

    refused: int

    def send(self, record: Publish) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class ReplayOptions:
    speed: float = 1.0  # times the original pace; 0 = no pace at all
    rate: float = 0.0  # messages a second at most; 0 = no limit
    to_topic: str = "replay/{topic}"  # {topic} stands for the original one
    qos: int | None = None  # None = as it was
    retain: bool = False  # keep the RETAIN flag: off, so that a replay does not overwrite what is retained now
    limit: int = 0
    state: str = ""  # a directory: a run that was stopped goes on after the last message that was safe


class Pacer:
    """When the next message may leave. Time is given, so that a test has its own."""

    def __init__(
        self,
        speed: float,
        rate: float,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._speed, self._rate = speed, rate
        self._now, self._sleep = now, sleep
        self._began: float | None = None
        self._first = 0.0
        self._next = 0.0

    def wait(self, at: float) -> None:
        """Until the message of that original time (in seconds) is due."""
        now = self._now()
        if self._began is None:
            self._began, self._first, self._next = now, at, now
        due = now
        if self._speed:
            due = self._began + max(0.0, at - self._first) / self._speed
        if self._rate:
            due = max(due, self._next)
            self._next = max(self._next, now) + 1 / self._rate
        if due > now:
            self._sleep(due - now)


def in_order(messages: DataFrame) -> DataFrame:
    """As they were received; of the same time by their place in the log."""
    return messages.orderBy("received_at", "log_topic", "log_partition", "log_offset")


def only_after(messages: DataFrame, place: Place | None) -> DataFrame:
    """What comes behind the place in that order."""
    if place is None:
        return messages
    names = ("ms", "log_topic", "log_partition", "log_offset")
    kinds = ("long", "string", "int", "long")
    here = F.struct(F.unix_millis("received_at").alias(names[0]), *names[1:])
    values = zip(names, kinds, place, strict=True)
    there = F.struct(*(F.lit(value).cast(kind).alias(name) for name, kind, value in values))
    return messages.filter(here > there)


def only_within(messages: DataFrame, starts: Ends, ends: Ends) -> DataFrame:
    """Offsets from the starts (those not named from the first) to before the ends (those not named not at all)."""
    offset = F.col("log_offset")
    return messages.filter((offset >= F.coalesce(_of(starts), F.lit(0))) & (offset < F.coalesce(_of(ends), F.lit(0))))


def _of(offsets: Ends) -> Column:
    """The offset that is named for the partition of a message; null when there is none."""
    named = [(f"{topic}/{number}", offset) for topic, places in offsets.items() for number, offset in places.items()]
    if not named:
        return F.lit(None).cast("long")
    known = F.create_map(*(part for key, offset in named for part in (F.lit(key), F.lit(offset).cast("long"))))
    return F.try_element_at(known, F.concat_ws("/", "log_topic", "log_partition"))


def ends_of(messages: DataFrame, known: Ends) -> Ends:
    """Behind the last message of each partition; never before what is known."""
    found: dict[str, dict[str, int]] = {topic: dict(places) for topic, places in known.items()}
    newest = messages.groupBy("log_topic", "log_partition").agg(F.max("log_offset").alias("last"))
    for row in newest.collect():
        places = found.setdefault(row.log_topic, {})
        places[str(row.log_partition)] = max(places.get(str(row.log_partition), 0), row.last + 1)
    return found


@dataclass(frozen=True)
class ReplayProgress:
    """How far runs have got: all that is before `done` was sent, and of what is from there to `ends` all up to `place`.

    What comes later with an earlier time (another node's clock, another partition's delay) is behind `ends`, and so it
    is neither missed nor does it make what was sent be sent again.
    """

    done: Ends = field(default_factory=dict)
    ends: Ends | None = None
    place: Place | None = None

    def rounds(self, messages: DataFrame) -> list[tuple[ReplayProgress, DataFrame]]:
        """What is left of a run that was stopped, and what has come since; each in its order."""
        found = []
        start, place = self.done, self.place
        if self.ends is not None:
            found.append((self, only_after(only_within(messages, self.done, self.ends), place)))
            start, place = self.ends, None
        fresh = ReplayProgress(start, ends_of(messages, start))
        assert fresh.ends is not None
        found.append((fresh, only_after(only_within(messages, start, fresh.ends), place)))
        return found

    def dump(self) -> str:
        return json.dumps({"done": self.done, "ends": self.ends, "place": self.place})


def record_of(row: Row, options: ReplayOptions) -> Publish:
    topic = options.to_topic.replace("{topic}", row.topic)
    return Publish(
        schema_version=1,
        topic=topic,
        payload=bytes(row.payload),
        qos=row.qos if options.qos is None else options.qos,
        retain=row.retain and options.retain,
        client_id=row.client_id,
        username=row.username,
        received_at=_ms(row.received_at),
        expires_at=_ms(row.expires_at) if row.expires_at is not None else 0,
        payload_format=row.payload_format,
        content_type=row.content_type,
        response_topic=row.response_topic,
        correlation_data=None if row.correlation_data is None else bytes(row.correlation_data),
        user_properties=[(pair.name, pair.value) for pair in row.user_property_list],
    )


def _ms(at: datetime) -> int:
    # Spark gives times of this machine's zone without saying so, which is also how Python understands them
    return round(at.timestamp() * 1000)


def describe(messages: DataFrame) -> dict[str, Any]:
    """What would be replayed: for the dry run."""
    row = messages.agg(
        F.count("*").alias("messages"),
        F.coalesce(F.sum(F.octet_length("payload")), F.lit(0)).alias("bytes"),
        F.min("received_at").alias("first"),
        F.max("received_at").alias("last"),
        F.countDistinct("topic").alias("topics"),
        F.countDistinct("client_id").alias("clients"),
    ).collect()[0]
    return dict(row.asDict())


def _load(files: Files) -> ReplayProgress:
    try:
        known = files.read_json(STATE)
        if known is None:
            return ReplayProgress()
        if "ms" in known:  # of an earlier release: only the place
            return ReplayProgress(place=(int(known["ms"]), "", int(known["partition"]), int(known["offset"])))
        place = known["place"]
        return ReplayProgress(
            _offsets(known["done"]),
            None if known["ends"] is None else _offsets(known["ends"]),
            None if place is None else (int(place[0]), str(place[1]), int(place[2]), int(place[3])),
        )
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{files.path(STATE)} is damaged: {error}", "Remove it to replay from the beginning"
        ) from None


def _offsets(known: Mapping[str, Mapping[str, Any]]) -> Ends:
    return {topic: {number: int(offset) for number, offset in places.items()} for topic, places in known.items()}


def _check_place(progress: ReplayProgress, files: Files, source: MessageSource) -> None:
    """A topic that was recreated begins at 0 again: what is in it would be taken for what was sent."""
    if progress == ReplayProgress():
        return
    ends = ends_now(source.parse())
    if ends is None:
        return
    # The state has them in the order of Spark's rows, which is any.
    for topic, places in sorted((progress.ends or progress.done).items()):
        for number, offset in sorted(places.items(), key=lambda place: int(place[0])):
            end = ends[topic].get(number, 0) if topic in ends else offset
            if offset > end:
                raise CheckpointError(
                    f"{files.path(STATE)} says that {topic}[{number}] was read up to offset {offset}, but it ends at"
                    f" {end}: the topic was recreated",
                    "Take another --state directory, or remove the file, to replay it from the beginning",
                )


def check(options: ReplayOptions) -> None:
    if options.speed < 0 or options.rate < 0:
        raise OptionError("--speed and --rate are not negative")
    target = options.to_topic.replace("{topic}", "t")
    if not target or "+" in target or "#" in target or "\0" in target:
        raise OptionError(f"--to-topic {options.to_topic!r} is not a topic to publish to")


def run(
    spark: SparkSession,
    source: MessageSource,
    make_sink: Callable[[], Sink] | None,
    options: ReplayOptions | None = None,
    *,
    notify: Notify | None = None,
    pacer: Pacer | None = None,
) -> JobOutcome:
    """Replays, or with no sink says what would be replayed."""
    options = options or ReplayOptions()
    check(options)
    files = Files(spark, options.state) if options.state else None
    with only_run(files) if files is not None else nullcontext():
        pacer = pacer or Pacer(options.speed, options.rate)
        outcome = _run(spark, source, make_sink, options, files=files, notify=notify, pacer=pacer)
        watch.say(spark, None)
        return outcome


def _run(
    spark: SparkSession,
    source: MessageSource,
    make_sink: Callable[[], Sink] | None,
    options: ReplayOptions,
    *,
    files: Files | None,
    notify: Notify | None,
    pacer: Pacer,
) -> JobOutcome:
    started = time.monotonic()
    messages = only_good(source.read(spark, stream=False, columns=COLUMNS))
    watch.say(spark, "counting what is to be sent")
    rounds = [(ReplayProgress(), messages)]
    if files is not None:
        known = _load(files)
        _check_place(known, files, source)
        rounds = known.rounds(messages)
    plan = describe(_limited(reduce(DataFrame.unionByName, (rows for _, rows in rounds)), options.limit))
    outcome = JobOutcome("replay", options.to_topic, facts=_plan_facts(plan, options, is_dry=make_sink is None))
    if make_sink is not None and plan["messages"]:
        watch.say(spark, "putting the messages in order")
        replay = _Replay(make_sink(), options, files, notify, pacer)
        sent = replay.send(rounds, int(plan["messages"]))
        outcome.failed = replay.sink.refused
        outcome.messages = outcome.facts["messages"] = sent - outcome.failed
        outcome.facts["messages a second"] = round(outcome.messages / max(0.001, time.monotonic() - started))
        if files is not None:
            outcome.report = write_report(files, "Replay", outcome.facts, [replay.chart()])
    outcome.seconds = time.monotonic() - started
    return outcome


def _plan_facts(plan: dict[str, Any], options: ReplayOptions, *, is_dry: bool) -> dict[str, Any]:
    facts = {name: plan[name] for name in ("messages", "bytes", "topics", "clients")}
    if not plan["messages"]:
        return facts
    first, last = utc(plan["first"]), utc(plan["last"])
    facts |= {"first": f"{first:{MOMENT}}", "last": f"{last:{MOMENT}}"}
    if is_dry:
        seconds = (last - first).total_seconds() / options.speed if options.speed else 0.0
        if options.rate:
            seconds = max(seconds, plan["messages"] / options.rate)
        facts["would take seconds"] = round(seconds, 1)
    return facts


@dataclass
class _Replay:
    """One run of sending."""

    sink: Sink
    options: ReplayOptions
    files: Files | None
    notify: Notify | None
    pacer: Pacer
    count: int = 0
    marks: list[tuple[datetime, float]] = field(default_factory=list)  # when how many had been sent
    newest: tuple[datetime, float] = field(default_factory=lambda: (datetime.now(UTC), 0.0))

    def send(self, rounds: Sequence[tuple[ReplayProgress, DataFrame]], total: int) -> int:
        try:
            for progress, messages in rounds:
                self._send_round(progress, messages, total)
                if self._is_enough:
                    break
                self._save(ReplayProgress(progress.ends or {}))
        finally:
            self.sink.close()
        return self.count

    @property
    def _is_enough(self) -> bool:
        return 0 < self.options.limit <= self.count

    def _send_round(self, progress: ReplayProgress, messages: DataFrame, total: int) -> None:
        last: Row | None = None
        left = self.options.limit - self.count if self.options.limit else 0
        try:
            for row in _rows(_limited(messages, left)):
                record = record_of(row, self.options)
                self.pacer.wait(record.received_at / 1000)
                self.sink.send(record)
                last = row
                self.count += 1
                self._mark()
                if self.notify is not None:
                    self.notify("messages", self.count, total)
                if self.count % SAVE_EVERY == 0:
                    self._save(_at(progress, row))
        finally:
            self._save(_at(progress, last) if last is not None else progress)

    def _mark(self) -> None:
        now, count = datetime.now(UTC), float(self.count)
        if not self.marks or now - self.marks[-1][0] >= timedelta(seconds=MARK_SECONDS):
            self.marks.append((now, count))
            if len(self.marks) > MOST_MARKS:
                del self.marks[1::2]
        self.newest = (now, count)

    def chart(self) -> Chart:
        return Chart("Messages sent", "lines", series={"sent": [*self.marks, self.newest]})

    def _save(self, progress: ReplayProgress) -> None:
        self.sink.flush()
        if self.files is not None:
            self.files.write_text(STATE, progress.dump())


def _at(progress: ReplayProgress, row: Row) -> ReplayProgress:
    """The same round, up to this message."""
    return replace(progress, place=(_ms(row.received_at), row.log_topic, row.log_partition, row.log_offset))


def _limited(messages: DataFrame, limit: int) -> DataFrame:
    """The first ones; all of them when the limit is 0."""
    return in_order(messages).limit(limit) if limit else messages


def _rows(messages: DataFrame) -> Iterator[Row]:
    return in_order(messages).toLocalIterator(prefetchPartitions=True)
