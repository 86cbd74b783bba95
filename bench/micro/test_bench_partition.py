"""What hashing keys costs, by function and by the way they are given. `pytest bench/micro`.

The targets are looked at by tests/unit/bench/test_partition_bench.py, in every run of the tests.
"""

from __future__ import annotations

import numpy as np
import pytest

from bench.partition_bench import make_keys
from penstock._ext.match import partition


@pytest.fixture(scope="module")
def keys() -> np.ndarray:
    return make_keys(100_000)


@pytest.mark.parametrize("function", partition.FUNCTIONS)
def test_partitions_of(benchmark, keys: np.ndarray, function: str) -> None:
    benchmark(partition.partitions_of, keys, 10, function)
    benchmark.extra_info["keys"] = 100_000


def test_partitions_of_slices(benchmark, keys: np.ndarray) -> None:
    offsets = np.arange(0, 36 * 100_001, 36)
    benchmark(partition.partitions_of, (keys.tobytes(), offsets), 10)
    benchmark.extra_info["keys"] = 100_000


def test_one_key_from_python(benchmark) -> None:
    benchmark(partition.partition_of, b"784f394c-42b6-435a-983c-b7beff2784f9", 10)
