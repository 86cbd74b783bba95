"""Brokers as processes: started on a free port, frozen while another is measured, their CPU and that of the rest."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from penstock.core.errors import PenstockError
from penstock_bench.neighbours import machine_busy_seconds
from penstock_bench.system import cpu_seconds, process_tree, program_path

START_SECONDS = 60
STOP_SECONDS = 10
PROBE = b"\x10\x11\x00\x04MQTT\x04\x02\x00\x3c\x00\x05probe"  # CONNECT, MQTT 3.1.1, clean session
CONNACK = b"\x20"
DISCONNECT = b"\xe0\x00"

# {port}, {dir} (a fresh directory), {python} and {penstock} are filled in; environment variables are expanded.
COMMANDS = {
    "mosquitto": "mosquitto -c {dir}/mosquitto.conf",
    "penstock": '{penstock} serve --listen 127.0.0.1:{port} --admin "" --data-dir {dir}/data '
    "--set data_subscription.address=127.0.0.1:0",
}
MOSQUITTO_PLACE, PENSTOCK_PLACE = "{dir}/mosquitto.conf", "{dir}/penstock.toml"
INSTALL_HINTS = {"mosquitto": "apt-get install mosquitto"}
# Both run anonymous and without persistence, with 1,000 in flight and 100,000 queued a client, logging errors only.
MOSQUITTO_CONF = """listener {port} 127.0.0.1
allow_anonymous true
persistence false
set_tcp_nodelay true
max_inflight_messages 1000
max_queued_messages 100000
connection_messages false
log_type error
log_dest stderr
"""
# Where it is about throughput mosquitto has its own default, which lets the kernel put small packets together: at QoS 1
# that is a quarter more messages per CPU-second. Where messages come one by one, they would wait for each other.
MOSQUITTO_CONF_FOR_BATCHES = MOSQUITTO_CONF.replace("set_tcp_nodelay true\n", "")
PENSTOCK_TOML = """[limits]
max_inflight = 1000
max_queued_messages = 100000
[ingest]
log = "none"
[logging]
level = "error"
"""


def wait_quiet(limit: float) -> None:
    """Waits at most limit seconds until the rest of the machine is almost idle."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        before = machine_busy_seconds()
        time.sleep(0.5)
        if machine_busy_seconds() - before < 0.1:
            return


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def own_command() -> list[str]:
    """How this program is started again: a single-file executable is its own interpreter."""
    return [sys.executable] if getattr(sys, "frozen", False) else [sys.executable, "-m", "penstock"]


def own_environment() -> dict[str, str]:
    """With the package of this process found first, installed or not."""
    if getattr(sys, "frozen", False):
        return dict(os.environ)
    places = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, places))}


class BrokerError(PenstockError):
    """A broker did not start or did not stay."""


class Broker:
    """Started by a command line, in a directory of its own."""

    def __init__(
        self, name: str, command: str, mosquitto_conf: str = MOSQUITTO_CONF, penstock_toml: str = PENSTOCK_TOML
    ):
        self.name = name
        self.command = command
        self._mosquitto_conf = mosquitto_conf
        self._penstock_toml = penstock_toml
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._dir: tempfile.TemporaryDirectory[str] | None = None

    @property
    def home(self) -> Path:
        """Its directory, until it is stopped."""
        if self._dir is None:
            raise BrokerError(f"{self.name} does not run")
        return Path(self._dir.name)

    @property
    def program(self) -> str:
        """The first word of its command."""
        return (shlex.split(self.command) or [""])[0]

    @property
    def is_penstock(self) -> bool:
        """Ours, or an executable of it: it reads the file that PENSTOCK_CONFIG names, unless the command names one."""
        words = shlex.split(self.command)
        return "--config" not in words and ("{penstock}" in words or Path(self.program).name.startswith("penstock"))

    def pids(self) -> list[int]:
        return process_tree(self._process.pid) if self._process else []

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """In a fresh directory, or in its own after end()."""
        self.port = free_port()
        if self._dir is None:
            self._dir = tempfile.TemporaryDirectory(prefix=f"bench-{self.name}-")
        home = Path(self._dir.name)
        values = {"port": self.port, "dir": home, "python": sys.executable, "penstock": shlex.join(own_command())}
        (home / "mosquitto.conf").write_text(self._mosquitto_conf.format(**values))
        words = self._words(values)
        (home / "penstock.toml").write_text(self._penstock_toml)
        environment = own_environment() | {"PENSTOCK_CONFIG": str(home / "penstock.toml"), "PATH": program_path()}
        with open(home / "log", "wb") as log:
            try:
                self._process = subprocess.Popen(words, stdout=log, stderr=log, env=environment, start_new_session=True)
            except OSError as error:
                self.stop()
                hint = INSTALL_HINTS.get(words[0], "") if isinstance(error, FileNotFoundError) else ""
                raise BrokerError(f"{self.name} did not start: {words[0]}: {error.strerror}", hint) from error
        end = time.monotonic() + START_SECONDS
        while self.is_alive() and time.monotonic() < end:
            if self.answers():
                return
            time.sleep(0.05)
        tail = (home / "log").read_text(errors="replace")[-2000:]
        self.stop()
        raise BrokerError(f"{self.name} did not start: {shlex.join(words)}\n{tail}")

    def _words(self, values: dict[str, object]) -> list[str]:
        try:
            words = shlex.split(os.path.expandvars(self.command.format(**values)))
        except (KeyError, IndexError, ValueError) as error:
            self.stop()
            names = ", ".join(f"{{{name}}}" for name in values)
            raise BrokerError(f"{self.name}: {self.command!r}: {error!r}; {names} are filled in") from None
        if not words:
            self.stop()
            raise BrokerError(f"{self.name}: the command is empty")
        return words

    def answers(self) -> bool:
        """It accepts a CONNECT."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as s:
                s.settimeout(5)
                s.sendall(PROBE)
                accepted = s.recv(4)[:1] == CONNACK
                s.sendall(DISCONNECT)
                return accepted
        except OSError:
            return False

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self.pids() if self.is_alive() else []:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def settle(self, limit: float = 15) -> None:
        """Waits until the broker has nothing left to do."""
        pids = self.pids()
        end = time.monotonic() + limit
        while time.monotonic() < end:
            before = cpu_seconds(pids)
            time.sleep(0.25)
            if cpu_seconds(pids) - before < 0.03:
                return

    def stop(self) -> None:
        """Nothing is left of it."""
        self.end()
        if self._dir is not None:
            self._dir.cleanup()
            self._dir = None

    def end(self) -> None:
        """The process ends; its files stay for another start."""
        if self._process is not None:
            pids = self.pids()
            self.thaw()
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            for pid in pids[1:]:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self._process = None
