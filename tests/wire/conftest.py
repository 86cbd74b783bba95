"""Fixtures of the scenarios about settings files, certificates and passwords."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers import forked
from tests.support.brokers.broker import REPOSITORY, Listener
from tests.support.brokers.file_broker import FileBroker, running_broker
from tests.support.brokers.log_broker import LogBroker
from tests.support.servers.certificates import Authority

PASSWORDS = {"alice": "alice-secret", "bob": "bob-secret"}


@pytest.fixture
def start_file_broker(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Callable[..., FileBroker]]:
    """start_file_broker({"limits": {...}}, [Listener(...)]) starts a broker whose settings file can be rewritten."""
    request.node.broker_logs = [*getattr(request.node, "broker_logs", [])]
    with contextlib.ExitStack() as stack:

        def start(
            tables: Mapping[str, Mapping[str, Any]] | None = None, listeners: Sequence[Listener] = ()
        ) -> FileBroker:
            broker = stack.enter_context(running_broker(tmp_path_factory.mktemp("broker"), tables, listeners))
            request.node.broker_logs.append((broker, 0))
            return broker

        yield start


@pytest.fixture
def start_log_broker(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Callable[..., LogBroker]]:
    """start_log_broker({"ingest.log": "persistent"}) starts a broker with an embedded log; the test may kill it."""
    brokers: list[LogBroker] = []
    request.node.broker_logs = [*getattr(request.node, "broker_logs", [])]

    def start(settings: Mapping[str, Any] | None = None) -> LogBroker:
        broker = LogBroker(tmp_path_factory.mktemp("broker"), settings)
        brokers.append(broker)
        request.node.broker_logs.append((broker, 0))
        broker.wait_until_listening()
        return broker

    yield start
    for broker in brokers:
        if broker.is_alive:
            broker.stop()


@pytest.fixture(scope="module")
def shared_log_broker(tmp_path_factory: pytest.TempPathFactory, password_file: Path) -> Iterator[LogBroker]:
    settings = {"access.password_file": str(password_file), "access.anonymous": "allow"}
    broker = LogBroker(tmp_path_factory.mktemp("broker"), settings)
    try:
        broker.wait_until_listening()
        yield broker
        broker.stop()
    finally:
        if broker.is_alive:
            broker.kill()


@pytest.fixture
def log_broker(shared_log_broker: LogBroker, request: pytest.FixtureRequest) -> Iterator[LogBroker]:
    """A broker that logs everything in an embedded log, of which a test sees only what came since its beginning."""
    start = shared_log_broker.log_size()
    request.node.broker_logs = [(shared_log_broker, start)]
    shared_log_broker.mark()
    yield shared_log_broker
    shared_log_broker.assert_healthy(start)


@pytest.fixture(scope="session")
def penstock_command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """penstock_command("passwd", "-c", ...) runs the command to its end."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}

    def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return forked.run([sys.executable, "-m", "penstock", *arguments], env=environment, timeout=60, **options)

    return run


@pytest.fixture(scope="session")
def password_file(
    tmp_path_factory: pytest.TempPathFactory, penstock_command: Callable[..., subprocess.CompletedProcess[str]]
) -> Path:
    """alice and bob with the passwords of PASSWORDS, as `penstock passwd` writes it."""
    path = tmp_path_factory.mktemp("access") / "passwords"
    for number, (user, password) in enumerate(PASSWORDS.items()):
        made = penstock_command("passwd", *(["-c"] if number == 0 else []), str(path), user, given=f"{password}\n")
        assert made.returncode == 0, made.stderr
    return path


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))
