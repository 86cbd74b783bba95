"""Fixtures of the black-box suites: broker processes, raw clients, names that no other test uses."""

from __future__ import annotations

import itertools
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("tests.support")

# How long an example takes says how busy the machine is. Before the tests: their own settings begin with these.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# Brokers are started hundreds of times: with their modules compiled that takes half as long.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# A broker listens on 6030 for consumers of query topics: those of tests run beside each other and take any free port.
os.environ["PENSTOCK_DATA_SUBSCRIPTION__ADDRESS"] = "127.0.0.1:0"

from tests.support.brokers.broker import Broker, Listener  # noqa: E402 - after the registration, so that asserts explain themselves
from tests.support.clients.packets import V5, V311  # noqa: E402 - as above
from tests.support.clients.raw_client import RawClient  # noqa: E402 - as above
from tests.support.machine.schedule import file_of, place_of, unit_of  # noqa: E402 - as above

NUMBERS = itertools.count(1)
Connect = Callable[..., RawClient]


def pytest_runtest_setup() -> None:
    """A test before this one may have configured the logs of the program in this process: warnings are seen again."""
    logging.disable(logging.NOTSET)
    for name in ("penstock", *logging.root.manager.loggerDict):
        if name.partition(".")[0] == "penstock":
            logger = logging.getLogger(name)
            logger.propagate, logger.disabled = True, False
            logger.setLevel(logging.WARNING if name == "penstock" else logging.NOTSET)


class BrokerPool:
    """Brokers that many tests share; one that died is replaced, so that it fails one test and not all."""

    def __init__(self, new_directory: Callable[[], Path]) -> None:
        self._new_directory = new_directory
        self._brokers: dict[str, Broker] = {}

    def get(self, name: str, settings: Mapping[str, Any] | None = None, listeners: Sequence[Listener] = ()) -> Broker:
        pooled = self._brokers.get(name)
        if pooled is None or not pooled.is_alive:
            pooled = self._brokers[name] = Broker(self._new_directory(), settings, listeners)
            pooled.wait_until_listening()
        return pooled

    def stop(self) -> None:
        for pooled in self._brokers.values():
            if pooled.is_alive:
                pooled.stop()


@pytest.fixture(scope="session")
def broker_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerPool]:
    pool = BrokerPool(lambda: tmp_path_factory.mktemp("broker"))
    yield pool
    pool.stop()


@pytest.fixture
def share_broker(broker_pool: BrokerPool, request: pytest.FixtureRequest) -> Iterator[Callable[..., Broker]]:
    """share_broker(name, settings, listeners) gives the broker of that name, started by the first test that asks."""
    used: list[tuple[Broker, int]] = []
    request.node.broker_logs = [*getattr(request.node, "broker_logs", [])]

    def share(name: str, settings: Mapping[str, Any] | None = None, listeners: Sequence[Listener] = ()) -> Broker:
        shared = broker_pool.get(name, settings, listeners)
        used.append((shared, shared.log_size()))
        request.node.broker_logs.append(used[-1])
        return shared

    yield share
    for shared, log_start in used:
        shared.assert_healthy(log_start)


@pytest.fixture
def broker(share_broker: Callable[..., Broker]) -> Broker:
    """The shared broker with default settings."""
    return share_broker("default")


@pytest.fixture
def start_broker(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Broker]]:
    """Starts a broker with settings of the test's own: start_broker({"limits.connect_timeout": 1})."""
    brokers: list[Broker] = []
    request.node.broker_logs = [*getattr(request.node, "broker_logs", [])]

    def start(settings: Mapping[str, Any] | None = None, listeners: Sequence[Listener] = ()) -> Broker:
        started = Broker(tmp_path_factory.mktemp("broker"), settings, listeners)
        brokers.append(started)
        request.node.broker_logs.append((started, 0))
        started.wait_until_listening()
        return started

    yield start
    for started in brokers:
        if started.is_alive:
            started.stop()
        else:
            assert started.process.returncode == 0, f"the broker died:\n{started.log()[-4000:]}"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A failed test shows what its brokers logged meanwhile."""
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        for failed_broker, start in getattr(item, "broker_logs", []):
            report.sections.append(("broker log", failed_broker.log(start)[-4000:]))
    # Tests of odd characters print some that do not travel between the processes of a parallel run.
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=place_of)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For --dist loadfile: a process takes a file at a time, or all those that belong together."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # noqa: PLC0415 - only where it is installed and used

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(file_of(nodeid))

    return Scheduling(config, log)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Three Kafka brokers cost an eighth of a core even when nobody talks to them: they end with their unit."""
    kafka = sys.modules.get("tests.support.servers.kafka_fixtures")
    if kafka is not None and (nextitem is None or unit_of(file_of(nextitem.nodeid)) != unit_of(file_of(item.nodeid))):
        kafka.stop_cluster(3)


@pytest.fixture(params=[V311, V5], ids=["v311", "v5"])
def version(request: pytest.FixtureRequest) -> int:
    """The protocol version, for behaviour that both have."""
    return int(request.param)


@pytest.fixture
def new_name() -> Callable[[str], str]:
    """Names for clients and topics that no other test uses."""
    return lambda prefix: f"{prefix}{next(NUMBERS)}"


@pytest.fixture
def client_id(new_name: Callable[[str], str]) -> str:
    return new_name("client")


@pytest.fixture
def topic(new_name: Callable[[str], str]) -> str:
    return new_name("topic/")


@pytest.fixture
def open_client(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """open_client(version, broker=...) opens a network connection on which nothing has been sent yet."""
    clients: list[RawClient] = []

    def open_one(version: int = V5, *, broker: Broker | None = None) -> RawClient:
        target = broker or request.getfixturevalue("broker")
        client = target.client(version)
        clients.append(client)
        return client

    yield open_one
    for client in clients:
        client.close()


@pytest.fixture
def connect(open_client: Connect, new_name: Callable[[str], str]) -> Connect:
    """connect(version, client_id, ...) gives a client after its CONNACK, with an id of its own if none is given."""

    def connect_one(
        version: int = V5, client_id: str | None = None, *, broker: Broker | None = None, **options: Any
    ) -> RawClient:
        client = open_client(version, broker=broker)
        client.connect(new_name("client") if client_id is None else client_id, **options)
        return client

    return connect_one


@pytest.fixture
def bystander(connect: Connect, new_name: Callable[[str], str]) -> Iterator[RawClient]:
    """A well-behaved connection that must still be served at the end of the test."""
    client = connect(V5)
    topic = new_name("bystander/")
    client.subscribe(topic)
    yield client
    client.publish(topic, b"still here")
    client.expect_publish(topic, b"still here")
