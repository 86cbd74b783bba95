"""`penstock log` over many topics and groups of an embedded log, some of which are bad, compacted or go meanwhile."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.__main__ import main
from penstock._ext.record.segment import scan_batches
from penstock.operate.inspect import outside_log as log_embedded
from penstock.storage.log.base import Committed, TopicPartition
from penstock.storage.log.embedded import files
from penstock.storage.state.lmdb_kv import LmdbStore
from tests.support.worlds.embedded import keyed, numbered, opened, segments_of, topic_directory
from tests.unit.cli.conftest import clean_environment

TOPICS = 80
OPEN_FILES = 64


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """More topics than files may be open, each with two records and a group that has read one."""
    directory = tmp_path_factory.mktemp("many")

    async def make(log, number):
        topic = f"t-{number:03}"
        await log.admin.create(topic, 1)
        await log.producer.send(topic, 0, numbered(0, 2))
        await log.consumer(f"g-{number:03}").commit({TopicPartition(topic, 0): Committed(1)})

    async def run():
        async with opened(directory) as log:
            await asyncio.gather(*(make(log, number) for number in range(TOPICS)))

    asyncio.run(run())
    return directory


@pytest.fixture
def few(tmp_path):
    """Topics a, b and c of sixty batches in some segments, each read by a group."""

    async def run():
        async with opened(tmp_path) as log:
            for topic in "abc":
                await log.admin.create(topic, 1, {"segment.bytes": "8192"})
                for number in range(60):
                    await log.producer.send(topic, 0, numbered(10 * number, 10, 20))
                await log.consumer("group").commit({TopicPartition(topic, 0): Committed(599)})

    asyncio.run(run())
    return tmp_path


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("PENSTOCK_"):
            monkeypatch.delenv(name)

    def run_one(*arguments, where, fails=0):
        """What it prints, and what it complains about."""
        capsys.readouterr()
        code = main(["log", *arguments, "--data-dir", str(where)])
        captured = capsys.readouterr()
        assert code == fails, captured.err
        return captured.out, captured.err

    return run_one


def rows_of(output):
    return {row["topic"]: row for row in json.loads(output)}


@pytest.mark.parametrize("command", ["topics", "offsets", "lag"])
def test_more_topics_than_files_may_be_open(many, command):
    shell = f"ulimit -n {OPEN_FILES} && exec {sys.executable} -m penstock log {command} --json --data-dir {many}"
    done = subprocess.run(
        ["bash", "-c", shell], capture_output=True, text=True, env=clean_environment(), timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(json.loads(done.stdout)) == TOPICS


def test_offsets_are_loaded_once_and_topics_are_closed(many, run, monkeypatch):
    opened_stores = []

    def open_store(*arguments, **options):
        opened_stores.append(arguments)
        return LmdbStore(*arguments, **options)

    monkeypatch.setattr(log_embedded, "LmdbStore", open_store)
    before = len(os.listdir("/proc/self/fd"))
    assert len(json.loads(run("lag", "--json", where=many)[0])) == TOPICS
    assert len(opened_stores) == 1
    assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_a_hint_names_some(many, run):
    _, complaint = run("read", "x", where=many, fails=1)
    assert f"t-018, t-019 and {TOPICS - 20} more." in complaint
    _, complaint = run("lag", "x", where=many, fails=1)
    assert f"g-018, g-019 and {TOPICS - 20} more." in complaint


def zero_header(path):
    batches = scan_batches(path.read_bytes(), 0, True)[0]
    with path.open("r+b") as file:
        file.seek(batches[len(batches) // 2].position)
        file.write(bytes(4))


@pytest.mark.parametrize("is_last", [True, False])
def test_damage_has_a_row_and_keeps_nothing_from_the_others(few, run, is_last):
    path = segments_of(few, "b")[-1 if is_last else 0]
    path.with_suffix(".idx").unlink(missing_ok=True)
    zero_header(path)
    repair = f"`penstock log repair b --data-dir {few}`"
    rows = rows_of(run("topics", "--json", where=few, fails=1)[0])
    assert rows["a"] == {"topic": "a", "partitions": 1, "records": 600}
    assert rows["b"]["records"] is None
    assert repair in rows["b"]["problem"]
    lags = rows_of(run("lag", "--json", where=few, fails=1)[0])
    assert (lags["a"]["lag"], lags["b"]["lag"], lags["c"]["lag"]) == (1, None, 1)
    assert repair in lags["b"]["problem"]
    for command in (["describe", "b"], ["read", "b"]):
        assert repair in run(*command, where=few, fails=1)[1]
    table, _ = run("verify", where=few, fails=1)
    assert "\\n" not in table
    assert [line.split()[0] for line in table.splitlines()] == ["topic", "a", "b", "c"]
    assert table.splitlines()[1].endswith("  -")
    assert repair in table
    run("repair", where=few)
    assert set(rows_of(run("topics", "--json", where=few)[0])) == set("abc")


def test_a_bad_description_has_a_row_and_keeps_nothing_from_the_others(few, run):
    long = "ö" * 200
    shutil.copytree(topic_directory(few, "b"), topic_directory(few, long))
    for topic in ("b", long):
        (topic_directory(few, topic) / files.TOPIC_FILE).write_text("{")
    listed = json.loads(run("topics", "--json", where=few, fails=1)[0])
    assert [row["topic"] for row in listed][:3] == ["a", "b", "c"]
    assert len(listed) == 4
    assert ["problem" in row for row in listed] == [False, True, False, True]
    assert "topic.json is damaged" in listed[1]["problem"]
    table = run("topics", where=few, fails=1)[0].splitlines()
    assert table[0].split() == ["topic", "partitions", "records", "problem"]
    assert table[1].split() == ["a", "1", "600", "-"]
    assert rows_of(run("lag", "--json", where=few, fails=1)[0])["c"]["lag"] == 1
    assert "topic.json is damaged" in run("describe", "b", where=few, fails=1)[1]
    verified = json.loads(run("verify", "--json", where=few, fails=1)[0])
    assert [row["problem"] is None for row in verified] == [True, False, True, False]
    assert f"`penstock log repair b --data-dir {few}` rebuilds it" in listed[1]["problem"]
    assert "write it by hand" in listed[3]["problem"], "of a long name only the beginning is left"
    repaired, _ = run("repair", where=few, fails=1)
    of_topics = [line.partition(":")[2] for line in repaired.splitlines() if not line.startswith(" ")]
    expected = [" nothing to repair", " topic.json rebuilt", " nothing to repair", " not repaired"]
    assert [text[: len(start)] for text, start in zip(of_topics, expected, strict=True)] == expected
    assert run("repair", long, where=few)[0].startswith(f"{long}: topic.json rebuilt")
    assert set(rows_of(run("topics", "--json", where=few)[0])) == {"a", "b", "c", long}


@pytest.mark.parametrize("command", ["topics", "lag", "verify", "repair"])
def test_a_topic_that_goes_meanwhile_is_left_out(few, run, monkeypatch, command):
    async def list_then_delete(admin, real=log_embedded.OutsideAdmin.list):
        names = await real(admin)
        shutil.rmtree(topic_directory(few, "b"), ignore_errors=True)
        return names

    monkeypatch.setattr(log_embedded.OutsideAdmin, "list", list_then_delete)
    assert set(rows_of(run(command, "--json", where=few)[0])) == {"a", "c"}


def test_the_lag_of_a_group_that_has_read_what_is_gone(few, run):
    """A crash between the deletion of a topic and that of its offsets leaves them."""
    shutil.rmtree(topic_directory(few, "a"))
    assert set(rows_of(run("lag", "--json", where=few)[0])) == {"b", "c"}
    assert set(rows_of(run("offsets", "--json", where=few)[0])) == {"a", "b", "c"}


def test_follow_ends_when_damage_comes(few, run, monkeypatch):
    """Not silently, as if nothing more were appended."""
    path = segments_of(few, "b")[-1]
    monkeypatch.setattr(log_embedded, "LOOK_SECONDS", 0.3)
    pieces = []

    def write_line(text, real=sys.stdout.write):
        pieces.append(text)
        if len(pieces) == 1:
            zero_start(path)
        return real(text)

    monkeypatch.setattr(sys.stdout, "write", write_line)
    _, complaint = run("read", "b", "-f", "--from=-1", where=few, fails=1)
    assert "is damaged at byte 0" in complaint
    assert len(pieces) == 1


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_follow_ends_when_the_topic_is_deleted(few, run, monkeypatch, is_made_anew):
    """Before, it waited for ever; what a new topic of that name got was not shown."""
    pieces = []

    def delete() -> None:
        directory = topic_directory(few, "b")
        directory.rename(few / "log" / ".deleted")
        if is_made_anew:
            shutil.copytree(topic_directory(few, "a"), directory)

    def write_line(text, real=sys.stdout.write):
        pieces.append(text)
        if len(pieces) == 1:
            delete()
        return real(text)

    monkeypatch.setattr(sys.stdout, "write", write_line)
    _, complaint = run("read", "b", "-f", "--from=-1", where=few, fails=1)
    assert "topic 'b' was deleted" in complaint
    assert len(pieces) == 1


def zero_start(path: Path) -> None:
    """In a file of another inode, as a restored one has."""
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(bytes(4) + data[4:])


def test_records_of_a_compacted_topic_are_those_that_are_there(tmp_path, run):
    async def work():
        async with opened(tmp_path, maintenance_interval=3_600) as log:
            await log.admin.create("c", 1, {"cleanup.policy": "compact", "segment.bytes": "65536"})
            for _ in range(50):
                await log.producer.send("c", 0, keyed(*((b"key%d" % (key % 5), b"v" * 50) for key in range(100))))
            await log.maintenance.tidy()

    asyncio.run(work())
    read = len(run("read", "c", where=tmp_path)[0].splitlines())
    assert read < 5_000
    assert rows_of(run("topics", "--json", where=tmp_path)[0])["c"]["records"] == read
    shown, _ = run("describe", "c", where=tmp_path)
    assert shown.startswith(f"topic c (embedded), {read:,} records\n")
    assert shown.splitlines()[-1].split() == ["0", "0", "5000", str(read)]


def test_a_file_in_place_of_the_data_directory_is_told(tmp_path, run):
    """Before, it was an error of the program."""
    path = tmp_path / "file"
    path.touch()
    _, complaint = run("append", "t", "--create", "1", "-m", "x", where=path, fails=78)
    assert complaint.startswith(f"penstock: server.data_dir {path} cannot be made: File exists\n")
