"""The bench of the embedded log: bound to one core where its target says so, and measured for as long as it says."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from bench import log_bench


def cores_of_a_new_thread() -> set[int]:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(os.sched_getaffinity, 0).result()


def test_the_process_of_the_target_has_one_core() -> None:
    core = max(os.sched_getaffinity(0))
    with ProcessPoolExecutor(1, get_context("spawn"), log_bench._bind, (core,)) as pool:
        assert pool.submit(cores_of_a_new_thread).result() == {core}


def test_rates_are_measured_for_as_long_as_asked_and_kept(tmp_path: Path) -> None:
    one = log_bench.run_rates(tmp_path, 0.2, max(os.sched_getaffinity(0)))
    assert all(name == "start" or numbers["seconds"] >= 0.2 for name, numbers in one.items())
    assert list(tmp_path.iterdir()) == []
    commits = {"bare disk, commits": {"p99_ms": 1.0}, "commit at 50,000 records/s": {"p99_ms": 2.0}}
    measured = {"one core": one, "all cores": one, "commits": commits}
    kept = log_bench.compared(measured)
    assert {figure.field for figure in log_bench.FIGURES} == set(kept["penstock"])
    assert kept["penstock"]["appended"] == one["append and commit"]["records_per_second"]
    one["append and commit"]["cores"] = 1.4
    with pytest.raises(AssertionError, match="not bound"):
        log_bench.compared(measured)
