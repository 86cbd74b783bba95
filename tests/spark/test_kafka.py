"""The same rows come from the embedded log, from Kafka by the data source, and from Kafka by Spark's own connector."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from penstock_spark import MESSAGES, read_messages
from penstock_spark.jobs import lake
from penstock_spark.jobs.base import Source
from penstock_spark.source import PenstockSource
from tests.spark.support.records import T0, Sent, telemetry, write_embedded, write_kafka
from tests.spark.test_source import FULL
from tests.support.kafka_cluster import KafkaCluster

RECORDS = [
    FULL,
    Sent(payload=b"\xff\xfe"),
    Sent(raw=b"junk", at=T0 + 3),
    Sent(is_tombstone=True, at=T0 + 4),
    *telemetry(500, step_ms=10),
]


def rows(frame: DataFrame) -> list[Row]:
    """All but the name of the log's topic, which the two logs of a test have not in common."""
    found = frame.drop("log_topic").collect()
    return sorted(found, key=lambda row: (row.log_partition, row.log_offset))


def test_the_same_rows_from_every_source(spark: SparkSession, kafka: KafkaCluster, topic: str, data_dir: Path) -> None:
    write_embedded(data_dir, RECORDS)
    write_kafka(kafka.bootstrap, topic, RECORDS)
    spark.dataSource.register(PenstockSource)
    embedded = read_messages(spark, str(data_dir))
    connector = read_messages(spark, kafka=kafka.bootstrap, topics=topic)
    own = spark.read.format("penstock").options(**{"kafka.bootstrap.servers": kafka.bootstrap, "topics": topic}).load()
    assert embedded.schema == connector.schema == own.schema == MESSAGES
    expected = rows(embedded)
    assert len(expected) == len(RECORDS)
    assert rows(connector) == expected
    assert rows(own) == expected
    slow = read_messages(spark, kafka=kafka.bootstrap, topics=topic, decoder="python").drop("error")
    assert rows(slow) == rows(embedded.drop("error"))


def test_the_same_bounds_and_filters(spark: SparkSession, kafka: KafkaCluster, topic: str, data_dir: Path) -> None:
    records = telemetry(300, step_ms=10)
    write_embedded(data_dir, records)
    write_kafka(kafka.bootstrap, topic, records)
    spark.dataSource.register(PenstockSource)
    given = {
        "startingTimestamp": str(T0 + 500),
        "endingTimestamp": str(T0 + 1_500),
        "topicFilter": "+/d1/#",
        "columns": "log_partition,log_offset,topic,user_properties,log_topic",
    }
    embedded = spark.read.format("penstock").options(path=str(data_dir), **given).load()
    connector = read_messages(spark, kafka=kafka.bootstrap, topics=topic, **given)  # type: ignore[arg-type] # as above
    own = (
        spark.read.format("penstock")
        .options(**{"kafka.bootstrap.servers": kafka.bootstrap, "topicPattern": topic, **given})
        .load()
    )
    expected = rows(embedded)
    assert len(expected) == 20
    assert rows(connector) == expected
    assert rows(own) == expected
    one = read_messages(spark, kafka=kafka.bootstrap, topics=topic, logPartitions="1", columns="log_partition,topic")
    assert {tuple(row) for row in one.collect()} == {("plant/d1/temp", 1)}


@pytest.mark.parametrize("way", ["own", "connector"])
def test_a_stream_takes_up_where_it_was(
    spark: SparkSession, kafka: KafkaCluster, topic: str, tmp_path: Path, way: str
) -> None:
    spark.dataSource.register(PenstockSource)

    def run() -> list[int]:
        if way == "connector":
            stream = read_messages(spark, kafka=kafka.bootstrap, topics=topic, stream=True, start="earliest")
        else:
            options = {"kafka.bootstrap.servers": kafka.bootstrap, "topics": topic}
            stream = spark.readStream.format("penstock").options(**options).load()
        seen: list[int] = []

        def take(batch: DataFrame, number: int) -> None:
            seen.extend(json.loads(row.payload_text)["seq"] for row in batch.select("payload_text").collect())

        query = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination(60)
        return sorted(seen)

    write_kafka(kafka.bootstrap, topic, telemetry(60))
    assert run() == list(range(60))
    write_kafka(kafka.bootstrap, topic, telemetry(30, first=60))
    assert run() == list(range(60, 90))


def test_what_is_wrong_is_said(spark: SparkSession, kafka: KafkaCluster) -> None:
    spark.dataSource.register(PenstockSource)
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "topics": "missing"}
    with pytest.raises(Exception, match="has no topic missing"):
        spark.read.format("penstock").options(**options).load().count()


def test_a_job_on_kafka(spark: SparkSession, kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    """The jobs do not know which log it is."""
    source = Source(kafka=kafka.bootstrap, options={"topics": topic})
    write_kafka(kafka.bootstrap, topic, [*telemetry(40), Sent(raw=b"junk")])
    first = lake.run(spark, source, str(tmp_path / "lake"))
    assert (first.messages, first.bad) == (40, 1)
    write_kafka(kafka.bootstrap, topic, telemetry(10, first=40))
    assert lake.run(spark, source, str(tmp_path / "lake")).messages == 10
    assert (
        spark.read.parquet(str(tmp_path / "lake/messages")).select("log_partition", "log_offset").distinct().count()
        == 50
    )
