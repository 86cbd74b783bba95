"""Lint, types and layers are tests: one command says yes or no."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from cython_lint.cython_lint import PYCODESTYLE_CODES

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(sys.executable).parent
PYTHON_TREES = ("src", "tests", "bench", "docs", "docker")


def run(*command: str) -> None:
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"},  # cython-lint looks for pycodestyle there
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]


def sources(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


def test_ruff_check() -> None:
    run("ruff", "check", "--no-cache", *PYTHON_TREES, "setup.py")


def test_ruff_format() -> None:
    run("ruff", "format", "--no-cache", "--check", *PYTHON_TREES, "setup.py")


def test_types() -> None:
    run("mypy", "--cache-dir", "build/mypy", "src")


def test_cython_lint() -> None:
    run("cython-lint", "--ban-relative-imports", "--no-pycodestyle", "ext")


def test_style_of_cython() -> None:
    """What cython-lint does with a process for each file."""
    ignored = f"--ignore={','.join(PYCODESTYLE_CODES)}"
    run("python", "-m", "pycodestyle", ignored, "--max-line-length=120", "--filename=*.pyx,*.pxd,*.pxi", "ext")


def test_import_layers() -> None:
    run("lint-imports", "--no-cache", "--config", "pyproject.toml")


def test_compiled_modules_know_only_compiled_modules() -> None:
    """import-linter reads no .pyx: the hot unit must load without the policy above it."""
    for path in sources("ext/**/*.pyx", "ext/**/*.pxd", "ext/**/*.pxi"):
        for line in path.read_text().splitlines():
            found = re.match(r"\s*(?:from|cimport|import)\s+(penstock[\w.]*)", line)
            assert not found or found[1].startswith("penstock._ext"), f"{path.relative_to(ROOT)}: {line}"


def test_every_compiled_module_has_a_stub() -> None:
    for path in sources("ext/penstock/_ext/*/*.pyx"):
        text = path.read_text()
        if re.search(r"^(?:class|def|cdef class|cpdef|[A-Z_]+ =)", text, re.M):
            stub = (ROOT / "src/penstock/_ext" / path.parent.name / path.name).with_suffix(".pyi")
            assert stub.is_file(), f"{path.name} has no {stub.relative_to(ROOT)}"


def test_nothing_of_this_machine_is_in_the_tree() -> None:
    """No paths of a developer's machine, no registry hosts, no addresses but loopback and wildcard."""
    forbidden = re.compile(
        r"/work/(?:main|shared|notes)|/root/|pypi\.org/simple|files\.pythonhosted\.org|deb\.debian\.org"
    )
    for path in sources("*"):
        if path == Path(__file__) or path.suffix in {".svg", ".png"}:
            continue
        text = path.read_text(errors="replace")
        found = forbidden.search(text)
        assert not found, f"{path.relative_to(ROOT)}: {found and found[0]}"


def test_no_stubs_left() -> None:
    words = re.compile(r"\b(?:TODO|FIXME|XXX)\b|raise NotImplementedError")
    for path in sources("src/**/*.py", "ext/**/*.px?", "bench/**/*.py", "bench/**/*.c"):
        found = words.search(path.read_text())
        assert not found, f"{path.relative_to(ROOT)}: {found and found[0]}"
