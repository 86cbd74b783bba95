"""Commands of the documents that need docker, a cluster or systemd: do their files, images and services exist?"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator

import pytest

from tests.support.deployment import COMPOSITIONS, DOCKER, ROOT, VERSION, load_composition, load_dockerfile, load_yaml

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


def test_no_registry_is_named() -> None:
    """Where images come from is the reader's choice."""
    for path in DOCKER.rglob("*"):
        if path.is_file():
            assert not re.search(r"\b(?:docker\.io|ghcr\.io|quay\.io|gcr\.io|registry\.)", path.read_text()), path
