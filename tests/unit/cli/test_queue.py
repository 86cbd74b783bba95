"""`penstock queue` with a running broker: tables for people, JSON for scripts, a question before a loss."""

import io
import json
import os
import sys
import time
import urllib.request

import pytest

from penstock.__main__ import main
from penstock.cli.queue.options import SETTINGS, path_of
from penstock.core.errors import UsageError
from tests.support.worlds.application import until
from tests.support.worlds.queues import open_queue_client, running_queue_broker

ODD = "odd\x1b[31m"
BY_HAND = {"initial_backoff": "50ms", "max_backoff": "50ms", "max_retries": 1}


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    queues = [{"name": "given", "retry": BY_HAND}]
    with running_queue_broker(tmp_path_factory.mktemp("queues"), queues=queues) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_from_outside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("PENSTOCK_"):
            monkeypatch.delenv(name)


@pytest.fixture
def run(broker, capsys):
    def run_one(*arguments, code=0):
        assert main(["queue", *arguments, "--data-dir", str(broker.data_dir)]) == code, capsys.readouterr()
        captured = capsys.readouterr()
        assert "\x1b" not in captured.out
        return captured.err if code else captured.out

    return run_one


@pytest.fixture
def client(broker):
    opened = open_queue_client(broker, "worker-1")
    yield opened
    opened.close()


def test_look_at_queues(broker, run, client):
    client.publish("$queue/given/k/1", b"one", b"two")
    client.consume("$queue/given", "workers")
    client.take(b"one", b"two")
    run("create", ODD)
    lines = run("list").splitlines()
    columns = "name type depth oldest held back by pending groups consumers dead paused durable origin bytes"
    assert " ".join(lines[0].split()) == columns
    name, kind, depth, oldest, *figures, size = lines[1].split()
    assert (name, kind, depth) == ("given", "classic", "2")
    assert oldest.endswith("s")
    assert figures == ["-", "2", "1", "1", "0", "no", "yes", "config"]
    assert int(size) > 100
    assert lines[-1].endswith("queues")
    assert run("list", "-n", "1").splitlines()[-1].endswith("queues (there are more: --limit, --offset)")
    assert json.loads(run("list", "--offset", "1", "--json"))["queues"][0]["name"] != "given"
    assert json.loads(run("list", "giv*", "--json"))["matched"] == 1
    text = run("show", "given")
    fields = dict(line.split("  ", 1) for line in text.splitlines() if "  " in line)
    assert fields["retry"].strip().startswith("max_retries 1, initial_backoff 50ms, max_backoff 50ms, multiplier 2")
    assert fields["limits"].strip() == "max_message_size 10MiB, max_depth 100000, message_ttl 7d"
    assert fields["group expires after"].strip() == "7d"
    assert fields["bindings"].strip() == "$queue/given/#"
    assert fields["refused"].strip() == "0"
    lines = run("groups", "given").splitlines()
    assert lines[1].split()[:6] == ["workers", "1", "0", "2", "2", "0"]
    assert lines[1].endswith("in use")
    assert lines[3].split()[:2] == ["workers", "worker-1"]
    lines = run("pending", "given", "workers").splitlines()
    assert lines[1].split()[:4] == ["0", "worker-1", "1", "delivered"]
    assert lines[-1] == "2 of 2 unsettled messages"
    assert "there is no queue 'nobody'" in run("show", "nobody", code=1)


def test_the_oldest_unsettled_message(broker, run, client):
    run("create", "aging")
    client.publish("$queue/aging/k", b"one", b"two")
    time.sleep(1.1)
    client.publish("$queue/aging/k", b"three")
    client.consume("$queue/aging", "workers")
    deliveries = client.take(b"one", b"two", b"three")
    before = json.loads(run("show", "aging", "--json"))
    assert 1 < before["oldest_age"] < 60
    client.ack(deliveries[1])
    assert json.loads(run("show", "aging", "--json"))["oldest_at"] == before["oldest_at"]
    client.ack(deliveries[0])
    [entry] = json.loads(run("list", "aging", "--json"))["queues"]
    assert entry["oldest_at"] > before["oldest_at"]
    client.ack(deliveries[2])
    entry = json.loads(run("show", "aging", "--json"))
    assert (entry["oldest_at"], entry["oldest_age"]) == (None, None)
    client.close()
    until(lambda: broker.group("aging", "workers")["idle_since"] is not None)
    group = broker.group("aging", "workers")
    assert group["last_used"] == group["idle_since"]
    assert run("groups", "aging").splitlines()[1].endswith(" ago")


