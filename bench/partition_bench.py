"""The partitioner: 36-byte keys hashed per CPU-second in one call over an array, beside the same in plain Python.

python bench/partition_bench.py [--keys 1000000] [--rounds 9] [--save]

CPU time, and of each side the best round: what else the machine does takes rounds away and adds to none.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.parts import save_part
from penstock._ext.match import partition
from penstock_bench.targets import Figure, at_least
from tests.support.checkers import naive_partition

PARTITIONS = 10
NAIVE_KEYS = 5_000
FIGURES = (
    Figure("36-byte keys to partitions, murmur3_128", "keys", "keys / CPU-s", at_least(20_000_000)),
    Figure("times plain Python", "ratio", "times", at_least(30)),
)


def make_keys(count: int) -> np.ndarray:
    """UUIDs as text."""
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    text = digits[np.random.default_rng(1).integers(0, 16, (count, 36), dtype=np.uint8)]
    text[:, [8, 13, 18, 23]] = ord("-")
    return text.view("S36").ravel()


def measure(keys: np.ndarray, rounds: int) -> dict[str, dict[str, float]]:
    """By who was measured, then by the field of the figure."""
    few = keys[:NAIVE_KEYS].tolist()
    expected = [naive_partition.partition_of(key, PARTITIONS) for key in few]
    assert partition.partitions_of(keys[:NAIVE_KEYS], PARTITIONS).tolist() == expected
    ours, naive = [], []
    for _ in range(rounds):
        ours.append(len(keys) / cpu_seconds(lambda: partition.partitions_of(keys, PARTITIONS)))
        naive.append(len(few) / cpu_seconds(lambda: [naive_partition.partition_of(key, PARTITIONS) for key in few]))
    return {
        "plain Python": {"keys": max(naive)},
        "penstock": {"keys": max(ours), "ratio": max(ours) / max(naive)},
    }


def cpu_seconds(job: Callable[[], object]) -> float:
    started = time.process_time()
    job()
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--save", action="store_true", help="write a dated result to bench/results/partition")
    options = parser.parse_args()
    values = measure(make_keys(options.keys), options.rounds)
    for who, figures in values.items():
        print(f"{who:13}", "  ".join(f"{name} {value:,.1f}" for name, value in figures.items()))
    if options.save:
        save_part("partition", "memory", FIGURES, values, keys=options.keys, rounds=options.rounds)


if __name__ == "__main__":
    main()
