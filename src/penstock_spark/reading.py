"""`read_messages`: the one function that finds the best way to the messages, whichever log they are in."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession

from penstock_spark import options as source_options
from penstock_spark import schema
from penstock_spark.connector import read_kafka
from penstock_spark.errors import OptionError
from penstock_spark.kafka import KafkaTopics
from penstock_spark.options import parse_partitions
from penstock_spark.pruning import use_of
from penstock_spark.source import register

Place = str | int | Mapping[str, Mapping[str, int]]


def read_messages(
    spark: SparkSession,
    path: str | None = None,
    *,
    where: str | Column | None = None,
    stream: bool = False,
    **options: Any,
) -> DataFrame:
    """The messages in a broker's data directory (`path`) or in Kafka (`kafka`: bootstrap servers), batch or stream.

    `start` and `end` are earliest, latest, a time (2026-11-16T12:30:00Z), or offsets {topic: {partition: offset}}.
    `where` is a condition of SQL: only its rows come, and what it leaves out by time, topic or partition is not read.
    Kafka is read by Spark's own connector. Further options are those of the data source `penstock`; `topics`,
    `topic_pattern` and `topic_filter` may be lists.
    """
    given = options_of(path, **options)
    if where is None:
        return _load(spark, given, stream=stream)
    chosen = schema.select(source_options.parse(given).columns).names

    def query(messages: DataFrame) -> DataFrame:
        return messages.filter(where).select(*chosen)

    return query(_load(spark, _prune(spark, given, query, stream=stream), stream=stream))


def sql_over_messages(
    spark: SparkSession, query: str, path: str | None = None, *, view: str = "messages", **options: Any
) -> DataFrame:
    """A query of SQL over the messages, which it finds as the view `messages`; options as of `read_messages`.

    Only what the query asks for is read: its columns, and what it does not leave out by time, topic or partition.
    """

    def ask(messages: DataFrame) -> DataFrame:
        messages.createOrReplaceTempView(view)
        return spark.sql(query)

    return ask(_load(spark, _prune(spark, options_of(path, **options), ask, stream=False), stream=False))


def options_of(
    path: str | None = None,
    *,
    kafka: str | None = None,
    topics: str | Sequence[str] | None = None,
    topic_pattern: str | None = None,
    topic_filter: str | Sequence[str] | None = None,
    start: Place | None = None,
    end: Place | None = None,
    **options: str | int | bool,
) -> dict[str, str]:
    """The arguments of `read_messages` as options of the data source."""
    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    if path is not None:
        given["path"] = str(path)
    if kafka is not None:
        given["kafka.bootstrap.servers"] = kafka
    if topics is not None:
        given["topics"] = topics if isinstance(topics, str) else ",".join(topics)
    if topic_pattern is not None:
        given["topicPattern"] = topic_pattern
    if topic_filter is not None:
        given["topicFilter"] = topic_filter if isinstance(topic_filter, str) else json.dumps(list(topic_filter))
    return given | bound_options("starting", start) | bound_options("ending", end)


def bound_options(prefix: str, place: Place | None) -> dict[str, str]:
    """A start or an end as options of the source."""
    if place is None:
        return {}
    if isinstance(place, Mapping):
        return {f"{prefix}Offsets": json.dumps(place)}
    text = str(place)
    is_offsets = text.lower() in ("earliest", "latest") or text.startswith("{")
    return {f"{prefix}{'Offsets' if is_offsets else 'Timestamp'}": text}


def _load(spark: SparkSession, given: Mapping[str, str], *, stream: bool) -> DataFrame:
    parsed = source_options.parse(given)
    if parsed.bootstrap is not None:
        return read_kafka(spark, parsed, stream=stream)
    register(spark)
    reader = spark.readStream if stream else spark.read
    return reader.format("penstock").options(**given).load()


def _prune(
    spark: SparkSession, given: Mapping[str, str], query: Callable[[DataFrame], DataFrame], *, stream: bool
) -> dict[str, str]:
    """The options with which the query gets all that it asks for; what the caller says goes before it."""
    whole = {name: value for name, value in given.items() if name.lower() != "columns"}
    use = use_of(spark, query)
    if use is None:
        return whole
    found = use.wanted.options(is_stream=stream)
    for prefix in ("starting", "ending"):
        if f"{prefix}Offsets" in given:
            found.pop(f"{prefix}Timestamp", None)
    if "logPartitions" in found and not _has_partitions({**whole, **found}):
        del found["logPartitions"]
    # a count needs no column, but a source has one at least
    return {**found, **whole, "columns": ",".join(sorted(use.columns)) or "log_partition"}


def _has_partitions(given: Mapping[str, str]) -> bool:
    """Spark's connector waits for ever for a partition that Kafka has not: ask first, where that is possible."""
    parsed = source_options.parse(given)
    if parsed.bootstrap is None:
        return True
    if parsed.topic_pattern is not None:
        return False
    try:
        topics = KafkaTopics(parsed)
    except OptionError:
        return False  # without confluent-kafka nobody can be asked
    try:
        fewest = min(topics.partitions().values())
    finally:
        topics.close()
    return max(parse_partitions(given["logPartitions"]) or [0]) < fewest
