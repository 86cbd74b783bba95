"""Medians, ratios, targets and verdicts of a small canned result."""

import pytest

from penstock_bench.summary import faults_of, markdown_table, median_of, missed_targets, ordered_brokers, summarise
from penstock_bench.targets import CASES, REQUIRED, Target


def run(test: str, broker: str, rep: int = 0, **fields: object) -> dict[str, object]:
    return {"rep": rep, "test": test, "broker": broker, **fields}


def pair_runs(subject: float, **subject_fields: object) -> list[dict[str, object]]:
    return [
        run("p2p-q0", "mosquitto", msgs_per_cpu_s=50_000),
        run("p2p-q0", "penstock", msgs_per_cpu_s=subject, **subject_fields),
    ]


def test_a_figure_is_the_median_of_the_repetitions_and_the_ratio_is_of_medians() -> None:
    figures = {"mosquitto": (40_000, 50_000, 90_000), "penstock": (1_000_000, 2_000_000, 2_100_000)}
    runs = [run("p2p-q0", b, i, msgs_per_cpu_s=v) for b, values in figures.items() for i, v in enumerate(values)]
    (row,) = summarise(runs)
    assert row["brokers"]["mosquitto"]["value"] == 50_000
    assert row["brokers"]["penstock"]["ratio"] == 40
    assert row["brokers"]["penstock"]["spread"] == pytest.approx(0.55)
    assert row["brokers"]["penstock"]["reached"] is True


@pytest.mark.parametrize(("figure", "reached"), [(1_499_000, False), (1_500_000, True)])
def test_a_ratio_target_is_reached_at_its_value(figure: int, reached: bool) -> None:
    (row,) = summarise(pair_runs(figure))
    assert row["brokers"]["penstock"]["reached"] is reached
    assert missed_targets([row]) == ([] if reached else ["10 pairs, QoS 0"])


@pytest.mark.parametrize("fault", ["lost", "duplicates", "disordered", "corrupt", "disconnects"])
def test_a_fast_run_with_a_fault_does_not_reach_its_target(fault: str) -> None:
    (row,) = summarise(pair_runs(9_000_000, **{fault: 3}))
    assert row["brokers"]["penstock"]["reached"] is False
    assert f"penstock: {fault} 3" in markdown_table([row])


def test_a_failed_run_is_told_and_misses_the_target() -> None:
    runs = [run("p2p-q0", "mosquitto", msgs_per_cpu_s=50_000), run("p2p-q0", "penstock", error="timeout")]
    rows = summarise(runs)
    assert missed_targets(rows) == ["10 pairs, QoS 0"]
    assert "penstock: timeout" in markdown_table(rows)


def test_without_the_base_broker_a_ratio_cannot_be_told() -> None:
    (row,) = summarise([run("p2p-q0", "penstock", msgs_per_cpu_s=9_000_000)])
    assert row["brokers"]["penstock"]["ratio"] is None
    assert "| not measured |" in markdown_table([row])


def test_absolute_and_maximum_targets() -> None:
    assert Target(3_072, is_ratio=False, is_maximum=True).reached(3_072, None) is True
    assert Target(3_072, is_ratio=False, is_maximum=True).reached(3_073, 700) is False
    assert Target(8_000, is_ratio=False).reached(7_999, 100) is False
    assert Target(1.0, is_maximum=True).reached(90, 100) is True
    assert Target(1.0, is_maximum=True).reached(101, 100) is False
    assert str(Target(30)) == "≥ 30x"
    assert str(Target(3_072, is_ratio=False, is_maximum=True)) == "≤ 3,072"


def test_the_idle_scenario_gives_memory_and_connects() -> None:
    idle = {"bytes_per_conn": 2_000, "connects_per_cpu_s": 12_000}
    rows = summarise([run("idle-10k", "mosquitto", **idle), run("idle-10k", "penstock", **idle)])
    assert [(row["unit"], row["brokers"]["penstock"]["reached"]) for row in rows] == [
        ("bytes", True),
        ("connects / CPU-s", True),
    ]


def test_the_table_has_the_base_first_and_the_subject_last() -> None:
    rows = summarise([*reversed(pair_runs(2_000_000)), run("p2p-q0", "other", msgs_per_cpu_s=100_000)])
    assert ordered_brokers(rows) == ["mosquitto", "other", "penstock"]
    lines = markdown_table(rows).splitlines()
    assert lines[0] == "| scenario | unit | mosquitto | other | penstock | target | reached |"
    assert lines[2] == (
        "| 10 pairs, QoS 0 | messages / CPU-s | 50,000 | 100,000 (2.00x) | 2,000,000 (40.00x) | ≥ 30x | yes |"
    )
    assert len({line.count("|") for line in lines}) == 1


def test_a_busy_machine_is_remarked_but_is_no_fault() -> None:
    (row,) = summarise(pair_runs(2_000_000, other_cores=0.8))
    assert row["brokers"]["penstock"]["reached"] is True
    assert "0.8 other cores busy" in markdown_table([row])


def test_every_required_scenario_has_targets_and_its_load_reference_exists() -> None:
    assert all(figure.target for scenario in REQUIRED for figure in scenario.figures)
    assert all(not s.load_of or s.load_of in CASES for s in CASES.values())


def test_helpers_take_runs_without_the_field() -> None:
    assert median_of([{"error": "timeout"}], "rate") is None
    assert faults_of([{"lost": 0}]) == []
