"""The data source over an embedded log: what comes out, what is pruned, what a stream takes up again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock_spark import MESSAGES, read_messages, register, sql_over_messages
from penstock_spark.embedded import EmbeddedTask
from penstock_spark.options import OptionError, parse
from penstock_spark.pruning import SLACK_AFTER_MS, SLACK_BEFORE_MS, use_of
from penstock_spark.source import PenstockReader
from tests.spark.support.records import T0, TOPIC, Sent, props, telemetry, write_embedded
from tests.support.worlds.embedded import segments_of

FULL = Sent(
    topic="plant/ä/temp",
    payload=b'{"t": 21}',
    partition=1,
    at=T0 + 5,
    qos=2,
    retain=True,
    client_id="device-1",
    username="eve",
    expires_at=T0 + 60_000,
    properties=props(
        (1, 1), (3, "application/json"), (8, "answers/1"), (9, b"\x00\xff"), (38, ("k", "1")), (38, ("k", "2"))
    ),
)


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in frame.orderBy("log_topic", "log_partition", "log_offset").collect()]


def read_directly(**options: Any) -> list[dict[str, Any]]:
    """What Spark's tasks would read, without Spark around it: milliseconds instead of seconds."""
    reader = PenstockReader(parse({name: str(value) for name, value in options.items()}))
    return [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]


def test_every_column(spark: SparkSession, data_dir: Path) -> None:
    write_embedded(data_dir, [FULL, Sent(payload=b"\xff\xfe"), Sent(is_tombstone=True, at=T0 + 9), Sent(raw=b"junk")])
    frame = read_messages(spark, str(data_dir))
    assert frame.schema == MESSAGES
    plain, tombstone, junk, full = rows(frame)
    assert full == {
        "topic": "plant/ä/temp",
        "payload": bytearray(b'{"t": 21}'),
        "payload_text": '{"t": 21}',
        "qos": 2,
        "retain": True,
        "client_id": "device-1",
        "username": "eve",
        "received_at": datetime.fromtimestamp((T0 + 5) / 1000, UTC).replace(tzinfo=None),
        "expires_at": datetime.fromtimestamp((T0 + 60_000) / 1000, UTC).replace(tzinfo=None),
        "payload_format": 1,
        "content_type": "application/json",
        "response_topic": "answers/1",
        "correlation_data": bytearray(b"\x00\xff"),
        "user_properties": {"k": "2"},
        "user_property_list": [{"name": "k", "value": "1"}, {"name": "k", "value": "2"}],
        "schema_version": 1,
        "log_topic": TOPIC,
        "log_partition": 1,
        "log_offset": 0,
        "log_time": datetime.fromtimestamp((T0 + 5) / 1000, UTC).replace(tzinfo=None),
        "error": None,
        "raw": None,
    }
    assert plain["payload"] == bytearray(b"\xff\xfe")
    assert plain["payload_text"] is None
    assert plain["username"] is None
    assert plain["user_properties"] == {}
    assert tombstone["error"] == "a tombstone"
    assert junk["error"]
    assert junk["raw"] == bytearray(b"junk")
    assert junk["topic"] is junk["received_at"] is junk["user_properties"] is None


@pytest.mark.parametrize("decoder", ["compiled", "python"])
def test_bad_records_are_kept_dropped_or_fail(spark: SparkSession, data_dir: Path, decoder: str) -> None:
    write_embedded(data_dir, [Sent(), Sent(raw=b"\x08\x09"), Sent()])
    assert len(read_directly(path=data_dir, decoder=decoder)) == 3
    assert len(read_directly(path=data_dir, decoder=decoder, badRecords="drop")) == 2
    with pytest.raises(Exception, match="not publishes"):
        read_messages(spark, str(data_dir), decoder=decoder, badRecords="fail").count()


def test_topic_filter(data_dir: Path) -> None:
    topics = ["a/b", "a/b/c", "a", "$SYS/a", "b/b", "a//c"]
    write_embedded(data_dir, [Sent(topic=topic) for topic in topics])
    for decoder in ("compiled", "python"):

        def matched(wanted: str, decoder: str = decoder) -> set[str]:
            return {row["topic"] for row in read_directly(path=data_dir, topicFilter=wanted, decoder=decoder)}

        assert matched("a/#") == {"a/b", "a/b/c", "a", "a//c"}
        assert matched("+/b") == {"a/b", "b/b"}
        assert matched("#") == set(topics) - {"$SYS/a"}
        assert matched('["b/b", "$SYS/#"]') == {"b/b", "$SYS/a"}


