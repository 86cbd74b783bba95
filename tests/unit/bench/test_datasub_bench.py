"""The benchmark of SQL topics measures what it says: the rows are DuckDB's, and those of 50 of 1,000 queries."""

from __future__ import annotations

import pytest

from bench import datasub_bench
from bench.frame import summarise_runs
from penstock_bench.targets import SUBJECT


@pytest.mark.parametrize("scenario", datasub_bench.MEASURES)
def test_scenarios(scenario: str) -> None:
    run = {"rep": 0, "test": scenario, "broker": SUBJECT, **datasub_bench.MEASURES[scenario](0.01)}
    assert "error" not in run
    rows = summarise_runs([run], datasub_bench.scenarios())
    assert all(row["brokers"][SUBJECT]["value"] > 0 for row in rows)
    assert {row["scenario"] for row in rows} == {scenario}
