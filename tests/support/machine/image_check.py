"""Builds the image without docker, looks into it, and runs it as the compose files do: not as root, no capabilities,
nothing writable but its volume. Where no registry can be reached Debian's Python stands in for the base image.

    python -m tests.support.machine.image_check [spark]     `make image-check`; root, buildah, debootstrap, some minutes

What is made stays in the user's cache.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.brokers.deployment import DOCKER, ROOT, VERSION, load_composition, load_dockerfile
from tests.support.servers.kafka_cluster import KafkaCluster, fetch_jars
from tests.support.servers.redis_server import RedisServer

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock/image"
# Nothing of the machine's own containers is touched, and vfs works where overlays do not.
BUILDAH = ("buildah", "--root", f"{CACHE}/storage", "--runroot", f"{CACHE}/run", "--storage-driver", "vfs")
BASE = next(stage.base for stage in load_dockerfile() if stage.name == "builder")
# What the stand-in has besides Debian's smallest: Python with its headers, as the real one has it.
PACKAGES = "ca-certificates,python3,python3-dev,python3-pip,python3-venv"
# As in Debian's slim images.
WITHOUT = ("doc", "info", "locale", "man")
SLIM = "".join(f"path-exclude /usr/share/{name}/*\n" for name in WITHOUT)
# What a machine needs to reach the network its own way.
OF_THE_MACHINE = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf")
NOT_INSIDE = ("pip", "setuptools", "wheel", "Cython", "gcc", "cc", "curl", "make")
HEALTH = ("python", "/opt/penstock/healthcheck.py")
SECONDS = 300


def run(*command: str, **options: Any) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, **options).stdout.strip()


def provide_base() -> None:
    """The base image: there already, or from a registry, or a stand-in."""
    there = subprocess.run([*BUILDAH, "inspect", "--type", "image", BASE], capture_output=True, check=False)
    if there.returncode == 0 or subprocess.run([*BUILDAH, "pull", "-q", BASE], check=False).returncode == 0:
        return
    print(f"Penstock: {BASE} is not to be had; Debian's Python stands in for it")
    with tempfile.TemporaryDirectory(dir=CACHE) as directory:
        root = Path(directory) / "root"
        run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", BASE.rpartition("-")[2], str(root))
        (root / "etc/dpkg/dpkg.cfg.d/docker").write_text(SLIM)
        for name in WITHOUT:
            shutil.rmtree(root / "usr/share" / name)
        # They are there, and empty: Java's package puts links into them.
        for section in range(1, 9):
            (root / f"usr/share/man/man{section}").mkdir(parents=True)
        for name in ("python", "pip"):
            (root / "usr/local/bin" / name).symlink_to(f"/usr/bin/{name}3")
        for path in filter(os.path.exists, OF_THE_MACHINE):
            shutil.copy(path, f"{root}{path}")
        container = run(*BUILDAH, "from", "scratch")
        run(*BUILDAH, "add", "-q", container, str(root), "/")
        run(*BUILDAH, "config", "--env", "PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin", container)
        run(*BUILDAH, "commit", "-q", "--rm", container, BASE)


def build(name: str, dockerfile: Path) -> str:
    """The name of the image."""
    files = ("-f", str(dockerfile), "--ignorefile", f"{DOCKER}/Dockerfile.dockerignore")
    # HEALTHCHECK is in docker's format only.
    how = ("--isolation", "chroot", "--network", "host", "--format", "docker", "--pull-never")
    subprocess.run([*BUILDAH, "bud", *how, *files, "-t", f"{name}:{VERSION}", str(ROOT)], check=True)
    return f"{name}:{VERSION}"


def build_spark(broker: str) -> str:
    """Its stage alone, on the image that there is: nothing is compiled twice."""
    stages = re.split(r"^(?=FROM )", (DOCKER / "Dockerfile").read_text(), flags=re.M)
    (spark,) = [stage for stage in stages if stage.startswith("FROM broker AS spark\n")]
    dockerfile = CACHE / "Dockerfile.spark"
    dockerfile.write_text(spark.replace("FROM broker", f"FROM localhost/{broker}", 1))
    return build("penstock-spark", dockerfile)


@dataclass
class Image:
    """The configuration of an image, and where its files are."""

    config: dict[str, Any]
    root: Path

    @property
    def packages(self) -> Path:
        (found,) = self.root.glob("opt/penstock/lib/python3*/site-packages")
        return found

    def command(self, *words: str, **variables: str) -> list[str]:
        """As docker would start it: `--cap-drop ALL --security-opt no-new-privileges`."""
        user, _, group = self.config["User"].partition(":")
        told = [*self.config["Env"], *(f"{name}={value}" for name, value in variables.items())]
        nobody = ("--reuid", user, "--regid", group, "--clear-groups", "--no-new-privs")
        without = ("--bounding-set=-all", "--inh-caps=-all")
        env = ("env", "-i", f"--chdir={self.config['WorkingDir']}", *told)
        return ["chroot", str(self.root), *env, "setpriv", *nobody, *without, *words]

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = self.command(*words, **variables)
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)


@contextmanager
def opened(name: str) -> Iterator[Image]:
    container = run(*BUILDAH, "from", "--pull-never", name)
    try:
        config = json.loads(run(*BUILDAH, "inspect", "--type", "image", name))["Docker"]["config"]
        yield Image(config, Path(run(*BUILDAH, "mount", container)))
    finally:
        run(*BUILDAH, "rm", container)


def check_contents(image: Image) -> None:
    """What is inside is what docs/containers.md says."""
    page = (ROOT / "docs/containers.md").read_text()
    names = {path.name.partition("-")[0] for path in image.packages.glob("*.dist-info")}
    packages = {re.sub(r"[-_.]+", "-", name).lower() for name in names}
    print(f"packages: {', '.join(sorted(packages))}")
    for package in packages:
        assert f"`{package}`" in page, f"{package} is in the image and not explained"
    size = int(run("du", "-s", "--block-size=MB", str(image.root / "opt/penstock")).partition("MB")[0])
    (told,) = re.findall(r"a virtual environment of (\d+) MB", page)
    assert abs(size - int(told)) <= 15, f"it has {size} MB, and the page says {told}"
    for name in re.findall(r"^\| … (.*?) \|", page, re.M):
        for package in re.findall(r"`(.+?)`", name):
            assert package in packages or (image.packages / package).is_dir(), f"{package} is not in the image"
    for name in NOT_INSIDE:
        found = [path for path in ("opt/penstock/bin", "usr/bin") if (image.root / path / name).exists()]
        assert not (image.packages / name).exists(), f"{name} stayed in the environment"
        # The stand-in of the base has a pip of Debian's.
        assert not found or (name == "pip" and found == ["usr/bin"]), f"{name} is in {found}"
    for path in (image.root / "opt/penstock").rglob("*"):
        state = path.lstat()
        assert state.st_uid == 0, f"{path} belongs to somebody"
        assert path.is_symlink() or not state.st_mode & 0o022, f"others may write {path}"
    data = (image.root / "var/lib/penstock").stat()
    assert (data.st_uid, data.st_gid, data.st_mode & 0o777) == (1883, 1883, 0o700)
    assert not list((image.root / "etc/penstock").iterdir())
    assert image.config["User"] == "1883:1883"
    assert image.config["Healthcheck"]["Test"] == ["CMD", *HEALTH]


def documented() -> list[argparse.Namespace]:
    """The `docker run` commands of docs/containers.md."""
    parser = argparse.ArgumentParser()
    for flag in ("--rm", "--read-only"):
        parser.add_argument(flag, action="store_true")
    for flag in ("-e", "-p", "-v", "--tmpfs", "--cap-drop"):
        parser.add_argument(flag, action="append", default=[])
    parser.add_argument("--entrypoint")
    parser.add_argument("image")
    parser.add_argument("words", nargs=argparse.REMAINDER)
    lines = re.findall(r"^\$ docker run (.*)$", (ROOT / "docs/containers.md").read_text(), re.M)
    return [parser.parse_args(shlex.split(line)) for line in lines]


def check_refusal(image: Image) -> None:
    """It is open to the network, so somebody has to say how clients authenticate."""
    refused = image.run(*image.config["Entrypoint"], *image.config["Cmd"])
    assert refused.returncode == 78, refused.stderr
    assert "without authentication" in refused.stderr


@contextmanager
def serving(image: Image, entry: list[str], words: list[str], variables: dict[str, str]) -> Iterator[int]:
    """The process, once it is healthy; ends when asked to, and with 0."""
    broker = subprocess.Popen(image.command(*entry, *words, **variables))
    try:
        deadline = time.monotonic() + SECONDS
        while image.run(*HEALTH).returncode:
            assert broker.poll() is None, "it ended"
            assert time.monotonic() < deadline, "it does not get healthy"
            time.sleep(0.2)
        yield broker.pid
    finally:
        broker.terminate()
        ended = broker.wait(SECONDS)
    assert ended == 0, ended
    assert image.run(*HEALTH).returncode == 1


def check_run(image: Image, given: argparse.Namespace) -> None:
    """It is the broker itself and nobody special, and listens on the published port."""
    entry = [given.entrypoint] if given.entrypoint else image.config["Entrypoint"]
    variables = dict(each.split("=", 1) for each in given.e)
    with serving(image, entry, given.words or image.config["Cmd"], variables) as pid:
        command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        assert command[-3:-1] == ["/opt/penstock/bin/penstock", "serve"], command
        state = Path(f"/proc/{pid}/status").read_text()
        assert re.search(r"^CapEff:\s0+$", state, re.M), state
        assert re.search(r"^Uid:\s1883\s", state, re.M), state
        for published in given.p:
            check_messages(image, published.rpartition(":")[2], needs_password=bool(given.v))
        assert image.run("touch", "/opt/penstock/x").returncode


def check_messages(image: Image, port: str, *, needs_password: bool) -> None:
    where = ("-h", "127.0.0.1", "-p", port, "-t", "demo/a")
    assert bool(image.run("penstock", "pub", *where, "-m", "by nobody", "-q", "1").returncode) == needs_password
    who = ("-u", "alice", "-P", "secret") if needs_password else ()
    assert image.run("penstock", "pub", *where, *who, "-m", "hi", "-q", "1", "-r").returncode == 0
    assert image.run("penstock", "sub", *where, *who, "-C", "1", "-W", "30").stdout == "hi\n"


def check_kafka(image: Image) -> None:
    """As compose.kafka.yaml has it, with a real Kafka and a real Redis: what was published is in Kafka."""
    kafka, redis = KafkaCluster(1), RedisServer()
    addresses = {"PENSTOCK_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap, "PENSTOCK_REDIS__ADDRESSES": redis.address}
    variables = load_composition("kafka")["services"]["penstock"]["environment"] | addresses
    try:
        kafka.start()
        redis.start()
        with serving(image, image.config["Entrypoint"], image.config["Cmd"], variables):
            check_messages(image, "1883", needs_password=False)
        told = image.run("penstock", "log", "read", "tbmq.msg.all", "--json", **variables)
        assert told.returncode == 0, told.stderr
        assert {json.loads(line)["payload"] for line in told.stdout.splitlines()} == {"by nobody", "hi"}, told.stdout
    finally:
        redis.stop()
        kafka.stop()


def check_spark(image: Image) -> None:
    """Its command and a question over the log of a broker, as compose.spark.yaml has it: the broker's volume is read,
    the job's is written to."""
    with serving(image, image.config["Entrypoint"], ["serve"], {"PENSTOCK_INSECURE": "1"}):
        check_messages(image, "1883", needs_password=False)
    run("mount", "-o", "remount,ro", f"{image.root}/var/lib/penstock")
    run("mount", "-t", "tmpfs", "-o", "uid=1883,gid=1883", "none", f"{image.root}/lake")
    service = load_composition("single-spark")["services"]["spark"]
    image.config["WorkingDir"] = service["working_dir"]
    for words in (service["command"], ["spark", "sql", "SELECT count(*) FROM messages"]):
        told = image.run(*image.config["Entrypoint"], *words, **service["environment"])
        assert told.returncode == 0, told.stderr
    assert re.search(r"\b2\b", told.stdout), told.stdout
    assert list((image.root / "lake").rglob("*.parquet"))