def test_offsets_times_and_partitions_prune(data_dir: Path) -> None:
    write_embedded(data_dir, telemetry(400, step_ms=10), properties={"segment.bytes": "4096"})
    assert len(segments_of(data_dir, TOPIC)) > 5

    def seq(**options: Any) -> list[int]:
        return sorted(json.loads(row["payload_text"])["seq"] for row in read_directly(path=data_dir, **options))

    assert seq() == list(range(400))
    assert seq(startingTimestamp=T0 + 1_000, endingTimestamp=T0 + 2_000) == list(range(100, 200))
    assert seq(startingTimestamp="2026-09-21T14:13:21Z", endingOffsets="latest") == list(range(100, 400))
    assert seq(startingTimestamp=T0 + 10_000_000) == []
    assert seq(logPartitions="1") == [number for number in range(400) if number % 5 == 1]
    starts = json.dumps({TOPIC: {"0": 10, "1": 20, "2": -1, "3": -2}})
    ends = json.dumps({TOPIC: {"0": 12, "1": 22, "2": -1, "3": 1}})
    assert seq(startingOffsets=starts, endingOffsets=ends) == [3, 25, 29, 101, 106]
    late = json.dumps({TOPIC: {"0": 150}})
    assert seq(startingOffsets=late, logPartitions="0", partitionsPerTask=1) == [
        number for number in range(375, 400) if number % 5 in (0, 4)
    ]


def test_only_what_is_asked_for_is_read(data_dir: Path) -> None:
    """Not only filtered afterwards: the tasks name few bytes."""
    write_embedded(data_dir, telemetry(2_000, step_ms=10), properties={"segment.bytes": "16384"})

    def planned(**given: str) -> int:
        tasks = PenstockReader(parse({"path": str(data_dir), **given})).partitions()
        return sum(piece.size for task in tasks if isinstance(task, EmbeddedTask) for piece in task.pieces)

    everything = planned()
    assert planned(startingTimestamp=str(T0 + 19_000)) < everything / 8
    assert planned(startingTimestamp=str(T0 + 1_000), endingTimestamp=str(T0 + 2_000)) < everything / 6
    assert planned(startingOffsets=json.dumps({TOPIC: {str(number): -1 for number in range(4)}})) == 0


@pytest.mark.parametrize(
    ("where", "options"),
    [
        ("topic = 'plant/d1/temp'", {"topicFilter": '["plant/d1/temp"]'}),
        ("'plant/d1/temp' = topic AND qos = 1", {"topicFilter": '["plant/d1/temp"]'}),
        ("topic LIKE 'plant/d1%'", {"topicFilter": '["plant/#"]'}),
        ("topic IN ('a', 'b/c') OR topic LIKE 'x/y/%'", {"topicFilter": '["a", "b/c", "x/y/#"]'}),
        ("topic = 'a' OR qos = 1", {}),
        ("NOT topic = 'a'", {}),
        ("topic LIKE 'pla%' AND topic <> 'b' AND topic = '+'", {}),
        ("log_partition IN (1, 3) AND log_partition = 3", {"logPartitions": "3"}),
        ("log_partition < 2", {}),
        (
            "received_at >= '2026-09-21T14:13:21Z' AND received_at < '2026-09-21 14:13:22'",
            {
                "startingTimestamp": str(T0 + 1_000 - SLACK_BEFORE_MS),
                "endingTimestamp": str(T0 + 2_000 + SLACK_AFTER_MS),
            },
        ),
        (
            "(log_time > '2026-09-21 14:13:21' AND topic = 'a') OR (log_time > '2026-09-21 14:13:30' AND topic = 'b')",
            {"topicFilter": '["a", "b"]', "startingTimestamp": str(T0 + 1_000 - SLACK_BEFORE_MS)},
        ),
    ],
)
def test_what_a_condition_says(spark: SparkSession, where: str, options: dict[str, str]) -> None:
    use = use_of(spark, lambda messages: messages.filter(where).select("qos"))
    assert use is not None
    assert use.wanted.options() == options
    assert "qos" in use.columns
    assert len(use.columns) < 5


