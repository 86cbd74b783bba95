"""Reads topics of Kafka for the data source, with confluent-kafka: for small reads and where Spark's connector is not.

`read_messages` uses Spark's own connector instead, which scales better.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped] # it has no types of its own
from pyspark.sql.datasource import InputPartition

from penstock_schema.decode import Publish
from penstock_schema.encode import encode
from penstock_spark import values
from penstock_spark.arrow import batch_of_rows, load_decoder, take_batch
from penstock_spark.embedded import Lost
from penstock_spark.errors import BadRecord, DataLost, OptionError, PenstockSparkError, TopicMissing
from penstock_spark.options import EARLIEST, LATEST, Bound, SourceOptions
from penstock_spark.topic_filter import Matcher
from penstock_spark.values import Record

Offsets = Mapping[str, Mapping[str, int]]
SECONDS = 30.0
QUIET_SECONDS = 30.0


@dataclass
class KafkaTask(InputPartition):
    topic: str
    partition: int
    start: int
    end: int


def _library() -> Any:
    try:
        return import_module("confluent_kafka")
    except ImportError:
        raise OptionError(
            "the penstock source needs confluent-kafka to read Kafka itself",
            "pip install confluent-kafka, or use penstock_spark.read_messages, which reads by Spark's own connector",
        ) from None


def open_consumer(options: SourceOptions) -> Any:
    settings = {
        "bootstrap.servers": options.bootstrap,
        "group.id": "penstock-spark",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": False,
        "log_level": 2,  # what goes wrong is raised, not printed a hundred times
        **options.client,
    }
    return _library().Consumer(settings)


class KafkaTopics:
    """What there is of the topics, asked of Kafka."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._library = _library()
        self._consumer = open_consumer(options)

    def partitions(self) -> dict[str, int]:
        """The topics that are wanted, with their number of partitions."""
        try:
            known = self._consumer.list_topics(timeout=SECONDS).topics
        except self._library.KafkaException as error:
            raise PenstockSparkError(f"Kafka at {self._options.bootstrap} does not answer: {error}") from None
        found = {name: len(topic.partitions) for name, topic in known.items() if self._options.wants_topic(name)}
        missing = [] if self._options.topic_pattern is not None else sorted(set(self._options.topics) - found.keys())
        if missing or not found:
            named = ", ".join(missing) or self._options.topic_pattern
            there = ", ".join(sorted(name for name in known if not name.startswith("__"))) or "none at all"
            raise TopicMissing(f"Kafka at {self._options.bootstrap} has no topic {named}", f"Topics there: {there}")
        return found

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        place = self._library.TopicPartition(topic, partition)
        first, end = self._consumer.get_watermark_offsets(place, timeout=SECONDS)
        return int(first), int(end)

    def resolve(self, topic: str, partitions: int, bound: Bound) -> list[int]:
        marks = [self.watermarks(topic, number) for number in range(partitions)]
        if bound.time_ms is not None:
            places = [self._library.TopicPartition(topic, number, bound.time_ms) for number in range(partitions)]
            found = self._consumer.offsets_for_times(places, timeout=SECONDS)
            return [one.offset if one.offset >= 0 else end for one, (_, end) in zip(found, marks, strict=True)]
        wanted = [bound.of(topic, number) for number in range(partitions)]
        return [
            first if offset == EARLIEST else end if offset == LATEST else offset
            for offset, (first, end) in zip(wanted, marks, strict=True)
        ]

    def close(self) -> None:
        self._consumer.close()


def gone_before(options: SourceOptions, start: Offsets, end: Offsets) -> list[tuple[str, Lost]]:
    """What of the offsets from the start to the end Kafka has not any more. Spark's connector passes over it without a
    word. Nothing where nobody can be asked: without confluent-kafka, or with settings that only Java understands."""
    if options.client:
        return []
    try:
        topics = KafkaTopics(options)
    except OptionError:
        return []
    try:
        known = topics.partitions()
        found = []
        for topic, places in start.items():
            for number, place in places.items():
                stop = end.get(topic, {}).get(number, place)
                is_there = int(number) < known.get(topic, 0)
                if not is_there or not 0 <= place < stop:
                    continue  # EARLIEST and LATEST are below 0
                first = min(topics.watermarks(topic, int(number))[0], stop)
                if place < first:
                    found.append((topic, Lost(int(number), place, first, "were removed by retention before the read")))
        return found
    finally:
        topics.close()


def clip(topics: KafkaTopics, task: KafkaTask, fail_on_data_loss: bool) -> KafkaTask:
    """The task within what Kafka has; DataLost when something is missing and must not be."""
    first, end = topics.watermarks(task.topic, task.partition)
    if fail_on_data_loss and (task.start < min(first, task.end) or task.start > end):
        raise DataLost(
            f"offset {task.start} of {task.topic}[{task.partition}] is not in Kafka, which has {first} to {end}",
            "Retention has removed it, or the topic was recreated. Start with a new checkpoint, or go on with what is "
            "there by failOnDataLoss=false (the gap is counted)",
        )
    return KafkaTask(task.topic, task.partition, min(max(task.start, first), end), min(task.end, end))


