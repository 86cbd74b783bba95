"""The configuration of haproxy, with real brokers behind a real haproxy where there is one."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.brokers.broker import Listener, free_port
from tests.support.brokers.deployment import DOCKER, load_composition, run_tool
from tests.support.brokers.file_broker import FileBroker
from tests.support.clients.data_client import DataClient, DataFailure
from tests.support.clients.packets import V5
from tests.support.clients.raw_client import ClosedByServer, RawClient
from tests.support.clients.streams import open_tcp

CONFIGURATION = (DOCKER / "haproxy/haproxy.cfg").read_text()
(HARD_STOP_SECONDS,) = map(int, re.findall(r"^ +hard-stop-after (\d+)s$", CONFIGURATION, re.M))
SECONDS = 60


def configuration_for(brokers: list[FileBroker], port: int, data_port: int) -> str:
    """Ours, with the addresses of these."""
    text = CONFIGURATION.replace("bind :1883", f"bind 127.0.0.1:{port}").replace("maxconn 100000", "maxconn 1000")
    text = text.replace(f"hard-stop-after {HARD_STOP_SECONDS}s", "hard-stop-after 100ms")
    text = text.replace("bind :6030", f"bind 127.0.0.1:{data_port}")
    text = text.replace("bind :8404", f"bind 127.0.0.1:{free_port()}")
    for number, broker in enumerate(brokers, 1):
        admin_port = broker.tables["admin"]["address"].rpartition(":")[2]
        addresses = {1883: broker.listeners[0].address, 6030: data_address(broker)}
        for ours, address in addresses.items():
            text = text.replace(f"penstock-{number}:{ours}", f"{address} check port {admin_port}")
    return re.sub(r"^    server penstock-\d penstock-.*\n", "", text, flags=re.M)


def data_address(broker: FileBroker) -> str:
    """Where it says that it listens for consumers of query topics."""
    deadline = time.monotonic() + SECONDS
    while not (said := [event for event in broker.events("listening") if event["listener"] == "data"]):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return str(said[0]["address"])


def test_clients_reach_the_nodes_that_are_ready(start_watched: Callable[..., FileBroker], tmp_path: Path) -> None:
    """Each connection to one of them, with the client's own address in the log; consumers of query topics too. Asked to
    end, as docker does it, haproxy ends although somebody is connected."""
    if shutil.which("haproxy") is None:
        pytest.skip("haproxy is not installed")
    brokers = [start_watched(None, (Listener("tcp", {"proxy_protocol": True}),)) for _ in range(2)]
    port, data_port = free_port(), free_port()
    path = tmp_path / "haproxy.cfg"
    path.write_text(configuration_for(brokers, port, data_port))
    checked = run_tool("haproxy", "-c", "-f", str(path))
    assert checked.returncode == 0, checked.stderr
    assert "WARNING" not in checked.stderr
    haproxy = subprocess.Popen(
        ["haproxy", "-W", "-db", "-f", str(path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for number in range(4):
            client, source = connect_through(port, f"through-{number}")
            deadline = time.monotonic() + SECONDS
            while not any(
                event["peer"] == source
                for broker in brokers
                for event in broker.events("client connected")
                if event["client_id"] == f"through-{number}"
            ):
                assert time.monotonic() < deadline
                time.sleep(0.02)
            client.close()
        assert all(broker.events("client connected") for broker in brokers)
        # Two that are open at the same time are at different brokers, which are not one here.
        first, second = (consume_through(data_port) for _ in range(2))
        first.execute('CREATE TOPIC here AS SELECT ts FROM "a/+"')
        assert [len(client.execute("SHOW TOPICS")["rows"]) for client in (first, second)] == [1, 0]
        first.close()
        second.close()
        staying, _ = connect_through(port, "stays")
        haproxy.send_signal(signal.SIGUSR1)
        assert haproxy.wait(SECONDS) == 0
        staying.close()
    finally:
        haproxy.terminate()
        haproxy.wait(SECONDS)


def test_docker_waits_until_it_has_ended() -> None:
    (grace,) = re.findall(r"\d+", load_composition("cluster")["services"]["haproxy"]["stop_grace_period"])
    assert int(grace) > HARD_STOP_SECONDS


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


def consume_through(port: int) -> DataClient:
    """A consumer of query topics after its first answer; the log of the broker may still be opening."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            client = DataClient(port)
            client.execute("SHOW TOPICS")
        except (OSError, DataFailure):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        else:
            return client
