"""The comparison itself, run briefly with mosquitto in both places: interleaving, result file, table, exit codes."""

import json
import shutil
import time
from pathlib import Path

import pytest

from bench import compare
from penstock_bench import suite
from penstock_bench.brokers import COMMANDS, Broker, BrokerError
from penstock_bench.comparison import Measurement
from penstock_bench.machine import describe_machine, describe_versions
from penstock_bench.summary import Run
from penstock_bench.system import cpu_seconds, process_tree

needs_mosquitto = pytest.mark.skipif(not shutil.which("mosquitto"), reason="mosquitto is not installed")
BRIEF = ["--reps", "1", "--secs", "0.3", "--warm", "0", "--quiet", "0"]
MOSQUITTO_AS_SUBJECT = ["--peer", f"penstock={COMMANDS['mosquitto']}"]


@needs_mosquitto
def test_a_comparison_is_interleaved_and_its_latency_load_is_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "result.json"
    scenarios = ["--scenario", "p2p-q1", "--scenario", "latency-q1"]
    assert compare.main([*BRIEF, *MOSQUITTO_AS_SUBJECT, *scenarios, "--json", str(target)]) == 0
    result = json.loads(target.read_text())
    order = [(run["test"], run["broker"]) for run in result["runs"]]
    assert order == [(test, broker) for test in ("p2p-q1", "latency-q1") for broker in ("mosquitto", "penstock")]
    first, second = (run["target_rate"] for run in result["runs"][2:])
    assert first == second > 100
    assert result["machine"].keys() >= {"cpu", "cores", "kernel"}
    assert result["versions"].keys() >= {"penstock", "mosquitto", "python"}
    capsys.readouterr()
    assert compare.main(["--table", str(target)]) == 0
    table = capsys.readouterr().out
    assert "| 10 pairs, QoS 1 | messages / CPU-s |" in table
    assert compare.main(["--table", str(target), "--check"]) == 1, "mosquitto is not 25 times as fast as itself"


@needs_mosquitto
def test_the_latency_scenario_alone_finds_its_load_itself(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    arguments = [*BRIEF, "--only", "mosquitto", "--scenario", "latency-q1", "--json", str(target)]
    assert compare.main(arguments) == 0
    (run,) = json.loads(target.read_text())["runs"]
    assert run["target_rate"] > 100


def test_mosquitto_has_the_settings_that_it_is_best_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its default where it is about throughput, packets at once where it is about latency."""
    started: dict[str, str] = {}

    class Noted:
        def __init__(self, brokers: list[Broker], measurements: list[Measurement], turns: object) -> None:
            for measurement in measurements:
                started[measurement.name] = brokers[0]._mosquitto_conf

        def run(self) -> list[Run]:
            return []

    monkeypatch.setattr(suite, "Comparison", Noted)
    options = [*BRIEF, "--only", "mosquitto", "--scenario", "p2p-q1", "--scenario", "latency-q1"]
    assert compare.measure(compare.parse_arguments(options))["runs"] == []
    assert {name: "nodelay" in conf for name, conf in started.items()} == {"p2p-q1": False, "latency-q1": True}


def test_a_broker_that_does_not_start_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*BRIEF, "--peer", "gone=false", "--only", "gone", "--scenario", "p2p-q0"]
    assert compare.main(arguments) == 1
    assert "gone did not start" in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--peer", "nameless"], ["--only", "unheard-of"]])
def test_wrong_arguments_name_what_is_wrong(options: list[str]) -> None:
    with pytest.raises(SystemExit, match=options[1]):
        compare.main([*BRIEF, *options])


def test_the_load_options_of_a_scenario_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main(["--options", "fanin-q1"]) == 0
    assert capsys.readouterr().out.startswith("--scenario fanin --n 50")


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


@needs_mosquitto
def test_a_frozen_broker_does_nothing_until_it_is_thawed() -> None:
    broker = Broker("mosquitto", COMMANDS["mosquitto"])
    broker.start()
    try:
        assert broker.answers()
        broker.freeze()
        (pid,) = process_tree(broker.pids()[0])
        deadline = time.monotonic() + 30
        while state_of(pid) != "T":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert cpu_seconds([pid]) >= 0
        broker.thaw()
        assert broker.answers()
    finally:
        broker.stop()
    assert not broker.is_alive()
    assert not broker.answers()


def test_a_command_that_is_not_installed_is_named() -> None:
    with pytest.raises(BrokerError, match="missing did not start"):
        Broker("missing", "/nonexistent/broker").start()


def test_machine_and_versions_have_no_empty_entries() -> None:
    assert all(describe_machine().values())
    assert all(describe_versions().values())


def test_of_two_results_in_a_minute_both_are_kept(tmp_path: Path) -> None:
    """Two scripts with the same folder, one after the other: the second wrote over the first."""
    for seconds in ("05", "32"):
        result = {"date": f"2026-11-17T12:59:{seconds}+00:00", "provider": "embedded", "of": seconds}
        suite.keep_result(result, tmp_path / "datasub")
    kept = sorted((tmp_path / "datasub").glob("*-embedded.json"))
    assert [json.loads(path.read_text())["of"] for path in kept] == ["05", "32"]