def write_config(image: Image) -> None:
    """What the page supposes in `config`, where the image has it; only the broker's user can read the passwords."""
    there = image.root / "etc/penstock"
    run("mount", "-t", "tmpfs", "none", str(there))
    (there / "penstock.toml").write_text(
        '[access]\npassword_file = "/etc/penstock/passwords"\nanonymous = "deny"\n\n'
        '[[listeners]]\naddress = "0.0.0.0:8883"\n'
    )
    passwd = (
        "chroot",
        str(image.root),
        "/opt/penstock/bin/penstock",
        "passwd",
        "-c",
        "/etc/penstock/passwords",
        "alice",
    )
    run(*passwd, input="secret\n")
    os.chown(there / "passwords", 1883, 1883)
    run("mount", "-o", "remount,ro", str(there))


def enter(root: Path) -> None:
    """In namespaces of our own: a loopback interface with its name, a read-only root, a volume."""
    (root / "etc/hosts").write_text(f"127.0.0.1 localhost {socket.gethostname()}\n")
    with socket.socket() as any_socket:
        up_and_running = struct.pack("16sH14x", b"lo", 0x41)
        fcntl.ioctl(any_socket, 0x8914, up_and_running)  # SIOCSIFFLAGS
    run("mount", "--bind", str(root), str(root))
    run("mount", "-o", "remount,bind,ro", str(root))
    run("mount", "-t", "tmpfs", "-o", "mode=1777", "none", f"{root}/tmp")
    run("mount", "-t", "tmpfs", "-o", "uid=1883,gid=1883,mode=0700", "none", f"{root}/var/lib/penstock")
    run("mount", "-t", "proc", "none", f"{root}/proc")
    run("mount", "--bind", "/dev", f"{root}/dev")


