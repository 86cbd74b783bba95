"""`penstock session` and `penstock retained`: tables for people, JSON for scripts, a question before a loss."""

import json
import os
import sys

import pytest

from penstock.__main__ import main
from tests.support.clients.admin_api import SessionWorld, serving

ODD = "odd/\x1b[31m ü"


@pytest.fixture(autouse=True)
def nothing_from_outside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("PENSTOCK_"):
            monkeypatch.delenv(name)


@pytest.fixture
def world():
    made = SessionWorld()
    pump = made.open("pump-1", user="ann")
    made.open(ODD, expiry=0xFFFFFFFF)
    made.hub.configure(max_queued_messages=3)
    made.hub.trie.subscribe(pump, b"jobs/#", 1, 9)
    for number in range(5):
        made.hub.publish("jobs/1", b"%d" % number, qos=1)
    made.hub.publish("state/on", b"yes\nno\x85", retain=True, properties=b"\x26\x00\x01k\x00\x01v")
    made.hub.publish("state/odd\x1b", b"\x1b[31m", retain=True, expiry=100)
    made.hub.publish("long", b"y" * 200, qos=2, retain=True)
    return made


@pytest.fixture
def broker(tmp_path, world):
    (tmp_path / "data").mkdir()
    with serving(tmp_path / "data", None, world=world) as server:
        yield server


def run(capsys, *arguments, code=0):
    assert main(list(arguments)) == code
    captured = capsys.readouterr()
    assert "\x1b" not in captured.out
    return captured.err if code else captured.out


def test_list_sessions(broker, capsys):
    lines = run(capsys, "session", "list").splitlines()
    headings = (
        "client id  username  client type  connected  version  peer  subscriptions  in flight  queued  stored  dropped"
    )
    assert lines[0].split() == headings.split()
    assert lines[1].split() == ["pump-1", "ann", "device", "no", "5.0", "-", "1", "0", "3", "-", "2"]
    assert lines[-1] == "2 of 2 sessions"
    assert run(capsys, "session", "list", "-n", "1").splitlines()[-1] == "1 of 2 sessions (there are more: --limit)"
    assert run(capsys, "session", "list", "p*").splitlines()[-1] == "1 of 2 sessions"
    answer = json.loads(run(capsys, "session", "list", "odd/*", "--json"))
    assert ([each["client_id"] for each in answer["sessions"]], answer["truncated"]) == ([ODD], False)


def test_show_a_session(broker, capsys):
    shown = run(capsys, "session", "show", "pump-1")
    for words in (
        "session expiry  3600",
        "dropped         queue_full 2",
        "created         2023-11-14T22:13:20",
        "jobs/#",
    ):
        assert words in shown
    assert "session expiry  never" in run(capsys, "session", "show", ODD)
    entry = json.loads(run(capsys, "session", "show", "pump-1", "--json"))
    assert [(each["filter"], each["identifier"]) for each in entry["filters"]] == [("jobs/#", 9)]


def test_list_retained_messages(broker, capsys):
    lines = run(capsys, "retained", "list").splitlines()
    assert lines[0].split() == ["topic", "qos", "size", "expires", "payload"]
    by_topic = {line.split()[0]: line for line in lines[1:-1]}
    assert by_topic["long"].endswith(f"{'y' * 64}…")
    assert by_topic["state/odd\\x1b"].endswith("1b5b33316d")
    assert lines[-1] == "3 retained messages"
    assert run(capsys, "retained", "list", "state/+", "-n", "1").splitlines()[-1].endswith("(there are more: --limit)")
    assert json.loads(run(capsys, "retained", "list", "long", "--json"))["messages"][0]["qos"] == 2


def test_messages_of_sys_are_counted_apart(broker, capsys, world):
    for name in ("uptime", "version"):
        world.hub.publish(f"$SYS/broker/{name}", b"1", retain=True)
    last = {
        topic_filter: run(capsys, "retained", "list", topic_filter).splitlines()[-1]
        for topic_filter in ("#", "long", "$SYS/#", "none")
    }
    assert last == {
        "#": "3 retained messages (and 2 of $SYS)",
        "long": "1 of 3 retained messages (and 2 of $SYS)",
        "$SYS/#": "2 of 5 retained messages",
        "none": "0 of 3 retained messages (and 2 of $SYS)",
    }
    assert json.loads(run(capsys, "retained", "list", "--json"))["system"] == 2


def test_get_a_retained_message(broker, capsys, world):
    world.hub.publish("note", "yes\nnö".encode(), retain=True, properties=b"\x26\x00\x01k\x00\x01v")
    lines = run(capsys, "retained", "get", "note").splitlines()
    assert lines[-3].split() == ["payload", "text"]
    assert lines[-2:] == ["yes", "nö"]
    assert "user properties  k=v" in lines
    assert "(the first 2 bytes)" in run(capsys, "retained", "get", "long", "--bytes", "2")
    assert json.loads(run(capsys, "retained", "get", "long", "--json"))["payload"] == "y" * 200


@pytest.mark.parametrize("arguments", [["session", "delete", "pump-1"], ["retained", "delete", "long"]])
def test_nothing_is_lost_unasked(broker, world, capsys, monkeypatch, arguments):
    assert "Add --yes" in run(capsys, *arguments, code=2)  # nobody is there
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    asked = []
    monkeypatch.setattr("builtins.input", lambda question: asked.append(question) or "n")
    assert "nothing was deleted" in run(capsys, *arguments, code=1)
    assert "1 subscription and 3 messages" in asked[0] or "(200 bytes)" in asked[0]
    assert world.registry.get("pump-1") is not None
    assert world.hub.retained.get(b"long") is not None
    monkeypatch.setattr("builtins.input", lambda question: "y")
    assert "deleted" in run(capsys, *arguments)
    assert (world.registry.get("pump-1") is None) != (world.hub.retained.get(b"long") is None)


def test_delete_as_json(broker, world, capsys):
    assert json.loads(run(capsys, "session", "delete", ODD, "-y", "--json"))["client_id"] == ODD
    assert json.loads(run(capsys, "retained", "delete", "long", "-y", "--json"))["size"] == 200
    assert len(world.registry) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["session", "show", "nobody"], 1, "there is no session of the client 'nobody'\n`penstock session list`"),
        (["session", "delete", "nobody", "-y"], 1, "there is no session"),
        (["session", "kick", "pump-1", "-y"], 1, "the client 'pump-1' is not connected\n`penstock session delete`"),
        (["session", "list", "--limit", "0"], 2, "'--limit'"),
        (["session", "show", "\udcff"], 2, "is not UTF-8"),
        (["session"], 2, "Missing command"),
        (["retained", "get", "nothing"], 1, "nothing is retained for the topic 'nothing'"),
        (["retained", "delete", "state/#", "-y"], 1, "This is a filter"),
        (["retained", "list", "a#"], 2, "'a#' is not a topic filter"),
        (["retained", "list", "--token", "wrong-wrong-wrong-wrong"], 1, "this is not the broker's token"),
        (["session", "list", "--url", "http://127.0.0.1:1"], 1, "no broker answers"),
    ],
)
def test_refusals(broker, capsys, arguments, code, message):
    assert message in run(capsys, *arguments, code=code)


@pytest.mark.parametrize("group", ["session", "retained"])
def test_help(group, capsys):
    assert "The broker must be running" in run(capsys, group, "--help")
    for command in ("list", "delete"):
        assert "--json" in run(capsys, group, command, "--help")
