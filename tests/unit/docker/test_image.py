"""Is the image made from what is there, is it small and harmless, and does its health check tell the truth?"""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.brokers.broker import free_port
from tests.support.brokers.deployment import DOCKER, ROOT, Stage, image_environment, load_dockerfile, run_tool
from tests.support.brokers.file_broker import FileBroker

STAGES = {stage.name or "default": stage for stage in load_dockerfile()}


def copied(stage: Stage) -> list[str]:
    """Sources in the build context."""
    return [path for text in stage.all("COPY") if not text.startswith("--from=") for path in text.split()[:-1]]


def test_copied_files_are_there_and_not_ignored() -> None:
    ignore = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    wanted = {line[1:] for line in ignore if line.startswith("!")}
    assert "*" in ignore
    sources = {path for stage in STAGES.values() for path in copied(stage)}
    assert wanted == sources
    for path in sources:
        assert (ROOT / path).exists(), path


def test_nothing_that_was_built_here_gets_in() -> None:
    ignored = [line for line in (DOCKER / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("**/")]
    for path in ("src/penstock/_ext/trie.cpython-311-x86_64-linux-gnu.so", "ext/x.c", "src/a/__pycache__"):
        assert any(fnmatch.fnmatch(path, pattern) for pattern in ignored), path


def test_bases_are_pinned_and_slim() -> None:
    external = {stage.base for stage in STAGES.values()} - set(STAGES)
    assert len(external) == 1
    assert re.fullmatch(r"python:3\.\d+-slim-bookworm", external.pop())
    assert STAGES["default"].base == "broker"


def test_it_runs_as_nobody_special() -> None:
    for stage in (STAGES["broker"], STAGES["spark"]):
        assert stage.all("USER")[-1] == "1883:1883"
    broker = STAGES["broker"]
    assert broker.all("VOLUME") == ["/var/lib/penstock"]
    assert image_environment(broker)["PENSTOCK_SERVER__DATA_DIR"] == "/var/lib/penstock"
    assert image_environment(broker)["PYTHONDONTWRITEBYTECODE"] == "1"
    (health,) = broker.all("HEALTHCHECK")
    assert "/opt/penstock/healthcheck.py" in health
    assert broker.all("STOPSIGNAL") == ["SIGTERM"]


def test_hadolint_has_no_objection() -> None:
    """Not even as information; what it is told to ignore has its reason beside it."""
    hadolint = shutil.which("hadolint", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    assert hadolint, "it is one of the packages that the tests need"
    done = run_tool(hadolint, "--no-color", str(DOCKER / "Dockerfile"))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def with_what_they_bring(names: Iterable[str]) -> set[str]:
    """These packages and all that they need, as they are installed here."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name not in found:
            found.add(name)
            needed = map(Requirement, distribution(name).requires or [])
            waiting += [each.name for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})]
    return found


def runs_on() -> set[str]:
    """All packages of the image besides our own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return with_what_they_bring(Requirement(each).name for each in project["dependencies"])


def test_compilers_stay_in_the_builder() -> None:
    """The image gets the environment as it was left behind: without what builds, and what that brought along."""
    assert STAGES["broker"].all("COPY")[0] == "--from=builder /opt/penstock /opt/penstock"
    steps = "\n".join(STAGES["builder"].all("RUN"))
    installed = re.search(r"pip install --constraint constraints.txt (setuptools [\w ]+)$", steps, re.M)
    uninstalled = re.search(r"pip uninstall --yes ([\w ]+)", steps)
    assert installed is not None
    assert uninstalled is not None
    builds = with_what_they_bring(installed[1].split()) | {"pip"}
    assert {canonicalize_name(name) for name in uninstalled[1].split()} == builds - runs_on()
    assert "build-essential" not in " ".join(STAGES["broker"].all("RUN"))


def test_contents_are_explained() -> None:
    """docs/containers.md names every part: what is copied, and each package in it."""
    page = (ROOT / "docs/containers.md").read_text()
    for text in STAGES["broker"].all("COPY"):
        assert f"`{text.split()[-1]}`" in page
    for name in runs_on():
        assert f"`{name}`" in page, f"{name} is in the image and not explained"


def check_health(address: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PENSTOCK_ADMIN__ADDRESS": address, "http_proxy": "http://127.0.0.1:9"}
    command = [sys.executable, str(DOCKER / "healthcheck.py")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_health_check_asks_the_broker(start_watched: Callable[..., FileBroker]) -> None:
    address = start_watched().tables["admin"]["address"]
    port = address.rpartition(":")[2]
    assert check_health(address).returncode == 0
    assert check_health(f"0.0.0.0:{port}").returncode == 0
    assert check_health("").returncode == 0
    failed = check_health(f"127.0.0.1:{free_port()}")
    assert failed.returncode == 1
    assert "does not answer" in failed.stderr
