"""A broker with an admin address, for what asks it over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers.broker import Broker, Listener, free_port
from tests.support.brokers.file_broker import FileBroker


@pytest.fixture
def start_watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., FileBroker]]:
    """start_watched({"limits": {...}}, [Listener(...)]); its tables say where the admin address is."""
    started: list[Broker] = []

    def start(tables: dict[str, Any] | None = None, listeners: tuple[Listener, ...] = ()) -> FileBroker:
        directory: Path = tmp_path_factory.mktemp("broker")
        broker = FileBroker(directory, {"admin": {"address": f"127.0.0.1:{free_port()}"}, **(tables or {})}, listeners)
        started.append(broker)
        broker.wait_until_listening()
        return broker

    yield start
    for broker in started:
        broker.stop()
