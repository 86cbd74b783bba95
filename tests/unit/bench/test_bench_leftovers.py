"""`penstock bench queue` leaves nothing in a broker: its queue is removed, and other queues have nothing of it."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.__main__ import main
from penstock_bench.runner import run_scenario
from tests.support.worlds.queues import QueueBroker, running_queue_broker

BRIEF = ["-d", "0.3", "--warmup", "0", "-c", "5"]
LEFT = "is left in the broker: `penstock queue delete "


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueueBroker]:
    with running_queue_broker(tmp_path_factory.mktemp("queues")) as started:
        yield started


@pytest.fixture
def broker(running: QueueBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> QueueBroker:
    """Which commands find by its data directory."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PENSTOCK_SERVER__DATA_DIR", str(running.data_dir))
    return running


def bench_queue(broker: QueueBroker, *options: str) -> int:
    return main(["bench", "queue", "-p", str(broker.port), *BRIEF, *options])


def queues_of(broker: QueueBroker) -> list[str]:
    """Of tests."""
    return [entry["name"] for entry in broker.api("queues?filter=bench-*")["queues"]]


@pytest.mark.parametrize("payload", ["64", "40000"])
def test_nothing_is_left(broker: QueueBroker, payload: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_queue(broker, "-s", payload, "--json", "result.json") == 0
    assert "left" not in capsys.readouterr().out
    document = json.loads(Path("result.json").read_text())
    assert document["figures"]["published"] > 10
    assert document["left_behind"] is None
    assert broker.queue(document["settings"]["queue"]) is None
    assert broker.counter("mqtt", "tail") == 0


def test_what_cannot_be_removed_is_told_with_the_command_that_does(
    broker: QueueBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("PENSTOCK_SERVER__DATA_DIR", "/nonexistent")
        assert bench_queue(broker, "--json", "result.json", "--html", "report.html") == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert LEFT in last
    assert "(not done here: " in last
    document = json.loads(Path("result.json").read_text())
    assert document["left_behind"] == last
    assert "is left in the broker" in Path("report.html").read_text()
    assert queues_of(broker) == [document["settings"]["queue"]]
    assert main(["queue", "delete", document["settings"]["queue"], "--yes"]) == 0
    assert queues_of(broker) == []


def test_a_queue_of_the_user_stays(broker: QueueBroker, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["queue", "create", "load"]) == 0
    assert bench_queue(broker, "--queue", "load") == 0
    assert "left" not in capsys.readouterr().out
    assert broker.queue("load") is not None


def test_an_impatient_end_leaves_nothing_either(
    broker: QueueBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second Ctrl-C does not wait for what is under way."""

    def run_and_raise(*arguments: object) -> None:
        run_scenario(*arguments)  # type: ignore[arg-type]  # those of the real one
        raise KeyboardInterrupt

    monkeypatch.setattr("penstock.cli.bench.app.run_scenario", run_and_raise)
    assert bench_queue(broker) == 130
    assert queues_of(broker) == []
    monkeypatch.setenv("PENSTOCK_SERVER__DATA_DIR", "/nonexistent")
    assert bench_queue(broker) == 130
    assert LEFT in capsys.readouterr().err
    [left] = queues_of(broker)
    broker.api(f"queues/{left}", "DELETE")


def test_another_broker_is_not_touched(broker: QueueBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The one that commands find need not be the one that was tested."""
    (tmp_path / "other").mkdir()
    with running_queue_broker(tmp_path / "other") as other:
        assert bench_queue(other) == 0
        assert "is another one: it has no queue bench-" in capsys.readouterr().out
        assert len(queues_of(other)) == 1
