"""`delivery`: who should have got what, what became of it, and the events that say so."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock_schema.event import TOPIC as EVENTS
from penstock_schema.event import Event, EventKind, encode_event
from penstock_spark.jobs import delivery
from penstock_spark.jobs.base import MessageSource
from tests.conftest import Connect
from tests.spark.support.records import T0, Sent, write_embedded
from tests.support.brokers.log_broker import LogBroker
from tests.support.clients.packets import V5
from tests.support.worlds.embedded import opened

SUBSCRIBED, UNSUBSCRIBED, ENDED = EventKind.SUBSCRIBED, EventKind.UNSUBSCRIBED, EventKind.SESSION_ENDED


def rows(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.select(*columns).collect())


def events(spark: SparkSession, *given: tuple[str, int, str, str]) -> DataFrame:
    """(kind, second, client, topic)"""
    frame = spark.createDataFrame(
        [(*one, 0) for one in given], "kind string, s long, client_id string, topic string, reason int"
    )
    return frame.withColumn("at", F.timestamp_seconds("s")).drop("s")


def test_when_who_was_subscribed(spark: SparkSession) -> None:
    carried = spark.createDataFrame([("old", "z")], "client_id string, filter string").withColumn(
        "start", F.timestamp_seconds(F.lit(1))
    )
    given = events(
        spark,
        ("subscribed", 10, "a", "x/#"),
        ("subscribed", 15, "a", "x/#"),
        ("unsubscribed", 20, "a", "x/#"),
        ("subscribed", 30, "a", "x/#"),
        ("subscribed", 12, "b", "x/1"),
        ("session_ended", 40, "b", ""),
        ("session_ended", 50, "old", ""),
        ("subscribed", 12, "c", "$share/g/x"),
    )
    spans = delivery.subscription_spans(given, carried)
    seconds = spans.select("client_id", "filter", F.col("start").cast("long"), F.col("end").cast("long"))
    assert sorted((tuple(row) for row in seconds.collect()), key=str) == [
        ("a", "x/#", 10, 20),
        ("a", "x/#", 30, None),
        ("b", "x/1", 12, 40),
        ("old", "z", 1, 50),
    ]
    messages = spark.createDataFrame(
        [("x/1", 11), ("x/1", 25), ("x/1", 35), ("y", 35)], "topic string, s long"
    ).withColumns(
        {
            "received_at": F.timestamp_seconds("s"),
            "log_topic": F.lit("t"),
            "log_partition": F.lit(0),
            "log_offset": F.monotonically_increasing_id(),
        }
    )
    found = delivery.expected_deliveries(messages, spans)
    assert rows(found, "client_id", "topic", "count") == [("a", "x/1", 2), ("b", "x/1", 2)]


def test_counts_without_a_topic(spark: SparkSession) -> None:
    counts = spark.createDataFrame(
        [
            ("one", "x", "expected", "", 5),
            ("one", "", "delivered", "", 3),
            ("one", "", "dropped", "queue_full", 1),
            ("all", "x", "expected", "", 2),
            ("all", "y", "expected", "", 4),
            ("all", "", "delivered", "", 6),
            ("some", "y", "expected", "", 4),
            ("some", "z", "expected", "", 4),
            ("some", "", "delivered", "", 5),
        ],
        "client_id string, topic string, kind string, cause string, count long",
    )
    placed = delivery.with_topics(counts)
    columns = ("expected", "delivered", "dropped", "unaccounted")

    def found(*keys: str) -> list[tuple[Any, ...]]:
        table = delivery.per_key(placed, *keys).select(*keys, *columns).collect()
        return sorted((tuple(row) for row in table), key=str)

    assert found("client_id", "topic") == [
        ("all", "x", 2, 2, 0, 0),
        ("all", "y", 4, 4, 0, 0),
        ("one", "x", 5, 3, 1, 1),
        ("some", "", 0, 5, 0, None),
        ("some", "y", 4, 0, 0, None),
        ("some", "z", 4, 0, 0, None),
    ]
    assert found("client_id") == [("all", 6, 6, 0, 0), ("one", 5, 3, 1, 1), ("some", 8, 5, 0, 3)]
    assert found("topic")[1:] == [("x", 7, 5, 1, 1), ("y", 8, 4, 0, None), ("z", 4, 0, 0, None)]


def test_more_than_was_expected(spark: SparkSession) -> None:
    """A member of a shared subscription and a dead letter do not hide what another client missed."""
    counts = spark.createDataFrame(
        [
            ("member", "", "delivered", "", 7),
            ("plain", "x", "expected", "", 5),
            ("plain", "", "delivered", "", 2),
            ("", "$queue/mqtt/job", "dead_lettered", "mqtt: rejected", 1),
        ],
        "client_id string, topic string, kind string, cause string, count long",
    )
    columns = ("dead_lettered", "unaccounted", "unexpected")
    found = delivery.per_key(delivery.with_topics(counts), "client_id")
    assert rows(found, "client_id", *columns) == [("", 1, 0, 0), ("member", 0, 0, 7), ("plain", 0, 3, 0)]
    topics = delivery.per_key(delivery.with_topics(counts), "topic").filter("topic <> ''")
    assert rows(topics, "topic", *columns) == [("$queue/mqtt/job", 1, 0, 0), ("x", 0, 3, 0)]


def test_events_of_a_real_broker(spark: SparkSession, connect: Connect, tmp_path: Path) -> None:
    """What the broker itself notes of its clients, from their first packet to the tables."""
    broker = LogBroker(tmp_path)
    broker.wait_until_listening()
    try:
        whole = connect(V5, "whole", broker=broker)
        whole.subscribe("a/#", qos=1)
        small = connect(V5, "small", broker=broker, properties={"maximum_packet_size": 100})
        small.subscribe("a/big", qos=1)
        slow = connect(V5, "slow", broker=broker, properties={"receive_maximum": 1})
        slow.subscribe("s/#", qos=1)
        writer = connect(V5, "writer", broker=broker)
        sent = [("a/1", b"x"), ("a/2", b"y"), ("a/big", bytes(500)), ("a/nobody", b"z")]
        for topic, payload in sent:
            writer.publish(topic, payload, qos=1)
        for topic, payload in sent:
            whole.expect_publish(topic, payload, ack=True)
        writer.publish("s/1", b"x", qos=1)
        first = slow.expect_publish("s/1", b"x")
        # it waits for the acknowledgement of the one before it, too long
        writer.publish("s/2", b"x", qos=1, properties={"message_expiry_interval": 1})
        time.sleep(1.5)
        slow.ack(first)
        slow.expect_nothing()
        for client in (whole, small, slow, writer):
            client.disconnect()
    finally:
        broker.stop()
    output = tmp_path / "delivery"
    outcome = delivery.run(spark, MessageSource(str(broker.data_dir)), str(output))
    assert (outcome.messages, outcome.bad) == (6, 0)
    assert outcome.facts["events"] >= 4 * 3
    counted = ("published", "expected", "delivered", "expired", "dropped", "unaccounted")
    assert rows(spark.read.parquet(str(output / "by_client")), "client_id", *counted) == [
        ("slow", 0, 2, 1, 1, 0, 0),
        ("small", 0, 1, 0, 0, 1, 0),
        ("whole", 0, 4, 4, 0, 0, 0),
        ("writer", 6, 0, 0, 0, 0, 0),
    ]
    table = spark.read.parquet(str(output / "by_client_and_topic"))
    assert rows(table.filter("client_id <> 'writer'"), "client_id", "topic", *counted[1:]) == [
        # the broker does not say which of the two topics it was
        ("slow", "", 0, 1, 1, 0, None),
        ("slow", "s/1", 1, 0, 0, 0, None),
        ("slow", "s/2", 1, 0, 0, 0, None),
        ("small", "a/big", 1, 0, 0, 1, 0),
        *(("whole", f"a/{name}", 1, 1, 0, 0, 0) for name in ("1", "2", "big", "nobody")),
    ]
    assert rows(spark.read.parquet(str(output / "causes")), "kind", "cause", "count") == [
        ("dropped", "too_large", 1),
        ("expired", "expired", 1),
    ]
    comings = spark.read.parquet(str(output / "connections"))
    assert rows(comings.filter("client_id = 'small'").orderBy("at"), "kind", "topic") == [
        ("connected", ""),
        ("disconnected", ""),
        ("session_ended", ""),
        ("subscribed", "a/big"),
    ]


def write_events(data_dir: Path, given: list[Event | bytes]) -> None:
    async def work() -> None:
        from penstock._ext.record.segment import RecordPack  # noqa: PLC0415 - compiled, only for writing

        async with opened(data_dir) as log:
            await log.admin.create(EVENTS, 1, {"retention.ms": "-1"})
            pack = RecordPack()
            pack.extend([one if isinstance(one, bytes) else encode_event(one) for one in given])
            await log.producer.send(EVENTS, 0, pack)

    asyncio.run(work())


def test_published_against_delivered(spark: SparkSession, data_dir: Path, tmp_path: Path) -> None:
    output = tmp_path / "delivery"
    write_embedded(data_dir, [Sent(topic="a/1", at=T0 + number, client_id="pub") for number in range(10)])
    write_events(
        data_dir,
        [
            Event(kind=EventKind.CONNECTED, at=T0 - 9, client_id="sub", protocol=5),
            Event(kind=SUBSCRIBED, at=T0 - 5, client_id="sub", topic="a/+"),
            Event(kind=EventKind.DELIVERED, at=T0 + 9, client_id="sub", topic="a/1", count=6),
            Event(kind=EventKind.DROPPED, at=T0 + 9, client_id="sub", topic="a/1", cause="queue_full", count=3),
            b"junk",
        ],
    )
    outcome = delivery.run(spark, MessageSource(str(data_dir)), str(output))
    assert (outcome.messages, outcome.bad, outcome.facts["events"]) == (10, 1, 4)
    counted = ("published", "expected", "delivered", "expired", "dropped", "unaccounted")
    table = spark.read.parquet(str(output / "by_client_and_topic"))
    assert rows(table, "client_id", "topic", *counted) == [
        ("pub", "a/1", 10, 0, 0, 0, 0, 0),
        ("sub", "a/1", 0, 10, 6, 0, 3, 1),
    ]
    (refused,) = pq.read_table(str(output / "quarantine")).to_pylist()
    assert (refused["log_topic"], refused["log_offset"], refused["raw"]) == (EVENTS, 4, b"junk")
    assert refused["reason"]
    # the subscription of the first run still counts in the second
    write_embedded(data_dir, [Sent(topic="a/2", at=T0 + 50, client_id="pub")])
    write_events(data_dir, [Event(kind=EventKind.EXPIRED, at=T0 + 60, client_id="sub", topic="a/2", cause="expired")])
    outcome = delivery.run(spark, MessageSource(str(data_dir)), str(output))
    assert rows(spark.read.parquet(str(output / "by_topic")), "topic", *counted) == [
        ("a/1", 10, 10, 6, 0, 3, 1),
        ("a/2", 1, 1, 0, 1, 0, 0),
    ]
    causes = spark.read.parquet(str(output / "causes"))
    assert rows(causes, "kind", "cause", "count") == [("dropped", "queue_full", 3), ("expired", "expired", 1)]
    assert (outcome.bad, outcome.facts["unaccounted"]) == (0, 1)
    assert "queue_full" in (output / "report.html").read_text()
