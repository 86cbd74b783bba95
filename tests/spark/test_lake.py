"""`lake`: every message once, whatever happens to a run; partitions, late data, JSON, quarantine, compaction."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock_spark import ledger
from penstock_spark.errors import Busy, CheckpointError, OptionError, PenstockSparkError
from penstock_spark.hadoop import Files
from penstock_spark.jobs import json_columns, lake
from penstock_spark.jobs.base import SLOW_START, IncrementalJob, MessageSource, Run
from penstock_spark.ledger import Ledger, Table
from penstock_spark.lock import only_run
from tests.spark.support.records import T0, TOPIC, Sent, telemetry, write_embedded, write_kafka
from tests.support.worlds.embedded import segments_of

DAY = 86_400_000


def places(output: Path) -> list[tuple[int, int]]:
    """Partition and offset of each message, as a reader sees them that knows nothing of Spark."""
    table = pq.read_table(str(output / "messages"), columns=["log_partition", "log_offset"])
    return sorted(zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True))


def expected(data_dir: Path, count: int) -> list[tuple[int, int]]:
    offsets: dict[int, int] = {}
    found = []
    for record in telemetry(count):
        offsets[record.partition] = offsets.get(record.partition, -1) + 1
        found.append((record.partition, offsets[record.partition]))
    return sorted(found)


def test_partitions_late_data_and_re_runs(spark: SparkSession, data_dir: Path, tmp_path: Path) -> None:
    output = tmp_path / "lake"
    write_embedded(data_dir, [Sent(topic="a/b/c"), Sent(topic="b", at=T0 + DAY)])
    first = lake.run(spark, MessageSource(str(data_dir)), str(output), lake.LakeOptions(levels=2))
    assert (first.messages, first.bad, first.batches) == (2, 0, 1)
    assert (output / "messages/date=2026-09-21/level1=a/level2=b").is_dir()
    assert (output / "messages/date=2026-09-22/level1=b").is_dir()
    again = lake.run(spark, MessageSource(str(data_dir)), str(output), lake.LakeOptions(levels=2))
    assert again.messages == 0
    # a message of the day before comes late: it is put where it belongs, nothing is left out
    write_embedded(data_dir, [Sent(topic="a/b/d", at=T0 + 5)])
    assert lake.run(spark, MessageSource(str(data_dir)), str(output), lake.LakeOptions(levels=2)).messages == 1
    assert places(output) == [(0, 0), (0, 1), (0, 2)]
    late = spark.read.parquet(str(output / "messages")).filter("date = '2026-09-21'")
    assert {row.topic for row in late.collect()} == {"a/b/c", "a/b/d"}
    assert "Messages a day" in (output / "report.html").read_text()
    with pytest.raises(OptionError, match="has 2 levels of topics"):
        lake.run(spark, MessageSource(str(data_dir)), str(output), lake.LakeOptions(levels=1))


def test_bad_records_go_to_the_quarantine(
    spark: SparkSession, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "lake"
    # a look at the first message is not a count of all
    monkeypatch.setattr(lake, "SAMPLE", 1)
    write_embedded(data_dir, [Sent(), Sent(raw=b"\x08\x09"), Sent(is_tombstone=True), Sent()])
    outcome = lake.run(spark, MessageSource(str(data_dir)), str(output))
    assert (outcome.messages, outcome.bad) == (2, 2)
    rows = pq.read_table(str(output / "quarantine")).to_pylist()
    assert sorted(row["log_offset"] for row in rows) == [1, 2]
    assert {row["reason"] for row in rows} >= {"a tombstone"}
    assert b"\x08\x09" in {row["raw"] for row in rows}
    assert places(output) == [(0, 0), (0, 3)]


def test_json_as_columns(spark: SparkSession, data_dir: Path, tmp_path: Path) -> None:
    payloads = [
        b'{"t": 21.5, "place": {"lat": 1}, "ts": 1789900000}',
        b"no json",
        b'{"t": "warm"}',
        b"\xff",
        b'{"t": 3}',
    ]
    write_embedded(data_dir, [Sent(payload=payload) for payload in payloads])
    options = lake.LakeOptions(json="t DOUBLE, place STRUCT<lat: INT>", event_time="ts")
    lake.run(spark, MessageSource(str(data_dir)), str(tmp_path / "declared"), options)
    rows = spark.read.parquet(str(tmp_path / "declared/messages")).orderBy("log_offset").collect()
    assert [row.json_t for row in rows] == [21.5, None, None, None, 3.0]
    assert [row.json_place_lat for row in rows] == [1, None, None, None, None]
    assert [row.json_unparsed for row in rows] == [None, "no json", '{"t": "warm"}', "/w==", None]
    # the date of the payload where it has one, of the receive time elsewhere
    assert [str(row.date) for row in rows] == ["2026-09-20", *["2026-09-21"] * 4]


def test_json_that_was_found_stays(spark: SparkSession, data_dir: Path, tmp_path: Path) -> None:
    output = tmp_path / "lake"
    write_embedded(data_dir, [Sent(payload=b'{"a": 1, "b": "x"}')])
    options = lake.LakeOptions(json="infer")
    lake.run(spark, MessageSource(str(data_dir)), str(output), options)
    write_embedded(data_dir, [Sent(payload=b'{"a": 2, "c": true}')])
    lake.run(spark, MessageSource(str(data_dir)), str(output), options)
    rows = spark.read.parquet(str(output / "messages")).orderBy("log_offset").collect()
    assert [(row.json_a, row.json_b) for row in rows] == [(1, "x"), (2, None)]
    assert "json_c" not in rows[0]


def test_json_names_that_differ_in_case_only(spark: SparkSession, data_dir: Path, tmp_path: Path) -> None:
    """Two firmwares, or one publisher who means it: to Spark that is one name, and such a table cannot be read."""
    output = tmp_path / "lake"
    payloads = [
        b'{"t": 1, "T": 2, "in": {"x": 3}, "IN": {"x": 4, "X": 5}}',
        b'{"t": 6, "list": [{"q": 7, "Q": 8}]}',
        b"no json",
        b"",
    ]
    write_embedded(data_dir, [Sent(payload=payload) for payload in payloads])
    lake.run(spark, MessageSource(str(data_dir)), str(output), lake.LakeOptions(json="infer"))
    table = spark.read.parquet(str(output / "messages")).orderBy("log_offset")
    first, second, text, empty = table.collect()
    found = {name: value for name, value in first.asDict().items() if name.startswith("json_") and value is not None}
    assert found == {"json_T": 2, "json_t_": 1, "json_IN_X": 5, "json_IN_x_": 4, "json_in_x__": 3}
    assert (second.json_t_, second.json_T, second.json_list) == (6, None, '[{"q":7,"Q":8}]')
    assert [row.json_unparsed for row in (first, second, text, empty)] == [None, None, "no json", ""]


class Killed(Exception):
    """A run that ends here and now."""


@pytest.mark.parametrize("log", ["embedded", "kafka"])
def test_killed_anywhere(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: str
) -> None:
    """At each step that touches the output a run ends; those after it go on until all is done."""
    output, data_dir = tmp_path / "lake", tmp_path / "data"
    source = MessageSource(str(data_dir))
    write: Callable[[list[Sent]], None] = partial(write_embedded, data_dir)
    if log == "kafka":
        bootstrap, topic = request.getfixturevalue("kafka").bootstrap, request.getfixturevalue("topic")
        source = MessageSource(kafka=bootstrap, options={"topics": topic})
        write = partial(write_kafka, bootstrap, topic)
    steps = [(name, getattr(Files, name)) for name in ("rename", "delete", "write_text")]
    budget = {"left": -1}

    def guard(original: Any) -> Any:
        def step(*arguments: Any) -> Any:
            budget["left"] -= 1
            if budget["left"] == 0:
                raise Killed
            return original(*arguments)

        return step

    for name, original in steps:
        monkeypatch.setattr(Files, name, guard(original))
    pick = random.Random(7)
    written, kills = 0, 0
    for _ in range(3):
        write(telemetry(60, first=written))
        written += 60
        for step in pick.sample(range(1, 14), 3):
            budget["left"] = step
            try:
                lake.run(spark, source, str(output))
            except (Killed, PenstockSparkError):
                kills += 1
        budget["left"] = -1
    lake.run(spark, source, str(output))
    assert kills >= 5
    assert places(output) == expected(data_dir, written)


def test_a_machine_that_is_slow(spark: SparkSession, data_dir: Path, tmp_path: Path) -> None:
    """Spark gives up on a stream whose Python does not start within ten seconds: a job tries again."""
    write_embedded(data_dir, telemetry(4))
    failures = [SLOW_START, "another reason"]

    def work(_: Run, messages: DataFrame) -> dict[str, Table]:
        if failures:
            raise RuntimeError(failures.pop(0))
        return {"copy": Table(messages)}

    job = IncrementalJob(spark, "slow", str(tmp_path / "slow"))
    with pytest.raises(PenstockSparkError, match="another reason"):
        job.run(MessageSource(str(data_dir)), work)
    assert failures == []
    assert job.run(MessageSource(str(data_dir)), work).messages == 4


def test_a_lost_checkpoint(spark: SparkSession, data_dir: Path, tmp_path: Path) -> None:
    output = tmp_path / "lake"
    write_embedded(data_dir, telemetry(20))
    lake.run(spark, MessageSource(str(data_dir)), str(output))
    # the name of the query is still there: its first batch must not be taken for the one that was written
    for name in ("offsets", "commits"):
        shutil.rmtree(output / "_penstock/checkpoint" / name)
    write_embedded(data_dir, telemetry(20, first=20))
    with pytest.raises(CheckpointError, match="--recover"):
        lake.run(spark, MessageSource(str(data_dir)), str(output))
    assert lake.run(spark, MessageSource(str(data_dir)), str(output), recover=True).messages == 20
    assert places(output) == expected(data_dir, 40)


def test_an_expired_offset(spark: SparkSession, data_dir: Path, tmp_path: Path) -> None:
    output = tmp_path / "lake"
    write_embedded(data_dir, telemetry(60), properties={"segment.bytes": "2048"})
    lake.run(spark, MessageSource(str(data_dir)), str(output))
    # what the stream comes to next is gone
    write_embedded(data_dir, telemetry(60, first=60))
    write_embedded(data_dir, telemetry(60, first=120))
    for path in segments_of(data_dir, TOPIC)[:-2]:
        path.unlink()
    with pytest.raises(PenstockSparkError, match=r"is not in the log.*failOnDataLoss=false"):
        lake.run(spark, MessageSource(str(data_dir)), str(output))
    loose = MessageSource(str(data_dir), options={"failOnDataLoss": "false"})
    outcome = lake.run(spark, loose, str(output))
    assert outcome.bad
    gaps = pq.read_table(str(output / "quarantine")).column("reason").to_pylist()
    missing = sum(int(reason.split("(")[1].split()[0]) for reason in gaps)
    assert missing + len(places(output)) == 180


def _remove_newest(checkpoint: Path) -> None:
    """Spark would go on with the batch before it, and its next one would have the number of one that was written."""
    max((checkpoint / "offsets").glob("[0-9]*")).unlink()


DAMAGES: dict[str, Any] = {
    "no metadata": lambda checkpoint: (checkpoint / "metadata").unlink(),
    "half of the metadata": lambda checkpoint: (checkpoint / "metadata").write_text('{"id":"3'),
    "an empty commit": lambda checkpoint: max((checkpoint / "commits").glob("[0-9]*")).write_text(""),
    "no newest offsets": _remove_newest,
    "half of the offsets": lambda checkpoint: max((checkpoint / "offsets").glob("[0-9]*")).write_text("v1\n{"),
    "no offsets": lambda checkpoint: shutil.rmtree(checkpoint / "offsets"),
    "other offsets": lambda checkpoint: max((checkpoint / "offsets").glob("[0-9]*")).write_text(
        f'v1\n{{}}\n{{"{TOPIC}": {{"0": 1}}}}'
    ),
}


def test_a_damaged_checkpoint_is_found(spark: SparkSession, data_dir: Path, tmp_path: Path) -> None:
    """Files that were cut off or removed: nothing is read before it is said, nothing is skipped or written twice."""
    output = tmp_path / "lake"
    for first in (0, 20):
        write_embedded(data_dir, telemetry(20, first=first))
        lake.run(spark, MessageSource(str(data_dir)), str(output))
    for number, damage in enumerate(DAMAGES.values()):
        copy = tmp_path / str(number)
        shutil.copytree(output, copy)
        damage(copy / "_penstock/checkpoint")
        with pytest.raises(CheckpointError, match=r"checkpoint.* is (damaged|gone).*--recover"):
            lake.run(spark, MessageSource(str(data_dir)), str(copy))
    write_embedded(data_dir, telemetry(20, first=40))
    assert lake.run(spark, MessageSource(str(data_dir)), str(copy), recover=True).messages == 20
    assert places(copy) == expected(data_dir, 60)


def test_a_run_after_much_was_put_together(
    spark: SparkSession, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More directories than notes are kept: the note of the stream's last batch has to be among those that are."""
    monkeypatch.setattr(ledger, "KEPT_NOTES", 2)
    output, options = tmp_path / "lake", lake.LakeOptions(compact_from=2)
    for first in (0, 10, 20):
        write_embedded(data_dir, [Sent(topic=f"{number}/t", at=T0 + first) for number in range(4)])
        assert lake.run(spark, MessageSource(str(data_dir)), str(output), options).messages == 4
    assert places(output) == [(0, offset) for offset in range(12)]
    assert len(list((output / "_penstock/ledger").glob("*.done"))) <= 3


