"""A real broker writes while Spark reads; records go while they are read; a paho client's properties come out again."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from pyspark.sql import SparkSession

from penstock.access.passwords import PasswordFile, hash_password
from penstock_spark import read_messages
from penstock_spark.embedded_plan import EmbeddedTopic
from penstock_spark.errors import DataLost, LogDamaged
from penstock_spark.options import Bound, parse
from penstock_spark.source import PenstockReader
from tests.spark.support.load import Probe, Publisher
from tests.spark.support.records import TOPIC, telemetry, write_embedded
from tests.support.brokers.log_broker import LogBroker
from tests.support.worlds.embedded import segments_of


def publish(port: int, topic: str, payload: bytes, properties: Properties | None = None, **options: Any) -> None:
    client = paho.Client(CallbackAPIVersion.VERSION2, "paho-1", protocol=paho.MQTTv5)
    client.username_pw_set("eve", "secret")
    client.connect("127.0.0.1", port)
    client.loop_start()
    client.publish(topic, payload, qos=1, properties=properties, **options).wait_for_publish(10)
    client.disconnect()
    client.loop_stop()


def test_every_property_of_a_publish(spark: SparkSession, tmp_path: Path) -> None:
    """MQTT 5, 3.3.2.3: what belongs to the message is in the row, as the client sent it."""
    passwords = tmp_path / "passwords"
    PasswordFile({"eve": hash_password(b"secret")}).save(passwords)
    broker = LogBroker(tmp_path, {"access.password_file": str(passwords)})
    try:
        broker.wait_until_listening()
        sent = Properties(PacketTypes.PUBLISH)
        sent.PayloadFormatIndicator = 1
        sent.MessageExpiryInterval = 3600
        sent.ContentType = "text/plain"
        sent.ResponseTopic = "answers/eve"
        sent.CorrelationData = b"\x00\x01\xfe"
        sent.UserProperty = [("b", "2"), ("a", "1"), ("b", "3")]
        publish(broker.port, "round/trip/ü", "Grüße".encode(), sent, retain=True)
        publish(broker.port, "plain", b"\xff")
    finally:
        broker.stop()
    rows = {row.topic: row for row in read_messages(spark, str(broker.data_dir)).collect()}
    full, plain = rows["round/trip/ü"], rows["plain"]
    assert (full.payload_text, full.qos, full.retain, full.client_id, full.username) == (
        "Grüße",
        1,
        True,
        "paho-1",
        "eve",
    )
    assert (full.payload_format, full.content_type, full.response_topic) == (1, "text/plain", "answers/eve")
    assert bytes(full.correlation_data) == b"\x00\x01\xfe"
    assert [tuple(pair) for pair in full.user_property_list] == [("b", "2"), ("a", "1"), ("b", "3")]
    assert full.user_properties == {"a": "1", "b": "3"}
    assert (full.expires_at - full.received_at).total_seconds() == 3600
    assert (plain.payload_text, bytes(plain.payload), plain.expires_at, plain.content_type) == (
        None,
        b"\xff",
        None,
        None,
    )
    assert full.schema_version == 1


def test_a_broker_writes_while_a_batch_reads(spark: SparkSession, tmp_path: Path) -> None:
    """50,000 messages a second: the read is consistent, the broker goes on, nothing is missing in the end."""
    broker = LogBroker(tmp_path)
    try:
        broker.wait_until_listening()
        load, probe = Publisher(broker.port), Probe(broker.port)
        load.start()
        probe.start()
        started = time.monotonic()
        counts = []
        while len(counts) < 3:
            time.sleep(0.5)
            frame = read_messages(spark, str(broker.data_dir), columns="log_partition,log_offset,topic,error")
            rows = (
                frame.groupBy("log_partition").agg({"log_offset": "max", "topic": "count", "error": "count"}).collect()
            )
            # a prefix of each partition, whole
            assert all(row["max(log_offset)"] + 1 == row["count(topic)"] for row in rows)
            assert all(row["count(error)"] == 0 for row in rows)
            counts.append(sum(row["count(topic)"] for row in rows))
        load.is_running = probe.is_running = False
        load.join(60)
        probe.join(60)
        rate = load.sent / (time.monotonic() - started)
        assert counts == sorted(counts)
        assert counts[0] < counts[-1]
        # acknowledgements went on coming: nobody waited for the reader (bench/spark_bench.py has the percentiles)
        assert len(probe.seconds) > 20
        assert rate > 20_000, f"only {rate:.0f} messages a second were taken while Spark had the machine as well"
    finally:
        broker.stop()
    assert read_messages(spark, str(broker.data_dir), columns="topic").count() == load.sent + len(probe.seconds)


def test_reading_touches_nothing(data_dir: Path) -> None:
    """No file is made, written, renamed or locked: there is nothing by which a broker could notice."""
    write_embedded(data_dir, telemetry(200), properties={"segment.bytes": "8192"})

    def look() -> list[tuple[str, int, int, int]]:
        found = [(path, path.stat()) for path in sorted(data_dir.rglob("*"))]
        return [(str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in found]

    def locks() -> list[str]:
        inodes = {str(path.stat().st_ino) for path in data_dir.rglob("*")}
        return [
            line for line in Path("/proc/locks").read_text().splitlines() if line.split()[5].split(":")[-1] in inodes
        ]

    before = look()
    reader = PenstockReader(parse({"path": str(data_dir)}))
    batches = [next(iter(reader.read(task))) for task in reader.partitions()]
    assert sum(batch.num_rows for batch in batches) == 200
    assert locks() == []
    assert look() == before


def read_all(options: dict[str, str], between: Any = None) -> list[dict[str, Any]]:
    """Plans, lets something happen, and reads."""
    reader = PenstockReader(parse(options))
    tasks = reader.partitions()
    if between is not None:
        between()
    return [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]


def test_a_segment_goes_while_it_is_read(data_dir: Path) -> None:
    write_embedded(data_dir, telemetry(200), properties={"segment.bytes": "8192"})
    first = segments_of(data_dir, TOPIC)[0]

    def remove() -> None:
        first.unlink()

    with pytest.raises(DataLost, match=r"went while they were read.*failOnDataLoss=false"):
        read_all({"path": str(data_dir)}, remove)
    first.write_bytes(b"")
    # what was removed before the plan is no gap for a read from the earliest
    first.unlink()
    assert all(row["error"] is None for row in read_all({"path": str(data_dir)}))
    second = segments_of(data_dir, TOPIC)[0]
    whole = read_all({"path": str(data_dir), "failOnDataLoss": "false"})
    for decoder in ("compiled", "python"):
        kept = second.read_bytes()
        given = {"path": str(data_dir), "failOnDataLoss": "false", "decoder": decoder}
        rows = read_all(given, second.unlink)
        gaps = [row for row in rows if row["error"]]
        assert gaps
        assert all(row["error"].startswith("gap: offsets") for row in gaps)
        missing = sum(int(row["error"].split("(")[1].split()[0]) for row in gaps)
        assert missing + len(rows) - len(gaps) == len(whole)
        second.write_bytes(kept)


def test_a_segment_goes_while_a_time_is_looked_up(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention between the list of the files and the look into them: the first record at or after it that is left."""
    write_embedded(data_dir, telemetry(200), properties={"segment.bytes": "8192"})
    paths = segments_of(data_dir, TOPIC)
    look = EmbeddedTopic._look

    def look_and_lose(topic: EmbeddedTopic) -> None:
        look(topic)
        paths[0].unlink(missing_ok=True)

    monkeypatch.setattr(EmbeddedTopic, "_look", look_and_lose)
    found = EmbeddedTopic(str(data_dir), TOPIC).resolve(Bound(time_ms=0))
    monkeypatch.undo()
    assert found == EmbeddedTopic(str(data_dir), TOPIC).firsts