def test_what_a_query_says(spark: SparkSession) -> None:
    def found(query: str) -> tuple[dict[str, str], list[str]]:
        def ask(messages: DataFrame) -> DataFrame:
            messages.createOrReplaceTempView("messages")
            return spark.sql(query)

        use = use_of(spark, ask)
        assert use is not None
        return use.wanted.options(), sorted(use.columns)

    assert found("SELECT count(*) FROM messages") == ({}, [])
    assert found("SELECT max(qos) FROM messages WHERE topic LIKE 'a/%' GROUP BY client_id") == (
        {"topicFilter": '["a/#"]'},
        ["client_id", "qos", "topic"],
    )
    both = "SELECT a.qos FROM messages a JOIN messages b USING (client_id) WHERE a.topic = 'a' AND b.topic = 'b'"
    assert found(both) == ({"topicFilter": '["a", "b"]'}, ["client_id", "qos", "topic"])
    # what only one of two readings leaves out is needed by the other
    inner = "SELECT qos FROM messages WHERE topic = 'a' AND log_offset = (SELECT max(log_offset) FROM messages)"
    assert found(inner) == ({}, ["log_offset", "qos", "topic"])
    assert len(found("SELECT * FROM messages WHERE log_partition = 1")[1]) == len(MESSAGES)
    assert use_of(spark, lambda _: spark.sql("SELECT 1")) is None


def test_where(spark: SparkSession, data_dir: Path) -> None:
    """The rows of the condition, of a part of the log, however the source is asked."""
    write_embedded(data_dir, telemetry(400, step_ms=10_000), properties={"segment.bytes": "4096"})
    condition = "topic LIKE 'plant/d1/%' AND received_at < '2026-09-21 14:30:00' AND payload_text IS NOT NULL"
    found = read_messages(spark, str(data_dir), where=condition, columns="log_partition,log_offset")
    assert found.columns == ["log_partition", "log_offset"]
    assert sorted(tuple(row) for row in found.collect()) == [(1, number) for number in range(20)]
    counted = "SELECT count(*) AS n FROM messages WHERE log_partition = 1 AND received_at >= '2026-09-21 14:30:00'"
    assert sql_over_messages(spark, counted, str(data_dir)).collect()[0].n == 60
    # an offset of the caller goes before the time of the condition
    start = {TOPIC: {"1": 10}}
    later = read_messages(spark, str(data_dir), where=f"{condition} AND log_time > '2026-01-01'", start=start)
    assert later.count() == 10

    def planned(given: dict[str, str]) -> int:
        tasks = PenstockReader(parse(given)).partitions()
        return sum(piece.size for task in tasks if isinstance(task, EmbeddedTask) for piece in task.pieces)

    use = use_of(spark, lambda messages: messages.filter(condition))
    assert use is not None
    assert planned({"path": str(data_dir), **use.wanted.options()}) < planned({"path": str(data_dir)}) / 2


@pytest.mark.parametrize(("options", "tasks"), [({"maxBytesPerTask": 40_000}, range(3, 12)), ({}, [1])])
def test_tasks_are_split_by_size(data_dir: Path, options: dict[str, Any], tasks: Sequence[int]) -> None:
    write_embedded(data_dir, telemetry(2_000), properties={"segment.bytes": "262144"}, pack=20)
    rows = read_directly(path=data_dir, **options)
    assert len({(row["log_partition"], row["log_offset"]) for row in rows}) == len(rows) == 2_000
    assert (
        len(PenstockReader(parse({"path": str(data_dir), **{k: str(v) for k, v in options.items()}})).partitions())
        in tasks
    )


@pytest.mark.parametrize("decoder", ["compiled", "python"])
def test_large_payloads_make_small_batches(data_dir: Path, decoder: str) -> None:
    """Twenty thousand rows of three megabytes each would not fit anywhere."""
    write_embedded(data_dir, [Sent(payload=bytes([number]) * 3_000_000) for number in range(10)], pack=1)
    reader = PenstockReader(parse({"path": str(data_dir), "decoder": decoder, "columns": "payload"}))
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    assert max(batch.num_rows for batch in batches) <= 4
    found = [value for batch in batches for value in batch.column("payload").to_pylist()]
    assert sorted(value[0] for value in found) == list(range(10))
    assert {len(value) for value in found} == {3_000_000}


