"""CPU time of other programs while a broker was measured: figures of a busy machine mean less."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock_bench.system import TICK, cpu_seconds

DISTURBED_CORES = 0.3
DOUBT = "other programs were busy, doubt the figures"


def machine_busy_seconds() -> float:
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICK


class Neighbours:
    """Everything that is neither the broker (`pids`) nor the load generator, from now on."""

    def __init__(self, pids: Sequence[int], own_cpu_seconds: Callable[[], float] = time.process_time) -> None:
        self._pids = pids
        self._own_cpu_seconds = own_cpu_seconds
        self._began = time.monotonic()
        self._busy, self._ours = machine_busy_seconds(), self._count_ours()

    def _count_ours(self) -> float:
        return cpu_seconds(self._pids) + self._own_cpu_seconds()

    def cores(self) -> float | None:
        """So many they used on average; None when a process of the broker is gone, and what it used with it."""
        if not all(Path(f"/proc/{pid}").exists() for pid in self._pids):
            return None
        others = machine_busy_seconds() - self._busy - (self._count_ours() - self._ours)
        return round(max(0.0, others) / max(1e-3, time.monotonic() - self._began), 3)


def is_disturbed(cores: float | None) -> bool:
    return (cores or 0) > DISTURBED_CORES
