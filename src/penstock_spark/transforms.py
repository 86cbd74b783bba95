"""Pure functions from DataFrame to DataFrame that more than one job uses; join them by `.transform`."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from penstock_spark import topic_filter

Transform = Callable[[DataFrame], DataFrame]


def prefix_of(topic: Column, levels: int) -> Column:
    """The first levels of an MQTT topic."""
    return F.substring_index(topic, "/", levels)


def with_prefix(levels: int) -> Transform:
    """Adds `prefix`, the first levels of the topic."""
    return lambda frame: frame.withColumn("prefix", prefix_of(F.col("topic"), levels))


def with_size(frame: DataFrame) -> DataFrame:
    """Adds `size`, the bytes of the payload."""
    return frame.withColumn("size", F.octet_length("payload").cast("long"))


def only_topics(text: str) -> Transform:
    """Messages whose topic matches the MQTT filter."""
    return lambda frame: frame.filter(topic_filter.matches(F.col("topic"), text))


def only_between(start: str | None, end: str | None) -> Transform:
    """Messages received at or after the start and before the end (times as Spark reads them)."""

    def transform(frame: DataFrame) -> DataFrame:
        if start is not None:
            frame = frame.filter(F.col("received_at") >= F.lit(start).cast("timestamp"))
        if end is not None:
            frame = frame.filter(F.col("received_at") < F.lit(end).cast("timestamp"))
        return frame

    return transform


def utc_date(at: Column) -> Column:
    """The day in UTC, whatever zone the session has: a directory of a day must not depend on who runs the job."""
    return F.date_from_unix_date(F.floor(F.unix_seconds(at) / 86_400).cast("int"))


def json_field(path: str) -> Column:
    """A field of a JSON payload as a string; null where there is none."""
    return F.get_json_object("payload_text", f"$.{path}")
