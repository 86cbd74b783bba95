"""What is in docker/, read for the tests: compose files, the Dockerfile, manifests."""

from __future__ import annotations

import re
import subprocess
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from typer.main import get_command

from penstock.cli.app import app

ROOT = Path(__file__).resolve().parents[3]
DOCKER = ROOT / "docker"
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
# Each is started with the files it is meant to be started with.
COMPOSITIONS = {
    "single": ("compose.yaml",),
    "kafka": ("compose.kafka.yaml",),
    "cluster": ("compose.cluster.yaml",),
    "single-monitoring": ("compose.yaml", "compose.monitoring.yaml"),
    "kafka-monitoring": ("compose.kafka.yaml", "compose.monitoring.yaml"),
    "cluster-monitoring": ("compose.cluster.yaml", "compose.monitoring.yaml"),
    "single-spark": ("compose.yaml", "compose.spark.yaml"),
}


def load_yaml(path: Path) -> list[Any]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document is not None]


def load_composition(name: str) -> dict[str, Any]:
    """The files put together, as far as ours need it: their services and volumes have different names, or are alike."""
    whole: dict[str, Any] = {"services": {}, "volumes": {}}
    for file in COMPOSITIONS[name]:
        (document,) = load_yaml(DOCKER / file)
        for part, known in whole.items():
            for key, value in (document.get(part) or {}).items():
                assert key not in known or known[key] == value, f"{file}: {part}.{key} is something else elsewhere"
                known[key] = value
    return whole


@dataclass
class Stage:
    """One FROM of a Dockerfile with what follows it."""

    base: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        return [text for word, text in self.steps if word == instruction]


def load_dockerfile(path: Path = DOCKER / "Dockerfile") -> list[Stage]:
    text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.M).replace("\\\n", " ")
    defaults = dict(re.findall(r"^ARG (\w+)=(\S+)$", text, re.M))
    stages: list[Stage] = []
    for line in filter(str.strip, text.splitlines()):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            stages.append(Stage(re.sub(r"\$\{(\w+)\}", lambda found: defaults[found[1]], base), name))
        elif stages:
            stages[-1].steps.append((word, " ".join(rest.split())))
    return stages


def image_environment(stage: Stage) -> dict[str, str]:
    """The variables an image sets."""
    words = (word.partition("=") for text in stage.all("ENV") for word in text.split())
    return {name: value for name, _, value in words}


def run_tool(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def parse_penstock(words: list[str]) -> dict[str, Any]:
    """The values of a command's flags; fails as the command itself would."""
    command: Any = get_command(app)
    arguments = list(words)
    while hasattr(command, "resolve_command"):
        context = command.make_context("penstock", [], resilient_parsing=True)
        _, command, arguments = command.resolve_command(context, arguments)
    return dict(command.make_context(command.name, arguments).params)
