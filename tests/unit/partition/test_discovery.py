"""Discovery without a log. What goes through one is in tests/contract, over every provider."""

from __future__ import annotations

import asyncio

import pytest

from penstock.logs.memory import MemoryLog
from penstock.partition.discovery import LogDiscovery, SingleNode
from penstock.partition.model import ServiceInfo, ServiceType


def test_single_node() -> None:
    async def scenario() -> None:
        told: list[object] = []
        node = SingleNode()
        await node.start(told.append)
        await node.acquire(["p"])
        assert node.holds(["p"])
        await node.stop()
        assert told == [[]]

    asyncio.run(scenario())


def test_timeout_must_be_longer_than_the_interval() -> None:
    info = ServiceInfo(service_id="a", service_types=frozenset([ServiceType.TB_CORE]))
    with pytest.raises(ValueError, match="more often"):
        LogDiscovery(MemoryLog(), info, interval=2, timeout=2)
