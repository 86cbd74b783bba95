"""`penstock bench compare` without brokers: medians, ratios, what counts as wrong, how brokers are found and set up."""

import os
from pathlib import Path
from typing import Any

import pytest

from penstock.__main__ import main
from penstock.core.errors import PenstockError
from penstock_bench import contest, machine
from penstock_bench.brokers import COMMANDS, Broker, BrokerError
from penstock_bench.configurations import configuration_of
from penstock_bench.contest import check_failed, remarks_of, run_of, summarise, table_of
from penstock_bench.runner import Outcome
from penstock_bench.scenarios import SCENARIOS, Request

BROKERS = ["mosquitto", "penstock", "third"]


def run(broker: str, rep: int = 0, test: str = "p2p", **figures: Any) -> dict[str, Any]:
    return {"rep": rep, "test": test, "broker": broker, **figures}


def repeated(field: str, **values: tuple[float, ...]) -> list[dict[str, Any]]:
    return [run(broker, rep, **{field: value}) for broker, each in values.items() for rep, value in enumerate(each)]


def test_a_figure_is_the_median_of_the_runs_and_its_ratio_is_to_the_first_broker() -> None:
    runs = repeated("msgs_per_cpu_s", mosquitto=(40, 50, 90), penstock=(1_000, 2_000, 2_100), third=(25, 25, 10))
    (row,) = summarise(runs, BROKERS)
    assert (row["scenario"], row["figure"]) == ("p2p", "messages/CPU-s")
    assert row["brokers"] == {
        "mosquitto": {"median": 50, "ratio": 1, "spread": 1},
        "penstock": {"median": 2_000, "ratio": 40, "spread": 0.55},
        "third": {"median": 25, "ratio": 0.5, "spread": 0.6},
    }
    (other_way,) = summarise(runs, ["penstock", "mosquitto"])
    assert other_way["brokers"]["mosquitto"]["ratio"] == 0.025


def test_memory_has_no_ratio_and_a_broker_without_figures_has_none() -> None:
    runs = [*repeated("rss_kb", mosquitto=(10,), penstock=(50,)), run("third", error="refused")]
    (row,) = summarise(runs, BROKERS)
    assert [cell["ratio"] for cell in row["brokers"].values()] == [None, None, None]
    assert row["brokers"]["third"] == {"median": None, "ratio": None, "spread": None}
    document = {"commands": dict.fromkeys(BROKERS, ""), "summary": [row], "runs": runs}
    assert table_of(document).splitlines()[1].split() == ["p2p", "resident", "KiB", "10", "50", "-"]


def test_scenarios_have_the_figures_of_their_kind() -> None:
    figures: dict[str, Any] = {"rate": 5, "connects_per_s": 7}
    rows = summarise([run("third", **figures), run("third", test="idle", **figures)], ["third"])
    assert [(row["scenario"], row["figure"]) for row in rows] == [("p2p", "messages/s"), ("idle", "connects/s")]


def outcome(qos: int, **first_stage: int) -> Outcome:
    """Of two stages, of which only the first went wrong."""
    return Outcome(Request("device", qos=qos), {"published": first_stage, "received": {"rate": 5, "lost": 0}})


def test_faults_of_any_stage_are_faults() -> None:
    assert run_of(outcome(1, refused=3)) == {"rate": 5, "lost": 0, "faults": ["refused 3"]}
    assert run_of(outcome(1, lost=3))["faults"] == ["lost 3"]
    assert run_of(outcome(0, lost=3))["faults"] == [], "QoS 0 may lose"


def test_a_fault_of_one_run_is_told_and_fails() -> None:
    runs = [run("penstock", faults=[]), run("penstock", 1, faults=["lost 951"])]
    assert remarks_of({"runs": runs}) == ["! p2p, penstock, run 2: lost 951"]
    with pytest.raises(PenstockError, match="NOT OK: penstock"):
        check_failed({"runs": runs})


def test_what_qos_0_lost_is_told_and_does_not_fail() -> None:
    runs = [run("penstock", lost=1_000, faults=[])]
    assert remarks_of({"runs": runs}) == ["! p2p, penstock, run 1: lost 1,000, as QoS 0 allows"]
    check_failed({"runs": runs})


