"""Fixtures of the scenarios about several brokers: two of them for each module, on a Kafka and a Redis of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.brokers.broker import IS_MOSQUITTO
from tests.support.brokers.cluster import NODES, running_cluster
from tests.support.worlds.application import AppBroker

Nodes = dict[str, AppBroker]


@pytest.fixture(scope="module")
def module_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    if IS_MOSQUITTO:
        pytest.skip("one broker cannot be several")
    with running_cluster(tmp_path_factory.mktemp("cluster")) as brokers:
        yield brokers


@pytest.fixture
def cluster(module_cluster: Nodes, request: pytest.FixtureRequest) -> Iterator[Nodes]:
    request.node.broker_logs = [(broker, 0) for broker in module_cluster.values()]  # a restart begins a new file
    yield module_cluster
    for broker in module_cluster.values():
        assert broker.is_alive, broker.log()[-4000:]
        assert "Traceback" not in broker.log(), broker.log()[-4000:]


@pytest.fixture
def pair(cluster: Nodes) -> tuple[AppBroker, AppBroker]:
    first, second = NODES
    return cluster[first], cluster[second]
