"""What hashing a batch of keys costs, and how far a plain Python implementation is behind. `pytest bench/micro`."""

from __future__ import annotations

import time
from uuid import UUID

import numpy as np
import pytest

from penstock._ext import partition
from tests.support import naive_partition

KEYS = 1_000_000
NAIVE_KEYS = 5_000


@pytest.fixture(scope="module")
def keys() -> np.ndarray:
    """UUIDs as text, 36 bytes each."""
    halves = np.random.default_rng(1).integers(0, 2**64, (KEYS, 2), dtype=np.uint64).tolist()
    return np.array([str(UUID(int=high << 64 | low)).encode() for high, low in halves], dtype="S36")


def cpu_seconds(job, *arguments: object) -> float:
    start = time.process_time()
    job(*arguments)
    return time.process_time() - start


def test_twenty_million_keys_per_cpu_second_and_thirty_times_python(keys: np.ndarray, record_property) -> None:
    few = [bytes(key) for key in keys[:NAIVE_KEYS]]
    compiled, naive = [], []
    for _ in range(5):
        compiled.append(KEYS / cpu_seconds(partition.partitions_of, keys, 10))
        naive.append(NAIVE_KEYS / cpu_seconds(lambda: [naive_partition.partition_of(key, 10) for key in few]))
    rate, ratio = max(compiled), max(compiled) / max(naive)
    print(f"\n{rate / 1e6:.1f} million keys per CPU-second, {ratio:.0f}x plain Python")
    record_property("keys_per_cpu_second", rate)
    record_property("ratio", ratio)
    assert rate >= 20e6
    assert ratio >= 30


@pytest.mark.parametrize("function", partition.FUNCTIONS)
def test_partitions_of(benchmark, keys: np.ndarray, function: str) -> None:
    benchmark(partition.partitions_of, keys[:100_000], 10, function)
    benchmark.extra_info["keys"] = 100_000


def test_partitions_of_slices(benchmark, keys: np.ndarray) -> None:
    offsets = np.arange(0, 36 * 100_001, 36)
    benchmark(partition.partitions_of, (keys[:100_000].tobytes(), offsets), 10)
    benchmark.extra_info["keys"] = 100_000


def test_one_key_from_python(benchmark) -> None:
    benchmark(partition.partition_of, b"784f394c-42b6-435a-983c-b7beff2784f9", 10)
