"""A disk that a test makes slow or bad while the broker runs: fdatasync of a preloaded library."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("slow_disk.c")


class SlowDisk:
    """Acts on processes that are started after it was made, with `environment`."""

    def __init__(self, directory: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("there is no C compiler to make a slow disk with")
        library = directory / "slow_disk.so"
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True, timeout=60)
        self._told = directory / "slow_disk.txt"
        self.environment = {"LD_PRELOAD": str(library), "SLOW_DISK": str(self._told)}
        self.set()

    def set(self, seconds: float = 0.0, errno: int = 0) -> None:
        """From the next sync on."""
        new = self._told.with_suffix(".new")
        new.write_text(f"{round(seconds * 1000)} {errno}\n")
        new.rename(self._told)
