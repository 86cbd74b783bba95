"""`penstock backup` beside a broker under load, `penstock restore`, and a broker that goes on from there."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.clients.packets import V5
from tests.support.worlds.application import AppBroker, persistent, running_app_broker, until

# Small segments: some are closed, and some removed by retention, while they are copied.
SETTINGS = {
    "ingest.properties": "segment.bytes:65536;retention.ms:604800000",
    "application.topic_properties": "segment.bytes:65536;retention.ms:604800000",
}
LAST = 1_000_000
Command = Callable[..., subprocess.CompletedProcess[str]]


class Publisher(threading.Thread):
    """Publishes 0, 1, 2 … with QoS 1, each when the one before was acknowledged."""

    def __init__(self, broker: AppBroker) -> None:
        super().__init__(daemon=True)
        self._client = broker.client(V5)
        self._client.connect("publisher")
        self._is_over = threading.Event()
        self.acknowledged = 0

    def run(self) -> None:
        while not self._is_over.is_set():
            self._client.publish("load/x", b"%d" % self.acknowledged + b" " * 500, qos=1)
            self.acknowledged += 1

    def reach(self, count: int) -> None:
        until(lambda: self.acknowledged >= count or not self.is_alive(), 60.0, f"{count} messages")
        assert self.is_alive()

    def end(self) -> None:
        self._is_over.set()
        self.join(60)
        assert not self.is_alive()
        self._client.disconnect()


def subscribe_and_leave(broker: AppBroker, client_id: str) -> None:
    client = broker.client(V5)
    client.connect(client_id, **persistent(V5))
    client.subscribe("load/#", qos=1)
    client.disconnect()


def take_until(broker: AppBroker, client_id: str, last: int) -> list[int]:
    """What waits for a client, up to this message, acknowledged one by one."""
    client = broker.client(V5)
    assert client.connect(client_id, **persistent(V5)).session_present
    taken: list[int] = []
    while taken[-1:] != [last]:
        packet = client.expect_publish("load/x")
        client.ack(packet)
        taken.append(int(packet.payload))
    client.disconnect()
    return taken[:-1]


def restored_broker(directory: Path, data_dir: Path) -> Any:
    directory.mkdir()
    data_dir.rename(directory / "data")
    return running_app_broker(directory, "embedded", SETTINGS)


def test_under_load_nothing_acknowledged_is_lost_and_nothing_comes_twice(
    tmp_path: Path, penstock_command: Command
) -> None:
    target, data_dir = tmp_path / "saved.tar.gz", tmp_path / "again"
    (tmp_path / "first").mkdir()
    with running_app_broker(tmp_path / "first", "embedded", SETTINGS) as broker:
        subscribe_and_leave(broker, "app1")
        subscribe_and_leave(broker, "device1")
        broker.command("queue", "create", "orders")
        other = broker.client(V5)
        other.connect("other")
        other.publish("keep/me", b"kept", qos=1, retain=True)
        other.publish("$queue/orders", b"two chairs", qos=1)
        other.disconnect()
        publisher = Publisher(broker)
        publisher.start()
        publisher.reach(200)
        before = publisher.acknowledged
        done = json.loads(broker.command("backup", str(target), options=["--json"]))
        publisher.reach(publisher.acknowledged + 20)
        publisher.end()
        assert (done["was_running"], done["format"]) == (True, 1)
        assert not list((broker.data_dir / "log").glob(".backup-*"))
    restored = penstock_command("restore", str(target), "--data-dir", str(data_dir))
    assert restored.returncode == 0, restored.stderr
    verified = penstock_command("log", "verify", "--data-dir", str(data_dir), "--json")
    assert verified.returncode == 0, verified.stdout
    assert sum(topic["records"] for topic in json.loads(verified.stdout)) == done["records"]

    with restored_broker(tmp_path / "second", data_dir) as broker:
        reader = broker.client(V5)
        reader.connect("reader")
        reader.subscribe("keep/#", qos=1)
        reader.expect_publish("keep/me", b"kept", retain=True)
        # Its offset is one that the old broker gave to another message: nobody takes it for that.
        reader.publish("load/x", b"%d" % LAST, qos=1)
        reader.disconnect()
        for client_id in ("app1", "device1"):
            taken = take_until(broker, client_id, LAST)
            assert len(taken) >= before
            assert taken == list(range(len(taken)))
        assert broker.command_json("queue", "show", "orders")["depth"] == 1
