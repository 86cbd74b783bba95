"""The commands of docs/operations.md that make a service of it, as they stand: users, files and the unit of this
machine are copies that only they see.

There is no systemd to start it, so the test does what the unit says: its command, as its user, in its directory.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.broker import free_port
from tests.support.deployment import ROOT, VERSION
from tests.support.executable import BUILD_SECONDS, SECONDS
from tests.support.notify_socket import NotifySocket
from tests.support.pages import commands_of
from tests.support.raw_client import RawClient
from tests.support.streams import open_tcp

TOOLS = ("unshare", "setpriv", "systemctl", "useradd")
UNIT = ROOT / "docker/systemd/penstock.service"
# What belongs to the machine and would be changed. A tmpfs is seen in this name space only, and goes with it.
OWN_MACHINE = """
set -eu
mount -t tmpfs tmpfs {copies}
cp -a /etc {copies}/etc
for name in opt var/lib var/log; do mkdir -p {copies}/$name; done
for name in etc opt var/lib var/log; do mount --bind {copies}/$name /$name; done
userdel penstock >/dev/null 2>&1 || true
"""
# Enabling a unit is a matter of files, and done. To start it there has to be a systemd, so that is left to the test.
SYSTEMCTL = """#!/bin/sh
for word; do shift; [ "$word" = --now ] || set -- "$@" "$word"; done
SYSTEMD_OFFLINE=1 exec {real} "$@"
"""
# As systemd does for StateDirectory= and StateDirectoryMode=.
STARTED = """
install -d -m 0700 -o penstock -g penstock /var/lib/penstock
exec env -i NOTIFY_SOCKET={socket} setpriv --reuid penstock --regid penstock --init-groups --no-new-privs {command}
"""
FACTS = """
echo "enabled $(systemctl is-enabled penstock)"
echo "user $(getent passwd penstock)"
echo "settings $(stat -c '%A %U %G' /etc/penstock/penstock.toml)"
"""


def needs_what() -> str:
    """What is missing here for a machine of one's own."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)}: not installed"
    mount = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    allowed = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    return "" if allowed else "only root may mount, and not everywhere"


@dataclass
class Service:
    process: subprocess.Popen[str]
    systemd: NotifySocket
    port: int
    output: Path


@pytest.fixture
def service(binary: Path, tmp_path: Path) -> Iterator[Service]:
    if lacking := needs_what():
        pytest.skip(lacking)
    archive = ROOT / f"dist/penstock-{VERSION}-{sysconfig.get_platform()}.tar.gz"
    if not archive.is_file() or archive.stat().st_mtime < binary.stat().st_mtime:
        command = [sys.executable, str(ROOT / "docker/binary/build.py"), "archive"]
        subprocess.run(command, capture_output=True, timeout=BUILD_SECONDS, check=True)
    (copies := tmp_path / "copies").mkdir()
    # Where the commands are given: a repository with its dist, and the reader's own settings.
    (here := tmp_path / "here").mkdir()
    for name in ("dist", "docker"):
        (here / name).symlink_to(ROOT / name)
    port = free_port()
    (here / "penstock.toml").write_text(
        f'[[listeners]]\naddress = "127.0.0.1:{port}"\n[admin]\naddress = ""\n'
        '[data_subscription]\naddress = "127.0.0.1:0"\n'
    )
    systemd = NotifySocket(f"@penstock-{uuid.uuid4().hex}")
    (tools := tmp_path / "tools").mkdir()
    (tools / "systemctl").write_text(SYSTEMCTL.format(real=shutil.which("systemctl")))
    (tools / "systemctl").chmod(0o755)
    (executed,) = re.findall(r"^ExecStart=(.*)$", UNIT.read_text(), re.M)
    started = STARTED.format(socket=shlex.quote(systemd.name), command=executed)
    lines = [command.line for command in commands_of(__file__)]
    script = "\n".join([OWN_MACHINE.format(copies=copies), *lines, FACTS, started])
    with (tmp_path / "output").open("w") as output:
        process = subprocess.Popen(
            ["unshare", "--mount", "bash", "-c", script],
            cwd=here,
            env={**os.environ, "PATH": os.pathsep.join([str(tools), os.environ["PATH"]])},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            text=True,
        )
    try:
        yield Service(process, systemd, port, tmp_path / "output")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(SECONDS)
        systemd.close()


@pytest.mark.timeout(BUILD_SECONDS + 4 * SECONDS)
def test_a_service_is_made_by_the_commands_of_the_page(service: Service) -> None:
    try:
        service.systemd.wait_for(lambda said: said.get("READY") == "1")
    except Exception as error:
        raise AssertionError(service.output.read_text()) from error
    client = RawClient(open_tcp(("127.0.0.1", service.port), SECONDS))
    client.connect("of-the-service")
    client.close()
    service.process.send_signal(signal.SIGHUP)
    service.systemd.wait_for(lambda said: said.get("RELOADING") == "1")
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    assert "\nUid:\t0\t" not in status
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(SECONDS) == 0
    told = service.output.read_text()
    assert "\nenabled enabled\n" in told
    assert re.search(r"^user penstock:x:\d+:\d+::/var/lib/penstock:/usr/sbin/nologin$", told, re.M), told
    assert "\nsettings -rw-r----- root penstock\n" in told


def test_nothing_of_it_stays() -> None:
    """What the commands write is nowhere but in the copies."""
    if needs_what():
        pytest.skip("they were not given")
    assert not Path("/etc/systemd/system/penstock.service").exists()
    assert not Path("/opt/penstock").is_symlink()
