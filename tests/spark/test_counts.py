"""`traffic`, `devices` and `sessions`: transforms as pure functions on small frames, and runs that add up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock_spark.errors import OptionError, PenstockSparkError
from penstock_spark.jobs import devices, sessions, traffic
from penstock_spark.jobs.base import MessageSource
from penstock_spark.ledger import Ledger
from penstock_spark.transforms import only_between, only_topics, with_prefix
from tests.spark.support.records import T0, Sent, telemetry, write_embedded


def rows(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.select(*columns).collect())


def read(spark: SparkSession, output: Path, table: str) -> DataFrame:
    return spark.read.parquet(str(output / table))


def test_small_transforms(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [("a/b/c", "2026-01-01"), ("a", "2026-01-02"), ("x.y/b", "2026-01-03")], "topic string, received_at string"
    ).withColumn("received_at", F.col("received_at").cast("timestamp"))
    assert rows(frame.transform(with_prefix(2)), "prefix") == [("a",), ("a/b",), ("x.y/b",)]
    assert rows(frame.transform(only_topics("+/b/#")), "topic") == [("a/b/c",), ("x.y/b",)]
    assert rows(frame.transform(only_topics("x.y/+")), "topic") == [("x.y/b",)]
    assert rows(frame.transform(only_between("2026-01-02", "2026-01-03")), "topic") == [("a",)]


def test_percentiles_from_counts(spark: SparkSession) -> None:
    sizes = [1, 2, 3, 999, 12_345, 987_654]
    frame = spark.createDataFrame([(size,) for size in sizes], "size long")
    rounded = [row[0] for row in frame.select(traffic.rounded_size(F.col("size"))).collect()]
    assert rounded == [1, 2, 3, 999, 12_300, 988_000]


def test_traffic_adds_up(spark: SparkSession, data_dir: Path, tmp_path: Path) -> None:
    output = tmp_path / "traffic"
    source = MessageSource(str(data_dir))
    write_embedded(data_dir, [*telemetry(100, step_ms=1_000), Sent(raw=b"junk")])
    first = traffic.run(spark, source, str(output))
    assert (first.messages, first.bad) == (100, 1)
    # the second run brings clients that the first has seen in the same hour: they are not counted twice
    write_embedded(data_dir, telemetry(20, first=100, step_ms=1_000))
    assert traffic.run(spark, source, str(output)).messages == 20
    day = read(spark, output, "per_day")
    counts = rows(day, "prefix", "messages", "clients")
    assert counts == [(f"plant/d{number}", 24, 1) for number in range(5)]
    assert sum(row.messages for row in read(spark, output, "per_minute").collect()) == 120
    one = day.filter("prefix = 'plant/d1'").collect()[0]
    exact = sorted(len(record.payload) for record in telemetry(120) if record.client_id == "d1")
    assert one.bytes == sum(exact)
    assert exact[11] <= one.size_p50 <= exact[12]
    assert one.size_max == exact[-1]
    top = read(spark, output, "top_talkers").collect()
    assert [(row.client_id, row.messages) for row in top] == [(f"d{number}", 24) for number in range(5)]
    assert top[0].share == pytest.approx(0.2)
    assert "Top talkers" in (output / "report.html").read_text()


def test_other_levels_are_another_output(spark: SparkSession, data_dir: Path, tmp_path: Path) -> None:
    output, source = str(tmp_path / "traffic"), MessageSource(str(data_dir))
    # nothing was counted yet: a run that failed binds nobody
    with pytest.raises(PenstockSparkError, match=r"there is no log in|no topic"):
        traffic.run(spark, source, output, traffic.TrafficOptions(levels=3))
    write_embedded(data_dir, telemetry(10))
    traffic.run(spark, source, output, traffic.TrafficOptions(levels=1))
    write_embedded(data_dir, telemetry(10, first=10))
    with pytest.raises(OptionError, match=r"traffic has 1 levels of topics, not 2\. Run with --levels 1, or write to"):
        traffic.run(spark, source, output, traffic.TrafficOptions(levels=2))
    assert traffic.run(spark, source, output, traffic.TrafficOptions(levels=1, top=3)).messages == 10
    assert rows(read(spark, tmp_path / "traffic", "per_day"), "prefix", "messages") == [("plant", 20)]


def test_tables_after_a_kill(
    spark: SparkSession, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that ends between the counts and the tables is finished by the next, though nothing new has come."""
    output, source = tmp_path / "traffic", MessageSource(str(data_dir))
    write_embedded(data_dir, telemetry(10))
    traffic.run(spark, source, str(output))
    write_embedded(data_dir, telemetry(5, first=10))
    with monkeypatch.context() as patch:
        patch.setattr(traffic, "make_tables", interrupt)
        with pytest.raises(KeyboardInterrupt):
            traffic.run(spark, source, str(output))
    assert traffic.run(spark, source, str(output)).messages == 0
    assert sum(row.messages for row in read(spark, output, "per_day").collect()) == 15
    notes = sorted((output / "_penstock/ledger").iterdir())
    # and once is enough
    traffic.run(spark, source, str(output))
    assert sorted((output / "_penstock/ledger").iterdir()) == notes


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def seen(spark: SparkSession, *messages: tuple[str, int, str, float | None]) -> DataFrame:
    data = [
        (client, T0 // 1000 + second, payload, None if sequence is None else float(sequence), 0, number)
        for number, (client, second, payload, sequence) in enumerate(messages)
    ]
    frame = spark.createDataFrame(
        data, "client_id string, s long, payload string, sequence double, log_partition int, log_offset long"
    )
    return frame.withColumn("at", F.timestamp_seconds("s")).withColumn("topic", F.lit("t")).drop("s")


def test_findings(spark: SparkSession) -> None:
    options = devices.DeviceOptions(gap_seconds=100, duplicate_seconds=30)
    nothing = spark.createDataFrame([], devices.EMPTY_STATE)
    frame = seen(
        spark,
        ("a", 0, "x", 1),
        ("a", 10, "x", 1),  # the same again
        ("a", 60, "x", 3),  # the same, but much later
        ("a", 70, "y", 2),  # behind its successor
        ("a", 400, "z", 4),  # after a long silence
        ("b", 5, "x", None),
    )
    found = devices.with_findings(frame, nothing, options)
    assert rows(found.filter("is_duplicate"), "client_id", "log_offset") == [("a", 1)]
    assert rows(found.filter("is_out_of_order"), "client_id", "log_offset") == [("a", 3)]
    assert rows(found.filter("gap > 100"), "client_id", "log_offset", "gap") == [("a", 4, 330.0)]
    kinds = rows(devices.only_findings(found, options), "kind", "log_offset")
    assert kinds == [("duplicate", 1), ("gap", 4), ("out of order", 3)]
    state = devices.next_state(found, nothing, options).persist()
    assert rows(state, "client_id", "messages", "gaps", "duplicates", "out_of_order") == [
        ("a", 5, 1, 1, 1),
        ("b", 1, 0, 0, 0),
    ]
    # the next batch: what came before is known
    later = devices.with_findings(seen(spark, ("a", 410, "z", 3), ("b", 900, "x", None)), state, options)
    assert rows(later, "client_id", "gap", "is_duplicate", "is_out_of_order") == [
        ("a", 10.0, True, False),
        ("b", 895.0, False, False),
    ]
    table = devices.devices_of(devices.next_state(later, state, options), devices.DeviceOptions(silent_seconds=300))
    assert rows(table, "client_id", "messages", "is_silent", "silent_for") == [
        ("a", 6, True, 490.0),
        ("b", 2, False, 0.0),
    ]


def test_devices_across_runs(spark: SparkSession, data_dir: Path, tmp_path: Path) -> None:
    output = tmp_path / "devices"
    source = MessageSource(str(data_dir))
    options = devices.DeviceOptions(gap_seconds=60, sequence="seq", silent_seconds=600)
    write_embedded(data_dir, telemetry(50, step_ms=1_000))
    devices.run(spark, source, str(output), options)
    again = [Sent(client_id="d0", topic="plant/d0/temp", payload=json.dumps({"seq": 7}).encode(), at=T0 + 900_000)]
    # what is no number at all has no place in an order; a clock that was set back is no gap
    odd = Sent(client_id="d1", topic="plant/d1/temp", payload=b'{"seq": "seven"}', at=T0 + 20_000, partition=1)
    write_embedded(data_dir, [*again, odd])
    outcome = devices.run(spark, source, str(output), options)
    assert outcome.facts == {"clients": 5, "silent": 4, "gaps": 1, "duplicates": 0, "out of order": 1}
    assert rows(read(spark, output, "findings"), "kind", "client_id") == [("gap", "d0"), ("out of order", "d0")]
    assert rows(read(spark, output, "devices"), "client_id", "messages")[:2] == [("d0", 11), ("d1", 11)]
    assert "Look at these first" in (output / "report.html").read_text()


def test_more_findings_than_are_listed(
    spark: SparkSession, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, source = tmp_path / "devices", MessageSource(str(data_dir))
    monkeypatch.setattr(devices, "MOST_FINDINGS", 4)
    write_embedded(data_dir, [Sent(at=T0 + number) for number in range(5)])
    assert "findings not listed" not in devices.run(spark, source, str(output)).facts
    write_embedded(data_dir, [Sent(at=T0 + 10 + number) for number in range(9)])
    for _ in range(2):
        facts = devices.run(spark, source, str(output)).facts
        assert (facts["duplicates"], facts["findings not listed"]) == (13, 5)
    assert read(spark, output, "findings").count() == 8
    assert "findings not listed" in (output / "report.html").read_text()


def messages(spark: SparkSession, *given: tuple[str, int]) -> DataFrame:
    data = [(client, T0 // 1000 + second, "t", b"xx", 0, number) for number, (client, second) in enumerate(given)]
    frame = spark.createDataFrame(
        data, "client_id string, s long, topic string, payload binary, log_partition int, log_offset long"
    )
    return frame.withColumn("received_at", F.timestamp_seconds("s")).drop("s")


def test_sessions_are_cut_and_joined(spark: SparkSession) -> None:
    first = sessions.per_burst(messages(spark, ("a", 0), ("a", 20), ("a", 200), ("b", 0)), 60)
    assert rows(first, "client_id", "messages", "bytes") == [("a", 1, 2), ("a", 2, 4), ("b", 1, 2)]
    # a late message between two sessions of `a` joins nothing; one next to the second does
    second = sessions.per_burst(messages(spark, ("a", 110), ("a", 230)), 60)
    found = sessions.joined(first.unionByName(second), 60)
    assert rows(found, "client_id", "messages") == [("a", 1), ("a", 2), ("a", 2), ("b", 1)]
    open_ones = sessions.with_open(found, 60).filter("is_open")
    assert rows(open_ones, "client_id", "messages") == [("a", 2)]
    assert sessions._chart(spark.createDataFrame([], sessions.EMPTY_OPEN)).points == []


def test_features(spark: SparkSession) -> None:
    values = [10.0, 20.0, 30.0]
    data = [("a", "t", T0 // 1000 + number * 40, value, 0, number) for number, value in enumerate(values)]
    frame = spark.createDataFrame(
        data, "client_id string, topic string, s long, value double, log_partition int, log_offset long"
    ).withColumn("at", F.timestamp_seconds("s"))
    found = sessions.with_features(frame)
    assert rows(found, "value", "mean_10", "mean_60s", "max_60s", "change", "interval")[1:] == [
        (20.0, 15.0, 15.0, 20.0, 10.0, 40.0),
        (30.0, 20.0, 25.0, 30.0, 10.0, 40.0),
    ]


def test_sessions_across_runs(spark: SparkSession, data_dir: Path, tmp_path: Path) -> None:
    output = tmp_path / "sessions"
    source = MessageSource(str(data_dir))
    options = sessions.SessionOptions(gap_seconds=30, value="temperature")
    write_embedded(data_dir, telemetry(50, step_ms=1_000))
    sessions.run(spark, source, str(output), options)
    # goes on without a silence, and after it there is one
    more = [*telemetry(10, first=50, step_ms=1_000), *telemetry(5, first=500, step_ms=1_000)]
    write_embedded(data_dir, more)
    outcome = sessions.run(spark, source, str(output), options)
    found = sessions.read_sessions(Ledger(spark, str(output)))
    assert found is not None
    assert rows(found, "client_id", "messages", "is_open") == sorted(
        [(f"d{number}", 12, False) for number in range(5)] + [(f"d{number}", 1, True) for number in range(5)]
    )
    assert outcome.facts["rows of features"] == 65
    # the mean of the first reading of the second run knows those of the first run
    features = {row.log_offset: row for row in read(spark, output, "features").filter("client_id = 'd1'").collect()}
    values = [20 + number % 7 for number in range(1, 60, 5)]
    assert features[10].mean_10 == pytest.approx(sum(values[1:11]) / 10)
