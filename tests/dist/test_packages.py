"""Wheel and sdist: is everything in them, and nothing else; does the wheel install where there is nothing?"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.deployment import ROOT, VERSION

SECONDS = 300
DIST = ROOT / "dist"

# The first test builds them.
pytestmark = pytest.mark.timeout(SECONDS + 60)


@pytest.fixture(scope="module")
def built() -> None:
    command = [sys.executable, str(ROOT / "docker/binary/build.py"), "wheel", "sdist"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def wheel(built: None) -> Path:
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    (found,) = DIST.glob(f"penstock-{VERSION}-{tag}-{tag}-linux_*.whl")
    return found


def tracked(*patterns: str) -> set[str]:
    """Files of the repository, those that are not committed yet too."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {line for line in listed.stdout.splitlines() if (ROOT / line).is_file()}


def module_names() -> set[str]:
    return {Path(name).stem for name in tracked("ext/penstock/_ext/*.pyx")}


def test_wheel_has_every_module_and_its_data(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {name.removeprefix("src/") for name in tracked("src")}
    assert sources <= names, sorted(sources - names)
    compiled = {Path(name).name.partition(".")[0] for name in names if name.endswith(".so")}
    assert compiled == module_names()
    assert not [name for name in names if name.endswith((".pyx", ".c", ".pyc"))]


def test_wheel_is_stripped(wheel: Path, tmp_path: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    name = next(name for name in archive.namelist() if "/connection." in name and name.endswith(".so"))
    sections = subprocess.run(
        ["readelf", "--sections", "--wide", archive.extract(name, tmp_path)], capture_output=True, text=True, check=True
    )
    assert ".debug_info" not in sections.stdout


def test_wheel_installs_where_there_is_nothing(wheel: Path, tmp_path: Path) -> None:
    """It needs what it says it needs, and without that it is only there."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = str(tmp_path / "venv/bin/python")
    options = ["--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
    pip = [sys.executable, "-m", "pip", "--python", python, "install", *options, str(wheel)]
    subprocess.run(pip, timeout=SECONDS, check=True)
    script = (
        "from importlib.metadata import requires, version; from penstock._ext.partition import partition_of;"
        "assert partition_of(b'a', 16) < 16; print(version('penstock'), *requires('penstock'), sep='\\n')"
    )
    told = subprocess.run([python, "-I", "-c", script], capture_output=True, text=True, timeout=60, check=True)
    number, *requirements = told.stdout.splitlines()
    assert number == VERSION
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert sum("extra ==" not in requirement for requirement in requirements) == len(project["dependencies"])
    assert (tmp_path / "venv/bin/penstock").is_file()


def test_sdist_has_everything_to_build_from(built: None) -> None:
    with tarfile.open(DIST / f"penstock-{VERSION}.tar.gz") as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    needed = tracked("src", "ext") | {"setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"}
    assert needed <= names, sorted(needed - names)
    assert not [name for name in names if name.endswith((".so", ".c", ".pyc"))]
    assert not [name for name in names if name.startswith(("tests/", "docs/", "bench/", "build/"))]
