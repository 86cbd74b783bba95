"""The bar of commands that take long, on the standard error of a person, and nowhere else."""

import sys
import uuid

import pytest

from penstock.__main__ import main
from penstock.cli import progress
from tests.support.servers.kafka_fixtures import shared_cluster


@pytest.fixture
def topic_name():
    return f"progress-{uuid.uuid4().hex[:12]}"


class Terminal:
    """Standard error of a person."""

    def __init__(self):
        self.text = ""
        self.encoding = "utf-8"

    def isatty(self):
        return True

    def write(self, text):
        self.text += text
        return len(text)

    def flush(self):
        pass


@pytest.mark.parametrize(("patience", "is_shown"), [(0.0, True), (3600.0, False)])
def test_progress_is_shown_when_it_takes_long(monkeypatch, patience, is_shown):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", patience)
    with progress.Progress("reading demo", total=1000) as bar:
        for _ in range(1000):
            bar.advance()
    assert ("reading demo" in terminal.text) is is_shown


def test_no_progress_without_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 0.0)
    with progress.Progress("reading demo", total=1000) as bar:
        for _ in range(1000):
            bar.advance()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("provider", ["embedded", "kafka"])
def test_a_long_read_shows_how_far_it_is(provider, topic_name, tmp_path, monkeypatch, capsys):
    where = ["--data-dir", str(tmp_path)]
    if provider == "kafka":
        kafka = f"kafka.bootstrap_servers={shared_cluster(1).bootstrap}"
        where = ["--set", "log.provider=kafka", "--set", kafka]
    lines = tmp_path / "lines"
    lines.write_text("".join(f"{number}\n" for number in range(600)))
    with lines.open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert main(["log", "append", topic_name, "--create", "2", "-l", *where]) == 0
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    capsys.readouterr()
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 3600.0)
    assert main(["log", "read", topic_name, *where]) == 0
    assert terminal.text == ""
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 0.0)
    assert main(["log", "read", topic_name, *where]) == 0
    assert f"reading {topic_name}" in terminal.text
    assert "512 records" in terminal.text
    assert len(capsys.readouterr().out.splitlines()) == 2 * 600, "the records are the same with it"
