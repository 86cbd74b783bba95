"""`penstock queue`: tables for people, JSON for scripts, a question before a loss."""

import asyncio
import json
import os
import sys

import pytest

from penstock.__main__ import main
from penstock.queues.control import QueueControl
from penstock.queues.definitions import QueueDefinition
from tests.support.admin_api import serving
from tests.support.memory_queues import MemoryMember, MemoryQueues, publish_record


@pytest.fixture(autouse=True)
def nothing_from_outside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("PENSTOCK_"):
            monkeypatch.delenv(name)


@pytest.fixture
def manager():
    made = MemoryQueues()

    async def fill():
        orders = await made.create(QueueDefinition(name="orders", origin="config"))
        for number in range(3):
            await orders.append(publish_record(f"$queue/orders/k/{number}", b"\x1b[31m" if number else b"first"))
        orders.group("workers", consumers=[MemoryMember("w1", unsettled=1)]).claim(1, "w1")
        await made.create(QueueDefinition(name="odd\x1b[31m"))

    asyncio.run(fill())
    return made


@pytest.fixture
def broker(tmp_path, manager):
    (tmp_path / "data").mkdir()
    with serving(tmp_path / "data", None, queues=QueueControl(manager)) as server:
        yield server


@pytest.fixture
def run(capsys):
    def run_one(*arguments, code=0):
        assert main(["queue", *arguments]) == code, capsys.readouterr()
        captured = capsys.readouterr()
        assert "\x1b" not in captured.out
        return captured.err if code else captured.out

    return run_one


def test_look_at_queues(broker, run):
    lines = run("list").splitlines()
    assert " ".join(lines[0].split()) == "name type durable paused depth pending group count consumers dead bytes"
    assert lines[-1] == "2 of 2 queues"
    assert lines[2].split() == ["orders", "classic", "yes", "no", "3", "1", "1", "1", "0", "-"]
    assert run("list", "--offset", "1", "-n", "1").splitlines()[1].split()[0] == "orders"
    assert json.loads(run("list", "o*s", "--json"))["matched"] == 1
    text = run("show", "orders")
    assert "retry               max_retries 10, initial_backoff 5.0" in text
    assert "bindings            $queue/orders/#" in text
    assert json.loads(run("show", "orders", "--json"))["groups"][0]["id"] == "workers"
    assert "there is no queue 'nobody'" in run("show", "nobody", code=1)


def test_make_and_change(broker, run, manager):
    options = ["-o", "limits.max_depth=5", "-o", "retry.initial_backoff=250ms", "-t", "sensors/#", "--capture"]
    text = run("create", "new", "--type", "stream", *options)
    assert text == "stream queue new: publish to $queue/new/KEY\n"
    definition = manager.queues["new"].definition
    assert (definition.limits.max_depth, definition.retry.initial_backoff) == (5, 0.25)
    assert definition.bindings == ("$queue/new/#", "sensors/#")
    run("create", "memory", "--ephemeral")
    assert manager.queues["memory"].definition.durable is False
    assert run("update", "new", "-o", "limits.max_depth=6") == "new changed: limits.max_depth\n"
    assert manager.queues["new"].definition.limits.max_depth == 6
    assert "write KEY=VALUE" in run("create", "x", "-o", "nothing", code=2)
    assert "nothing to change" in run("update", "new", code=2)
    assert "is no setting of a queue" in run("update", "new", "-o", "speed=1", code=2)


def test_nothing_is_lost_unasked(broker, run, manager, monkeypatch):
    for command in (
        ["delete", "orders"],
        ["purge", "orders"],
        ["seek", "orders", "workers", "--to", "last"],
        ["move", "orders", "odd\x1b[31m"],
        ["replay", "orders"],
        ["delete-group", "orders", "workers"],
    ):
        assert "Nobody is there to say so" in run(*command, code=2)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda question: "n")
    assert "nothing was deleted" in run("delete", "orders", code=1)
    assert "orders" in manager.queues


def test_pause_purge_and_delete(broker, run, manager):
    assert run("pause", "orders") == "orders is paused, 3 messages in it\n"
    assert run("resume", "orders") == "orders delivers, 3 messages in it\n"
    assert "3 messages wait" in run("delete", "orders", "--if-empty", "-y", code=1)
    assert run("purge", "orders", "-y") == "3 messages removed from orders\n"
    assert run("delete", "orders", "-y").splitlines() == [
        "orders deleted, with 0 messages",
        "it comes back with the next start: take it out of the settings file",
    ]
    assert "orders" not in manager.queues


def test_groups(broker, run, manager):
    lines = run("groups", "orders").splitlines()
    assert lines[1].split()[:6] == ["workers", "1", "3", "1", "1", "0"]
    assert lines[3].split()[:4] == ["workers", "w1", "100", "1"]
    assert lines[-1] == "1 group, offsets 0 to 3"
    assert run("pending", "orders", "workers").splitlines()[-1] == "1 of 1 unsettled message"
    assert run("seek", "orders", "workers", "--to", "-1", "-y") == "workers goes on at offset 2, 2 messages to go\n"
    assert "no position in a queue" in run("seek", "orders", "workers", "--to", "soon", "-y", code=2)
    manager.queues["orders"].groups["workers"].consumers.clear()
    assert run("delete-group", "orders", "workers", "-y") == "group workers of orders deleted, 2 messages behind\n"


def test_messages(broker, run, manager):
    lines = run("peek", "orders", "-n", "1").splitlines()
    assert lines[1].split() == ["0", "k/0", "c", "2023-11-14T22:13:20.000+00:00", "5", "first"]
    assert lines[-1] == "1 message, offsets 0 to 3 (there are more: --limit, --from)"
    assert json.loads(run("peek", "orders", "--from", "-1", "--json"))["messages"][0]["offset"] == 2
    assert run("append", "orders", "-m", "ü", "-k", "a/b", "-P", "x=y") == "appended orders:3\n"
    message = json.loads(run("peek", "orders", "--from", "3", "--json"))["messages"][0]
    assert (message["payload"], message["key"], message["user_properties"]) == ("ü", "a/b", [["x", "y"]])
    run("create", "target")
    text = run("move", "orders", "target", "--filter", "k/#", "-n", "2", "-y")
    assert text == "2 messages moved from orders to target, 2 left\n"
    assert run("move", "orders", "target", "-y").startswith("2 messages moved")
    assert manager.queues["target"].tail == 4


def test_dead_letters_are_replayed(broker, run, manager):
    run("create", "$dlq/orders")
    pairs = [("_dlq_original_queue", "orders"), ("_dlq_original_topic", "$queue/orders/k")]

    async def bury():
        dead = manager.queues["$dlq/orders"]
        await dead.append(publish_record("$queue/$dlq/orders/k", b"1", pairs=pairs))
        await dead.append(publish_record("$queue/$dlq/orders/k", b"2", pairs=[("_dlq_original_queue", "gone")]))

    asyncio.run(bury())
    assert run("replay", "$dlq/orders", "-y") == "1 message of $dlq/orders replayed, 1 had nowhere to go, 1 left\n"
    assert manager.queues["orders"].tail == 4
