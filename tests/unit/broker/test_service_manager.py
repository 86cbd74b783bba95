"""Does systemd hear what it has to, and does nothing go wrong where nobody listens?"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.service_manager import ServiceManager
from tests.support.brokers.notify_socket import NotifySocket


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NotifySocket]:
    listening = NotifySocket(f"@penstock-{os.getpid()}" if request.param == "abstract" else tmp_path / "notify")
    yield listening
    listening.close()


def test_life_is_told(systemd: NotifySocket) -> None:
    async def live() -> None:
        manager = ServiceManager(asyncio.get_running_loop(), {"NOTIFY_SOCKET": systemd.name})
        manager.starting()
        manager.ready("listening")
        manager.reloading()
        manager.ready("listening")
        manager.stopping(5)
        manager.close()

    asyncio.run(live())
    assert systemd.receive() == {"STATUS": "starting", "EXTEND_TIMEOUT_USEC": "30000000"}
    assert systemd.receive() == {"READY": "1", "STATUS": "listening"}
    reloading = systemd.receive()
    assert reloading["RELOADING"] == "1"
    assert int(reloading["MONOTONIC_USEC"]) > 0
    assert systemd.receive() == {"READY": "1", "STATUS": "listening"}
    assert systemd.receive() == {"STOPPING": "1", "STATUS": "draining", "EXTEND_TIMEOUT_USEC": "20000000"}


@pytest.mark.parametrize("process", ["anybody", "itself", "parent"])
def test_watchdog_is_fed_while_the_loop_runs(systemd: NotifySocket, process: str) -> None:
    environment = {"NOTIFY_SOCKET": systemd.name, "WATCHDOG_USEC": "60000"}
    if process != "anybody":
        environment["WATCHDOG_PID"] = str(os.getpid() if process == "itself" else os.getppid())

    async def live() -> None:
        manager = ServiceManager(asyncio.get_running_loop(), environment)
        manager.ready("listening")
        feedings = 0
        while feedings < 4:
            said = await asyncio.to_thread(systemd.receive)
            feedings += said.get("WATCHDOG") == "1"
        manager.close()

    asyncio.run(live())


@pytest.mark.parametrize(
    "environment", [{}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "60000", "WATCHDOG_PID": "1"}], ids=str
)
def test_watchdog_is_left_alone_where_it_is_not_ours(systemd: NotifySocket, environment: dict[str, str]) -> None:
    async def live() -> None:
        manager = ServiceManager(asyncio.get_running_loop(), {"NOTIFY_SOCKET": systemd.name, **environment})
        manager.ready("listening")
        manager.stopping(1)
        manager.close()

    asyncio.run(live())
    assert "READY" in systemd.receive()
    assert "STOPPING" in systemd.receive()  # and no WATCHDOG between them


@pytest.mark.parametrize("address", ["", "nowhere", "vsock:2:1234", "/no/such/socket"])
def test_nobody_listens(address: str) -> None:
    async def live() -> None:
        manager = ServiceManager(asyncio.get_running_loop(), {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000"})
        for tell in (manager.starting, lambda: manager.ready("listening"), manager.reloading):
            tell()
        manager.close()

    asyncio.run(live())
