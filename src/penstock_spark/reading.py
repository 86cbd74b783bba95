"""`read_messages`: the one function that finds the best way to the messages, whichever log they are in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession

from penstock_spark import options as source_options
from penstock_spark.connector import read_kafka
from penstock_spark.source import register


def read_messages(
    spark: SparkSession,
    path: str | None = None,
    *,
    kafka: str | None = None,
    topics: str | Sequence[str] | None = None,
    topic_pattern: str | None = None,
    topic_filter: str | Sequence[str] | None = None,
    start: str | int | Mapping[str, Mapping[str, int]] | None = None,
    end: str | int | Mapping[str, Mapping[str, int]] | None = None,
    stream: bool = False,
    **options: str | int | bool,
) -> DataFrame:
    """The messages in a broker's data directory (`path`) or in Kafka (`kafka`: bootstrap servers), batch or stream.

    `start` and `end` are earliest, latest, a time (2026-11-16T12:30:00Z), or offsets {topic: {partition: offset}}.
    Kafka is read by Spark's own connector. Further options are those of the data source `penstock`.
    """
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
    given |= bound_options("starting", start) | bound_options("ending", end)
    parsed = source_options.parse(given)
    if parsed.bootstrap is not None:
        return read_kafka(spark, parsed, stream=stream)
    register(spark)
    reader = spark.readStream if stream else spark.read
    return reader.format("penstock").options(**given).load()


def bound_options(prefix: str, place: str | int | Mapping[str, Mapping[str, int]] | None) -> dict[str, str]:
    """A start or an end as options of the source."""
    if place is None:
        return {}
    if isinstance(place, Mapping):
        return {f"{prefix}Offsets": json.dumps(place)}
    text = str(place)
    is_offsets = text.lower() in ("earliest", "latest") or text.startswith("{")
    return {f"{prefix}{'Offsets' if is_offsets else 'Timestamp'}": text}
