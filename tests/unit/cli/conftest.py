"""The command as a process, and a real broker to talk to."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

import penstock
from penstock.__main__ import main
from penstock.access import PasswordFile
from penstock.access.passwords import hash_password
from penstock.operate.doctor import storage
from tests.support.brokers.forked import popen
from tests.support.machine.ports import free_port
from tests.support.servers.certificates import Authority

SOURCE = Path(penstock.__file__).parents[1]


def clean_environment():
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    # Brokers of tests that run beside each other do not listen on one port.
    return {**kept, "PYTHONPATH": str(SOURCE), "PENSTOCK_DATA_SUBSCRIPTION__ADDRESS": "127.0.0.1:0"}


class Cli:
    """Runs `python -m penstock`."""

    def __init__(self, directory):
        self.directory = directory

    def start(self, *arguments, **environ):
        return popen(
            [sys.executable, "-m", "penstock", *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Unbuffered: what a test has not read yet must be there for communicate().
            bufsize=0,
            cwd=self.directory,
            env={**clean_environment(), **environ},
        )

    def run(self, *arguments, input=b"", **environ):
        process = self.start(*arguments, **environ)
        try:
            out, err = process.communicate(input, timeout=30)
        finally:
            process.kill()
        return process.returncode, out, err.decode()


@pytest.fixture
def cli(tmp_path):
    return Cli(tmp_path)


def wait_until_listening(port, process, log):
    for _ in range(2_000):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert process.poll() is None, log.read_text()
            time.sleep(0.02)
    raise TimeoutError(f"nothing listens on {port}")


class Mosquitto:
    """Ports of a running mosquitto: open to all, with passwords, WebSocket."""

    def __init__(self, directory):
        self.open, self.closed, self.web = free_port(), free_port(), free_port()
        passwords = directory / "passwords"
        passwords.touch()
        subprocess.run(["mosquitto_passwd", "-b", passwords, "alice", "secret"], check=True, capture_output=True)
        (directory / "acl").write_text("user alice\ntopic ok/#\n")
        (directory / "mosquitto.conf").write_text(
            f"per_listener_settings true\n"
            f"listener {self.open} 127.0.0.1\nallow_anonymous true\n"
            f"listener {self.web} 127.0.0.1\nprotocol websockets\nallow_anonymous true\n"
            f"listener {self.closed} 127.0.0.1\nallow_anonymous false\n"
            f"password_file {passwords}\nacl_file {directory}/acl\n"
        )
        self.process = start_broker(directory, ["mosquitto", "-c", directory / "mosquitto.conf"])


class Penstock:
    """The same of our own, and a listener with TLS that wants client certificates, and a unix socket."""

    def __init__(self, directory):
        self.open, self.closed, self.web, self.tls = (free_port() for _ in range(4))
        self.unix = directory / "socket"
        self.authority = Authority(directory)
        server = self.authority.issue("broker")
        PasswordFile({"alice": hash_password(b"secret")}).save(directory / "passwords")
        (directory / "acl.toml").write_text(
            '[[rules]]\neffect = "allow"\nusers = ["alice"]\ntopics = ["ok/#"]\n'
            '[[rules]]\neffect = "allow"\nanonymous = true\ntopics = ["#"]\n'
        )
        (directory / "penstock.toml").write_text(
            f'[[listeners]]\naddress = "127.0.0.1:{self.open}"\n'
            f'[[listeners]]\naddress = "127.0.0.1:{self.web}"\ntransport = "ws"\n'
            f'[[listeners]]\naddress = "127.0.0.1:{self.closed}"\nanonymous = "deny"\n'
            f'[[listeners]]\naddress = "{self.unix}"\ntransport = "unix"\n'
            f'[[listeners]]\naddress = "127.0.0.1:{self.tls}"\ntransport = "tls"\n'
            f'certificate = "{server.certificate}"\nkey = "{server.key}"\n'
            f'client_ca = "{self.authority.path}"\nclient_certificate = "required"\n'
            f'[access]\npassword_file = "passwords"\nacl_file = "acl.toml"\n[admin]\naddress = ""\n'
        )
        self.process = start_broker(directory, [sys.executable, "-m", "penstock", "serve"])


def start_broker(directory, command):
    with (directory / "log").open("wb") as log:
        return popen(command, cwd=directory, env=clean_environment(), stdout=log, stderr=log)


@contextmanager
def running(kind, directory):
    # A broker started as root gives up its rights and must still read its files; a parallel run nests them one deeper.
    below = Path(tempfile.gettempdir()).resolve()
    for path in (directory, *directory.parents):
        if path == below or below not in path.parents:
            break
        path.chmod(0o755)
    broker = kind(directory)
    try:
        for port in (broker.open, broker.closed, broker.web):
            wait_until_listening(port, broker.process, directory / "log")
        yield broker
    finally:
        broker.process.kill()
        broker.process.wait()


@pytest.fixture(scope="session")
def broker(tmp_path_factory):
    with running(Penstock, tmp_path_factory.mktemp("penstock")) as started:
        yield started


@pytest.fixture(scope="session", params=[Penstock, Mosquitto])
def any_broker(request, tmp_path_factory):
    with running(request.param, tmp_path_factory.mktemp("broker")) as started:
        yield started


@pytest.fixture
def password_file(tmp_path):
    path = tmp_path / "passwords"
    PasswordFile({"alice": hash_password(b"secret")}).save(path)
    return path


@pytest.fixture
def examine(tmp_path, monkeypatch, capsys):
    """examine("--set", …) gives (exit code, {(area, state): [text, …]}), with ports that are free."""
    monkeypatch.chdir(tmp_path)
    # The disk of a machine that tests in parallel may be as slow as it likes.
    monkeypatch.setattr(storage, "VERY_SLOW", 1e9)
    for name in list(os.environ):
        if name.startswith("PENSTOCK_"):
            monkeypatch.delenv(name)

    def run(*arguments, settings=""):
        config = tmp_path / "doctor.toml"
        listeners = "" if "[[listeners]]" in settings else f'[[listeners]]\naddress = "127.0.0.1:{free_port()}"\n'
        data = (
            "" if "[data_subscription]" in settings else f'[data_subscription]\naddress = "127.0.0.1:{free_port()}"\n'
        )
        config.write_text(f'{listeners}{settings}\n{data}[admin]\naddress = "127.0.0.1:{free_port()}"\n')
        capsys.readouterr()
        code = main(["doctor", "--config", str(config), "--json", *arguments])
        answer = json.loads(capsys.readouterr().out)
        found = {}
        for finding in answer["findings"]:
            assert bool(finding["advice"]) == (finding["state"] != "ok"), finding
            found.setdefault((finding["area"], finding["state"]), []).append(f"{finding['what']} | {finding['advice']}")
        return code, found

    return run
