"""Discovery without a log. What goes through one is in tests/contract, over every provider."""

from __future__ import annotations

import asyncio

import pytest

from penstock.core.errors import SettingsError
from penstock.services.discovery import LogDiscovery, SingleNode
from penstock.services.model import ServiceInfo, ServiceType
from penstock.settings.loader import load_settings
from penstock.storage.log.memory import MemoryLog
from tests.support.machine.waiting import until
from tests.support.worlds.memory_log import with_memory_log


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
    with pytest.raises(ValueError, match="more often"):
        member(MemoryLog(), "a", interval=2, timeout=2)
    with pytest.raises(SettingsError, match=r"member_timeout = 10 is not allowed.*\n.*Use 12 or more.*of 2 s"):
        load_settings(None, {}, {"cluster.heartbeat_interval": "6"})
    load_settings(None, {}, {"cluster.heartbeat_interval": "5"})


@pytest.mark.parametrize("interval", [0.1, 0.4, 0.5])
def test_the_dead_are_missed_however_seldom_members_tell_that_they_live(interval: float) -> None:
    """At half the time-out every reader took itself for deaf just before it heard itself again."""

    async def scenario(log: MemoryLog) -> None:
        a, b = (member(log, name, interval=interval, timeout=1.0) for name in "ab")
        await a.start(lambda _: None)
        await b.start(lambda _: None)
        await until(lambda: len(a.others()) == 1)
        b._tasks.cancel()  # as kill -9
        await until(lambda: not a.others())
        await until(lambda: a._table.get("b") is None)  # expelled
        await a.stop()

    with_memory_log(scenario)


def member(log: MemoryLog, name: str, *, interval: float, timeout: float) -> LogDiscovery:
    info = ServiceInfo(service_id=name, service_types=frozenset([ServiceType.TB_CORE]))
    return LogDiscovery(log, info, interval=interval, timeout=timeout)
