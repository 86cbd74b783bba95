"""The Python examples of docs/spark*.md are run, page by page, on a small log in `data`."""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession

from penstock.__main__ import main
from penstock_schema.event import Event, EventKind
from penstock_spark import read_messages
from penstock_spark.options import KNOWN
from penstock_spark.schema import NAMES
from tests.spark.support.records import telemetry, write_embedded, write_kafka
from tests.spark.test_delivery import write_events
from tests.support.brokers.broker import REPOSITORY, Broker
from tests.support.documents.pages import all_commands, commands_of, is_on_yarn
from tests.support.servers.kafka_cluster import KafkaCluster

SECONDS = 60
MESSAGES = "tbmq.msg.all"
REPLAYED = "tests"
DOCS = REPOSITORY / "docs"
PAGES = sorted(DOCS.glob("spark*.md"))
EXAMPLE = re.compile(r"^```text\n# Python\n(.*?)^```", re.M | re.S)
WITH_EXAMPLES = [page for page in PAGES if EXAMPLE.search(page.read_text())]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("examples")
    write_embedded(home / "data", telemetry(60))
    write_events(home / "data", [Event(kind=EventKind.DROPPED, client_id="d1", cause="queue_full", count=2)])
    return home


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: page.stem)
def test_examples_run(
    page: Path, spark: SparkSession, workshop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.symlink(workshop / "data", tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    # Spark's own idea of where it is does not change with the directory of this process
    text = "\n".join(EXAMPLE.findall(page.read_text()))
    for name in ("data", "lake", "traffic", "devices", "sessions"):
        text = re.sub(
            rf'(["(]){name}(/[a-z_]+)?"', lambda found: f'{found[1]}{tmp_path}/{found[0].strip(chr(34) + "(")}"', text
        )
    exec(compile(text, str(page), "exec"), {"spark": spark, "read_messages": read_messages})


ON_YARN = [command for command in all_commands() if is_on_yarn(command)]
COMMANDS = [
    pytest.param(command.line, id=f"{command.page}: {command.line}"[:100])
    for command in (*commands_of(__file__), *ON_YARN)
]
YARN = {"--master yarn": "--master local[2]", "hdfs:///traffic": "traffic", "kafka-1:9092": "127.0.0.1:9092"}


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("line", COMMANDS)
def test_commands_run(
    line: str,
    workshop: Path,
    broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """In this process, with the Spark that is there: places and the port of the page stand for those of the test.

    A Spark on YARN is a local one here."""
    for name, ours in YARN.items():
        line = line.replace(name, ours)
    if "9092" in line:
        kafka: KafkaCluster = request.getfixturevalue("kafka")
        line = line.replace("127.0.0.1:9092", kafka.bootstrap)
        write_kafka(kafka.bootstrap, MESSAGES, telemetry(60))
        write_kafka(kafka.bootstrap, REPLAYED, [])
    here = Path(tempfile.mkdtemp(dir=workshop))
    os.symlink(workshop / "data", here / "data")
    monkeypatch.chdir(here)
    line = line.replace("127.0.0.1:1883", f"127.0.0.1:{broker.port}")
    line = line.replace("/var/lib/penstock/", f"{here}/").replace("/var/lib/penstock", f"{here}/data")
    for name in ("lake", "traffic", "devices", "delivery", "sessions"):
        line = re.sub(rf"(-o|--output) {name}\b", rf"\1 {here}/out", line)
    words = shlex.split(line)[1:]
    if words[1] != "submit-package":
        words += [] if {"--data-dir", "--kafka"} & {*words} else ["--data-dir", str(here / "data")]
        words += ["--to", f"mqtt://127.0.0.1:{broker.port}"] if words[2] == "topic" else []
        words += ["--master", "local[2]"]
    assert main(words) == 0
    if "kafka://" in line:
        assert count_records(kafka.bootstrap, REPLAYED) == 60
    if "--kafka" in line:
        assert [*here.glob("out/**/*.parquet")]


def count_records(bootstrap: str, topic: str) -> int:
    """How many there are, in all partitions."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "count"})
    try:
        partitions = consumer.list_topics(topic, timeout=SECONDS).topics[topic].partitions
        marks = [consumer.get_watermark_offsets(TopicPartition(topic, each), timeout=SECONDS) for each in partitions]
        return sum(end - first for first, end in marks)
    finally:
        consumer.close()


def test_every_page_of_a_job_has_a_picture() -> None:
    for job in ("lake", "traffic", "devices", "delivery", "sessions", "replay", "topic"):
        text = (DOCS / f"spark-{job}.md").read_text()
        assert f"](spark-{job}.svg)" in text
        assert (DOCS / f"spark-{job}.svg").read_text().startswith("<svg")


def test_every_column_and_option_is_explained() -> None:
    text = (DOCS / "spark-reading.md").read_text()
    assert [name for name in (*NAMES, *KNOWN) if f"`{name}`" not in text] == []
