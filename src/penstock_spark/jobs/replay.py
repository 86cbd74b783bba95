"""`replay`: selected history back to an MQTT broker or to a log, in its order, at a speed and below a rate."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from penstock_schema.decode import Publish
from penstock_spark import watch
from penstock_spark.errors import CheckpointError, OptionError
from penstock_spark.hadoop import Files
from penstock_spark.jobs.base import Notify, Outcome, Source, only_good
from penstock_spark.lock import only_run
from penstock_spark.report import MOMENT, Chart, utc, write_report

STATE = "replay.json"
SAVE_EVERY = 1_000
MARK_SECONDS = 0.5
MOST_MARKS = 400
COLUMNS = (
    "topic,payload,qos,retain,client_id,username,received_at,expires_at,payload_format,content_type,response_topic,"
    "correlation_data,user_property_list,log_partition,log_offset,error"
)


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
    """As they were received; of the same time by partition and offset."""
    return messages.orderBy("received_at", "log_partition", "log_offset")


def only_after(messages: DataFrame, place: tuple[int, int, int] | None) -> DataFrame:
    """What comes behind (time in ms, partition, offset) in that order."""
    if place is None:
        return messages
    at = F.unix_millis("received_at")
    ms, partition, offset = place
    later = (F.col("log_partition") > partition) | (
        (F.col("log_partition") == partition) & (F.col("log_offset") > offset)
    )
    return messages.filter((at > ms) | ((at == ms) & later))


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


def _load_place(files: Files | None) -> tuple[int, int, int] | None:
    if files is None:
        return None
    try:
        known = files.read_json(STATE)
        return None if known is None else (int(known["ms"]), int(known["partition"]), int(known["offset"]))
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{files.path(STATE)} is damaged: {error}", "Remove it to replay from the beginning"
        ) from None


def check(options: ReplayOptions) -> None:
    if options.speed < 0 or options.rate < 0:
        raise OptionError("--speed and --rate are not negative")
    target = options.to_topic.replace("{topic}", "t")
    if not target or "+" in target or "#" in target or "\0" in target:
        raise OptionError(f"--to-topic {options.to_topic!r} is not a topic to publish to")


def run(
    spark: SparkSession,
    source: Source,
    make_sink: Callable[[], Sink] | None,
    options: ReplayOptions | None = None,
    *,
    notify: Notify | None = None,
    pacer: Pacer | None = None,
) -> Outcome:
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
    source: Source,
    make_sink: Callable[[], Sink] | None,
    options: ReplayOptions,
    *,
    files: Files | None,
    notify: Notify | None,
    pacer: Pacer,
) -> Outcome:
    started = time.monotonic()
    place = _load_place(files)
    messages = only_after(only_good(source.read(spark, stream=False, columns=COLUMNS)), place)
    if options.limit:
        messages = in_order(messages).limit(options.limit)
    watch.say(spark, "counting what is to be sent")
    plan = describe(messages)
    outcome = Outcome("replay", options.to_topic, facts=_plan_facts(plan, options, is_dry=make_sink is None))
    if make_sink is not None and plan["messages"]:
        watch.say(spark, "putting the messages in order")
        replay = _Replay(make_sink(), options, files, notify, pacer)
        sent = replay.send(messages, int(plan["messages"]))
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
    marks: list[tuple[datetime, float]] = field(default_factory=list)  # when how many had been sent
    newest: tuple[datetime, float] = field(default_factory=lambda: (datetime.now(UTC), 0.0))

    def send(self, messages: DataFrame, total: int) -> int:
        count = 0
        last: Row | None = None
        try:
            for row in _rows(messages):
                record = record_of(row, self.options)
                self.pacer.wait(record.received_at / 1000)
                self.sink.send(record)
                count, last = count + 1, row
                self._mark(count)
                if self.notify is not None:
                    self.notify("messages", count, total)
                if count % SAVE_EVERY == 0:
                    self._save(last)
        finally:
            try:
                self._save(last)
            finally:
                self.sink.close()
        return count

    def _mark(self, count: int) -> None:
        now = datetime.now(UTC)
        if not self.marks or now - self.marks[-1][0] >= timedelta(seconds=MARK_SECONDS):
            self.marks.append((now, float(count)))
            if len(self.marks) > MOST_MARKS:
                del self.marks[1::2]
        self.newest = (now, float(count))

    def chart(self) -> Chart:
        return Chart("Messages sent", "lines", series={"sent": [*self.marks, self.newest]})

    def _save(self, row: Row | None) -> None:
        self.sink.flush()
        if self.files is not None and row is not None:
            place = {"ms": _ms(row.received_at), "partition": row.log_partition, "offset": row.log_offset}
            self.files.write_text(STATE, json.dumps(place))


def _rows(messages: DataFrame) -> Iterator[Row]:
    return in_order(messages).toLocalIterator(prefetchPartitions=True)
