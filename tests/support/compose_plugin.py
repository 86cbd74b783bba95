"""Compose v2 for the tests of the compose files. Debian 12 has only v1, so Go makes it from its sources, once.

    python -m tests.support.compose_plugin      takes some minutes, so `make test` does without; `make tools-compose`

It is kept outside the tree, in the user's cache, where docker finds it as one of its plugins.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

VERSION = "v2.40.3"
MODULE = "github.com/docker/compose/v2"
# What Go says of the sources of that version.
SUM = "h1:XeYkQu1svDtyfZPv5nTwFryQ25ZJMkIlc4pz9HalMPI="
SECONDS = 60
# Nobody is there: a command of docker goes as far as it gets without its daemon, and touches none that is running.
NO_DAEMON = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}


def docker_config() -> Path:
    """A directory as docker has one per user, with the plugin in it."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "penstock" / f"compose-{VERSION}"


def plugin() -> Path:
    return docker_config() / "cli-plugins" / "docker-compose"


def docker(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **NO_DAEMON, **variables}
    command = ["docker", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)


@cache
def environment_of_v2() -> dict[str, str] | None:
    """What `docker compose` needs in the environment to be v2; None where it is not to be had."""
    if shutil.which("docker") is None:
        return None
    for variables in ({}, {"DOCKER_CONFIG": str(docker_config())}):
        if docker("compose", "version", **variables).returncode == 0:
            return variables
    return None


def build() -> None:
    """Go's own caches, more than a gigabyte, do not stay."""
    plugin().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=docker_config()) as there:
        environment = {
            **os.environ,
            "GOPATH": f"{there}/path",
            "GOCACHE": f"{there}/cache",
            "GOFLAGS": "-modcacherw",
            "GOWORK": "off",
            "CGO_ENABLED": "0",
        }
        download = ["go", "mod", "download", "-json", f"{MODULE}@{VERSION}"]
        told = subprocess.run(download, cwd=there, env=environment, stdout=subprocess.PIPE, check=True)
        sources = json.loads(told.stdout)
        if sources["Sum"] != SUM:
            raise SystemExit(f"{MODULE} {VERSION} has the sum {sources['Sum']}, and should have {SUM}")
        flags = f"-s -w -X {MODULE}/internal.Version={VERSION}"
        command = ["go", "build", "-trimpath", "-ldflags", flags, "-o", f"{there}/docker-compose", "./cmd"]
        subprocess.run(command, cwd=sources["Dir"], env=environment, check=True)
        # Moved there at the end: who finds it finds all of it.
        Path(there, "docker-compose").replace(plugin())


def main() -> int:
    if not plugin().is_file():
        if shutil.which("go") is None:
            print("Compose is made by Go 1.24 or newer, which is not installed", file=sys.stderr)
            return 1
        print(f"Penstock: making Compose {VERSION} from its sources (some minutes, once)")
        build()
    print(plugin())
    return 0


if __name__ == "__main__":
    sys.exit(main())
