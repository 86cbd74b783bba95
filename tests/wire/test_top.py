"""`penstock top` on a broker with clients: once, as JSON, and on a terminal until q."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.__main__ import main
from penstock.cli.top.figures import Figures, Reading
from penstock.cli.top.view import as_text, count, duration, size
from penstock_client import Consumer, connect
from tests.support.brokers.broker import REPOSITORY
from tests.support.clients.packets import V5
from tests.support.clients.strangers import stranger
from tests.support.worlds.application import AppBroker, persistent, running_app_broker, until

SECONDS = 60.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppBroker]:
    with running_app_broker(
        tmp_path_factory.mktemp("broker"), "embedded", {"limits.max_queued_messages": 5}
    ) as running:
        for client_id in ("app1", "device1"):
            absent = running.client(V5)
            absent.connect(client_id, **persistent(V5))
            absent.subscribe("some/#", qos=1)
            absent.disconnect()
        running.command("queue", "create", "orders")
        publisher = running.client(V5)
        publisher.connect("publisher")
        for _ in range(10):
            publisher.publish("some/x", b"y", qos=1)
        publisher.publish("$queue/orders", b"y", qos=1)
        # One that takes a message and does not acknowledge it: five wait, the other four are lost.
        slow = running.client(V5)
        slow.connect("slow", properties={"receive_maximum": 1})
        slow.subscribe("slow/#", qos=1)
        for _ in range(10):
            publisher.publish("slow/x", b"y", qos=1)
        slow.expect_publish("slow/x", b"y")
        until(lambda: running.application("app1")["lag"] == 10)
        server = f"127.0.0.1:{running.data_port}"
        with connect(server) as admin, Consumer({"server": server, "group.id": "g"}) as consumer:
            admin.execute('CREATE TOPIC all_of_it AS SELECT topic FROM "some/#"')
            consumer.subscribe(["all_of_it"])
            until(lambda: len(consumer.assignment()) == 4)
            consumer.seek_to_beginning()
            consumer.commit()
            yield running
        slow.close()
        publisher.close()


def test_once(broker: AppBroker) -> None:
    figures = json.loads(broker.command("top", "--once", "--interval", "0.1", options=["--json"]))
    assert figures["clients"]["connections"] == 2
    assert figures["clients"]["sessions"] == 4
    assert figures["messages"]["received"] == 21
    assert figures["messages"]["dropped"] == {"queue_full": {"total": 4, "per_second": 0.0}}
    assert (figures["waiting"]["queued_messages"], figures["waiting"]["in_flight"]) == (5, 1)
    assert figures["applications"]["lag"] == 10
    assert [(one["client_id"], one["lag"]) for one in figures["furthest_behind"]] == [("app1", 10)]
    assert ("orders", 1) in [(one["name"], one["depth"]) for one in figures["deepest_queues"]]
    queries = figures["query_topics"]
    assert [queries[name] for name in ("count", "groups", "consumers")] == [1, 1, 1]
    assert queries["lag"] == queries["largest_lag"] >= 10
    assert figures["process"]["resident_bytes"] > 1_000_000
    assert abs(figures["process"]["resident_bytes"] - broker.resident_bytes()) < 50_000_000
    text = broker.command("top", "--interval", "0.1")
    assert re.search(r"^clients +connections 2 ", text, re.M)
    assert re.search(r"^  dropped queue_full  4  0$", text, re.M)
    assert "app1" in text
    assert re.search(r"^query topics +topics 1  consumers 1 in 1 groups ", text, re.M)


@contextlib.contextmanager
def top_on_a_terminal(broker: AppBroker, columns: int, lines: int, kind: str = "xterm") -> Iterator[Screen]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    command = [sys.executable, "-m", "penstock", "top", "--interval", "0.2", "--data-dir", str(broker.data_dir)]
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    environment = {**kept, "PYTHONPATH": str(REPOSITORY / "src"), "TERM": kind}
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment, cwd=broker.directory)
    os.close(slave)
    try:
        yield Screen(master, process)
    finally:
        process.kill()
        process.wait()
        os.close(master)


# What a person wants to see first, as it is on every terminal.
FIGURES = (
    r"connections +\d+\b",
    r"subscriptions +\d+\b",
    r"in /s +\d+\b",
    r"bytes in /s +[\d.,]+ KiB\b",
    r"bytes out /s +[\d.,]+ KiB\b",
    r"queued +5\b",
    r"queued bytes +[\d.,]+ KiB\b",
    r"on disk +[\d.,]+ [KM]iB\b",
    r"connected +0 of 1\b",
    r"consumers +1 in 1 groups",
    r"memory +[\d.,]+ MiB\b",
    r"files +[\d.,k]+ of [\d.,kMG]+",
    r"dropped queue_full +4 +0\b",
)


@pytest.mark.parametrize(("columns", "lines", "blocks"), [(80, 24, 3), (120, 40, 4), (60, 60, 2)])
def test_figures_are_whole_on_every_terminal(broker: AppBroker, columns: int, lines: int, blocks: int) -> None:
    """What there is no room for beside each other stands below; nothing is cut."""
    with top_on_a_terminal(broker, columns, lines) as screen:
        shown = screen.await_frame("connections")
        first = next(line for line in shown.splitlines() if line.startswith("clients"))
        assert first.split() == ["clients", "messages", "waiting", "log"][:blocks], shown
        for pattern in FIGURES:
            assert re.search(pattern, shown), f"{pattern} is not in\n{shown}"
        assert "…" not in shown
        assert len(shown.splitlines()) <= lines


def test_on_a_terminal(broker: AppBroker) -> None:
    """A pseudo-terminal: figures appear, change, and q ends it with 0 and the terminal as it was."""
    with top_on_a_terminal(broker, 120, 40) as screen:
        screen.await_text(r"connections\W+2\b")
        other = broker.client(V5)
        other.connect("other")
        screen.await_text(r"connections\W+3\b")
        other.disconnect()
        screen.press(b"q")
        assert screen.await_end() == 0


def test_a_broker_that_is_started_again_is_shown_again(tmp_path: Path) -> None:
    """With the token of its new start."""
    with running_app_broker(tmp_path, "embedded", {}) as again, top_on_a_terminal(again, 80, 24) as screen:
        screen.await_text(r"connections\W+0\b")
        again.end()
        screen.await_text("no broker answers at")
        again.restart()
        client = again.client(V5)
        client.connect("first")
        screen.await_text(r"connections\W+1\b")
        client.disconnect()


class Screen:
    """What a program writes on its terminal, without the control sequences."""

    def __init__(self, master: int, process: subprocess.Popen[bytes]) -> None:
        self._master = master
        self._process = process
        self._text = ""

    def _read(self) -> bool:
        """False when nobody is at the other end any more."""
        if select.select([self._master], [], [], 0.5)[0]:
            try:
                data = os.read(self._master, 65_536)
            except OSError:
                return False
            self._text += data.decode(errors="replace")
        return True

    @staticmethod
    def _plain(text: str) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)

    def await_text(self, pattern: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not re.search(pattern, self._plain(self._text)):
            assert time.monotonic() < deadline, self._text[-3000:]
            assert self._read(), self._text[-3000:]
        self._text = ""

    def await_frame(self, word: str) -> str:
        """A whole picture with the word in it, from one move to the upper left to the next."""
        deadline = time.monotonic() + SECONDS
        while True:
            for frame in self._text.split("\x1b[H")[1:-1]:
                if word in frame:
                    return self._plain(frame).rstrip()
            assert time.monotonic() < deadline, self._text[-3000:]
            assert self._read(), self._text[-3000:]

    @property
    def raw(self) -> str:
        """With the control sequences, since the last text that was awaited."""
        return self._text

    def terminate(self) -> None:
        self._process.terminate()

    def press(self, key: bytes) -> None:
        os.write(self._master, key)

    def await_end(self) -> int:
        deadline = time.monotonic() + SECONDS
        while self._read():
            assert time.monotonic() < deadline, self._text[-3000:]
        return self._process.wait(SECONDS)


def test_json_lines_go_on(broker: AppBroker, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock", "top", "--json", "-d", "0.1", "--data-dir", str(broker.data_dir)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=tmp_path)
    assert process.stdout is not None
    try:
        for _ in range(2):
            assert json.loads(process.stdout.readline())["clients"]["connections"] >= 1
    finally:
        process.kill()
        process.communicate()


def test_rates_and_a_broker_that_was_started_again() -> None:
    def reading(seconds: float, received: int, pid: int = 1, uptime: float = 100.0) -> Reading:
        counters = {"messages_received_qos1": received, "messages_dropped_queue_full": 4, "messages_dropped_expired": 0}
        process = {"pid": pid, "cpu_seconds": seconds / 2}
        return Reading({"time": seconds, "uptime": uptime, "version": "1", "counters": counters, "process": process})

    figures = Figures(reading(12.0, 300), reading(10.0, 100)).describe()
    assert (figures["messages"]["received_per_second"], figures["process"]["cpu_percent"]) == (100.0, 50.0)
    assert figures["messages"]["dropped"] == {"queue_full": {"total": 4, "per_second": 0.0}}
    assert "dropped queue_full  4" in as_text(figures, "http://x")
    restarted = Figures(reading(13.0, 20, pid=2, uptime=2.0), reading(12.0, 300)).describe()
    assert restarted["messages"]["received_per_second"] == 10.0
    in_a_container = Figures(reading(13.0, 20, uptime=2.0), reading(12.0, 300)).describe()
    assert in_a_container["messages"]["received_per_second"] == 10.0


@pytest.mark.parametrize("interval", ["inf", "nan", "0"])
def test_an_interval_that_is_none_is_bad_usage(interval: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once", "--interval", interval, "--token", "any", "--url", "http://127.0.0.1:1"]) == 2
    assert "--interval" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "said"), [("hangs", "does not answer in 0.2 s"), ("closes", "cannot talk to the broker")]
)
def test_an_address_where_somebody_else_listens(
    kind: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cli.top.app.LOOK_SECONDS", 0.2)
    with stranger(kind) as port:
        assert main(["top", "--once", "--url", f"http://127.0.0.1:{port}", "--token", "x"]) == 1
    message, hint = capsys.readouterr().err.splitlines()
    assert said in message
    assert hint == "Name the broker's admin address with --url: the setting admin.address, not the port of MQTT."


def test_how_numbers_are_written() -> None:
    assert [count(n) for n in (0, 9_999, 12_345, 4_500_000, 2e9)] == ["0", "9,999", "12.3k", "4.5M", "2.0G"]
    assert [size(n) for n in (0, 1536, 3 * 2**20, 5 * 2**30)] == ["0.0 KiB", "1.5 KiB", "3.0 MiB", "5.0 GiB"]
    assert [duration(n) for n in (61, 90_061)] == ["00:01:01", "1d 01:01:01"]


def test_figures_stay_where_labels_have_no_room(broker: AppBroker) -> None:
    with top_on_a_terminal(broker, 16, 60) as screen:
        shown = screen.await_frame("connections")
        assert re.search(r"^connections +2\b", shown, re.M), shown
        assert re.search(r"^bytes.* [\d.]+ KiB\b", shown, re.M), shown
        assert all(len(line) <= 16 for line in shown.splitlines())


def test_keys_that_are_not_meant_and_keys_that_came_together(broker: AppBroker) -> None:
    with top_on_a_terminal(broker, 80, 24) as screen:
        screen.await_text("connections")
        screen.press(b"\x1b[A")  # an arrow begins like Escape
        screen.await_text("connections")
        screen.await_text("connections")
        screen.press(b"xq")
        assert screen.await_end() == 0


def test_sigterm_leaves_the_terminal_as_it_was(broker: AppBroker) -> None:
    with top_on_a_terminal(broker, 80, 24) as screen:
        screen.await_text("connections")
        screen.terminate()
        assert screen.await_end() == 128 + signal.SIGTERM
        assert screen.raw.rstrip().endswith("\x1b[?1049l"), "the other screen is still shown"


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(broker: AppBroker) -> None:
    with top_on_a_terminal(broker, 200, 24, "dumb") as screen:
        screen.await_text(r"clients +connections 2 ")
        assert screen.await_end() == 0
