"""The commands of docs/operations.md that make a service of it, and those that are given beside it, as they stand:
users, files, network and the unit of this machine are copies that only they see.

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
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.brokers.deployment import ROOT, VERSION
from tests.support.brokers.executable import BUILD_SECONDS, SECONDS
from tests.support.brokers.notify_socket import NotifySocket
from tests.support.documents.pages import all_commands, commands_of

TOOLS = ("unshare", "nsenter", "ip", "setpriv", "runuser", "systemctl", "useradd")
UNIT = ROOT / "docker/systemd/penstock.service"
PAGE = "docs/operations.md"
SETTINGS = "--config /etc/penstock/penstock.toml"
# Of root's shell, and of cron.
LOGIN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CRON_PATH = "/usr/bin:/bin"
# What belongs to the machine and would be changed. A tmpfs is seen in this name space only, and goes with it.
OWN_MACHINE = """
set -eu
mount -t tmpfs tmpfs {copies}
cp -a /etc {copies}/etc
for name in opt var/lib var/log usr/local/bin mnt; do mkdir -p {copies}/$name; done
for name in etc opt var/lib var/log usr/local/bin mnt; do mount --bind {copies}/$name /$name; done
userdel penstock >/dev/null 2>&1 || true
ip link set lo up
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
    mount = ["unshare", "--mount", "--net", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    allowed = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    return "" if allowed else "only root may mount, and not everywhere"


@dataclass
class Service:
    process: subprocess.Popen[str]
    systemd: NotifySocket
    output: Path

    def give(self, line: str, *, path: str = LOGIN_PATH, user: str = "root") -> subprocess.CompletedProcess[str]:
        """A command beside the running service, in an environment with a search path and no more."""
        inside = ["nsenter", "--mount", "--net", "--target", str(self.process.pid)]
        become = ["setpriv", "--reuid", user, "--regid", user, "--init-groups"] if user != "root" else []
        return subprocess.run(
            [*inside, *become, "env", "-i", f"PATH={path}", "sh", "-c", f"cd / && {line}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def succeed(self, line: str, *, path: str = LOGIN_PATH, user: str = "root") -> str:
        done = self.give(line, path=path, user=user)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}\n{self.output.read_text()}"
        return done.stdout


def lines_of(page: str, *, language: str = "sh") -> list[str]:
    return [each.line for each in commands_of(__file__) if (each.page, each.language) == (page, language)]


@pytest.fixture
def service(binary: Path, tmp_path: Path) -> Iterator[Service]:
    """As the page makes it, up to the commands that are given beside it."""
    if lacking := needs_what():
        pytest.skip(lacking)
    archive = ROOT / f"dist/penstock-{VERSION}-{sysconfig.get_platform()}.tar.gz"
    if not archive.is_file() or archive.stat().st_mtime < binary.stat().st_mtime:
        command = [sys.executable, str(ROOT / "docker/binary/build.py"), "archive"]
        subprocess.run(command, capture_output=True, timeout=BUILD_SECONDS, check=True)
    (copies := tmp_path / "copies").mkdir()
    # Where the commands are given: a repository with its dist.
    (here := tmp_path / "here").mkdir()
    for name in ("dist", "docker"):
        (here / name).symlink_to(ROOT / name)
    # Abstract names belong to a network, and this one's is its own; the user penstock has to reach it.
    place = Path(tempfile.mkdtemp(prefix="penstock-notify-"))
    place.chmod(0o755)
    systemd = NotifySocket(place / "socket")
    (place / "socket").chmod(0o777)
    (tools := tmp_path / "tools").mkdir()
    (tools / "systemctl").write_text(SYSTEMCTL.format(real=shutil.which("systemctl")))
    (tools / "systemctl").chmod(0o755)
    (executed,) = re.findall(r"^ExecStart=(.*)$", UNIT.read_text(), re.M)
    started = STARTED.format(socket=shlex.quote(systemd.name), command=executed)
    lines = [line for line in lines_of(PAGE) if not is_beside(line)]
    script = "\n".join([OWN_MACHINE.format(copies=copies), *lines, FACTS, started])
    with (tmp_path / "output").open("w") as output:
        process = subprocess.Popen(
            ["unshare", "--mount", "--net", "bash", "-c", script],
            cwd=here,
            env={**os.environ, "PATH": os.pathsep.join([str(tools), os.environ["PATH"]])},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            text=True,
        )
    try:
        made = Service(process, systemd, tmp_path / "output")
        try:
            systemd.wait_for(lambda said: said.get("READY") == "1")
        except Exception as error:
            raise AssertionError(made.output.read_text()) from error
        yield made
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(SECONDS)
        systemd.close()
        shutil.rmtree(place)


def is_beside(line: str) -> bool:
    """Given when the service runs."""
    return line.startswith("runuser ")


@pytest.mark.timeout(BUILD_SECONDS + 4 * SECONDS)
def test_a_service_is_made_by_the_commands_of_the_page(service: Service) -> None:
    service.succeed("penstock pub -t demo/a -m b -q 1")
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


@pytest.mark.timeout(BUILD_SECONDS + 6 * SECONDS)
def test_the_commands_beside_it_find_it(service: Service) -> None:
    """As they are on the pages, by who gives them: its user, root, and cron."""
    service.succeed("penstock pub -t demo/a -m b -q 1")
    service.succeed("penstock pub -t demo/a -m c -q 1")
    beside = [line for line in lines_of(PAGE) if is_beside(line)]
    # On other pages they are given in a shell, and so by root here, who may do what the user of the service may.
    others = [
        each.line for each in all_commands() if SETTINGS in each.line and each.words[1:2] in (["doctor"], ["top"])
    ]
    assert {" ".join(shlex.split(line)[4:6]) for line in beside} == {"penstock doctor", "penstock top"}
    assert len(others) >= 4
    for line in (*beside, *others):
        said = service.succeed(line)
        if " doctor " in line:
            assert " 0 problems" in said, said
            if "--quiet" not in line:
                assert f"one runs on /var/lib/penstock (pid {service.process.pid})" in said
        else:
            assert re.search(r"^penstock \S+ at http://127\.0\.0\.1:9883, up ", said), said
    for line in lines_of("docs/backup.md"):
        service.succeed(line)
    (nightly,) = lines_of("docs/backup.md", language="cron")
    assert " records, " in service.succeed(nightly, path=CRON_PATH, user="penstock")
    (file,) = service.succeed("ls /mnt/backup/penstock").split()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d\.tar\.gz", file)
    restored = service.succeed(f"cd /mnt/backup && penstock restore penstock/{file} --data-dir /var/lib/penstock/again")
    assert "all of it belongs to penstock, as /var/lib/penstock does" in restored
    assert service.succeed("find /var/lib/penstock/again ! -user penstock") == ""


def test_nothing_of_it_stays() -> None:
    """What the commands write is nowhere but in the copies."""
    if needs_what():
        pytest.skip("they were not given")
    assert not Path("/etc/systemd/system/penstock.service").exists()
    for link in ("/opt/penstock", "/usr/local/bin/penstock"):
        assert not Path(link).is_symlink()
