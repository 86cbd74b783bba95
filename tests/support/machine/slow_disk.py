"""A disk that a test makes slow or bad while the broker runs: fdatasync of a preloaded library."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("slow_disk.c")


@functools.cache
def _library() -> Path:
    """Compiled once; the directory ends with the process."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to make a slow disk with")
    library = Path(_directory().name) / "slow_disk.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True, timeout=60)
    return library


@functools.cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="penstock-slow-disk-")


class SlowDisk:
    """Acts on processes that are started after it was made, with `environment`."""

    def __init__(self, directory: Path) -> None:
        self._told = directory / "slow_disk.txt"
        self.environment = {"LD_PRELOAD": str(_library()), "SLOW_DISK": str(self._told)}
        self.set()

    def set(self, seconds: float = 0.0, errno: int = 0) -> None:
        """From the next sync on; one that is held goes on."""
        self._tell(round(seconds * 1000), errno)

    def hold(self) -> None:
        """No sync ends until `set`."""
        self._tell(-1, 0)

    def _tell(self, milliseconds: int, errno: int) -> None:
        new = self._told.with_suffix(".new")
        new.write_text(f"{milliseconds} {errno}\n")
        new.rename(self._told)