def test_small_files_are_put_together(spark: SparkSession, data_dir: Path, tmp_path: Path) -> None:
    output = tmp_path / "lake"
    for first in (0, 10, 20):
        write_embedded(data_dir, telemetry(10, first=first))
        lake.run(spark, MessageSource(str(data_dir)), str(output), lake.LakeOptions(compact_below=0))
    assert len(list((output / "messages").rglob("*.parquet"))) >= 3
    assert lake.compact(spark, Ledger(spark, str(output)), lake.LakeOptions(compact_from=2)) >= 3
    assert len(list((output / "messages").rglob("*.parquet"))) == 1
    assert places(output) == expected(data_dir, 30)
    rows = spark.read.parquet(str(output / "messages"))
    assert {(str(row.date), row.level1) for row in rows.collect()} == {("2026-09-21", "plant")}


def test_an_output_belongs_to_one_job(spark: SparkSession, data_dir: Path, tmp_path: Path) -> None:
    from penstock_spark.jobs import traffic  # noqa: PLC0415 - the other job of this test only

    write_embedded(data_dir, telemetry(2))
    # while somebody else is at work on it
    with only_run(Files(spark, str(tmp_path / "out"))), pytest.raises(Busy, match=rf"process {os.getpid()} on"):
        lake.run(spark, MessageSource(str(data_dir)), str(tmp_path / "out"))
    with pytest.raises(PenstockSparkError, match="cannot be written: Not a directory"):
        lake.run(spark, MessageSource(str(data_dir)), f"{__file__}/out")
    lake.run(spark, MessageSource(str(data_dir)), str(tmp_path / "out"))
    with pytest.raises(OptionError, match="output of the job lake"):
        traffic.run(spark, MessageSource(str(data_dir)), str(tmp_path / "out"))