@pytest.mark.parametrize(("per_task", "tasks"), [(1, 4), (3, 2)])
def test_tasks_are_split_by_partitions(data_dir: Path, per_task: int, tasks: int) -> None:
    write_embedded(data_dir, telemetry(200))
    assert len(read_directly(path=data_dir, partitionsPerTask=per_task)) == 200
    planned = PenstockReader(parse({"path": str(data_dir), "partitionsPerTask": str(per_task)})).partitions()
    assert len(planned) == tasks


def test_columns(spark: SparkSession, data_dir: Path) -> None:
    write_embedded(data_dir, [FULL])
    frame = read_messages(spark, str(data_dir), columns="qos,topic")
    assert frame.columns == ["topic", "qos"]
    assert [tuple(row) for row in frame.collect()] == [("plant/ä/temp", 2)]


def test_topics_by_pattern(spark: SparkSession, data_dir: Path) -> None:
    for name in ("tbmq.msg.app.a", "tbmq.msg.app.b", "other"):
        write_embedded(data_dir, [Sent(topic=f"to/{name}")], topic=name, partitions=1)
    frame = read_messages(spark, str(data_dir), topic_pattern=r"tbmq\.msg\.app\..*")
    assert {(row.log_topic, row.topic) for row in frame.collect()} == {
        ("tbmq.msg.app.a", "to/tbmq.msg.app.a"),
        ("tbmq.msg.app.b", "to/tbmq.msg.app.b"),
    }


def test_what_is_wrong_is_said(spark: SparkSession, data_dir: Path) -> None:
    write_embedded(data_dir, [Sent()])
    with pytest.raises(Exception, match=r"no topic 'nothing'.*Topics there: tbmq\.msg\.all"):
        read_messages(spark, str(data_dir), topics="nothing").count()
    with pytest.raises(Exception, match="there is no log in"):
        read_messages(spark, str(data_dir / "elsewhere"), topic_pattern=".*").count()
    for options, words in {
        ("topicFliter", "a"): "Did you mean topicFilter",
        ("topicFilter", "a/#/b"): "not a topic filter",
        ("startingOffsets", "soon"): "is not understood",
        ("badRecords", "eat"): "not one of keep, drop, fail",
        ("columns", "colour"): "no column colour",
        ("logPartitions", "x"): "not a list of partitions",
        ("startingTimestamp", "noon"): "is not a time",
    }.items():
        with pytest.raises(OptionError, match=words):
            parse({"path": "x", options[0]: options[1]})
    for name in ("startingOffsets", "endingOffsets"):
        with pytest.raises(OptionError, match=rf"{name} has offsets of tbmq\.msg\.al, .*are read: tbmq\.msg\.all"):
            parse({"path": "x", name: '{"tbmq.msg.al": {"0": 23}}'})
        with pytest.raises(OptionError, match=r"has offsets of b, which is not read.*those that match 'a\.\*'"):
            parse({"path": "x", "topicPattern": "a.*", name: '{"ab": {"0": 1}, "b": {"0": 1}}'})
    with pytest.raises(OptionError, match="where the log is"):
        parse({})


def test_a_stream_takes_up_where_it_was(spark: SparkSession, data_dir: Path, tmp_path: Path) -> None:
    write_embedded(data_dir, telemetry(100), properties={"segment.bytes": "4096"})

    def run() -> list[int]:
        stream = read_messages(spark, str(data_dir), stream=True, columns="log_partition,log_offset,payload_text")
        seen: list[int] = []

        def take(batch: DataFrame, number: int) -> None:
            seen.extend(json.loads(row.payload_text)["seq"] for row in batch.collect())

        query = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination(60)
        return sorted(seen)

    assert run() == list(range(100))
    assert run() == []
    write_embedded(data_dir, telemetry(50, first=100))
    assert run() == list(range(100, 150))


def test_registered_by_name(spark: SparkSession, data_dir: Path) -> None:
    write_embedded(data_dir, telemetry(3))
    register(spark)
    frame = spark.read.format("penstock").option("dataDir", str(data_dir)).load()
    assert frame.filter(F.col("topic") == "plant/d1/temp").count() == 1
