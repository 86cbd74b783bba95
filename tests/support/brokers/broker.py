"""A real broker process for the tests: Penstock, or mosquitto (PENSTOCK_TEST_BROKER=mosquitto) to check the tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.brokers.forked import popen
from tests.support.clients.raw_client import RawClient
from tests.support.clients.streams import open_tcp, open_unix
from tests.support.machine.ports import free_port
from tests.support.servers.mosquitto import mosquitto_configuration

REPOSITORY = Path(__file__).resolve().parents[3]
IS_MOSQUITTO = os.environ.get("PENSTOCK_TEST_BROKER") == "mosquitto"
START_SECONDS = 120.0
STOP_SECONDS = 60.0


@dataclass
class Listener:
    """A listener besides the plain TCP one: the keys are those of the settings, `address` is filled in if missing."""

    transport: str
    options: dict[str, Any] = field(default_factory=dict)
    address: str = ""

    @property
    def host_and_port(self) -> tuple[str, int]:
        host, _, port = self.address.rpartition(":")
        return host, int(port)

    @property
    def connect_address(self) -> tuple[str, int] | str:
        return self.address if self.transport == "unix" else self.host_and_port


def toml_value(value: Any) -> str:
    """Strings, numbers, booleans and lists are written alike in TOML and JSON."""
    return json.dumps(value)


def _accepts(address: tuple[str, int] | str) -> bool:
    try:
        connection = open_unix(address, 1.0) if isinstance(address, str) else open_tcp(address, 1.0)
    except OSError:
        return False
    connection.close()
    return True


class Broker:
    """One broker process that listens on a free port of 127.0.0.1, with its log in a file."""

    def __init__(
        self, directory: Path, settings: Mapping[str, Any] | None = None, listeners: Sequence[Listener] = ()
    ) -> None:
        self.directory = directory
        self.settings = dict(settings or {})
        self.listeners = list(listeners)
        self.port = free_port()
        self.data_port = free_port()
        self.log_path = directory / "broker.log"
        for index, listener in enumerate(self.listeners):
            if not listener.address:
                is_unix = listener.transport == "unix"
                listener.address = str(directory / f"{index}.sock") if is_unix else f"127.0.0.1:{free_port()}"
        self.process = self._start()

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def _start(self) -> subprocess.Popen[bytes]:
        command = self._mosquitto_command() if IS_MOSQUITTO else self._penstock_command()
        environment = {
            **os.environ,
            "PYTHONPATH": f"{REPOSITORY / 'src'}{os.pathsep}{REPOSITORY}",
            "PYTHONUNBUFFERED": "1",
        }
        with self.log_path.open("wb") as log:
            return popen(command, cwd=self.directory, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _penstock_command(self) -> list[str]:
        command = [sys.executable, "-m", "penstock", "serve", "--admin", ""]
        if self.listeners:
            configuration = self.directory / "penstock.toml"
            configuration.write_text(self._listener_tables())
            command += ["--config", str(configuration)]
        else:
            command += ["--listen", f"127.0.0.1:{self.port}"]
        own = {
            "server.data_dir": str(self.directory / "data"),
            "data_subscription.address": f"127.0.0.1:{self.data_port}",
        }
        for name, value in {**own, **self.settings}.items():
            command += ["--set", f"{name}={value if isinstance(value, str) else toml_value(value)}"]
        return command

    def _listener_tables(self) -> str:
        plain = Listener("tcp", {"name": "plain"}, f"127.0.0.1:{self.port}")
        tables = []
        for index, listener in enumerate([plain, *self.listeners]):
            table = {"name": f"{listener.transport}-{index}", "transport": listener.transport}
            table |= {"address": listener.address, **listener.options}
            tables.append(
                "\n".join(["[[listeners]]", *(f"{key} = {toml_value(value)}" for key, value in table.items())])
            )
        return "\n\n".join(tables) + "\n"

    def _mosquitto_command(self) -> list[str]:
        configuration = self.directory / "mosquitto.conf"
        configuration.write_text(mosquitto_configuration(self.port, self.settings, self.listeners))
        return ["mosquitto", "-c", str(configuration), "-v"]

    def wait_until_listening(self) -> None:
        """Until every listener accepts."""
        deadline = time.monotonic() + START_SECONDS
        for address in [self.address, *(listener.connect_address for listener in self.listeners)]:
            while not _accepts(address):
                if self.process.poll() is not None:
                    raise AssertionError(
                        f"the broker exited with {self.process.returncode} at its start:\n{self.log()}"
                    )
                if time.monotonic() > deadline:
                    raise AssertionError(f"no answer on {address} within {START_SECONDS} s:\n{self.log()}")
                time.sleep(0.02)

    def client(self, version: int) -> RawClient:
        """A network connection on which nothing has been sent yet."""
        return RawClient(open_tcp(self.address), version)

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def log(self, start: int = 0) -> str:
        with self.log_path.open("rb") as log:
            log.seek(start)
            return log.read().decode(errors="replace")

    def log_size(self) -> int:
        return self.log_path.stat().st_size

    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def assert_healthy(self, log_start: int = 0) -> None:
        """It runs and has logged no exception."""
        log = self.log(log_start)
        assert self.is_alive, f"the broker died with {self.process.returncode}:\n{log[-4000:]}"
        assert "Traceback" not in log, f"the broker logged an exception:\n{log[-4000:]}"

    def terminate(self) -> int:
        """SIGTERM; gives the exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the broker did not stop within {STOP_SECONDS} s:\n{self.log()[-4000:]}") from None

    def stop(self) -> None:
        """End of a test: it must be well until now and leave with 0 [issue: SIGTERM drains and exits 0]."""
        try:
            self.assert_healthy()
        finally:
            code = self.terminate() if self.is_alive else 0
        assert code == 0, f"exit code {code} after SIGTERM:\n{self.log()[-4000:]}"
        assert "Traceback" not in self.log(), f"an exception while stopping:\n{self.log()[-4000:]}"
