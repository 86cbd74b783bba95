"""`penstock sql` and `penstock subscribe`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.brokers.broker import REPOSITORY
from tests.support.brokers.forked import popen
from tests.support.worlds.datasub import DataWorld, read, wait_for


class Terminal:
    def __init__(self, world: DataWorld) -> None:
        self._server = world.broker.keys["server"]
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(REPOSITORY / "src"),
            "PYTHONUNBUFFERED": "1",
            "PENSTOCK_DATA_SERVER": self._server,
        }

    def start(self, *words: str) -> subprocess.Popen[str]:
        return popen(
            [sys.executable, "-m", "penstock", *words],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, given: str = "", code: int = 0) -> tuple[str, str]:
        process = self.start(*words)
        out, err = process.communicate(given, timeout=60)
        assert process.returncode == code, (words, out, err)
        return out, err


@pytest.fixture
def terminal(world: DataWorld) -> Terminal:
    return Terminal(world)


def test_sql(world: DataWorld, terminal: Terminal, tmp_path: Path) -> None:
    """From the command line, standard input and a file; several statements; tables and JSON."""
    select = f"SELECT topic, payload.n AS n FROM \"{world.space}/#\" -- all; of it\n WHERE payload.t = 'a;b'"
    out, _ = terminal.run("sql", f"CREATE TOPIC {world.topic} AS {select}; SHOW TOPICS")
    assert f"topic {world.topic} created" in out
    assert out.splitlines()[-1].split()[0] or out
    assert world.topic in out
    out, _ = terminal.run("sql", "--json", given=f"DESCRIBE {world.topic};")
    assert [row["column"] for row in json.loads(out)] == ["topic", "n"]
    script = tmp_path / "topics.sql"
    script.write_text(f"DROP TOPIC {world.topic};\n\n  SELEKT 1;\n")
    out, err = terminal.run("sql", "-f", str(script), code=1)
    assert f"topic {world.topic} dropped" in out, "statements before the bad one are done"
    assert f"{script}:3:3:" in err
    assert err.splitlines()[-2:] == ["SELEKT 1", "^"]


def test_a_mistake_is_pointed_at(world: DataWorld, terminal: Terminal) -> None:
    _, err = terminal.run("sql", 'CREATE TOPIC x AS SELECT payload.a,\n   nothing FROM "a/b"', code=1)
    lines = err.splitlines()
    assert lines[0].startswith("penstock: line 2, column 4: ")
    assert lines[1:] == ['   nothing FROM "a/b"', "   ^"]


def test_nobody_listens(world: DataWorld, terminal: Terminal) -> None:
    _, err = terminal.run("sql", "SHOW TOPICS", "--server", "127.0.0.1:1", code=1)
    assert "cannot connect to 127.0.0.1:1: connection refused; does the broker run" in err
    _, err = terminal.run("subscribe", "no-such-topic", code=1)
    assert "no-such-topic" in err
    _, err = terminal.run("sql", "  ;  ", code=2)
    assert "no statement" in err


def test_subscribe(world: DataWorld, terminal: Terminal) -> None:
    """Rows as a table and as JSON; a group goes on exactly behind what was printed."""
    world.create_topic('SELECT payload.n AS n, payload.s AS s, payload.at::TIMESTAMP AS at FROM "{space}/#"')
    at = "2026-01-02T03:04:05.123456789Z"
    world.publish(*({"n": number, "s": "a b" if number else None, "at": at} for number in range(5)))
    group = ("subscribe", world.topic, "-g", world.group, "--from", "earliest")
    out, _ = terminal.run(*group, "--count", "2")
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["n", "s", "at"]
    assert lines[1][:2] == ["0", "-"]
    assert lines[2][:3] == ["1", "a", "b"]
    assert "05.123456789" in lines[1][-1]
    out, _ = terminal.run(*group, "--json", "-C", "1")
    row = json.loads(out)
    assert (row["n"], row["s"]) == (2, "a b")
    out, _ = terminal.run(*group, "--json", "-C", "1", "--commit", "none")
    assert json.loads(out)["n"] == 3
    out, _ = terminal.run(*group, "--json", "-C", "2")
    assert [json.loads(line)["n"] for line in out.splitlines()] == [3, 4], "a look does not move the group"
    terminal.run(*group, "-W", "0.5", code=27)
    terminal.run(*group, "-o", "min.poll.row=3", code=1)


def test_payloads_are_shown_as_text_where_they_are(world: DataWorld, terminal: Terminal) -> None:
    world.create_topic("SELECT encode(payload.s ->> '$') AS b, payload.n AS n FROM \"{space}/#\"")
    world.publish({"s": "21 °C", "n": 1}, {"n": 2})
    out, _ = terminal.run("subscribe", world.topic, "--from", "earliest", "-C", "2")
    assert [line.split() for line in out.splitlines()] == [["b", "n"], ["21", "°C", "1"], ["-", "2"]]


def test_ctrl_c_commits_and_leaves(world: DataWorld, terminal: Terminal) -> None:
    world.create_topic()
    world.publish({"n": 1}, {"n": 2})
    process = terminal.start("subscribe", world.topic, "-g", world.group, "--from", "earliest", "--json")
    assert process.stdout is not None
    assert [json.loads(process.stdout.readline())["n"] for _ in range(2)] == [1, 2]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")
    wait_for(lambda: not world.show("CONSUMERS"), what="the consumer has left")
    world.publish({"n": 3})
    assert read(world.consumer(), 1) == [3]
