"""`replay`: history to a real broker and to Kafka, in order, paced, limited, and taken up again."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from pyspark.sql import SparkSession

from penstock._ext.match.partition import partition_of
from penstock.cli.spark.options import Chosen
from penstock.cli.spark.sinks import make_sink
from penstock_client.mqtt.publisher import Address, MqttPublisher, PublishError
from penstock_schema.decode import Publish, decode
from penstock_schema.encode import encode
from penstock_spark import read_messages
from penstock_spark.errors import Busy, CheckpointError, OptionError, PenstockSparkError, TopicMissing
from penstock_spark.hadoop import Files
from penstock_spark.jobs import replay
from penstock_spark.jobs.base import MessageSource, translate
from penstock_spark.jobs.replay import Pacer, ReplayOptions
from penstock_spark.kafka import KafkaSink
from penstock_spark.lock import only_run
from penstock_spark.options import parse
from penstock_spark.source import PenstockReader
from tests.spark.support.records import T0, TOPIC, Sent, telemetry, write_embedded, write_kafka
from tests.spark.test_source import FULL
from tests.support.brokers.log_broker import LogBroker
from tests.support.servers.kafka_cluster import KafkaCluster


class Collector:
    """A subscriber of everything."""

    def __init__(self, port: int) -> None:
        self.messages: list[Any] = []
        self._client = paho.Client(CallbackAPIVersion.VERSION2, "collector", protocol=paho.MQTTv5)
        ready = threading.Event()
        self._client.on_connect = lambda client, *_: client.subscribe("#", 1)
        self._client.on_subscribe = lambda *_: ready.set()
        self._client.on_message = lambda _, __, message: self.messages.append(message)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        assert ready.wait(60)

    def close(self, count: int) -> None:
        for _ in range(6_000):
            if len(self.messages) >= count:
                break
            threading.Event().wait(0.01)
        self._client.disconnect()
        self._client.loop_stop()


def test_to_a_broker(spark: SparkSession, data_dir: Path, tmp_path: Path) -> None:
    large = Sent(topic="plant/large/temp", payload=bytes(70_000), at=T0 + 10_000)
    unsure = Sent(topic="plant/unsure/temp", qos=0, at=T0 + 10_001)
    write_embedded(data_dir, [FULL, *telemetry(50, step_ms=10), large, unsure])
    broker = LogBroker(tmp_path, {"limits.max_packet_size": "64KiB"})
    try:
        broker.wait_until_listening()
        collector = Collector(broker.port)
        options = ReplayOptions(speed=0, state=str(tmp_path / "state"))

        def sink() -> MqttPublisher:
            return MqttPublisher(Address(port=broker.port))

        plants = MessageSource(str(data_dir), options={"topic_filter": "plant/+/temp"})
        told: list[tuple[str, int, int]] = []
        outcome = replay.run(spark, plants, sink, options, notify=lambda *words: told.append(words))
        # one is larger than the broker takes
        assert (outcome.messages, outcome.failed) == (52, 1)
        assert told == [("messages", number, 53) for number in range(1, 54)]
        assert outcome.report is not None
        assert "Messages sent" in (tmp_path / "state/report.html").read_text()
        # what was safe is not sent again
        assert replay.run(spark, plants, sink, options).messages == 0
        with only_run(Files(spark, options.state)), pytest.raises(Busy):
            replay.run(spark, plants, sink, options)
        collector.close(52)
    finally:
        broker.stop()
    assert [message.topic for message in collector.messages[:3]] == [
        "replay/plant/d0/temp",
        "replay/plant/ä/temp",
        "replay/plant/d1/temp",
    ]
    full = next(message for message in collector.messages if message.topic == "replay/plant/ä/temp")
    assert (full.payload, full.retain) == (FULL.payload, False)
    assert full.properties.ContentType == "application/json"
    assert full.properties.CorrelationData == b"\x00\xff"
    assert full.properties.UserProperty == [("k", "1"), ("k", "2")]
    assert len(collector.messages) == 52


def test_to_kafka(spark: SparkSession, kafka: KafkaCluster, topic: str, data_dir: Path) -> None:
    write_kafka(kafka.bootstrap, topic, [], partitions=2)
    write_embedded(data_dir, [FULL, *telemetry(20)])
    options = ReplayOptions(speed=0, to_topic="{topic}", retain=True)
    with pytest.raises(TopicMissing, match="has no topic nowhere"):
        KafkaSink(kafka.bootstrap, "nowhere")
    replay.run(spark, MessageSource(str(data_dir)), lambda: KafkaSink(kafka.bootstrap, topic), options)
    kept = ("topic", "payload", "client_id", "username", "received_at", "expires_at", "user_property_list", "retain")
    copies = sorted(map(str, read_messages(spark, kafka=kafka.bootstrap, topics=topic).select(*kept).collect()))
    assert copies == sorted(map(str, read_messages(spark, str(data_dir)).select(*kept).collect()))


def test_to_the_log_of_a_stopped_broker(data_dir: Path) -> None:
    write_embedded(data_dir, [], partitions=16)
    sink = make_sink(f"log:{TOPIC}", Chosen(data_dir=str(data_dir)))()
    value = FULL.value()
    assert value is not None
    sink.send(decode(value))
    sink.flush()
    sink.close()
    reader = PenstockReader(parse({"path": str(data_dir)}))
    (row,) = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
    assert (row["topic"], row["payload"], row["content_type"]) == (FULL.topic, FULL.payload, "application/json")
    # where the broker itself would have put it
    assert row["log_partition"] == partition_of(FULL.topic.encode(), 16, "murmur3_128")


class Kept:
    """A target that keeps what it gets, and fails after so many."""

    def __init__(self, messages: list[str], most: int = 1_000) -> None:
        self.messages, self.most, self.refused = messages, most, 0

    def send(self, record: Publish) -> None:
        if not self.most:
            raise PenstockSparkError("the connection is lost")
        self.most -= 1
        self.messages.append(f"{record.topic} {record.payload.decode()}")

    def flush(self) -> None: ...
    def close(self) -> None: ...


def test_goes_on_where_it_was(spark: SparkSession, data_dir: Path, tmp_path: Path) -> None:
    """Two topics of the log with messages of the same time and place, a run that fails, one that is limited, and
    messages that come later with an earlier time: each is sent once."""

    def write(topic: str, *given: tuple[str, int, int]) -> None:
        records = [Sent(topic=topic, payload=name.encode(), partition=number, at=T0 + ms) for name, number, ms in given]
        write_embedded(data_dir, records, topic=topic, partitions=2)

    source = MessageSource(str(data_dir), options={"topics": "a,b"})
    options = ReplayOptions(speed=0, to_topic="{topic}", state=str(tmp_path / "state"))
    sent: list[str] = []
    write("a", ("1", 0, 10), ("2", 1, 20), ("3", 0, 30))
    write("b", ("1", 0, 10), ("2", 1, 20))
    with pytest.raises(PenstockSparkError, match="connection is lost"):
        replay.run(spark, source, lambda: Kept(sent, most=1), options)
    assert sent == ["a 1"]
    # of another node, whose clock is behind
    write("b", ("late", 0, 5), ("4", 1, 40))
    outcome = replay.run(spark, source, lambda: Kept(sent), replace(options, limit=3))
    assert (outcome.messages, sent[1:]) == (3, ["b 1", "a 2", "b 2"])
    assert replay.run(spark, source, lambda: Kept(sent), options).messages == 3
    assert sent[4:] == ["a 3", "b late", "b 4"]
    write("a", ("later still", 1, 1))
    assert replay.run(spark, source, None, options).facts["messages"] == 1
    assert replay.run(spark, source, lambda: Kept(sent), options).messages == 1
    assert replay.run(spark, source, lambda: Kept(sent), options).messages == 0
    assert sent[7:] == ["a later still"]


@pytest.mark.parametrize("log", ["embedded", "kafka"])
def test_a_topic_that_was_made_anew(
    request: pytest.FixtureRequest, spark: SparkSession, topic: str, tmp_path: Path, log: str
) -> None:
    """Its offsets are below those that were sent: that is said, not taken for nothing new."""
    bootstrap = request.getfixturevalue("kafka").bootstrap if log == "kafka" else None
    where = {"kafka": bootstrap} if bootstrap else {"path": str(tmp_path / "data")}
    options = ReplayOptions(speed=0, state=str(tmp_path / "state"))

    def write(directory: str, name: str, count: int) -> None:
        if bootstrap:
            write_kafka(bootstrap, name, telemetry(count))
        else:
            write_embedded(tmp_path / directory, telemetry(count), topic=name)

    write("data", topic, 20)
    source = MessageSource(**where, options={"topics": topic})
    assert replay.run(spark, source, lambda: Kept([]), options).messages == 20
    if bootstrap:
        # to make it anew takes Kafka a while, so the state is of one with more than this has
        state = Path(options.state) / "replay.json"
        state.write_text(state.read_text().replace('"0": 8', '"0": 80'))
    else:
        shutil.rmtree(tmp_path / "data")
        write("data", topic, 5)
    for target in (None, lambda: Kept([])):
        with pytest.raises(CheckpointError, match=r"\[0\] was read up to offset 80?, but it ends at .* --state"):
            replay.run(spark, source, target, options)
    shutil.rmtree(options.state)
    assert replay.run(spark, source, lambda: Kept([]), options).messages == (20 if bootstrap else 5)


def test_dry_run(spark: SparkSession, data_dir: Path) -> None:
    write_embedded(data_dir, telemetry(100, step_ms=1_000))
    outcome = replay.run(spark, MessageSource(str(data_dir)), None, ReplayOptions(speed=10, rate=5))
    assert outcome.messages == 0
    assert (outcome.facts["messages"], outcome.facts["topics"]) == (100, 5)
    assert outcome.facts["would take seconds"] == 20.0


def test_pace_and_rate() -> None:
    now = [100.0]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    paced = Pacer(2.0, 0, lambda: now[0], sleep)
    for at in (0.0, 10.0, 10.0, 30.0):
        paced.wait(at)
    assert slept == [5.0, 10.0]
    slept.clear()
    limited = Pacer(0, 4.0, lambda: now[0], sleep)
    for _ in range(5):
        limited.wait(0.0)
    assert sum(slept) == pytest.approx(1.0)


def test_what_is_wrong_is_said(spark: SparkSession, data_dir: Path) -> None:
    with pytest.raises(OptionError, match="to-topic"):
        replay.check(ReplayOptions(to_topic="a/#"))
    with pytest.raises(PublishError, match="no MQTT broker at"):
        MqttPublisher(Address(port=1))
    # Spark's own words are many; what they come to is one sentence
    java = Exception("An error occurred while calling o1.create.\n: java.io.IOException: Mkdirs failed\n\tat org.x")
    assert str(translate(java)) == "java.io.IOException: Mkdirs failed"
    lost = Exception("org.x.OffsetOutOfRangeException: Fetch position {offset=60} is out of range for partition a.b-2")
    assert str(translate(lost)).startswith("Kafka has not any more what comes next of a.b[2]. Retention has removed it")
    full = Exception("org.x.SparkException: [TASK_WRITE_FAILED] Task failed\nCaused by: X: No space left on device")
    assert str(translate(full)) == "no space left on device. Make room and run again: it goes on where it was"


def test_records_are_written_as_the_broker_writes_them() -> None:
    value = FULL.value()
    assert value is not None
    record = decode(value)
    assert encode(record) == value
    empty = Publish(1, "t", b"", 0, False, "", "", 0, 0, 0, "", None, b"", [("", "")])
    assert decode(encode(empty)) == empty
    assert record.received_at == T0 + 5
