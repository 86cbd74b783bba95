"""`penstock log` on the embedded log: what it prints, what it refuses, and beside a broker that writes."""

import asyncio
import base64
import json
import os
import subprocess
import sys
import time
from datetime import datetime, timedelta

import pytest

from penstock.__main__ import main
from penstock._ext.record.envelope import encode
from penstock._ext.record.segment import RecordPack
from penstock.cli.log.append import NewRecord
from penstock.storage.log.base import Committed, TopicPartition
from penstock.storage.log.embedded import EmbeddedLog
from penstock.storage.state.lmdb_kv import LmdbStore
from penstock_schema.event import Event, EventKind, encode_event
from tests.support.brokers.forked import popen
from tests.support.machine.ports import free_port
from tests.unit.cli.conftest import clean_environment, wait_until_listening

TOPIC = "demo"
NO_TEXT = os.fsdecode(b"\xff")


@pytest.fixture(autouse=True)
def nothing_from_outside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("PENSTOCK_"):
            monkeypatch.delenv(name)


def write(directory, work):
    """Runs `work(log)` on an embedded log in the directory, as a broker would."""

    async def run():
        store = LmdbStore(directory / "state")
        log = EmbeddedLog(directory, store.space("groups"))
        await log.start()
        try:
            await work(log)
        finally:
            await log.close()
            store.close()

    directory.mkdir(exist_ok=True)
    asyncio.run(run())


def pack_of(*values, timestamp=None, key=None, headers=()):
    pack = RecordPack()
    for value in values:
        pack.append(value, key=key, headers=headers, timestamp=timestamp)
    return pack


@pytest.fixture
def data(tmp_path):
    """Two partitions: publishes 0, 2, 4 … 18 in the first, 1, 3 … in the second, a second apart; a group behind."""
    start = 1_700_000_000_000

    async def work(log):
        await log.admin.create(TOPIC, 2, {"retention.ms": "-1"})
        for number in range(20):
            at = start + 1000 * number
            value = encode(f"t/{number}", b"%d" % number, number % 3, False, "c", received_at=at)
            await log.producer.send(TOPIC, number % 2, pack_of(value, timestamp=at))
        consumer = log.consumer("group-a")
        await consumer.commit(
            {TopicPartition(TOPIC, 0): Committed(4, "noted"), TopicPartition(TOPIC, 1): Committed(10)}
        )

    write(tmp_path / "data", work)
    return tmp_path / "data"


@pytest.fixture
def run(capsys, data):
    """run("topics") gives what the command prints; run("read", …, fails=1) what it complains about."""

    def run_one(*arguments, fails=0, where=data):
        capsys.readouterr()
        code = main(["log", *arguments, "--data-dir", str(where)])
        captured = capsys.readouterr()
        assert code == fails, captured.err
        assert "Traceback" not in captured.err
        return captured.err if fails else captured.out

    return run_one


def payloads(text):
    return [int(json.loads(line)["payload"]) for line in text.splitlines()]


def test_topics(run):
    assert run("topics").splitlines() == ["topic  partitions  records", "demo            2       20"]
    assert json.loads(run("topics", "--json")) == [{"topic": "demo", "partitions": 2, "records": 20}]


def test_topics_of_nothing(run, tmp_path):
    (tmp_path / "empty").mkdir()
    assert json.loads(run("topics", "--json", where=tmp_path / "empty")) == []
    assert list((tmp_path / "empty").iterdir()) == [], "a look must not leave anything behind"


