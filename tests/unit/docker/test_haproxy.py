"""The configuration of haproxy, with real brokers behind a real haproxy where there is one."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.broker import Listener, free_port
from tests.support.deployment import DOCKER, run_tool
from tests.support.file_broker import FileBroker
from tests.support.packets import V5
from tests.support.raw_client import ClosedByServer, RawClient
from tests.support.streams import open_tcp

CONFIGURATION = (DOCKER / "haproxy/haproxy.cfg").read_text()
SECONDS = 60


def configuration_for(brokers: list[FileBroker], port: int, health_port: int) -> str:
    """Ours, with the addresses of these."""
    text = CONFIGURATION.replace("bind :1883", f"bind 127.0.0.1:{port}")
    text = text.replace("bind :8404", f"bind 127.0.0.1:{health_port}").replace("maxconn 100000", "maxconn 1000")
    for number, broker in enumerate(brokers, 1):
        admin_port = broker.tables["admin"]["address"].rpartition(":")[2]
        server = f"{broker.listeners[0].address} check port {admin_port}"
        text = text.replace(f"penstock-{number}:1883", server)
    return re.sub(r"^    server penstock-\d penstock-.*\n", "", text, flags=re.M)


def test_clients_reach_the_nodes_that_are_ready(start_watched: Callable[..., FileBroker], tmp_path: Path) -> None:
    """Each connection to one of them, with the client's own address in the log; none to one that is gone."""
    if shutil.which("haproxy") is None:
        pytest.skip("haproxy is not installed")
    brokers = [start_watched(None, (Listener("tcp", {"proxy_protocol": True}),)) for _ in range(2)]
    port, health_port = free_port(), free_port()
    path = tmp_path / "haproxy.cfg"
    path.write_text(configuration_for(brokers, port, health_port))
    checked = run_tool("haproxy", "-c", "-f", str(path))
    assert checked.returncode == 0, checked.stderr
    assert "WARNING" not in checked.stderr
    haproxy = subprocess.Popen(
        ["haproxy", "-db", "-f", str(path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for number in range(4):
            client, source = connect_through(port, f"through-{number}")
            assert any(
                event["peer"] == source
                for broker in brokers
                for event in broker.events("client connected")
                if event["client_id"] == f"through-{number}"
            )
            client.close()
        assert all(broker.events("client connected") for broker in brokers)
    finally:
        haproxy.terminate()
        haproxy.wait(SECONDS)


def connect_through(port: int, client_id: str) -> tuple[RawClient, str]:
    """A client after its CONNACK, and the address it has; haproxy may still be starting."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            stream = open_tcp(("127.0.0.1", port), 5.0)
            client = RawClient(stream, V5)
            client.connect(client_id)
        except (OSError, ClosedByServer):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        else:
            host, own_port = stream.getsockname()
            return client, f"{host}:{own_port}"
