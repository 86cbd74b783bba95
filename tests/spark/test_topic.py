"""`topic`: rows of a query over many messages, published to a real broker, run by run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.__main__ import main
from penstock_schema.decode import Publish
from penstock_spark.errors import OptionError, PenstockSparkError
from penstock_spark.jobs import topic
from penstock_spark.jobs.base import MessageSource
from penstock_spark.jobs.topic import TopicOptions
from tests.spark.support.records import T0, Sent, telemetry, write_embedded
from tests.spark.test_replay import Collector
from tests.support.brokers.log_broker import LogBroker

PER_WINDOW = (
    "SELECT window(ts, '10 seconds').start AS at, site, count(*) AS n, max(temperature) AS hottest "
    "FROM plants GROUP BY window(ts, '10 seconds'), site"
)
PLANTS = (
    "CREATE TABLE plants FROM 'plant/+/temp' (temperature DOUBLE, seq BIGINT FROM '$.seq') "
    "TAGS (site VARCHAR FROM TOPIC LEVEL 2)"
)


class Kept:
    """A sink that keeps."""

    def __init__(self) -> None:
        self.sent: list[Publish] = []
        self.refused = 0

    def send(self, record: Publish) -> None:
        self.sent.append(record)

    def flush(self) -> None: ...
    def close(self) -> None: ...


def test_windows_of_a_declared_table_reach_a_broker(
    spark: SparkSession, data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command that CREATE TOPIC names when it refuses GROUP BY; a second run adds to the same windows."""
    write_embedded(data_dir, telemetry(10, devices=2))
    home = tmp_path / "broker"
    home.mkdir()
    broker = LogBroker(home)
    words = ["spark", "run", "topic", "--name", "hot", "--sql", PER_WINDOW, "--table", PLANTS]
    words += ["--to", f"mqtt://127.0.0.1:{broker.port}", "--state", str(tmp_path / "state")]
    words += ["--data-dir", str(data_dir), "--master", "local[2]", "--json"]
    try:
        broker.wait_until_listening()
        collector = Collector(broker.port)
        assert main(words) == 0
        assert json.loads(capsys.readouterr().out)["rows published"] == 2
        write_embedded(data_dir, telemetry(1, devices=2, first=10))
        assert main(words) == 0
        collector.close(3)
    finally:
        broker.stop()
    assert {message.topic for message in collector.messages} == {"materialised/hot"}
    rows = [json.loads(message.payload) for message in collector.messages]
    assert sorted(rows[:2], key=lambda row: row["site"]) == [
        {"at": "2026-09-21T14:13:20.000Z", "site": "d0", "n": 5, "hottest": 26.0},
        {"at": "2026-09-21T14:13:20.000Z", "site": "d1", "n": 5, "hottest": 25.0},
    ]
    assert rows[2:] == [{"at": "2026-09-21T14:13:20.000Z", "site": "d0", "n": 6, "hottest": 26.0}]
    assert collector.messages[0].properties.ContentType == "application/json"


def test_its_own_rows_do_not_come_back(spark: SparkSession, data_dir: Path, tmp_path: Path) -> None:
    write_embedded(data_dir, [Sent("a", b"{}"), Sent("materialised/x", b"{}", at=T0 + 1), Sent("b", b"no json")])
    sink = Kept()
    options = TopicOptions("x", "SELECT topic, get_json_object(payload_text, '$.v') AS v FROM messages", str(tmp_path))
    outcome = topic.run(spark, MessageSource(str(data_dir)), lambda: sink, options)
    assert sorted(json.loads(record.payload)["topic"] for record in sink.sent) == ["a", "b"]
    assert json.loads(sink.sent[0].payload)["v"] is None
    assert outcome.facts["rows published"] == 2


def test_what_is_wrong_is_said(spark: SparkSession, data_dir: Path, tmp_path: Path) -> None:
    write_embedded(data_dir, [Sent()])
    for options, part in (
        (TopicOptions("a/+", "SELECT 1", "s"), "--name"),
        (TopicOptions("a", "SELECT 1", "s", to_topic="a/#"), "--to-topic"),
        (TopicOptions("a", "SELECT 1", "s", mode="all"), "--mode"),
        (TopicOptions("a", "SELECT 1", ""), "--state"),
        (TopicOptions("a", "SELECT 1", str(tmp_path / "s")), "does not read the view"),
    ):
        with pytest.raises(OptionError, match=part):
            topic.run(spark, MessageSource(str(data_dir)), Kept, options)
    with pytest.raises(PenstockSparkError, match="nothing"):
        topic.run(
            spark, MessageSource(str(data_dir)), Kept, TopicOptions("a", "SELECT nothing FROM messages", str(tmp_path))
        )