@pytest.mark.parametrize("room", [60, 80, 120, 400])
def test_a_list_fits_its_terminal(broker, run, monkeypatch, room):
    long = "long-" * 40
    run("create", long)
    whole = next(line for line in run("list", "long*").splitlines() if line.startswith("long-"))
    assert whole.startswith(long)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(room))
    lines = run("list", "long*").splitlines()
    assert max(map(len, lines)) <= room
    assert lines[1].startswith(long if room == 400 else "long-lo")
    assert ("…" in lines[1]) == (room < 400)
    assert ("bytes" in lines[0]) == (room >= 120)
    assert "depth" in lines[0]
    assert json.loads(run("list", "long*", "--json"))["queues"][0]["name"] == long


def test_a_queue_like_another(broker, run, tmp_path, monkeypatch):
    """What `show --json` prints is what `create --from` takes."""
    options = ["-o", "limits.max_depth=5", "-o", "retry.initial_backoff=250ms", "-t", "sensors/#", "--capture"]
    run("create", "model", "--type", "stream", *options)
    run("pause", "model")
    printed = run("show", "model", "--json")
    (tmp_path / "model.json").write_text(printed)
    run("create", "model", "--from", "model.json")  # the same settings: nothing to do
    run("create", "copy", "--from", "model.json", "-o", "limits.max_depth=6")
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(json.loads(printed)["definition"])))
    run("create", "copy2", "--from", "-", "-t", "other/#")
    model, copy, copy2 = (broker.queue(name)["definition"] for name in ("model", "copy", "copy2"))
    assert copy == {**model, "name": "copy", "paused": False, "limits": {**model["limits"], "max_depth": 6}}
    assert copy2 == {**model, "name": "copy2", "paused": False, "topics": ["other/#"]}
    (tmp_path / "bad.json").write_text("[1]")
    assert "has no definition" in run("create", "x", "--from", "bad.json", code=2)
    (tmp_path / "bad.json").write_text("name: x")
    assert "is not JSON" in run("create", "x", "--from", "bad.json", code=2)
    assert "No such file" in run("create", "x", "--from", "missing.json", code=2)


def test_help_names_every_setting(capsys):
    for command in ("create", "update"):
        assert main(["queue", command, "--help"]) == 0
        words = capsys.readouterr().out.split()
        assert {"limits.message_ttl=7d", "limits.max_message_size=10MiB", "dlq.enabled=true"} <= set(words)
        named = {word.partition("=")[0] for word in words if "=" in word}
        assert SETTINGS.keys() - {"name", "type", "durable", "topics", "capture"} <= named


def test_make_and_change(broker, run):
    options = ["-o", "limits.max_depth=5", "-o", "retry.initial_backoff=250ms", "-t", "sensors/#", "--capture"]
    text = run("create", "new", "--type", "stream", *options)
    assert text == "stream queue new: publish to $queue/new/KEY\n"
    shown = broker.queue("new")
    assert (shown["definition"]["limits"]["max_depth"], shown["definition"]["retry"]["initial_backoff"]) == (5, 0.25)
    assert shown["bindings"] == ["$queue/new/#", "sensors/#"]
    run("create", "memory", "--ephemeral")
    assert broker.queue("memory")["durable"] is False
    assert run("update", "new", "-o", "limits.max_depth=6") == "new changed: limits.max_depth\n"
    assert broker.queue("new")["definition"]["limits"]["max_depth"] == 6
    assert "write KEY=VALUE" in run("create", "x", "-o", "nothing", code=2)
    assert "nothing to change" in run("update", "new", code=2)
    assert "is no setting of a queue" in run("update", "new", "-o", "speed=1", code=2)