@pytest.mark.parametrize(("faults", "code"), [([], 0), (["lost 951"], 1)])
def test_the_exit_code_says_whether_a_broker_was_right(
    faults: list[str], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [run("penstock", rate=9_000, lost=0, faults=faults)]
    monkeypatch.setattr(contest, "measure_all", lambda *_: runs)
    assert main(["bench", "compare", "-b", "penstock", "--scenario", "application"]) == code
    assert "9,000" in capsys.readouterr().out


def test_half_a_run_is_none() -> None:
    stopped = outcome(1)
    stopped.is_interrupted = True
    with pytest.raises(KeyboardInterrupt):
        run_of(stopped)


def test_a_result_that_cannot_be_written_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a directory that goes away meanwhile; one that is not there is told before the runs."""
    directory = tmp_path / "results"
    directory.mkdir()

    def measure(*_: object) -> list[dict[str, Any]]:
        directory.rmdir()
        return [run("penstock", rate=9_000, faults=[])]

    monkeypatch.setattr(contest, "measure_all", measure)
    assert main(["bench", "compare", "-b", "penstock", "--json", f"{directory}/result.json"]) == 1
    output = capsys.readouterr()
    assert "9,000" in output.out
    assert f"cannot write {directory}/result.json" in output.err


def test_faults_have_the_words_of_the_table() -> None:
    found = Outcome(Request("p2p", qos=1))
    found.results["pairs"] = {"rate": 1, "published": 1, "received": 1, "lost": 2, "disconnects": 20, "unclosed": 3}
    assert found.faults() == ["lost 2", "connections lost 20", "not closed after DISCONNECT 3"]


def test_scenarios_about_what_is_kept_have_brokers_that_keep_it() -> None:
    kept = {name for name in SCENARIOS if "persistence true" in configuration_of(name).mosquitto_conf}
    assert kept == {"device", "application", "queue"}
    for name in SCENARIOS:
        assert ('log = "none"' in configuration_of(name).penstock_toml) == (name not in kept)
    assert 'anonymous_type = "application"' in configuration_of("application").penstock_toml


def test_mosquitto_has_the_settings_that_it_is_best_with() -> None:
    assert "nodelay" not in configuration_of("p2p").mosquitto_conf
    assert "set_tcp_nodelay true" in configuration_of("p2p", rate=1_000).mosquitto_conf
    assert "its default" in configuration_of("fan-out").about


def test_the_files_of_brokers_are_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What they were started with, whole: a user can repeat it by hand."""
    monkeypatch.setattr(contest, "measure_all", lambda *_: [run("penstock", rate=9_000, faults=[])])
    brokers = ["-b", "mosquitto", "-b", "penstock", "-b", "plain=mosquitto -p {port}"]
    assert main(["bench", "compare", *brokers, "--scenario", "p2p", "--scenario", "device", "--scenario", "idle"]) == 0
    shown = capsys.readouterr().out
    in_memory, durable = configuration_of("p2p"), configuration_of("device")
    for heading, text in (
        ("mosquitto, {dir}/mosquitto.conf in p2p, idle:", in_memory.mosquitto_conf),
        ("mosquitto, {dir}/mosquitto.conf in device:", durable.mosquitto_conf),
        ("penstock, PENSTOCK_CONFIG={dir}/penstock.toml in p2p, idle:", in_memory.penstock_toml),
        ("penstock, PENSTOCK_CONFIG={dir}/penstock.toml in device:", durable.penstock_toml),
    ):
        assert "\n".join([heading, *(f"    {line}" for line in text.splitlines()), ""]) in shown
    assert "plain, {dir}" not in shown, "it has no file of ours"
    assert main(["bench", "compare", "-b", "one=penstock serve --config mine.toml --listen :{port}"]) == 0
    assert "PENSTOCK_CONFIG" not in capsys.readouterr().out


def test_the_machine_is_described_where_there_are_no_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the single-file executable, whose modules are in no directory."""
    monkeypatch.setattr(machine, "HERE", Path("/nonexistent/penstock/bench"))
    assert machine.describe_versions()["penstock"].startswith(machine.package_version("penstock"))
    assert machine.describe_versions()["python"]


def test_programs_of_the_system_are_found_by_ordinary_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "sbin-only"
    program.write_text("#!/bin/sh\necho mosquitto version 9.8.7\n")
    program.chmod(0o755)
    monkeypatch.setattr("penstock_bench.system.SYSTEM_PROGRAMS", (str(tmp_path),))
    monkeypatch.setenv("PATH", "/nonexistent")
    assert machine.mosquitto_version("sbin-only") == "9.8.7"
    with pytest.raises(BrokerError, match=r"(?s)did not start: sbin-only \d+.*mosquitto version 9.8.7"):
        Broker("found", "sbin-only {port}").start()


def test_a_missing_mosquitto_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock_bench.system.SYSTEM_PROGRAMS", ())
    monkeypatch.setitem(os.environ, "PATH", "/nonexistent")
    with pytest.raises(BrokerError) as raised:
        Broker("mosquitto", COMMANDS["mosquitto"]).start()
    assert (
        str(raised.value) == "mosquitto did not start: mosquitto: No such file or directory\napt-get install mosquitto"
    )
