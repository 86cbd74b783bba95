"""Is the image made from what is there, is it small and harmless, and does its health check tell the truth?"""

from __future__ import annotations

import fnmatch
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable

from tests.support.broker import free_port
from tests.support.deployment import DOCKER, ROOT, Stage, image_environment, load_dockerfile
from tests.support.file_broker import FileBroker

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


def test_compilers_stay_in_the_builder() -> None:
    """The image gets the environment as it was left behind: without what builds."""
    assert STAGES["broker"].all("COPY")[0] == "--from=builder /opt/penstock /opt/penstock"
    uninstalled = re.search(r"pip uninstall --yes ([\w ]+)", " ".join(STAGES["builder"].all("RUN")))
    assert uninstalled is not None
    assert set(uninstalled[1].split()) == {"Cython", "wheel", "setuptools", "pip"}
    assert "build-essential" not in " ".join(STAGES["broker"].all("RUN"))


def test_contents_are_explained() -> None:
    """docs/containers.md names every part: what is copied, and each package the broker runs on."""
    page = (ROOT / "docs/containers.md").read_text()
    for text in STAGES["broker"].all("COPY"):
        assert f"`{text.split()[-1]}`" in page
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for requirement in project["dependencies"]:
        name = re.split(r"[><=;\[]", requirement)[0]
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
