"""One broker for each log, started by the first test that asks, ended behind the last one of this directory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.brokers.shared_brokers import SharedBrokers
from tests.support.worlds.datasub import DataBroker, DataWorld, running_data_broker

BROKERS: SharedBrokers[DataBroker] = SharedBrokers(Path(__file__).parent)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "both_logs: a scenario for the embedded log and for Kafka")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "provider" in metafunc.fixturenames:
        is_both = metafunc.definition.get_closest_marker("both_logs") is not None
        metafunc.parametrize("provider", ["embedded", "kafka"] if is_both else ["embedded"])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    yield
    BROKERS.tested(nextitem)


@pytest.fixture
def broker(
    provider: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DataBroker]:
    shared = BROKERS.get(provider, lambda: running_data_broker(tmp_path_factory.mktemp("datasub"), provider))
    yield from BROKERS.watched(shared, request)


@pytest.fixture
def world(broker: DataBroker) -> Iterator[DataWorld]:
    with contextlib.ExitStack() as stack:
        yield DataWorld(broker, stack)


@pytest.fixture
def open_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[DataBroker], DataWorld]]:
    """open_world(broker): for brokers of a test's own."""
    with contextlib.ExitStack() as stack:
        yield lambda broker: DataWorld(broker, stack)
