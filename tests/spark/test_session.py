"""The Python that Spark's workers get: it finds what is installed, not Spark's archives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from penstock_spark.session import use_utf8, worker_python


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


@pytest.mark.parametrize(
    ("given", "found"),
    [({}, "C.UTF-8"), ({"LANG": "de_DE.UTF-8"}, None), ({"LANG": "C.utf8", "LC_ALL": "C"}, "C.UTF-8")],
)
def test_names_of_files_are_utf8(monkeypatch: pytest.MonkeyPatch, given: dict[str, str], found: str | None) -> None:
    monkeypatch.setenv("LC_ALL", "")  # so that it is as before after the test
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    use_utf8()
    assert os.environ.get("LC_ALL") == found
