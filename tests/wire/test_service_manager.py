"""A broker under systemd (Type=notify): is it told when clients may come, that it lives, reloads and drains?"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.brokers.broker import IS_MOSQUITTO, Broker
from tests.support.brokers.notify_socket import NotifySocket

pytestmark = pytest.mark.skipif(IS_MOSQUITTO, reason="about our own notifications")


def test_systemd_follows_the_life_of_a_broker(
    start_broker: Callable[..., Broker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemd = NotifySocket(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", systemd.name)
    monkeypatch.setenv("WATCHDOG_USEC", "600000")
    broker = start_broker({"server.drain_seconds": 2})
    assert systemd.receive()["STATUS"] == "starting"
    ready = systemd.wait_for(lambda said: said.get("READY") == "1")
    assert ready["STATUS"] == f"listening on 127.0.0.1:{broker.port}"
    for _ in range(2):
        systemd.wait_for(lambda said: said.get("WATCHDOG") == "1")
    broker.process.send_signal(signal.SIGHUP)
    systemd.wait_for(lambda said: said.get("RELOADING") == "1")
    systemd.wait_for(lambda said: said.get("READY") == "1")
    systemd.wait_for(lambda said: said.get("WATCHDOG") == "1")
    broker.process.send_signal(signal.SIGTERM)
    stopping = systemd.wait_for(lambda said: said.get("STOPPING") == "1")
    # the drain, twice the 8 s of server.close_seconds, and a margin
    assert stopping["EXTEND_TIMEOUT_USEC"] == "33000000"
    assert broker.process.wait(60) == 0
    systemd.close()
