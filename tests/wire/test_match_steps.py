"""A publish that very many filters nearly match is matched in slices: limits.match_steps."""

from __future__ import annotations

import itertools
import re
import urllib.request

from tests.support.clients.packets import V5
from tests.support.machine.ports import free_port

LEVELS = 9


def read_metrics(address: str) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return {name: float(value) for name, value in re.findall(r"^(\w+) (\S+)$", text, re.MULTILINE)}


def test_acknowledged_in_order_counted_and_logged(start_file_broker, connect):
    address = f"127.0.0.1:{free_port()}"
    broker = start_file_broker({"limits": {"match_steps": 1_000}, "admin": {"address": address}})
    planter = connect(V5, broker=broker)
    # every combination of a level and its wildcard: 1,023 nodes fit the topics below, and no filter matches them
    planter.subscribe(*(f"{'/'.join(levels)}/n" for levels in itertools.product("+a", repeat=LEVELS)))
    witness = connect(V5, "witness", broker=broker, properties={"session_expiry_interval": 300})
    witness.subscribe("a/#", qos=1)
    publisher = connect(V5, "bomber", broker=broker)
    topics = [f"{'/'.join('a' * LEVELS)}/z{number}" for number in range(20)]
    ids = [publisher.send_publish(topic, b"x", qos=1) for topic in topics]
    assert [publisher.receive().packet_id for _ in ids] == ids
    assert {witness.expect_publish(ack=True).topic for _ in ids} == set(topics)
    # the same topics again cost nothing
    for topic in topics:
        publisher.publish(topic, b"again", qos=1)
    metrics = read_metrics(address)
    assert metrics["penstock_long_matches_total"] == 20
    assert metrics["penstock_match_pauses_total"] >= 20
    assert 20_000 < metrics["penstock_match_steps_total"] < 80_000
    assert metrics["penstock_match_waiting"] == 0
    (event,) = broker.events("matching a publish took long, other clients were served in between")
    assert (event["client_id"], event["topic"], event["limit"]) == ("bomber", topics[0], 1_000)
    assert event["filter_nodes"] > 1_000


def test_changed_while_running(start_file_broker, connect):
    """The setting is live."""
    broker = start_file_broker({"limits": {"match_steps": 1_000}})
    broker.write_settings(limits={"match_steps": 5_000})
    assert broker.reload()["changed"] == ["limits.match_steps"]