def check_inside(image: Image, is_spark: bool) -> None:
    enter(image.root)
    if is_spark:
        check_spark(image)
        return
    check_refusal(image)
    check_kafka(image)
    for given in documented():
        if given.v and not os.path.ismount(image.root / "etc/penstock"):
            write_config(image)
        check_run(image, given)


def go_inside(image: Image) -> None:
    """Mounts end with the process that has them."""
    inside = (sys.executable, "-m", __spec__.name, "inside", str(image.root), json.dumps(image.config))
    subprocess.run(["unshare", "--mount", "--net", *inside], cwd=ROOT, check=True)


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["inside"]:
        image = Image(json.loads(arguments[2]), Path(arguments[1]))
        check_inside(image, is_spark=image.config["Cmd"][0] == "spark")
        return 0
    CACHE.mkdir(parents=True, exist_ok=True)
    # What a run that failed left behind, and images whose name another one has got.
    run(*BUILDAH, "rm", "--all")
    run(*BUILDAH, "rmi", "--prune")
    # Where the image runs there is no network to fetch them from.
    fetch_jars()
    provide_base()
    broker = build("penstock", DOCKER / "Dockerfile")
    with opened(broker) as image:
        check_contents(image)
        go_inside(image)
    if "spark" in arguments:
        with opened(build_spark(broker)) as image:
            go_inside(image)
    print("Penstock: the image holds what docs/containers.md says, and works")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
