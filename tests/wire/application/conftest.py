"""Fixtures of the scenarios about APPLICATION clients: a broker for each module and log, persistent clients of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.brokers.broker import IS_MOSQUITTO
from tests.support.clients.packets import V5, V311
from tests.support.clients.raw_client import RawClient
from tests.support.worlds.application import AppBroker, persistent, running_app_broker, topic_of, until

OpenApp = Callable[..., RawClient]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Both logs; a module about what does not depend on the log says PROVIDERS = ["embedded"], a test a mark.

    What is sent to a client of either version does not depend on the log: on Kafka one of them is enough.
    """
    if "provider" not in metafunc.fixturenames:
        return
    mark = metafunc.definition.get_closest_marker("providers")
    providers = mark.args if mark is not None else getattr(metafunc.module, "PROVIDERS", ["embedded", "kafka"])
    if "version" not in metafunc.fixturenames:
        metafunc.parametrize("provider", providers, scope="module")
        return
    pairs = [("embedded", V311), ("embedded", V5), ("kafka", V5)]
    metafunc.parametrize(
        ("provider", "version"),
        [pair for pair in pairs if pair[0] in providers],
        ids=[f"{name}-v{number if number == V5 else 311}" for name, number in pairs if name in providers],
        scope="module",
    )


@pytest.fixture(scope="module")
def version() -> int:
    """In the place of the one that has parameters of its own."""
    return V5


@pytest.fixture(scope="module")
def module_broker(
    provider: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AppBroker]:
    """One broker with the SETTINGS of the module; a test may end it if it starts it again."""
    settings = getattr(request.module, "SETTINGS", {})
    with running_app_broker(tmp_path_factory.mktemp("broker"), provider, settings) as broker:
        yield broker


@pytest.fixture
def broker(module_broker: AppBroker, request: pytest.FixtureRequest) -> Iterator[AppBroker]:
    if not module_broker.is_alive:
        module_broker.restart()  # killed by a test that failed
    start = module_broker.log_size()
    request.node.broker_logs = [(module_broker, start)]
    yield module_broker
    assert module_broker.is_alive, module_broker.log()[-4000:]
    assert "Traceback" not in module_broker.log(), module_broker.log()[-4000:]


@pytest.fixture
def app_id(new_name: Callable[[str], str]) -> str:
    return new_name("app")


@pytest.fixture
def open_app(connect: Callable[..., RawClient], broker: AppBroker, app_id: str) -> OpenApp:
    """open_app(version) connects an APPLICATION to its session, the same one each time unless another id is given."""

    def open_one(version: int = V5, client_id: str = app_id, *, seconds: int = 300, **properties: Any) -> RawClient:
        return connect(version, client_id, **persistent(version, seconds, **properties))

    return open_one


@pytest.fixture
def publisher(connect: Callable[..., RawClient], broker: AppBroker) -> RawClient:
    """A DEVICE that stays connected."""
    return connect(V5)


@pytest.fixture
def backlog(
    broker: AppBroker, open_app: OpenApp, publisher: RawClient, topic: str, app_id: str
) -> Callable[..., list[bytes]]:
    """backlog(version, count) leaves a session behind with that many messages in its topic; gives the payloads."""

    def leave(version: int, count: int, qos: int = 1, client_id: str = app_id) -> list[bytes]:
        client = open_app(version, client_id)
        client.subscribe(topic, qos=qos)
        client.disconnect()
        end = 0 if IS_MOSQUITTO else count + broker.end_offset(topic_of(client_id))
        payloads = [b"%d" % number for number in range(count)]
        for payload in payloads:
            publisher.publish(topic, payload, qos=qos)
        until(lambda: not end or broker.end_offset(topic_of(client_id)) >= end, 60, "the backlog in its topic")
        return payloads

    return leave