def test_queues_of_the_settings_are_shown_and_made(run, tmp_path):
    where = tmp_path / "queues"
    chosen = ["--set", "services.prefix=p", "--set", "services.core.partitions=2", "--set", "server.node_id=n"]
    chosen += ["--set", "queue.tasks.types=export, report"]
    made = run("queues", "--create", *chosen, where=where).splitlines()
    assert made[-1].endswith(" topics made")
    rows = {row["topic"]: row for row in json.loads(run("queues", "--json", *chosen, where=where))}
    assert rows["p.tb_core"]["topics"] == ["p.tb_core.0", "p.tb_core.1"]
    assert all(row["there"] == len(row["topics"]) for row in rows.values())
    assert rows["p.tb_rule_engine.sq"]["submit"] == "SEQUENTIAL_BY_ORIGINATOR"
    assert rows["p.tb_transport.notifications"]["acknowledge"] == "RETRY_FAILED_AND_TIMED_OUT"
    assert (rows["p.edqs.state"]["kept"], rows["p.js_eval.requests"]["kept"]) == ("for ever, compacted", "1 day")
    topics = {row["topic"]: row["partitions"] for row in json.loads(run("topics", "--json", where=where))}
    assert (topics["p.js_eval.requests"], topics["p.report"]) == (30, 12)
    assert "0 topics made" in run("queues", "--create", *chosen, where=where)
    tenant = "784f394c-42b6-435a-983c-b7beff2784f9"
    isolated = json.loads(run("queues", "--tenant", tenant, "--json", *chosen, where=where))
    assert isolated[0]["topics"][9] == f"p.tb_rule_engine.main.isolated.{tenant}.9"
    of_rules = json.loads(run("queues", "--service", "tb_rule_engine=re-1", "--json", *chosen, where=where))
    assert ["p.tb_rule_engine.notifications.re-1"] in [row["topics"] for row in of_rules]
    unmade = json.loads(run("queues", "--json", *chosen, where=tmp_path / "nowhere"))
    assert {row["topic"] for row in unmade} == set(rows)
    assert sum(row["there"] for row in unmade) == 0
    assert not (tmp_path / "nowhere").exists(), "a look must not leave anything behind"
    assert "write KIND=ID" in run("queues", "--service", "x=1", where=where, fails=2)
    assert "is not a UUID" in run("queues", "--tenant", "x", where=where, fails=2)


@pytest.mark.parametrize(
    "arguments",
    [
        ["topics"],
        ["read", "x"],
        ["describe", "x"],
        ["offsets"],
        ["lag"],
        ["repair"],
        ["truncate", "x", "--before", "end", "-y"],
    ],
)
def test_a_directory_that_does_not_exist_is_named(run, monkeypatch, tmp_path, arguments):
    monkeypatch.chdir(tmp_path)
    complaint = run(*arguments, where="elsewhere", fails=1)
    directory = tmp_path.resolve() / "elsewhere"
    assert complaint == f"penstock: no log in {directory}: start the broker there or name it with --data-dir\n"
    assert not directory.exists(), "a look must not leave anything behind"


def test_an_empty_log_says_where_it_is(capsys, tmp_path):
    directory = tmp_path.resolve() / "empty"
    directory.mkdir()
    for is_log_there in (False, True):
        if is_log_there:
            (directory / "log").mkdir()
        expected = f"the log in {directory} has no topics yet" if is_log_there else f"no log in {directory}: start"
        for command, code in (["topics"], 0), (["offsets"], 0), (["read", "x"], 1), (["describe", "x"], 1):
            assert main(["log", *command, "--data-dir", str(directory)]) == code
            assert expected in capsys.readouterr().err


def test_describe(run):
    lines = run("describe", TOPIC).splitlines()
    assert lines[0] == "topic demo (embedded), 20 records"
    assert "  retention.ms = -1" in lines
    assert lines[-1].split() == ["1", "0", "10", "10"]
    described = json.loads(run("describe", TOPIC, "--json"))
    assert described["properties"] == {"retention.ms": "-1"}
    assert described["partitions"][0] == {"partition": 0, "first": 0, "end": 10, "records": 10}