def test_nothing_is_lost_unasked(broker, run, monkeypatch):
    run("create", "precious")
    for command in (
        ["delete", "precious"],
        ["purge", "precious"],
        ["seek", "precious", "workers", "--to", "last"],
        ["move", "precious", "given"],
        ["replay", "precious"],
        ["delete-group", "precious", "workers"],
        ["settle", "precious", "workers", "ack", "0"],
        ["truncate", "precious", "--before", "1"],
    ):
        assert "Nobody is there to say so" in run(*command, code=2)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda question: "n")
    assert "nothing was deleted" in run("delete", "precious", code=1)
    assert broker.queue("precious") is not None


def test_pause_purge_and_delete(broker, run, client):
    run("create", "paused")
    client.publish("$queue/paused/k", b"1", b"2", b"3")
    assert run("pause", "paused") == "paused is paused, 3 messages in it\n"
    client.consume("$queue/paused")
    client.nothing()
    assert run("resume", "paused") == "paused delivers, 3 messages in it\n"
    client.take(b"1", b"2", b"3")
    assert "3 messages wait" in run("delete", "paused", "--if-empty", "-y", code=1)
    assert run("purge", "paused", "-y") == "3 messages removed from paused\n"
    assert "1 consumers" in run("delete", "paused", "--if-unused", "-y", code=1)
    assert run("delete", "paused", "--if-empty", "-y") == "paused deleted, with 0 messages\n"
    assert broker.queue("paused") is None


def test_settle_and_truncate(broker, run, client):
    run("create", "stuck")
    client.publish("$queue/stuck/k", b"1", b"2", b"3", b"4")
    client.consume("$queue/stuck", "workers")
    client.take(b"1", b"2", b"3", b"4")
    told = run("settle", "stuck", "workers", "ack", "0", "9", "-y")
    assert told == "ack of 1 message, 3 unsettled, not pending: 9\n"
    assert run("settle", "stuck", "workers", "claim", "1", "2", "-y") == "claim of 2 messages, 3 unsettled\n"
    client.take(b"2", b"3")
    assert run("truncate", "stuck", "--before", "3", "-y") == "2 messages removed from stuck, 1 left\n"
    assert json.loads(run("settle", "stuck", "workers", "reject", "3", "-y", "--json"))["settled"] == 1
    assert "ends at offset 4" in run("truncate", "stuck", "--before", "5", "-y", code=2)


def test_a_group_goes_back_and_goes(broker, run, client):
    run("create", "log", "--type", "stream")
    client.publish("$queue/log", b"1", b"2", b"3")
    client.consume("$queue/log", "readers")
    client.take(b"1", b"2", b"3")
    run("seek", "log", "readers", "--to", "-2", "-y")
    client.take(b"2", b"3")
    assert "no position in a queue" in run("seek", "log", "readers", "--to", "soon", "-y", code=2)
    assert "1 consumers" in run("delete-group", "log", "readers", "-y", code=1)
    client.raw.unsubscribe("$queue/log")
    assert run("delete-group", "log", "readers", "-y").startswith("group readers of log deleted")
    assert broker.queue("log")["groups"] == []


def test_messages_are_appended_seen_and_moved(broker, run, client):
    run("create", "source")
    run("create", "target")
    for number in range(3):
        run("append", "source", "-m", f"m{number}", "-k", f"k/{number}")
    assert run("append", "source", "-m", "ü\x1b", "-k", "a/b", "-P", "x=y") == "appended source:3\n"
    lines = run("peek", "source", "-n", "1").splitlines()
    assert lines[1].split()[:3] == ["0", "k/0", "penstock-admin"]
    assert lines[-1] == "1 message, offsets 0 to 4 (there are more: --limit, --from)"
    message = json.loads(run("peek", "source", "--from", "-1", "--json"))["messages"][0]
    assert (message["key"], message["user_properties"]) == ("a/b", [["x", "y"]])
    client.consume("$queue/source", "workers")
    first, *_ = client.take(b"m0", b"m1", b"m2", "ü\x1b".encode())
    client.ack(first)
    text = run("move", "source", "target", "--filter", "k/#", "-n", "1", "-y")
    assert text == "1 message moved from source to target, 2 left\n"
    assert run("move", "source", "target", "-y") == "2 messages moved from source to target, 0 left\n"
    client.consume("$queue/target", "workers")
    moved = client.take(b"m1", b"m2", "ü\x1b".encode())
    assert [delivery.properties["x-source-topic"] for delivery in moved[:1]] == ["$queue/source/k/1"]
    assert broker.progress("source", "workers") == (4, 4, 0)


