"""Damage in the middle of a client's topic, met while the broker runs: its reader waits, and the operator is told."""

from __future__ import annotations

import json
import urllib.request

from tests.support.clients.packets import V5
from tests.support.clients.raw_client import RawClient
from tests.support.worlds.application import AppBroker, persistent, topic_of, until

PROVIDERS = ["embedded"]
COUNT = 200
SETTINGS = {"application.topic_properties": "segment.bytes:65536"}


def ask(broker: AppBroker, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.admin_port}{path}", timeout=30) as answer:
        assert answer.status == 200
        return answer.read().decode()


def damaged_partitions(broker: AppBroker) -> float:
    lines = ask(broker, "/metrics").splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("penstock_log_damaged_partitions "))


def degraded(broker: AppBroker) -> dict[str, str]:
    return json.loads(ask(broker, "/readyz")).get("degraded", {})


def damage(broker: AppBroker, topic: str) -> None:
    """In the middle of a segment that is not the last."""
    segment = sorted((broker.data_dir / "log" / topic).glob("*.seg"))[1]
    data = bytearray(segment.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 50] = b"\xff" * 50
    segment.write_bytes(data)


def receive_to_the_end(client: RawClient) -> list[int]:
    numbers: list[int] = []
    while not numbers or numbers[-1] != COUNT - 1:
        numbers.append(int(client.expect_publish(ack=True).payload.split()[0]))
    return numbers


def test_it_is_named_and_counted_until_it_is_repaired(broker, connect, penstock_command):
    for name in ("app1", "app2"):
        subscriber = connect(V5, name, broker=broker, **persistent(V5))
        subscriber.subscribe("t", qos=1)
        subscriber.disconnect()
    publisher = connect(V5, "publisher", broker=broker)
    for number in range(COUNT):
        publisher.publish("t", b"%d " % number + b"." * 1_500, qos=1)
    until(lambda: all(broker.end_offset(topic_of(name)) == COUNT for name in ("app1", "app2")), 60)
    broker.end()
    topic = topic_of("app1")
    damage(broker, topic)

    broker.restart()
    assert degraded(broker) == {}
    assert damaged_partitions(broker) == 0
    first = connect(V5, "app1", broker=broker, **persistent(V5))
    got: list[int] = []

    def has_met_it() -> bool:
        for message in first.take_rest():
            got.append(int(message.payload.split()[0]))
            first.ack(message)
        return bool(degraded(broker))

    until(has_met_it, 60, "damage in /readyz")
    assert degraded(broker)["log"].startswith(f"{topic}[0] from offset ")
    assert f"`penstock log repair {topic} --data-dir {broker.data_dir}`" in degraded(broker)["log"]
    until(lambda: damaged_partitions(broker) == 1)  # the page is made once a second
    other = connect(V5, "app2", broker=broker, **persistent(V5))
    assert receive_to_the_end(other) == list(range(COUNT)), "others go on"
    assert got == list(range(len(got))), "what lies before it is delivered"
    assert 0 < len(got) < COUNT

    broker.end()
    repaired = penstock_command("log", "repair", topic, "--data-dir", str(broker.data_dir), "--json")
    assert repaired.returncode == 0, repaired.stderr
    broker.restart()
    rest = receive_to_the_end(connect(V5, "app1", broker=broker, **persistent(V5)))
    lost = sum(hole["end"] - hole["first"] for report in json.loads(repaired.stdout) for hole in report["lost"])
    assert len(set(got) | set(rest)) == COUNT - lost
    assert degraded(broker) == {}
    assert damaged_partitions(broker) == 0
