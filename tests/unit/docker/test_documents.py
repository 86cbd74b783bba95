"""Commands of the documents that need docker, a cluster or systemd: do their files, images and services exist, and do
docker and kubectl understand them?"""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kubernetes_validate import latest_version, validate

from tests.support.brokers.deployment import (
    COMPOSITIONS,
    DOCKER,
    ROOT,
    VERSION,
    load_composition,
    load_dockerfile,
    load_yaml,
    run_tool,
)
from tests.support.machine.compose_plugin import docker, environment_of_v2

PAGES = ("docs/containers.md", "docs/operations.md", "docker/README.md")
# Files whose comments say how to use them.
COMMENTED = ("Dockerfile", "compose*.yaml", "kubernetes/*.yaml")
TAGGED = re.compile(r"\bpenstock(?:-spark)?:\d\S*")


def commands() -> Iterator[tuple[str, list[str]]]:
    """Where, and the words."""
    for page in PAGES:
        for language, body in re.findall(r"^```(console|sh)\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S):
            for line in body.splitlines():
                if language == "sh" or line.startswith("$ "):
                    for part in line.removeprefix("$ ").split(" && "):
                        yield page, shlex.split(part)
    for pattern in COMMENTED:
        for path in DOCKER.glob(pattern):
            for line in re.findall(r"^#.*?((?:docker (?:build|compose|run)|kubectl) -?.*)$", path.read_text(), re.M):
                yield path.name, shlex.split(line)


def options(words: list[str], name: str) -> list[str]:
    return [after for word, after in itertools.pairwise(words) if word == name]


COMMANDS = [pytest.param(words, id=f"{where}: {' '.join(words)}"[:100]) for where, words in commands()]


def test_there_are_some() -> None:
    assert len({words.values[0][0] for words in COMMANDS}) > 5
    assert len(COMMANDS) > 25


def test_no_other_page_has_one() -> None:
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")):
        if str(path.relative_to(ROOT)) not in PAGES:
            found = re.findall(r"^(?:\$ )?(?:sudo )?(?:docker|docker-compose|kubectl) .*$", path.read_text(), re.M)
            assert not found, f"{path}: tests of these commands know the pages {PAGES}"


@pytest.mark.parametrize("words", COMMANDS)
def test_command_can_work(words: list[str]) -> None:
    text = " ".join(words)
    for image in TAGGED.findall(text):
        assert image.partition(":")[2] == VERSION
    if words[:2] == ["docker", "compose"]:
        files = tuple(file.removeprefix("docker/") for file in options(words, "-f"))
        (name,) = [name for name, known in COMPOSITIONS.items() if known == files]
        services = load_composition(name)["services"]
        assert words[2 + 2 * len(files)] in ("up", "run")
        for service in [*options(words, "--rm"), *options(words, "--no-deps")]:
            assert service in services
    elif words[:2] == ["docker", "build"]:
        assert (ROOT / options(words, "-f")[0]).is_file()
        assert set(options(words, "--target")) <= {stage.name for stage in load_dockerfile()}
        assert words[-1] == "."
    elif words[0] == "kubectl":
        for path in [*options(words, "-k"), *options(words, "-f")]:
            assert (ROOT / path).exists()
        (stateful_set,) = load_yaml(DOCKER / "kubernetes/statefulset.yaml")
        secrets = [
            each["secret"]["secretName"]
            for each in stateful_set["spec"]["template"]["spec"]["volumes"]
            if "secret" in each
        ]
        assert set(options(words, "generic")) <= set(secrets)
    elif words[0] in ("cp", "tar"):
        source = next(word for word in words[1:] if not word.startswith("-"))
        assert source == f"dist/penstock-{VERSION}-linux-x86_64.tar.gz" or (ROOT / source).is_file()


@pytest.mark.parametrize("words", [words for words in COMMANDS if words.values[0][0] == "docker"])
def test_docker_lacks_only_its_daemon(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as it stands there, where docker is installed: flags, ports, files and services are judged before anything
    is asked of the daemon, which here is none."""
    variables = environment_of_v2() if words[1] == "compose" else {}
    if shutil.which("docker") is None or variables is None:
        pytest.skip("docker compose is not installed; `make tools-compose` makes it")
    monkeypatch.chdir(ROOT)
    expanded = [word.replace("$PWD", str(ROOT)) for word in words]
    done = docker(*expanded[1:], **variables)
    assert "Cannot connect to the Docker daemon" in done.stderr, done.stderr
    assert done.returncode in (1, 125)


def test_docker_finds_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it asks the daemon."""
    if shutil.which("docker") is None:
        pytest.skip("docker is not installed")
    monkeypatch.chdir(ROOT)
    assert "invalid containerPort" in docker("run", "-p", "127.0.0.1:1883:mqtt", "penstock").stderr
    assert "no such file" in docker("build", "-f", "docker/Dockerfil", ".").stderr


@pytest.mark.parametrize("words", [words for words in COMMANDS if words.values[0][0] == "kubectl"])
def test_kubectl_understands(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is installed: what makes something is run and makes what the pods mount; to apply needs a cluster, so
    only its flags are judged here (test_kubernetes.py has what would be applied)."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    if words[1] != "create":
        done = run_tool(*words, "--help")
        assert done.returncode == 0, done.stderr
        return
    monkeypatch.chdir(tmp_path)
    Path("passwords").write_text("alice:hash\n")
    done = run_tool(*words, "--dry-run=client", "-o", "yaml")
    assert done.returncode == 0, done.stderr
    made = yaml.safe_load(done.stdout)
    validate(made, latest_version(), strict=True)
    (stateful_set,) = load_yaml(DOCKER / "kubernetes/statefulset.yaml")
    volumes = stateful_set["spec"]["template"]["spec"]["volumes"]
    assert made["metadata"]["name"] in [volume.get("secret", {}).get("secretName") for volume in volumes]
    settings = tomllib.loads((DOCKER / "kubernetes/penstock.toml").read_text())
    assert settings["access"]["password_file"].rpartition("/")[2] in made["data"]


def test_no_registry_is_named() -> None:
    """Where images come from is the reader's choice."""
    for path in DOCKER.rglob("*"):
        if path.is_file():
            assert not re.search(r"\b(?:docker\.io|ghcr\.io|quay\.io|gcr\.io|registry\.)", path.read_text()), path