def test_dead_letters_are_replayed(broker, run, client):
    run("create", "work")
    client.publish("$queue/work/eu", b"bad", properties={"user_property": [("own", "1")]})
    client.consume("$queue/work", "workers")
    client.reject(client.next(b"bad"), "cannot read it")
    client.consume("$queue/$dlq/work", "undertakers")
    dead = client.next(b"bad")
    assert (dead.properties["_dlq_reason"], dead.properties["reason"]) == ("rejected", "cannot read it")
    assert run("replay", "$dlq/work", "-y") == "1 message of $dlq/work replayed, 0 left\n"
    again = client.next(b"bad")
    assert (again.topic, again.count, again.properties["own"]) == ("$queue/work/eu", 1, "1")
    assert not [name for name, _ in again.pairs if name.startswith("_dlq_") or name == "reason"]
    client.settle(dead, refused=True)  # it is not there any more
    client.ack(again)


def is_answering(port):
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=60).status == 200
    except OSError:
        return False


def test_what_an_operator_did_outlives_a_kill(broker, run):
    run("create", "lasting", "-o", "limits.max_depth=9")
    run("create", "lasting-target")
    for number in range(3):
        run("append", "lasting", "-m", f"m{number}", "-k", str(number))
    run("move", "lasting", "lasting-target", "--filter", "1", "-y")
    run("pause", "lasting")
    broker.kill()
    broker.restart()
    until(lambda: is_answering(broker.admin_port), 60, "commands are taken")
    entry = broker.queue("lasting")
    assert (entry["paused"], entry["depth"], entry["definition"]["limits"]["max_depth"]) == (True, 2, 9)
    messages = json.loads(run("peek", "lasting", "--json"))["messages"]
    assert [message["payload"] for message in messages] == ["m0", "m2"]
    run("resume", "lasting")
    client = open_queue_client(broker, "worker-2")
    client.consume("$queue/lasting")
    client.take_and_ack(b"m0", b"m2")
    client.nothing()
    client.close()


def test_sub_settles_what_it_prints(broker, client, capfd):
    client.publish("$queue/given/s", b"s1")
    sub = ["sub", "-p", str(broker.port), "-q", "1", "-t", "$queue/given/s", "-C", "1", "-W", "20"]
    sub += ["-D", "subscribe", "user-property", "consumer-group", "printers"]
    for verb, payload in (("nack", "s1"), ("reject", "s1"), ("ack", "s2")):
        if verb == "ack":
            client.publish("$queue/given/s", b"s2")
        assert main([*sub, "--settle", verb]) == 0
        assert capfd.readouterr().out == f"{payload}\n"
    group = broker.group("given", "printers@s")
    assert (group["acked"], group["nacked"], group["rejected"], group["pending"]) == (1, 1, 1, 0)
    assert main(["sub", "-p", str(broker.port), "-t", "x", "--settle", "ack"]) == 2


def test_pub_and_sub_show_what_the_broker_says_in_words(broker, capfd):
    """Reason codes are few; the reason strings of PUBACK, PUBREC and SUBACK say what is wrong."""
    to = ["-p", str(broker.port), "-V", "mqttv5"]
    for arguments, words in (
        (["pub", *to, "-q", "1", "-n", "-t", "$queue/given/$ack"], "error: the user property group-id is missing"),
        (["pub", *to, "-q", "2", "-n", "-t", "$queue/given/$ack"], "error: the user property group-id is missing"),
        (["sub", *to, "-q", "0", "-t", "$queue/given"], "specific error: a classic queue is consumed with QoS 1 or 2"),
    ):
        assert main(arguments) == 1
        assert words in capfd.readouterr().err
    prefetch = ["-D", "subscribe", "user-property", "prefetch", "none"]
    assert main(["sub", *to, "-q", "1", "-t", "$queue/given", *prefetch]) == 1
    assert "topic filter invalid: prefetch 'none' is not a number from 1 on" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["orders/purge", "", "$dlq/", "$dlq/a/b", "a#"])
def test_a_name_leads_to_a_queue_and_nothing_else(name):
    with pytest.raises(UsageError, match="no name of a queue"):
        path_of(name)
    assert path_of("$dlq/a?b") == "/queues/%24dlq/a%3Fb"