def test_read_is_in_the_order_of_time_over_all_partitions(run):
    assert payloads(run("read", TOPIC, "--json")) == list(range(20))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-p", "1"], range(1, 20, 2)),
        (["-p", "0", "--from", "8"], [16, 18]),
        (["--from", "3", "--to", "5"], [6, 7, 8, 9]),
        (["--from=-1"], [18, 19]),
        (["--from", "end"], []),
        (["--from", "begin", "-n", "3"], [0, 1, 2]),
        (["--from", "@1700000015"], range(15, 20)),
        (["--from", "@1700000003.5", "--to", "@1700000006"], [4, 5]),
        (["--from", "100"], []),
        (["--from", "5", "--to", "2"], []),
        (["--from", "1h"], []),
        (["--filter", "t/+", "-n", "2"], [0, 1]),
        (["--filter", "t/7"], [7]),
        (["--filter", "other/#"], []),
        (["--decode", "publish", "-n", "1"], [0]),
    ],
)
def test_read_what_was_asked_for(run, arguments, expected):
    assert payloads(run("read", TOPIC, "--json", *arguments)) == list(expected)


def test_read_by_local_time(run):
    place = (datetime.fromtimestamp(1_700_000_000) + timedelta(seconds=18)).isoformat()
    assert payloads(run("read", TOPIC, "--json", "--from", place)) == [18, 19]


def test_read_shows_every_field_of_a_publish(run, data, tmp_path):
    props = b"\x01\x01" + b"\x03\x00\x04text" + b"\x08\x00\x03a/b" + b"\x09\x00\x01\xff" + b"\x26\x00\x01k\x00\x01v"
    value = encode("a/b", b"\xff\x00", 2, True, "me", "alice", 1_700_000_000_123, 1_700_000_060_123, props)

    async def work(log):
        await log.admin.create("full", 1)
        await log.producer.send("full", 0, pack_of(value, timestamp=1_700_000_000_123, headers=[("h", b"1")]))

    write(data, work)
    shown = json.loads(run("read", "full", "--json"))
    times = {
        name: datetime.fromisoformat(shown.pop(name)).timestamp() for name in ("time", "received_at", "expires_at")
    }
    assert times == {"time": 1_700_000_000.123, "received_at": 1_700_000_000.123, "expires_at": 1_700_000_060.123}
    assert shown == {
        "partition": 0,
        "offset": 0,
        "topic": "a/b",
        "payload_base64": base64.b64encode(b"\xff\x00").decode(),
        "qos": 2,
        "retain": True,
        "client_id": "me",
        "username": "alice",
        "properties": {
            "payload_format": 1,
            "content_type": "text",
            "response_topic": "a/b",
            "correlation_data_base64": "/w==",
            "user_properties": [["k", "v"]],
        },
        "headers": [{"name": "h", "value": "1"}],
    }
    line = run("read", "full")
    assert line.startswith("0:0  ")
    assert "  q2 retain  me (alice)  a/b  base64:/wA=  [expires=" in line
    assert "content_type=text" in line
    assert "k=v" in line


def test_read_raw_records(run, data):
    async def work(log):
        await log.admin.create("raw", 1)
        await log.producer.send("raw", 0, pack_of(b"plain", timestamp=1, key=b"\xff"))
        await log.producer.send("raw", 0, pack_of(None, timestamp=1, key=b"gone"))
        await log.producer.send("raw", 0, pack_of(b"", timestamp=9007199254740992993, key=b"late"))

    write(data, work)
    first, second, _ = map(json.loads, run("read", "raw", "--json").splitlines())
    assert (first["key_base64"], first["value"]) == ("/w==", "plain")
    assert (second["key"], second["value"]) == ("gone", None)
    assert "key=gone  (none)" in run("read", "raw")
    assert "  @9007199254740992.993  key=late" in run("read", "raw")
    assert "is not a publish" in run("read", "raw", "--decode", "publish", fails=1)
    assert json.loads(run("read", TOPIC, "-n", "1", "--decode", "raw", "--json")).keys() >= {"key", "value_base64"}


