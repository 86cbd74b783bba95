"""Wheel and sdist: is everything in them, and nothing else; does the wheel install where there is nothing?"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.brokers.deployment import ROOT, VERSION
from tests.support.documents.pages import commands_of

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
        "from importlib.metadata import requires, version; from penstock._ext.match.partition import partition_of;"
        "assert partition_of(b'a', 16) < 16; print(version('penstock'), *requires('penstock'), sep='\\n')"
    )
    told = subprocess.run([python, "-I", "-c", script], capture_output=True, text=True, timeout=60, check=True)
    number, *requirements = told.stdout.splitlines()
    assert number == VERSION
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert sum("extra ==" not in requirement for requirement in requirements) == len(project["dependencies"])
    assert (tmp_path / "venv/bin/penstock").is_file()


@pytest.fixture
def shell(wheel: Path, tmp_path: Path) -> dict[str, str]:
    """The environment of somebody in a virtual environment of his own, with `dist` for an index. What Penstock needs is
    there, in the versions of this one; Penstock itself is not."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    (needed := tmp_path / "needed").mkdir()
    for installed in Path(sysconfig.get_path("purelib")).iterdir():
        if "penstock" not in installed.name:
            (needed / installed.name).symlink_to(installed)
    (own,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (own / "needed.pth").write_text(f"{needed}\n")
    commands = tmp_path / "venv/bin"
    (commands / "pip").write_text(f'#!/bin/sh\nexec {sys.executable} -m pip --python {commands}/python "$@"\n')
    (commands / "pip").chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON", "PENSTOCK_"))}
    path = os.pathsep.join([str(commands), os.environ["PATH"]])
    index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(DIST), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return {**kept, **index, "PATH": path}


def test_commands_of_the_documents(shell: dict[str, str], tmp_path: Path) -> None:
    """`pip install` with everything it asks for; and then there are the commands that the page goes on with."""
    lines = {command.line for command in commands_of(__file__)}
    assert lines
    for line in (*lines, "command -v penstock", "penstock --version", "penstock spark run --help"):
        options = {"cwd": tmp_path, "env": shell, "capture_output": True, "text": True, "timeout": SECONDS}
        done = subprocess.run(["bash", "-c", line], check=False, **options)  # type: ignore[call-overload] # options of run
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        if line.startswith("pip "):
            assert f"Successfully installed penstock-{VERSION}" in done.stdout, done.stdout
        elif line.startswith("command "):
            assert done.stdout.strip() == str(tmp_path / "venv/bin/penstock")


def test_sdist_has_everything_to_build_from(built: None) -> None:
    with tarfile.open(DIST / f"penstock-{VERSION}.tar.gz") as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    needed = tracked("src", "ext") | {"setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"}
    assert needed <= names, sorted(needed - names)
    assert not [name for name in names if name.endswith((".so", ".c", ".pyc"))]
    assert not [name for name in names if name.startswith(("tests/", "docs/", "bench/", "build/"))]
