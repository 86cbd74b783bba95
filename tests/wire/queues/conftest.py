"""Fixtures of the scenarios about durable queues: one broker for each log, with the queues that the tests ask for.

A test says above itself which queues it needs; each is its own, under a name made of the test's:

    @pytest.mark.queue(type="stream")                          the fixture `queue`
    @pytest.mark.queue("audit", topics=["$queue/{queue}/#"])   another one: `queues["audit"]`; {queue} is the first

Without a mark `queue` is a classic queue with the defaults.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers.shared_brokers import SharedBrokers
from tests.support.clients.packets import V5
from tests.support.clients.raw_client import RawClient
from tests.support.worlds.queues import QueueBroker, QueueClient, running_queue_broker

HERE = Path(__file__).parent
OpenQueueClient = Callable[..., QueueClient]
BROKERS: SharedBrokers[QueueBroker] = SharedBrokers(HERE)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "queue(suffix, **settings): a queue that the test needs")
    config.addinivalue_line("markers", "any_log: does not depend on the log, one is enough")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Both logs, or for what does not depend on the log (`any_log`) the quicker one."""
    if "provider" in metafunc.fixturenames:
        is_same = metafunc.definition.get_closest_marker("any_log") is not None
        metafunc.parametrize("provider", ["embedded"] if is_same else ["embedded", "kafka"])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    yield
    BROKERS.tested(nextitem)


def queue_name(item: pytest.Item, suffix: str = "") -> str:
    """Of the test's own name, so that a log of the broker tells which test it was."""
    plain = re.sub(r"[^A-Za-z0-9_]+", "-", item.name.removeprefix("test_")).strip("-")
    return f"{plain}-{suffix}" if suffix else plain


def queues_of(item: pytest.Item) -> dict[str, dict[str, Any]]:
    """By suffix; the one without is always there."""
    main = queue_name(item)
    found: dict[str, dict[str, Any]] = {"": {"name": main}}
    for mark in item.iter_markers("queue"):
        suffix = mark.args[0] if mark.args else ""
        settings = {key: _with_name(value, main) for key, value in mark.kwargs.items()}
        found[suffix] = {"name": queue_name(item, suffix), **settings, **found.get(suffix, {})}
    return found


def _with_name(value: Any, main: str) -> Any:
    if isinstance(value, str):
        return value.replace("{queue}", main)
    if isinstance(value, list):
        return [_with_name(each, main) for each in value]
    if isinstance(value, dict):
        return {key: _with_name(each, main) for key, each in value.items()}
    return value


def _wanted(session: pytest.Session, provider: str) -> list[dict[str, Any]]:
    """The queues of all tests of this directory that run on this log."""
    items = [item for item in session.items if item.path.parent == HERE and isinstance(item, pytest.Function)]
    mine = [item for item in items if "queue" in item.fixturenames or "queues" in item.fixturenames]
    return [
        settings
        for item in mine
        if hasattr(item, "callspec") and item.callspec.params.get("provider") == provider
        for settings in queues_of(item).values()
    ]


@pytest.fixture
def broker(
    provider: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[QueueBroker]:
    def start() -> AbstractContextManager[QueueBroker]:
        wanted = _wanted(request.session, provider)
        return running_queue_broker(tmp_path_factory.mktemp("queues"), provider, queues=wanted)

    yield from BROKERS.watched(BROKERS.get(provider, start), request)


@pytest.fixture
def queues(broker: QueueBroker, request: pytest.FixtureRequest) -> dict[str, str]:
    """The names of this test's queues by their suffixes."""
    return {suffix: settings["name"] for suffix, settings in queues_of(request.node).items()}


@pytest.fixture
def queue(queues: dict[str, str]) -> str:
    return queues[""]


@pytest.fixture
def open_queue(connect: Callable[..., RawClient], broker: QueueBroker) -> OpenQueueClient:
    """open_queue(client_id=..., receive_maximum=...) connects a client for queues."""

    def open_one(version: int = V5, client_id: str | None = None, **options: Any) -> QueueClient:
        maximum = options.pop("receive_maximum", None)
        if maximum is not None:
            options["properties"] = {**options.get("properties", {}), "receive_maximum": maximum}
        return QueueClient(connect(version, client_id, broker=options.pop("broker", broker), **options))

    return open_one


@pytest.fixture
def publisher(open_queue: OpenQueueClient) -> QueueClient:
    return open_queue()


@pytest.fixture
def consumer(open_queue: OpenQueueClient) -> QueueClient:
    return open_queue()
