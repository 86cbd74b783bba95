"""One broker for each log, started by the first test that asks, ended behind the last one of this directory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.datasub import DataBroker, DataWorld, running_data_broker

HERE = Path(__file__).parent


class Brokers:
    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._running: dict[str, DataBroker] = {}

    def get(self, provider: str, make_directory: Callable[[str], Path]) -> DataBroker:
        if provider not in self._running:
            context = running_data_broker(make_directory("datasub"), provider)
            self._running[provider] = self._stack.enter_context(context)
        broker = self._running[provider]
        if not broker.is_alive:
            broker.restart()  # killed by a test that failed
        return broker

    def stop(self) -> None:
        self._running.clear()
        self._stack.close()


BROKERS = Brokers()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "both_logs: a scenario of the seed, for the embedded log and for Kafka")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "provider" in metafunc.fixturenames:
        is_both = metafunc.definition.get_closest_marker("both_logs") is not None
        metafunc.parametrize("provider", ["embedded", "kafka"] if is_both else ["embedded"])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    yield
    if nextitem is None or nextitem.path.parent != HERE:
        BROKERS.stop()


@pytest.fixture
def broker(
    provider: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DataBroker]:
    shared = BROKERS.get(provider, tmp_path_factory.mktemp)
    start = shared.log_size()
    request.node.broker_logs = [(shared, start)]
    yield shared
    assert shared.is_alive, shared.log()[-4000:]
    log = shared.log(start if shared.log_size() >= start else 0)
    assert "Traceback" not in log, log[-4000:]


@pytest.fixture
def world(broker: DataBroker) -> Iterator[DataWorld]:
    with contextlib.ExitStack() as stack:
        yield DataWorld(broker, stack)


@pytest.fixture
def open_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[DataBroker], DataWorld]]:
    """open_world(broker): for brokers of a test's own."""
    with contextlib.ExitStack() as stack:
        yield lambda broker: DataWorld(broker, stack)
