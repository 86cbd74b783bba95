"""How far a job of Spark is: words for it, lines without a terminal, nothing when nobody wants to know."""

from __future__ import annotations

import os
import pty
import time
from collections.abc import Callable

import pytest

from penstock.cli.spark import progress as spark_progress
from penstock.cli.spark.progress import SparkProgress, Told, describe
from penstock_spark.watch import Doing

WRITING = Doing("writing messages", 1, 2, 450_000)


def wait_for(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.005)


def test_words() -> None:
    assert describe(WRITING, None) == "writing messages, 1 of 2 tasks, 450,000 rows read"
    assert describe(Doing("", 0, 4, 0), Told("messages", 1_000, 0)) == "0 of 4 tasks, 1,000 messages done"
    assert describe(WRITING, Told("messages", 1_000, 2_000)) == "1,000 of 2,000 messages"
    assert describe(None, None) == "preparing"


def test_lines_without_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(spark_progress, "LINE_SECONDS", 0.01)
    seen = ""

    def says(words: str) -> bool:
        nonlocal seen
        seen += capsys.readouterr().err
        return words in seen

    with SparkProgress("spark lake") as progress:
        wait_for(lambda: says("spark lake: 0 s, starting Spark\n"))
        progress.watch(lambda: WRITING)
        wait_for(lambda: says("writing messages, 1 of 2 tasks, 450,000 rows read\n"))
        progress.tell("messages", 5, 10)
        wait_for(lambda: says(", 5 of 10 messages\n"))

        def fail() -> None:
            raise ConnectionError("Spark is gone")

        progress.watch(fail)
        wait_for(lambda: says("s, 5 of 10 messages\n"))


def test_nothing_when_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(spark_progress, "LINE_SECONDS", 0.001)
    with SparkProgress("spark lake", is_quiet=True) as progress:
        progress.watch(lambda: WRITING)
        time.sleep(0.05)
    assert capsys.readouterr().err == ""


def test_a_bar_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_progress, "PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(spark_progress, "BAR_SECONDS", 0.01)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    ours, theirs = pty.openpty()
    seen = b""

    def shows(words: bytes) -> bool:
        nonlocal seen
        seen += os.read(ours, 65_536)
        return words in seen

    with open(theirs, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        with SparkProgress("spark replay") as progress:
            wait_for(lambda: shows(b"starting Spark"))
            progress.watch(lambda: WRITING)
            wait_for(lambda: shows(b"writing messages, 1 of 2 tasks"))
            progress.tell("messages", 5, 10)
            wait_for(lambda: shows(b"5 of 10 messages"))
    os.close(ours)
