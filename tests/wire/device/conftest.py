"""Fixtures of the scenarios about persistent DEVICE clients: a broker for each module, log and store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients.packets import V5, V311
from tests.support.clients.raw_client import RawClient
from tests.support.worlds.application import persistent
from tests.support.worlds.device import DeviceBroker, publish_all, running_device_broker

OpenDevice = Callable[..., RawClient]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "provider" in metafunc.fixturenames:
        providers = getattr(metafunc.module, "PROVIDERS", ["embedded", "kafka"])
        metafunc.parametrize("provider", providers, scope="module")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Both versions and ways to end with the embedded log; with Kafka, which takes longer, one of each."""
    here = Path(__file__).parent
    spared = [item for item in items if here in item.path.parents and _is_spared(getattr(item, "callspec", None))]
    if spared:
        config.hook.pytest_deselected(items=spared)
        items[:] = [item for item in items if item not in spared]


def _is_spared(call: Any) -> bool:
    if call is None or call.params.get("provider") != "kafka":
        return False
    return call.params.get("version") == V311 or call.params.get("how") == "end"


@pytest.fixture(scope="module")
def module_broker(
    provider: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DeviceBroker]:
    """One broker with the SETTINGS of the module; a test may end it if it starts it again."""
    settings = getattr(request.module, "SETTINGS", {})
    with running_device_broker(tmp_path_factory.mktemp("broker"), provider, settings) as broker:
        yield broker


@pytest.fixture
def broker(module_broker: DeviceBroker, request: pytest.FixtureRequest) -> Iterator[DeviceBroker]:
    if not module_broker.is_alive:
        module_broker.restart()  # killed by a test that failed
    request.node.broker_logs = [(module_broker, module_broker.log_size())]
    yield module_broker
    assert module_broker.is_alive, module_broker.log()[-4000:]
    assert "Traceback" not in module_broker.log(), module_broker.log()[-4000:]


@pytest.fixture
def open_device(connect: Callable[..., RawClient], broker: DeviceBroker, client_id: str) -> OpenDevice:
    """open_device(version) connects a DEVICE to its session, the same one each time unless another id is given."""

    def open_one(version: int = V5, name: str = client_id, *, seconds: int = 300, **properties: Any) -> RawClient:
        return connect(version, name, **persistent(version, seconds, **properties))

    return open_one


@pytest.fixture
def publisher(connect: Callable[..., RawClient], broker: DeviceBroker) -> RawClient:
    return connect(V5)


@pytest.fixture
def leave(open_device: OpenDevice, topic: str) -> Callable[..., None]:
    """leave(version) makes a session that is subscribed to `topic`, and leaves."""

    def leave_one(version: int = V5, qos: int = 1, **options: Any) -> None:
        client = open_device(version, **options)
        client.subscribe(topic, qos=qos)
        client.disconnect()

    return leave_one


@pytest.fixture
def backlog(
    broker: DeviceBroker, leave: Callable[..., None], publisher: RawClient, topic: str, client_id: str
) -> Callable[..., list[bytes]]:
    """backlog(version, count) leaves a session behind with that many messages in the store; gives the payloads."""

    def fill(version: int, count: int, qos: int = 1, **options: Any) -> list[bytes]:
        leave(version, qos, **options)
        payloads = [b"%d" % number for number in range(count)]
        publish_all(publisher, topic, payloads, qos)
        broker.await_stored(client_id, count)
        return payloads

    return fill
