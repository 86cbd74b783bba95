"""kill -9 of a process that writes, at random points: what was acknowledged is there, and nothing else is wrong."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest
import uvloop

from tests.support.worlds.embedded import number_of, opened, read_all

ROOT = Path(__file__).resolve().parents[4]
TOPICS, PARTITIONS = 2, 3


def write_until_killed(directory: Path, seconds: float, fsync: str) -> list[list[str]]:
    """The acknowledgements that came out whole."""
    arguments = [str(directory), str(TOPICS), str(PARTITIONS), "20000", fsync]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.checkers.crash_writer", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        deadline = time.monotonic() + seconds
        lines = []
        while time.monotonic() < deadline:
            lines.append(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.read().splitlines(keepends=True)
    return [line.split() for line in lines if line.endswith("\n")]


def check(directory: Path, acknowledged: dict[tuple[str, int], int]) -> None:
    """Offsets without a hole, each record with its own number, and every acknowledged one among them."""

    async def run() -> None:
        async with opened(directory, cache_bytes=0) as log:
            for number in range(TOPICS):
                for partition in range(PARTITIONS):
                    records = await read_all(log, f"t{number}", partition)
                    assert [record.offset for record in records] == list(range(len(records)))
                    assert [number_of(record) for record in records] == list(range(len(records)))
                    assert len(records) >= acknowledged[f"t{number}", partition]

    uvloop.run(run())


@pytest.mark.parametrize("fsync", ["always", "interval"])
def test_what_was_acknowledged_survives_kill_9(tmp_path: Path, fsync: str) -> None:
    chance = random.Random(4)
    acknowledged: dict[tuple[str, int], int] = defaultdict(int)
    for _ in range(4):
        for topic, partition, base, count in write_until_killed(tmp_path, chance.uniform(0.05, 0.5), fsync):
            place = (topic, int(partition))
            assert int(base) == acknowledged[place] or int(base) > acknowledged[place]
            acknowledged[place] = int(base) + int(count)
        check(tmp_path, acknowledged)
    assert sum(acknowledged.values()) > 1_000
