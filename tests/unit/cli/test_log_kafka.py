"""`penstock log` on a real Kafka: the same commands, all of them at any time."""

import asyncio
import json
import os
import signal
import sys
import time
import uuid

import pytest

from penstock.__main__ import main
from penstock.storage.log.base import Committed, TopicPartition
from penstock.storage.log.kafka.admin import KafkaAdmin
from penstock.storage.log.kafka.log import KafkaLog
from penstock.storage.log.kafka.settings import KafkaSettings
from tests.support.brokers import forked
from tests.support.documents.pages import commands_of
from tests.support.servers.kafka_fixtures import shared_cluster

SECONDS = 60


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("PENSTOCK_"):
            monkeypatch.delenv(name)
    settings = ["--set", "log.provider=kafka", "--set", f"kafka.bootstrap_servers={shared_cluster(1).bootstrap}"]

    def run_one(command, *arguments, fails=0):
        capsys.readouterr()
        code = main(["log", command, *settings, *arguments])
        captured = capsys.readouterr()
        assert code == fails, captured.err
        return captured.err if fails else captured.out

    return run_one


@pytest.fixture
def topic():
    return f"cli-{uuid.uuid4().hex[:12]}"


def test_every_command(run, topic):
    for number in range(6):
        run("append", topic, "--create", "3", "-m", str(number), "-t", f"t/{number}", "-q", "1", "-p", str(number % 3))
    assert {"topic": topic, "partitions": 3, "records": 6} in json.loads(run("topics", "--json"))
    described = json.loads(run("describe", topic, "--json"))
    assert described["provider"] == "kafka"
    assert [row["end"] for row in described["partitions"]] == [2, 2, 2]

    shown = [json.loads(line) for line in run("read", topic, "--json").splitlines()]
    assert [(one["topic"], one["payload"], one["qos"]) for one in shown] == [(f"t/{n}", str(n), 1) for n in range(6)]
    assert [json.loads(line)["payload"] for line in run("read", topic, "--json", "--from=-1").splitlines()] == list(
        "345"
    )
    assert json.loads(run("read", topic, "--json", "--filter", "t/4"))["payload"] == "4"
    assert run("read", topic, "--from", "end") == ""
    assert len(run("read", topic, "--from", "1h").splitlines()) == 6

    assert run("truncate", topic, "--before", "1", "-p", "0", "--yes").startswith("1 record deleted")
    assert [json.loads(line)["payload"] for line in run("read", topic, "--json").splitlines()] == list("12345")
    complaint = run("truncate", topic, "--before", "3", "--yes", fails=2)
    assert "--before 3: partition 0 ends at 2, partition 1 ends at 2, partition 2 ends at 2" in complaint
    assert "--before end for everything" in complaint
    assert len(run("read", topic, "--json").splitlines()) == 5
    for place in ("99999999999999999d", "@99999999999999999999"):
        assert "is not a time" in run("read", topic, "--from", place, fails=2)
    assert len(run("read", topic, "--from", "99999d").splitlines()) == 5
    assert "is there already, with 3 partitions" in run("append", topic, "--create", "9", "-m", "x", fails=2)
    assert "only the files of an embedded log" in run("repair", fails=1)
    assert "there is no topic" in run("read", f"{topic}-not", fails=1)


def test_a_topic_that_went_is_left_out(run, topic, monkeypatch):
    run("append", topic, "--create", "1", "-m", "x")

    async def list_one_more(admin, real=KafkaAdmin.list):
        return [*await real(admin), f"{topic}-gone"]

    monkeypatch.setattr(KafkaAdmin, "list", list_one_more)
    listed = [row["topic"] for row in json.loads(run("topics", "--json"))]
    assert topic in listed
    assert f"{topic}-gone" not in listed


def test_of_a_compacted_topic_kafka_only_knows_how_many_records_there_are_at_most(run, topic):
    async def create():
        log = KafkaLog(KafkaSettings(bootstrap_servers=shared_cluster(1).bootstrap))
        await log.start()
        await log.admin.create(topic, 1, {"cleanup.policy": "compact"})
        await log.close()

    asyncio.run(create())
    run("append", topic, "-m", "x", "-k", "key")
    assert run("describe", topic).startswith(f"topic {topic} (kafka), at most 1 record\n")


def test_groups(run, topic):
    run("append", topic, "--create", "2", "-m", "x", "-p", "1")

    async def commit():
        log = KafkaLog(KafkaSettings(bootstrap_servers=shared_cluster(1).bootstrap))
        await log.start()
        consumer = log.consumer(topic)
        partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
        consumer.assign(partitions)
        await consumer.commit(dict.fromkeys(partitions, Committed(0, "noted")))
        await log.close()

    asyncio.run(commit())
    [first, second] = json.loads(run("offsets", topic, "--json"))
    assert first == {"group": topic, "topic": topic, "partition": 0, "offset": 0, "metadata": "noted"}
    assert second["partition"] == 1
    assert [row["lag"] for row in json.loads(run("lag", topic, "--json"))] == [0, 1]
    assert "there is no group" in run("lag", f"{topic}-not", fails=1)


def test_a_kafka_that_is_away(run):
    complaint = run("topics", "--set", "kafka.bootstrap_servers=127.0.0.1:9", fails=1)
    assert "cannot be reached" in complaint
    # and nothing of what librdkafka says to itself
    assert complaint.count("\n") == 1, complaint


def show(words, tmp_path):
    """What it prints; what goes on until Ctrl-C gets it as soon as there is a line."""
    bootstrap = shared_cluster(1).bootstrap
    words = [word.replace("127.0.0.1:9092", bootstrap) for word in words]
    # Where the page names no address it is the usual one, which is another here.
    environment = {**os.environ, "PENSTOCK_KAFKA__BOOTSTRAP_SERVERS": bootstrap, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "penstock", *words[1:]]
    path = tmp_path / "shown"
    with path.open("wb") as shown:
        process = forked.popen(command, cwd=tmp_path, env=environment, stdout=shown, stderr=shown)
    deadline = time.monotonic() + SECONDS
    try:
        while process.poll() is None:
            assert time.monotonic() < deadline, path.read_text()
            if "-f" in words and "\n" in path.read_text():
                process.send_signal(signal.SIGINT)
                process.wait(SECONDS)
            time.sleep(0.05)
    finally:
        if process.poll() is None:
            process.kill()
    assert process.returncode in ((0, 130) if "-f" in words else (0,)), path.read_text()
    return path.read_text()


def test_commands_of_the_documents(run, tmp_path):
    # On a Kafka that brokers of other tests have used it is there, with as many partitions as they wanted.
    is_there = '"tbmq.msg.all"' in run("topics", "--json")
    create = [] if is_there else ["--create", "2"]
    run("append", "tbmq.msg.all", *create, "-m", "21.5", "-t", "plant/4/temp", "-q", "1")
    shown = [show(command.words, tmp_path) for command in commands_of(__file__)]
    assert "tbmq.msg.all" in shown[0]
    assert "plant/4/temp  21.5" in shown[1]