def read_task(options: SourceOptions, task: KafkaTask) -> Iterator[pa.RecordBatch]:
    """The records of one partition as batches."""
    make = load_decoder(options.decoder)
    matcher = Matcher(options.filters)
    rows: list[tuple[object, ...]] = []
    size = 0
    decoder = None
    if make is not None:
        decoder = make(
            filters=[one.encode() for one in options.filters],
            max_rows=options.rows_per_batch,
            keep_bad=options.bad_records != "drop",
        )
    fetch = _Fetch(options, task)
    for record in fetch.records():
        if decoder is not None:
            decoder.add_value(record.value, record.partition, record.offset, record.time_ms)
            is_bad, is_full = decoder.bad > 0, decoder.is_full
        else:
            row = values.row_of(record, task.topic, matcher)
            is_bad = row is not None and row[-2] is not None
            if row is not None and (not is_bad or options.bad_records != "drop"):
                rows.append(row)
                size += len(record.value or b"")
            is_full = len(rows) >= options.rows_per_batch or size >= values.BATCH_BYTES
        if is_bad and options.bad_records == "fail":
            raise BadRecord(f"offset {record.offset} of {task.topic}[{task.partition}] is not a publish")
        if is_full:
            yield take_batch(decoder, options.columns, task.topic) if decoder else batch_of_rows(rows, options.columns)
            rows, size = [], 0
    if decoder is not None and decoder.rows:
        yield take_batch(decoder, options.columns, task.topic)
    rows += [one.row(task.topic) for one in fetch.lost]
    if rows:
        yield batch_of_rows(rows, options.columns)


class _Fetch:
    """The records of one task, until its end."""

    def __init__(self, options: SourceOptions, task: KafkaTask) -> None:
        self._library = _library()
        self._options = options
        self._task = task
        self._position = task.start
        self.lost: list[Lost] = []

    def _place(self, *offset: int) -> Any:
        return self._library.TopicPartition(self._task.topic, self._task.partition, *offset)

    def records(self) -> Iterator[Record]:
        if self._task.start >= self._task.end:
            return
        consumer = open_consumer(self._options)
        try:
            consumer.assign([self._place(self._task.start)])
            heard = time.monotonic()
            while self._position < self._task.end:
                before = self._position
                yield from self._poll(consumer)
                if self._position != before:
                    heard = time.monotonic()
                elif time.monotonic() - heard > QUIET_SECONDS:
                    where = f"{self._task.topic}[{self._task.partition}]"
                    raise PenstockSparkError(f"nothing of {where} came for {QUIET_SECONDS:.0f} s")
        finally:
            consumer.close()

    def _poll(self, consumer: Any) -> Iterator[Record]:
        for message in consumer.consume(10_000, 1.0):
            if message.error() is not None:
                self._handle_error(consumer, message.error())
                return
            offset = message.offset()
            self._position = offset + 1
            if offset < self._task.end:
                yield Record(self._task.partition, offset, message.timestamp()[1], message.value())
        # what compaction took, or the marker of a transaction, never comes: the position tells that it was passed
        self._position = max(self._position, consumer.position([self._place()])[0].offset)

    def _handle_error(self, consumer: Any, error: Any) -> None:
        codes = (self._library.KafkaError._AUTO_OFFSET_RESET, self._library.KafkaError.OFFSET_OUT_OF_RANGE)
        where = f"{self._task.topic}[{self._task.partition}]"
        if error.code() not in codes:
            raise PenstockSparkError(f"{where} cannot be read: {error}")
        first, _ = consumer.get_watermark_offsets(self._place(), timeout=SECONDS)
        end = min(max(first, self._position), self._task.end)
        if self._options.fail_on_data_loss:
            raise DataLost(
                f"offsets {self._position} to {end - 1} of {where} went while they were read",
                "Read again, from a later start; or failOnDataLoss=false goes on and counts the gap",
            )
        reason = "were removed by retention during the read"
        self.lost.append(Lost(self._task.partition, self._position, end, reason))
        consumer.assign([self._place(end)])
        self._position = int(end)


class KafkaSink:
    """Appends records to a topic of Kafka, as the broker does: the key is the MQTT topic."""

    def __init__(self, bootstrap: str, topic: str, client: Mapping[str, str] | None = None) -> None:
        self._topic = topic
        self.refused = 0  # it takes all or fails
        self._failures: list[str] = []
        quiet = {"log_level": 2}  # what goes wrong is raised, not printed a hundred times
        settings = {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
            **quiet,
            **(client or {}),
        }
        self._producer = _library().Producer(settings)
        try:
            known = self._producer.list_topics(timeout=SECONDS).topics
        except _library().KafkaException as error:
            raise PenstockSparkError(f"Kafka at {bootstrap} does not answer: {error.args[0].str()}") from None
        if topic not in known:
            there = ", ".join(sorted(name for name in known if not name.startswith("__"))) or "none at all"
            raise TopicMissing(f"Kafka at {bootstrap} has no topic {topic}", f"Topics there: {there}")

    def _on_delivery(self, error: Any, _: Any) -> None:
        if error is not None:
            self._failures.append(str(error))

    def send(self, record: Publish) -> None:
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    encode(record),
                    record.topic.encode(),
                    timestamp=record.received_at,
                    on_delivery=self._on_delivery,
                )
                return
            except BufferError:
                self._producer.poll(0.1)  # its queue is full

    def flush(self) -> None:
        waiting = self._producer.flush(SECONDS)
        if waiting or self._failures:
            reason = self._failures[0] if self._failures else "Kafka does not answer"
            raise PenstockSparkError(f"{waiting + len(self._failures)} records did not get to {self._topic}: {reason}")

    def close(self) -> None:
        self._producer.flush(SECONDS)
