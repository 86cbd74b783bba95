"""Messages in Kafka by Spark's own connector, decoded to the same columns as the data source gives."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped] # it has no types of its own
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock_spark import schema, values
from penstock_spark.arrow import batch_of_rows, load_decoder, take_batch
from penstock_spark.errors import BadRecord, OptionError
from penstock_spark.kafka import KafkaTopics
from penstock_spark.options import LATEST, Bound, SourceOptions
from penstock_spark.topic_filter import Matcher
from penstock_spark.values import Record

_PLACE = {"log_topic": "topic", "log_partition": "partition", "log_offset": "offset", "log_time": "timestamp"}
SCALA = "2.13"
SPARK = "4.0.0"
PACKAGES = (f"org.apache.spark:spark-sql-kafka-0-10_{SCALA}:{SPARK}",)


def read_kafka(spark: SparkSession, options: SourceOptions, *, stream: bool) -> DataFrame:
    """What the connector reads, decoded."""
    known = _check_topics(options)
    reader = spark.readStream if stream else spark.read
    given = _connector_options(options, known, stream=stream)
    try:
        frame = reader.format("kafka").options(**given).load()
    except Exception as error:
        if "DATA_SOURCE_NOT_FOUND" in str(error) or "Failed to find data source: kafka" in str(error):
            raise OptionError(
                "Spark's Kafka connector is not there",
                f"Start Spark with spark.jars.packages={','.join(PACKAGES)}, or with its jars in spark.jars",
            ) from None
        raise
    return decode(_with_fewer_tasks(frame, options, stream=stream), options)


def _check_topics(options: SourceOptions) -> dict[str, int] | None:
    """The connector waits a minute for a Kafka that is not there, and of a topic that is missing says neither its name
    nor which there are: ask first, where that is possible without settings that only Java understands.

    Returns the topics with their numbers of partitions; None where nobody can be asked.
    """
    if options.client:
        return None
    try:
        topics = KafkaTopics(options)
    except OptionError:
        return None  # confluent-kafka is not installed
    try:
        return topics.partitions()
    finally:
        topics.close()


def _with_fewer_tasks(frame: DataFrame, options: SourceOptions, *, stream: bool) -> DataFrame:
    """Spark makes a task of each partition of Kafka, and Python costs 0.2 s at the start of each: no more tasks than
    run at once, unless it was said how many partitions a task reads."""
    if options.partitions_per_task and not stream:
        return frame.coalesce(-(-frame.rdd.getNumPartitions() // options.partitions_per_task))
    return frame.coalesce(max(2, frame.sparkSession.sparkContext.defaultParallelism))


def decode(frame: DataFrame, options: SourceOptions) -> DataFrame:
    """A DataFrame of Kafka's connector (value, topic, partition, offset, timestamp) as messages."""
    wanted = schema.select(options.columns).names
    # what crosses to Python and back costs most: only what is wanted goes, and a topic that is known stays here
    is_known = options.topic_pattern is None and len(options.topics) == 1 and wanted != ["log_topic"]
    inner = [name for name in wanted if name != "log_topic" or not is_known]
    names = ["value", *(theirs for ours, theirs in _PLACE.items() if ours in inner)]
    chosen = replace(options, columns=tuple(inner))
    decoded = frame.select(*names).mapInArrow(_decode_batches(chosen), schema.select(inner))
    if inner == wanted:
        return decoded
    return decoded.withColumn("log_topic", F.lit(options.topics[0])).select(*wanted)


def _decode_batches(options: SourceOptions) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        make = load_decoder(options.decoder)
        matcher = Matcher(options.filters)
        decoder = None
        if make is not None:
            filters = [one.encode() for one in options.filters]
            decoder = make(filters=filters, keep_bad=options.bad_records != "drop")
        for batch in batches:
            if decoder is None:
                yield _decode_slowly(batch, options, matcher)
                continue
            kept = bytearray(batch.num_rows)
            array = batch.column("value")
            valid, offsets, data = array.buffers()
            decoder.add_array(offsets, data or b"", valid, array.offset, len(array), kept)
            if decoder.bad and options.bad_records == "fail":
                raise BadRecord("a record of Kafka is not a publish", "badRecords=keep gives it as a row")
            yield take_batch(decoder, options.columns, "", _place(batch, kept))

    return work