def test_events_are_readable(run, data):
    async def work(log):
        await log.admin.create("tbmq.events", 1)
        for kind in EventKind.CONNECTED, EventKind.SUBSCRIBED:
            value = encode_event(Event(kind=kind, at=1_700_000_000_000, client_id="pump", topic="a/#", qos=1))
            await log.producer.send("tbmq.events", 0, pack_of(value))
        await log.producer.send("tbmq.events", 0, pack_of(b"\xff"))

    write(data, work)
    lines = run("read", "tbmq.events").splitlines()
    assert lines[1].endswith("  subscribed  pump  topic=a/#  qos=1")
    assert lines[2].endswith("  key=(none)  base64:/w==")
    shown = [json.loads(line) for line in run("read", "tbmq.events", "--json").splitlines()]
    assert [(one.get("kind"), one.get("client_id")) for one in shown] == [
        ("connected", "pump"),
        ("subscribed", "pump"),
        (None, None),
    ]
    assert shown[2]["value_base64"] == "/w=="
    assert "base64:" in run("read", "tbmq.events", "--decode", "raw", "-n", "1")
    assert "is not a publish" in run("read", "tbmq.events", "--decode", "publish", fails=1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--from", "999"], "nothing at --from 999: the partitions of demo end at 10 (partition 0) or before"),
        (["--from", "999", "-p", "1"], "nothing at --from 999: demo ends at 10 in partition 1"),
        (["--from", "10"], None),  # what a reader asks for that comes again and again
        (["--from", "end"], None),
    ],
)
def test_an_offset_behind_the_end_is_told(run, capsys, data, arguments, said):
    assert main(["log", "read", TOPIC, *arguments, "--data-dir", str(data)]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (f"penstock: {said}\n" if said else "")


def test_a_terminal_is_not_told_what_to_do_by_a_payload(run, data):
    async def work(log):
        await log.admin.create("evil", 1)
        value = encode("a\u202eb", b"\x1b]0;owned\x07\r\n", 0, False, "\u202ec")
        await log.producer.send("evil", 0, pack_of(value))

    write(data, work)
    text = run("read", "evil")
    assert text.count("\n") == 1
    assert text[:-1].isprintable()
    assert r"\x1b]0;owned\x07" in text


def test_offsets_and_lag(run):
    assert run("offsets").splitlines() == [
        "group    topic  partition  offset  metadata",
        "group-a  demo           0       4  noted",
        "group-a  demo           1      10",
    ]
    assert json.loads(run("lag", "group-a", "--json")) == [
        {"group": "group-a", "topic": "demo", "partition": 0, "offset": 4, "end": 10, "lag": 6},
        {"group": "group-a", "topic": "demo", "partition": 1, "offset": 10, "end": 10, "lag": 0},
    ]
    assert run("lag", "--topic", "demo").splitlines()[-1] == "6 records in all"
    assert json.loads(run("lag", "--topic", "other", "--json")) == []
    assert "there is no group 'nobody'\nThere are: group-a." in run("lag", "nobody", fails=1)


def test_append_a_publish_to_the_partition_the_broker_would_choose(run):
    told = json.loads(run("append", TOPIC, "-m", "hi", "-t", "a/b", "-q", "1", "-r", "-u", "bob", "--json"))
    assert told["appended"] == 1
    shown = json.loads(run("read", TOPIC, "-p", str(told["partition"]), "--from=-1", "--json"))
    assert (shown["topic"], shown["payload"], shown["qos"], shown["retain"]) == ("a/b", "hi", 1, True)
    assert (shown["client_id"], shown["username"]) == ("penstock-log", "bob")
    assert datetime.fromisoformat(shown["received_at"]).timestamp() == pytest.approx(time.time(), abs=30)


def test_append_creates_a_topic_when_told_to(run, tmp_path):
    fresh = tmp_path / "fresh"
    complaint = run("append", "new", "-m", "x", where=fresh, fails=1)
    assert "there is no topic 'new'" in complaint
    assert "--create PARTITIONS" in complaint
    text = run("append", "new", "--create", "3", "-m", "x", "-p", "2", "-k", "key", "-H", "a=1", where=fresh)
    assert text == "1 appended to new, partition 2, offsets 0 to 0\n"
    shown = json.loads(run("read", "new", "--json", where=fresh))
    assert (shown["key"], shown["value"], shown["headers"]) == ("key", "x", [{"name": "a", "value": "1"}])


def test_append_lines(cli, data):
    lines = b"".join(b"line %d\n" % number for number in range(12_000))
    code, out, err = cli.run("log", "append", TOPIC, "-l", "-p", "1", "--json", "--data-dir", data, input=lines)
    assert code == 0, err
    assert json.loads(out) == {
        "topic": TOPIC,
        "partition": 1,
        "appended": 12_000,
        "first_offset": 10,
        "last_offset": 12_009,
        "interrupted": False,
    }
    code, out, err = cli.run("log", "read", TOPIC, "-p", "1", "--from", "10", "--json", "--data-dir", data)
    assert code == 0, err
    assert [json.loads(line)["value"] for line in out.splitlines()] == [f"line {number}" for number in range(12_000)]


def test_append_lines_says_how_many_were_appended_before_one_was_not(run, data, monkeypatch, tmp_path):
    longest = 50

    def build(record, value, real=NewRecord.build):
        if len(value) > longest:
            raise ValueError("a record is too large")
        return real(record, value)

    monkeypatch.setattr(NewRecord, "build", build)
    lines = tmp_path / "lines"
    lines.write_bytes(b"short\n" * 3 + b"l" * 51 + b"\nshort\n")
    with lines.open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        complaint = run("append", TOPIC, "-l", "-p", "1", fails=1)
    told = "3 records appended to demo, partition 1 before that, offsets 10 to 12"
    assert complaint == f"penstock: a record is too large; {told}\n"


def test_truncate(run):
    assert "delete 6 of 20 records of demo? " in run("truncate", TOPIC, "--before", "3", fails=2)
    assert "Add --yes" in run("truncate", TOPIC, "--before", "3", fails=2)
    asked = run("truncate", TOPIC, "--before", "3", "-p", "1", fails=2)
    assert "delete 3 of 10 records of demo, partition 1? " in asked
    asked = run("truncate", TOPIC, "--before", "3", "-p", "1", "-p", "0", fails=2)
    assert "delete 6 of 20 records of demo, partitions 0, 1? " in asked
    assert run("truncate", TOPIC, "--before", "3", "--yes").startswith("6 records deleted from demo\n")
    assert payloads(run("read", TOPIC, "--json")) == list(range(6, 20))
    assert run("truncate", TOPIC, "--before", "4", "-p", "0", "-y").startswith(
        "1 record deleted from demo, partition 0\n"
    )
    told = json.loads(run("truncate", TOPIC, "--before", "end", "-p", "1", "-y", "--json"))
    assert told == {"topic": TOPIC, "deleted": 7, "first_offsets": {"1": 10}}
    assert payloads(run("read", TOPIC, "--json")) == list(range(8, 20, 2))
    # what is gone is no lag
    assert [row["lag"] for row in json.loads(run("lag", "--json"))] == [6, 0]


def test_truncate_refuses_an_offset_that_a_partition_does_not_reach(run, data):
    async def work(log):
        await log.admin.create("uneven", 2)
        await log.producer.send("uneven", 0, pack_of(*[b"x"] * 100))
        await log.producer.send("uneven", 1, pack_of(b"x"))

    write(data, work)
    for place, named in ("5000", "partition 0 ends at 100, partition 1 ends at 1"), ("50", "partition 1 ends at 1"):
        complaint = run("truncate", "uneven", "--before", place, "-y", fails=2)
        assert f"--before {place}: {named}\n" in complaint
        assert "--before end for everything" in complaint
    assert json.loads(run("describe", "uneven", "--json"))["partitions"][0]["first"] == 0
    assert run("truncate", "uneven", "-p", "0", "--before", "50", "-y").startswith("50 records deleted")
    assert run("truncate", "uneven", "--before", "@253402300000", "-y").startswith("51 records deleted")


def test_repair(run, data):
    assert run("repair") == "demo: nothing to repair\n"
    [segment] = (data / "log" / TOPIC).glob("*.seg")
    damaged = bytearray(segment.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    segment.write_bytes(damaged)
    text = run("repair", TOPIC)
    assert "damaged bytes set aside" in text
    assert "lost: partition " in text
    assert segment.with_suffix(".seg.bad").exists()
    assert json.loads(run("repair", "--json"))[0]["is_sound"] is True
    assert len(payloads(run("read", TOPIC, "--json"))) == 19


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["read", "nope"], 1, "there is no topic 'nope'"),
        (["describe", "nope"], 1, "There are: demo."),
        (["read", TOPIC, "-p", "2"], 2, "-p 2: topic 'demo' has the partitions 0 to 1"),
        (["read", TOPIC, "--from", "yesterday"], 2, "--from 'yesterday' is not a place in a log"),
        (["read", TOPIC, "--filter", "a/#/b"], 2, "is not a topic filter"),
        (["read", TOPIC, "--filter", "a", "--decode", "raw"], 2, "does not go with --decode raw"),
        (["read", TOPIC, "-f", "--to", "5"], 2, "contradict each other"),
        (["read", TOPIC, "--decode", "xml"], 2, "--decode"),
        (["append", TOPIC], 2, "one of -m and -l"),
        (["append", TOPIC, "-m", "x", "-t", "a/#"], 2, "has no + or #"),
        (["append", TOPIC, "-m", "x", "-H", "no"], 2, "write NAME=VALUE"),
        (["append", TOPIC, "-m", "x", "-p", "7"], 2, "has the partitions 0 to 1"),
        (["append", TOPIC, "-m", "x", "-m", "y"], 2, "-m is there more than once"),
        (["append", TOPIC, "-m", "x", "--create", "9"], 2, "topic 'demo' is there already, with 2 partitions"),
        (["append", "new", "-m", "x", "--create", "2", "-p", "5"], 2, "there are the partitions 0 to 1"),
        (["append", TOPIC, "-m", "x", "-t", "a" * 65_536], 2, "-t: it has 65,536 bytes"),
        (["append", TOPIC, "-m", "x", "-t", "a", "-i", "a" * 65_536], 2, "-i: it has 65,536 bytes"),
        (["append", TOPIC, "-m", "x", "-t", "a", "-u", "a" * 65_536], 2, "-u: it has 65,536 bytes"),
        (["append", TOPIC, "-m", "x", "-t", f"t/{NO_TEXT}"], 2, r"-t 't/\udcff' is not UTF-8"),
        (["append", TOPIC, "-m", "x", "-k", NO_TEXT], 2, r"-k '\udcff' is not UTF-8"),
        (["append", TOPIC, "-m", "x", "-t", "t", "-i", NO_TEXT], 2, r"-i '\udcff' is not UTF-8"),
        (["append", TOPIC, "-m", "x", "-t", "t", "-u", NO_TEXT], 2, r"-u '\udcff' is not UTF-8"),
        (["append", TOPIC, "-m", "x", "-H", f"{NO_TEXT}=1"], 2, "the name is not UTF-8"),
        (["append", NO_TEXT, "-m", "x", "--create", "1"], 2, r"TOPIC '\udcff' is not UTF-8"),
        *((command, 2, r"TOPIC '\udcff' is not UTF-8") for command in (["read", NO_TEXT], ["describe", NO_TEXT])),
        (["truncate", NO_TEXT, "--before", "end", "-y"], 2, r"TOPIC '\udcff' is not UTF-8"),
        *((command, 2, "is not UTF-8") for command in (["repair", NO_TEXT], ["verify", NO_TEXT], ["lag", NO_TEXT])),
        (["read", TOPIC, "--filter", f"t/{NO_TEXT}"], 2, r"--filter 't/\udcff' is not UTF-8"),
        *(
            (["read", TOPIC, flag, place], 2, f"{flag} '{place}' is not a time between the years 1 and 9999")
            for flag in ("--from", "--to")
            for place in ("99999999999999999d", "@99999999999999999999")
        ),
        (["read", TOPIC, "--from", "9" * 5_000], 2, "is not a place in a log"),
        (["read", TOPIC, "--from", f"@{'9' * 400}"], 2, "is not a place in a log"),
        (["queues", "--service", "TB_CORE="], 2, "--service 'TB_CORE=': '' cannot be a service id"),
        (["queues", "--service", "TB_CORE=a b"], 2, "--service 'TB_CORE=a b': 'a b' cannot be a service id"),
        (["queues", "--service", f"TB_CORE={NO_TEXT}"], 2, "cannot be a service id"),
        (["queues", "--service", f"TB_CORE={'a' * 300}"], 2, "use at most 249"),
        (["truncate", TOPIC, "--before", "11", "-y"], 2, "--before 11: partition 0 ends at 10, partition 1 ends at 10"),
        (["truncate", TOPIC], 2, "--before"),
        (["repair", "nope"], 1, "there is no topic 'nope'"),
        (["topics", "--set", "log.provider=memory"], 1, "the log lives inside the broker"),
        (["topics", "--set", "log.provider=paper"], 78, "log.provider"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(run, arguments, code, message):
    assert message in run(*arguments, fails=code)
    # nothing came of it
    assert json.loads(run("topics", "--json")) == [{"topic": TOPIC, "partitions": 2, "records": 20}]


def test_a_reader_that_has_seen_enough(data):
    """`| head` ends it quietly."""
    command = f"{sys.executable} -m penstock log read {TOPIC} --data-dir {data} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=True, env=clean_environment(), timeout=30
    )
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "0"


@pytest.fixture
def broker(tmp_path):
    """A broker that logs into `live`; its port."""
    port = free_port()
    command = [sys.executable, "-m", "penstock", "serve", "--port", str(port), "--admin", "", "--data-dir", "live"]
    with (tmp_path / "out").open("wb") as out:
        process = popen(command, cwd=tmp_path, env=clean_environment(), stdout=out, stderr=out)
    try:
        wait_until_listening(port, process, tmp_path / "out")
        yield port
    finally:
        process.terminate()
        process.wait(60)


def test_beside_a_running_broker(broker, cli, run, tmp_path):
    """Reading and following work; writing is refused with what to do about it."""
    live = tmp_path / "live"
    follower = cli.start("log", "read", "tbmq.msg.all", "-f", "--json", "-n", "3", "--data-dir", live)
    for number in range(3):
        assert cli.run("pub", "-p", broker, "-t", f"live/{number}", "-m", number, "-q", 1)[0] == 0
    out, err = follower.communicate(timeout=60)
    assert (follower.returncode, err) == (0, b"")
    # each is in a partition of its own, and nothing is said of the order of partitions
    assert sorted(json.loads(line)["topic"] for line in out.splitlines()) == ["live/0", "live/1", "live/2"]
    records = {topic["topic"]: topic["records"] for topic in json.loads(run("topics", "--json", where=live))}
    assert records["tbmq.msg.all"] == 3
    assert json.loads(run("offsets", "--json", where=live)) == []
    for refused in (["append", "tbmq.msg.all", "-m", "x"], ["truncate", "tbmq.msg.all", "--before", "end", "-y"]):
        complaint = run(*refused, where=live, fails=1)
        assert "is in use by another process (pid " in complaint
        assert "stop the broker first" in complaint
    assert "stop the broker first" in run("repair", where=live, fails=1)


def test_follow_ends_with_ctrl_c(broker, cli, tmp_path):
    follower = cli.start("log", "read", "tbmq.msg.all", "-f", "--from", "end", "--data-dir", tmp_path / "live")
    time.sleep(2)
    follower.send_signal(2)
    _, err = follower.communicate(timeout=60)
    assert (follower.returncode, err) == (0, b"")
