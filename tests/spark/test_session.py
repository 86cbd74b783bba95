"""The Python that Spark's workers get: it finds what is installed, not Spark's archives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from penstock_spark.session import worker_python


def test_workers_import_the_pyspark_that_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    python = worker_python()
    assert python == worker_python() != sys.executable
    archives = Path(str(pyspark.__file__)).parent / "python/lib"
    path = os.pathsep.join([*map(str, archives.glob("*.zip")), f"{tmp_path}/my own", "/elsewhere"])
    told = "import os, sys, pyspark; print(os.environ['PYTHONPATH'], pyspark.__file__, sys.argv[1])"
    done = subprocess.run(
        [python, "-c", told, "a b"], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{tmp_path}/my own:/elsewhere {pyspark.__file__} a b\n"


def test_no_place_to_keep_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert worker_python() == sys.executable
