"""Compose v2 for the tests of the compose files; Debian 12 has only v1.

    python -m tests.support.machine.compose_plugin debian   the one of Debian 13, some seconds; `make test`
    python -m tests.support.machine.compose_plugin          a newer one, built from source with Go (minutes, once);
                                                    `make tools-compose`

Neither is installed: docker finds it as one of its plugins, in the virtual environment or in the user's cache.
"""

from __future__ import annotations

import json
import os
import platform
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
# The first release of Debian that has v2: a package of one program, for which the C library of Debian 12 is new enough.
DEBIAN = "trixie"
PACKAGE = "docker-compose"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
SECONDS = 60
# Nobody is there: a command of docker goes as far as it gets without its daemon, and touches none that is running.
NO_DAEMON = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}


def made() -> Path:
    """A directory as docker has one per user, with the plugin in it that Go makes."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "penstock" / f"compose-{VERSION}"


def fetched() -> Path:
    """The same with Debian's."""
    return Path(sys.prefix) / "docker"


def plugin(docker_config: Path) -> Path:
    return docker_config / "cli-plugins" / "docker-compose"


def docker(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **NO_DAEMON, **variables}
    command = ["docker", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)


@cache
def environment_of_v2() -> dict[str, str] | None:
    """What `docker compose` needs in the environment to be v2; None where it is not to be had."""
    if shutil.which("docker") is None:
        return None
    for variables in ({}, *({"DOCKER_CONFIG": str(directory)} for directory in (made(), fetched()))):
        if docker("compose", "version", **variables).returncode == 0:
            return variables
    return None


def build() -> None:
    """Go's own caches, more than a gigabyte, do not stay."""
    plugin(made()).parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=made()) as there:
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
        Path(there, "docker-compose").replace(plugin(made()))


def debian_mirror() -> str:
    """Where this machine has its packages from."""
    release = platform.freedesktop_os_release()["VERSION_CODENAME"]
    wanted = ("Created-By: Packages", "Component: main", f"Release: {release}")
    told = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", *wanted], stdout=subprocess.PIPE, text=True, check=True
    )
    return told.stdout.split()[0]


def fetch() -> None:
    """By apt, which knows the way and the signatures, in a directory of its own: what the machine has installed, and
    what it may install, stay as they are."""
    plugin(fetched()).parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=fetched()) as there:
        for directory in ("lists/partial", "cache/archives/partial", "unpacked"):
            Path(there, directory).mkdir(parents=True)
        Path(there, "sources.list").write_text(f"deb [signed-by={KEYRING}] {debian_mirror()} {DEBIAN} main\n")
        options = {
            "Dir::Etc::SourceList": f"{there}/sources.list",
            "Dir::Etc::SourceParts": "-",
            "Dir::State::Lists": f"{there}/lists",
            "Dir::Cache": f"{there}/cache",
            "Acquire::Languages": "none",
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
        }
        apt = ["apt-get", "-q", *(word for option in options.items() for word in ("-o", "=".join(option)))]
        for words in (["update"], ["download", PACKAGE]):
            subprocess.run([*apt, *words], cwd=there, check=True)
        (package,) = Path(there).glob("*.deb")
        subprocess.run(["dpkg-deb", "--extract", str(package), f"{there}/unpacked"], check=True)
        plugin(Path(there, "unpacked/usr/libexec/docker")).replace(plugin(fetched()))


def main(wanted: list[str]) -> int:
    if wanted == ["debian"]:
        # It is docker who calls it.
        if shutil.which("docker") and environment_of_v2() is None:
            fetch()
        return 0
    if not plugin(made()).is_file():
        if shutil.which("go") is None:
            print("Compose is made by Go 1.24 or newer, which is not installed", file=sys.stderr)
            return 1
        print(f"Penstock: making Compose {VERSION} from its sources (some minutes, once)")
        build()
    print(plugin(made()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
