"""Brokers that the tests of one directory share: one for each log."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Generic, TypeVar

import pytest

from tests.support.worlds.application import AppBroker

B = TypeVar("B", bound=AppBroker)


class SharedBrokers(Generic[B]):
    """Each is started by the first test that asks, and all end behind the last test of the directory: others use the
    same Kafka then."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stack = contextlib.ExitStack()
        self._running: dict[str, B] = {}

    def get(self, provider: str, start: Callable[[], AbstractContextManager[B]]) -> B:
        if provider not in self._running:
            self._running[provider] = self._stack.enter_context(start())
        broker = self._running[provider]
        if not broker.is_alive:
            broker.restart()  # killed by a test that failed
        return broker

    def tested(self, nextitem: pytest.Item | None) -> None:
        """A test of the directory has ended."""
        if nextitem is None or nextitem.path.parent != self._directory:
            self.end()

    def end(self) -> None:
        """Also for a test that must be alone on Kafka; who asks next gets new ones."""
        self._running.clear()
        self._stack.close()

    def watched(self, broker: B, request: pytest.FixtureRequest) -> Iterator[B]:
        """For a test: afterwards the broker must live, and must not have logged an error of its own."""
        start = broker.log_size()
        request.node.broker_logs = [(broker, start)]
        yield broker
        assert broker.is_alive, broker.log()[-4000:]
        log = broker.log(start if broker.log_size() >= start else 0)
        assert "Traceback" not in log, log[-4000:]