def test_an_offset_that_expired(data_dir: Path) -> None:
    write_embedded(data_dir, telemetry(200), properties={"segment.bytes": "8192"})
    segments_of(data_dir, TOPIC)[0].unlink()
    start = {"startingOffsets": json.dumps({TOPIC: {"0": 0}}), "logPartitions": "0"}
    with pytest.raises(DataLost, match=r"offset 0 of tbmq\.msg\.all\[0\] is not in the log.*new checkpoint"):
        read_all({"path": str(data_dir), **start})
    rows = read_all({"path": str(data_dir), "failOnDataLoss": "false", **start})
    gaps = [row["error"] for row in rows if row["error"]]
    assert len(gaps) == 1
    assert "before the read" in gaps[0]


@pytest.mark.parametrize("decoder", ["compiled", "python"])
def test_damage(data_dir: Path, decoder: str) -> None:
    write_embedded(data_dir, telemetry(40))
    path = segments_of(data_dir, TOPIC)[0]
    data = bytearray(path.read_bytes())
    at = data.index(b'"seq": 20')
    data[at + 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(LogDamaged, match="penstock log repair"):
        read_all({"path": str(data_dir), "decoder": decoder})
    rows = read_all({"path": str(data_dir), "decoder": decoder, "failOnDataLoss": "false"})
    gaps = [row["error"] for row in rows if row["error"]]
    assert len(gaps) == 1
    assert "are damaged" in gaps[0]
    assert 40 - 7 <= len(rows) - 1 < 40