def test_partition_columns(spark: SparkSession) -> None:
    """Whatever a publisher sends: a day in UTC, directories that a file system takes, and never an error."""
    long = "ä" * 41
    rows = [
        ("a/b", "2026-09-21 10:00:00Z", '{"ts": 1789900000000}'),
        ("/x", "2026-09-21 10:00:00Z", '{"ts": "soon"}'),
        (f"{long}/{long[1:]}", "2026-09-21 23:59:59Z", '{"ts": 1e300}'),
        ("a", "2026-09-21 00:00:00Z", '{"ts": "NaN"}'),
        ("a", "1969-12-31 23:59:59Z", "[]"),
        ("a", "2026-09-21 10:00:00Z", '{"ts": "2026-03-29T02:30:00+14:00"}'),
    ]
    frame = spark.createDataFrame(rows, "topic string, received_at string, payload_text string")
    frame = frame.withColumn("received_at", frame.received_at.cast("timestamp"))

    def shown(found: DataFrame) -> list[tuple[Any, ...]]:
        return [tuple(map(str, row)) for row in found.select("date", "level1", "level2", "level3").collect()]

    expected = [
        ("2026-09-20", "a", "b", "None"),
        ("2026-09-21", "", "x", "None"),
        ("2026-09-21", f"{long[:40]}~{sha256(long.encode()).hexdigest()[:8]}", long[1:], "None"),
        ("2026-09-21", "a", "None", "None"),
        ("1969-12-31", "a", "None", "None"),
        ("2026-03-28", "a", "None", "None"),
    ]
    assert shown(lake.with_partitions(frame, 3, "ts")) == expected
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Pacific/Kiritimati")
    try:
        assert shown(lake.with_partitions(frame, 3, "ts")) == expected
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))


def test_a_directory_for_each_device_is_refused(spark: SparkSession, data_dir: Path, tmp_path: Path) -> None:
    write_embedded(data_dir, [Sent(topic=f"{number}/t") for number in range(30)])
    few = lake.LakeOptions(most_directories=20)
    with pytest.raises(PenstockSparkError, match=r"30 directories with levels=1.*--levels 0"):
        lake.run(spark, MessageSource(str(data_dir)), str(tmp_path / "lake"), few)


def test_a_schema_that_is_none() -> None:
    with pytest.raises(OptionError, match="is not a schema"):
        json_columns.parse_schema("temperature BANANA")