def _place(batch: pa.RecordBatch, kept: bytearray) -> dict[str, pa.Array]:
    """The columns that Kafka knows, of the rows that were kept."""
    place = {ours: batch.column(theirs) for ours, theirs in _PLACE.items() if theirs in batch.schema.names}
    if 0 in kept:
        mask = pa.Array.from_buffers(pa.uint8(), len(kept), [None, pa.py_buffer(kept)]).cast(pa.bool_())
        place = {name: array.filter(mask) for name, array in place.items()}
    return {name: array.cast(schema.ARROW_TYPES[name]) for name, array in place.items()}


def _decode_slowly(batch: pa.RecordBatch, options: SourceOptions, matcher: Matcher) -> pa.RecordBatch:
    rows: list[tuple[Any, ...]] = []
    known = {
        "topic": options.topics[0] if options.topics else "",
        "partition": 0,
        "offset": 0,
        "timestamp": values.EPOCH,
    }
    columns = (
        batch.column(name).to_pylist() if name in batch.schema.names else [known[name]] * batch.num_rows
        for name in (*known, "value")
    )
    for topic, partition, offset, timestamp, value in zip(*columns, strict=True):
        time_ms = int((timestamp - values.EPOCH).total_seconds() * 1000) if timestamp.tzinfo else 0
        row = values.row_of(Record(partition, offset, time_ms, value), topic, matcher)
        if row is not None and (row[-2] is None or options.bad_records != "drop"):
            if row[-2] is not None and options.bad_records == "fail":
                raise BadRecord(f"offset {offset} of {topic}[{partition}] is not a publish")
            rows.append(row)
    if rows:
        return batch_of_rows(rows, options.columns)
    return pa.RecordBatch.from_pylist([], schema=schema.arrow_schema(options.columns))


def _connector_options(options: SourceOptions, known: Mapping[str, int] | None, *, stream: bool) -> dict[str, str]:
    if options.bootstrap is None:
        raise OptionError("kafka.bootstrap.servers is missing")
    given = {
        "kafka.bootstrap.servers": options.bootstrap,
        "failOnDataLoss": str(options.fail_on_data_loss).lower(),
        **{f"kafka.{name}": value for name, value in options.client.items()},
    }
    if options.partitions is not None:
        if options.topic_pattern is not None:
            raise OptionError("logPartitions goes with topics by name, not with topicPattern")
        given["assign"] = json.dumps({topic: sorted(options.partitions) for topic in options.topics})
    elif options.topic_pattern is not None:
        given["subscribePattern"] = options.topic_pattern
    else:
        given["subscribe"] = ",".join(options.topics)
    start, end = (_whole(bound, options, known) for bound in (options.start, options.end))
    given |= _bound(start, "starting")
    if options.start.time_ms is not None:
        given["startingOffsetsByTimestampStrategy"] = "latest"
    if not stream:
        given |= _bound(end, "ending")
    elif options.end != Bound(LATEST):
        raise OptionError("a stream from Kafka has no end", "endingOffsets and endingTimestamp are for batches")
    return given


def _whole(bound: Bound, options: SourceOptions, known: Mapping[str, int] | None) -> Bound:
    """The connector wants an offset of each partition that it reads and of no other; here those that are not named
    are read from the first to the last, as in the data source."""
    if bound.offsets is None or known is None:
        return bound
    offsets = {
        topic: {str(number): bound.of(topic, number) for number in range(count) if options.wants_partition(number)}
        for topic, count in known.items()
    }
    return replace(bound, offsets=offsets)


def _bound(bound: Bound, prefix: str) -> dict[str, str]:
    if bound.time_ms is not None:
        return {f"{prefix}Timestamp": str(bound.time_ms)}
    if bound.offsets is not None:
        return {f"{prefix}Offsets": json.dumps(bound.offsets)}
    return {f"{prefix}Offsets": "latest" if bound.offset == LATEST else "earliest"}
