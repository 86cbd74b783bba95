"""The executable of `make dist`, run where there is nothing else: no Python, no environment, an empty directory."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.brokers.broker import free_port
from tests.support.brokers.deployment import ROOT

BINARY = ROOT / "dist/penstock"
# The same unpacked: what it can do is the same, and it starts in half the time.
UNPACKED = ROOT / "build/dist/made/penstock-unpacked/penstock"
SOURCES = ("src/**/*.py", "src/**/*.so", "src/**/*.lua", "docker/binary/*", "pyproject.toml", "constraints.txt")
# Another broker may have the usual one of query topics.
FREE_PORT = ("--set", "data_subscription.address=127.0.0.1:0")
BUILD_SECONDS = 600
SECONDS = 120


def is_current() -> bool:
    """Whether the one that is there was made from what is there now."""
    if not (BINARY.is_file() and UNPACKED.is_file()):
        return False
    made = BINARY.stat().st_mtime
    return all(path.stat().st_mtime <= made for pattern in SOURCES for path in ROOT.glob(pattern))


def build() -> Path:
    """dist/penstock; made if it has to be."""
    if not is_current():
        command = [sys.executable, str(ROOT / "docker/binary/build.py"), "binary"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return BINARY


@dataclass
class Alone:
    """The executable in an empty directory with an empty environment, as `env -i` gives it."""

    binary: Path
    directory: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def environment(self, **variables: str) -> dict[str, str]:
        # Where it unpacks itself: so that the test sees what it leaves behind.
        (self.directory / "unpacked").mkdir(exist_ok=True)
        return {"TMPDIR": str(self.directory / "unpacked"), **variables}

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.binary), *arguments],
            cwd=self.directory,
            env=self.environment(**variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def serve(self, *arguments: str, **variables: str) -> int:
        """Starts a broker and waits until it listens; its port."""
        port = free_port()
        with (self.directory / "broker.log").open("wb") as log:
            process = subprocess.Popen(
                [str(self.binary), "serve", "--listen", f"127.0.0.1:{port}", "--admin", "", *FREE_PORT, *arguments],
                cwd=self.directory,
                env=self.environment(**variables),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.started.append(process)
        deadline = time.monotonic() + SECONDS
        while True:
            assert process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return port
            except OSError:
                time.sleep(0.01)

    def log(self) -> str:
        return (self.directory / "broker.log").read_text()

    def stop(self) -> int:
        process = self.started.pop()
        process.send_signal(signal.SIGTERM)
        return process.wait(SECONDS)

    def kill(self) -> None:
        """SIGKILL to both processes that the single file is: neither has a say in how it ends."""
        process = self.started.pop()
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for pid in (process.pid, *map(int, children)):
            os.kill(pid, signal.SIGKILL)
        process.wait(SECONDS)
