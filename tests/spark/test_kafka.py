"""The same rows come from the embedded log, from Kafka by the data source, and from Kafka by Spark's own connector."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, Row, SparkSession

from penstock_schema import publish_pb2
from penstock_schema.fields import PUBLISH_FIELDS, Field
from penstock_schema.publish_pb2 import build_file, build_messages
from penstock_spark import MESSAGES, read_messages
from penstock_spark.errors import PenstockSparkError, TopicMissing
from penstock_spark.jobs import lake
from penstock_spark.jobs.base import MessageSource
from penstock_spark.source import PenstockSource
from tests.spark.support import jars
from tests.spark.support.records import T0, Sent, telemetry, write_embedded, write_kafka
from tests.spark.test_source import FULL
from tests.support.brokers.broker import REPOSITORY
from tests.support.servers.kafka_cluster import KafkaCluster

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


def test_two_versions_of_the_record(spark: SparkSession, kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    """Today's reader on the records of a later and of an earlier release, through every source and into a lake: a field
    that is not known is passed over, one that is missing has its default, a version above ours is set aside."""
    later = build_messages(build_file([*PUBLISH_FIELDS, Field("region", 26, "string", "optional")], "later.proto"))
    fewer = build_messages(build_file(PUBLISH_FIELDS[:3], "earlier.proto"))
    records = [
        Sent(topic="today", payload=b"0"),
        Sent(raw=later["Publish"](schema_version=1, topic="later", payload=b"1", region="north").SerializeToString()),
        Sent(raw=fewer["Publish"](schema_version=1, topic="earlier", payload=b"2").SerializeToString()),
        Sent(raw=later["Publish"](schema_version=2, topic="next", region="north").SerializeToString()),
    ]
    data_dir = tmp_path / "data"
    write_embedded(data_dir, records)
    write_kafka(kafka.bootstrap, topic, records)
    spark.dataSource.register(PenstockSource)
    own = spark.read.format("penstock").options(**{"kafka.bootstrap.servers": kafka.bootstrap, "topics": topic}).load()
    expected = rows(read_messages(spark, str(data_dir)))
    assert [(row.topic, row.qos, row.schema_version, row.user_properties) for row in expected] == [
        ("today", 1, 1, {}),
        ("later", 0, 1, {}),
        ("earlier", 0, 1, {}),
        (None, None, None, None),
    ]
    assert "schema version" in expected[3].error
    assert bytes(expected[3].raw) == records[3].raw
    assert rows(own) == expected
    connector = MessageSource(kafka=kafka.bootstrap, options={"topics": topic})
    assert rows(connector.read(spark, stream=False)) == expected
    for name, source in {"embedded": MessageSource(str(data_dir)), "kafka": connector}.items():
        outcome = lake.run(spark, source, str(tmp_path / name))
        assert (outcome.messages, outcome.bad) == (3, 1)
        kept = spark.read.parquet(str(tmp_path / name / "messages")).select("topic", "payload_text").collect()
        assert sorted(tuple(row) for row in kept) == [("earlier", "2"), ("later", "1"), ("today", "0")]


def test_where(spark: SparkSession, kafka: KafkaCluster, topic: str) -> None:
    write_kafka(kafka.bootstrap, topic, telemetry(300, step_ms=10))
    source = MessageSource(kafka=kafka.bootstrap, options={"topics": topic})
    condition = "topic = 'plant/d1/temp' AND log_partition = 1 AND received_at >= '2026-09-21 14:13:22'"
    found = source.read(spark, stream=False, where=condition, columns="payload_text")
    assert sorted(json.loads(row.payload_text)["seq"] for row in found.collect()) == list(range(201, 300, 5))
    # a partition that Kafka has not is no reason to wait
    assert source.read(spark, stream=False, where="log_partition = 99", columns="topic").count() == 0


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


@pytest.mark.parametrize("way", ["from_protobuf", "protobuf in Python"])
def test_with_sparks_own_tools(spark: SparkSession, kafka: KafkaCluster, topic: str, tmp_path: Path, way: str) -> None:
    """The examples of the documentation for people who have only the .proto."""
    records = [FULL, *telemetry(20)]
    write_kafka(kafka.bootstrap, topic, records)
    (tmp_path / "publish.desc").write_bytes(publish_pb2.describe())
    page = (REPOSITORY / "docs/spark-reading.md").read_text()
    text = page.split(f"# {way}\n")[1].split("```")[0]
    text = text.replace("host:9092", kafka.bootstrap).replace("tbmq.msg.all", topic)
    text = text.replace('"publish.desc"', f'"{tmp_path}/publish.desc"')
    names = {"spark": spark}
    if way == "from_protobuf" and not jars.protobuf():
        # as far as it goes without the jar: Spark knows the function and misses what it is made of
        with pytest.raises(Exception, match="PROTOBUF_NOT_LOADED"):
            exec(compile(text, "spark-reading.md", "exec"), names)
        pytest.skip("spark-protobuf is not there: python -m tests.spark.support.jars protobuf")
    exec(compile(text, "spark-reading.md", "exec"), names)
    columns = ("topic", "payload", "client_id", "received_at", "partition")
    found = names["messages"].select(*columns).collect()  # type: ignore[attr-defined] # of the example
    assert sorted((tuple(row) for row in found), key=str) == sorted(
        ((sent.topic, sent.payload, sent.client_id, sent.at, sent.partition) for sent in records), key=str
    )


def test_the_descriptor_in_java(spark: SparkSession, topic: str) -> None:
    """What from_protobuf does with the descriptor file and a record, by the protobuf library of Java that is in Spark:
    its jar cannot be had everywhere."""
    java = spark._jvm.org.sparkproject.connect.protobuf  # type: ignore[union-attr] # of a session with a JVM
    files = java.DescriptorProtos.FileDescriptorSet.parseFrom(publish_pb2.describe())
    assert files.getFileCount() == 1
    none = spark.sparkContext._gateway.new_array(java.Descriptors.FileDescriptor, 0)  # type: ignore[union-attr] # as above
    kind = java.Descriptors.FileDescriptor.buildFrom(files.getFile(0), none).findMessageTypeByName("Publish")
    assert str(kind.getFullName()) == "penstock.v1.Publish"
    message = java.DynamicMessage.parseFrom(kind, FULL.value())

    def read(name: str) -> Any:
        return message.getField(kind.findFieldByName(name))

    found = tuple(read(name) for name in ("topic", "qos", "retain", "client_id", "username", "received_at"))
    assert found == (FULL.topic, 2, True, "device-1", "eve", T0 + 5)
    assert bytes(read("payload").toByteArray()) == FULL.payload
    assert message.getUnknownFields().asMap().isEmpty()


def test_offsets_of_some_partitions(spark: SparkSession, kafka: KafkaCluster, topic: str, data_dir: Path) -> None:
    """Those that are not named are read as a whole, from either log."""
    records = telemetry(100)
    write_embedded(data_dir, records, topic=topic)
    write_kafka(kafka.bootstrap, topic, records)
    given: dict[str, Any] = {
        "topics": topic,
        "start": {topic: {"0": 30}},
        "end": {topic: {"0": 35, "1": 2, "9": 1}},
        "columns": "log_partition,log_offset,topic",
    }
    for more in ({}, {"logPartitions": "0,1"}):
        expected = rows(read_messages(spark, str(data_dir), **given, **more))
        assert len(expected) == (47 if not more else 7)
        assert rows(read_messages(spark, kafka=kafka.bootstrap, **given, **more)) == expected


def test_what_kafka_has_not_any_more_is_counted(
    spark: SparkSession, kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    output = str(tmp_path / "lake")
    source = MessageSource(kafka=kafka.bootstrap, options={"topics": topic})
    write_kafka(kafka.bootstrap, topic, telemetry(40))
    lake.run(spark, source, output)
    write_kafka(kafka.bootstrap, topic, telemetry(40, first=40))
    # as retention does it: the offsets before it are gone, of which 16 were read before
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for deleted in admin.delete_records([TopicPartition(topic, 0, 20), TopicPartition(topic, 1, 3)]).values():
        deleted.result(60)
    with pytest.raises(PenstockSparkError, match="Kafka has not any more what comes next"):
        lake.run(spark, source, output)
    outcome = lake.run(spark, replace(source, options={**source.options, "failOnDataLoss": "false"}), output)
    assert (outcome.messages, outcome.bad) == (36, 1)
    (row,) = spark.read.parquet(f"{output}/quarantine").collect()
    assert (row.log_topic, row.log_partition, row.log_offset) == (topic, 0, 16)
    assert row.reason == "gap: offsets 16 to 19 (4 records) were removed by retention before the read"


def test_what_is_wrong_is_said(spark: SparkSession, kafka: KafkaCluster) -> None:
    spark.dataSource.register(PenstockSource)
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "topics": "missing"}
    with pytest.raises(Exception, match="has no topic missing"):
        spark.read.format("penstock").options(**options).load().count()
    with pytest.raises(TopicMissing, match=r"has no topic missing\. Topics there: "):
        read_messages(spark, kafka=kafka.bootstrap, topics="missing")


def test_a_job_on_kafka(spark: SparkSession, kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    """The jobs do not know which log it is."""
    source = MessageSource(kafka=kafka.bootstrap, options={"topics": topic})
    write_kafka(kafka.bootstrap, topic, [*telemetry(40), Sent(raw=b"junk")])
    first = lake.run(spark, source, str(tmp_path / "lake"))
    assert (first.messages, first.bad) == (40, 1)
    write_kafka(kafka.bootstrap, topic, telemetry(10, first=40))
    assert lake.run(spark, source, str(tmp_path / "lake")).messages == 10
    assert (
        spark.read.parquet(str(tmp_path / "lake/messages")).select("log_partition", "log_offset").distinct().count()
        == 50
    )
