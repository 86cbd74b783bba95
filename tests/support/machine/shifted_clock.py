"""Clocks that a test moves while the broker runs: the time of a preloaded library.

The clock of the day jumps as when somebody sets it; the clock of elapsed time only ever goes on, so that half a minute
of waiting costs a test nothing.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("shifted_clock.c")


class ShiftedClock:
    """Acts on processes that are started after it was made, with `environment`."""

    def __init__(self, directory: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("there is no C compiler to make a clock with")
        library = directory / "shifted_clock.so"
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True, timeout=60)
        told = directory / "shifted_clock"
        told.write_bytes(bytes(16))
        with told.open("r+b") as opened:
            self._shift = mmap.mmap(opened.fileno(), 16)
        self.environment = {"LD_PRELOAD": str(library), "SHIFTED_CLOCK": str(told)}
        self._day = self._elapsed = 0.0

    def set_day(self, seconds: float) -> None:
        """Somebody sets the clock of the day, ahead or (negative) back; no time has passed."""
        self._day += seconds
        self._write()

    def elapse(self, seconds: float) -> None:
        """So much time passes on both clocks. Who sleeps until then sees it when something wakes it."""
        self._day += seconds
        self._elapsed += seconds
        self._write()

    def _write(self) -> None:
        self._shift[:16] = struct.pack("=qq", round(self._day * 1e9), round(self._elapsed * 1e9))
