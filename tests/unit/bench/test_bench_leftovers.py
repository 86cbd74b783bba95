"""`penstock bench queue` leaves nothing in a broker: neither its queue nor copies of messages in the queue `mqtt`."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.__main__ import main
from penstock.bench.runner import run_scenario
from tests.support.queues import QueueBroker, open_queue_client, running_queue_broker

BRIEF = ["-d", "0.3", "--warmup", "0", "-c", "5"]
LEFT = "copies of the messages are left in the queue mqtt, if the broker has one, and expire within 70 s: "


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
    assert main(["queue", "purge", "mqtt", "--yes"]) == 0
    return running


def bench_queue(broker: QueueBroker, *options: str) -> int:
    return main(["bench", "queue", "-p", str(broker.port), *BRIEF, *options])


def depth_of_copies(broker: QueueBroker) -> int:
    copies = broker.queue("mqtt")
    assert copies is not None
    return int(copies["depth"])


@pytest.mark.parametrize("payload", ["64", "40000"])
def test_nothing_is_left(broker: QueueBroker, payload: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Messages of others that came before and wait in `mqtt` stay there."""
    client = open_queue_client(broker, "another")
    client.publish("$queue/of-others/1", b"stays")
    client.close()
    capsys.readouterr()
    assert bench_queue(broker, "-s", payload, "--json", "result.json") == 0
    assert "left" not in capsys.readouterr().out
    document = json.loads(Path("result.json").read_text())
    assert document["figures"]["published"] > 10
    assert document["left_behind"] is None
    assert broker.queue(document["settings"]["queue"]) is None
    assert depth_of_copies(broker) == 1
    assert main(["queue", "peek", "mqtt", "--json"]) == 0
    (message,) = json.loads(capsys.readouterr().out)["messages"]
    assert message["payload"] == "stays"


def test_what_cannot_be_removed_is_told_with_the_command_that_does(
    broker: QueueBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("PENSTOCK_SERVER__DATA_DIR", "/nonexistent")
        assert bench_queue(broker, "--json", "result.json", "--html", "report.html") == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"{LEFT}`penstock queue purge mqtt` removes them now, with all else in it (not done here: ")
    assert json.loads(Path("result.json").read_text())["left_behind"] == last
    assert LEFT in Path("report.html").read_text()
    assert depth_of_copies(broker) > 0
    assert main(["queue", "purge", "mqtt", "--yes"]) == 0
    assert depth_of_copies(broker) == 0


def test_a_queue_of_the_user_stays_and_its_copies_are_told(
    broker: QueueBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["queue", "create", "load"]) == 0
    assert bench_queue(broker, "--queue", "load") == 0
    assert "(not done here: others may have published to load, too)" in capsys.readouterr().out
    assert broker.queue("load") is not None
    assert depth_of_copies(broker) > 0


def test_a_full_queue_with_older_messages_is_told(broker: QueueBroker, capsys: pytest.CaptureFixture[str]) -> None:
    """The room of what was removed comes back only with what was before it."""
    assert main(["queue", "update", "mqtt", "-o", "limits.max_depth=100"]) == 0
    try:
        client = open_queue_client(broker, "another")
        client.publish("$queue/of-others/1", b"stays")
        client.close()
        assert bench_queue(broker) == 0
        assert capsys.readouterr().out.splitlines()[-1].startswith("the queue mqtt may stay full")
        assert depth_of_copies(broker) == 1
    finally:
        assert main(["queue", "update", "mqtt", "-o", "limits.max_depth=100000"]) == 0


def test_an_impatient_end_leaves_nothing_either(
    broker: QueueBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second Ctrl-C does not wait for what is under way."""

    def run_and_raise(*arguments: object) -> None:
        run_scenario(*arguments)  # type: ignore[arg-type]  # those of the real one
        raise KeyboardInterrupt

    monkeypatch.setattr("penstock.cli.bench.run_scenario", run_and_raise)
    assert bench_queue(broker) == 130
    assert depth_of_copies(broker) == 0
    monkeypatch.setenv("PENSTOCK_SERVER__DATA_DIR", "/nonexistent")
    assert bench_queue(broker) == 130
    assert LEFT in capsys.readouterr().err


def test_another_broker_is_not_touched(broker: QueueBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The one that commands find need not be the one that was tested."""
    (tmp_path / "other").mkdir()
    with running_queue_broker(tmp_path / "other") as other:
        assert bench_queue(other) == 0
        assert "is another one: it has no queue bench-" in capsys.readouterr().out
        assert depth_of_copies(other) > 0
