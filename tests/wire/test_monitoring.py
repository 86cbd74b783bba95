"""Do /metrics and $SYS count exactly what happened, and do the health checks of the running broker answer?"""

import contextlib
import json
import re
import time
import urllib.error
import urllib.request

import pytest

from tests.support.brokers.broker import free_port
from tests.support.clients.packets import V5, V311, PacketType, pack_connect, pack_publish, pack_subscribe
from tests.support.clients.raw_client import NothingCame

SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")


def fetch(broker, path):
    """Status, content type and text of a page of the admin address."""
    try:
        with urllib.request.urlopen(f"http://{broker.tables['admin']['address']}{path}", timeout=30) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def read_metrics(broker):
    """Number of each sample, by name with its labels; after a pause, as the page is made once a second at most."""
    time.sleep(1.05)
    status, content_type, text = fetch(broker, "/metrics")
    assert (status, content_type.partition(";")[0]) == (200, "text/plain")
    samples = (SAMPLE.match(line) for line in text.splitlines() if not line.startswith("#"))
    return {f"{found[1]}{{{found[2]}}}" if found[2] else found[1]: float(found[3]) for found in samples if found}


def changes(before, after):
    return {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)}


@pytest.fixture
def monitored(start_file_broker):
    return start_file_broker({"admin": {"address": f"127.0.0.1:{free_port()}"}, "sys": {"interval": 0}})


def test_health_pages(monitored):
    """/healthz, /readyz and what is not there."""
    assert fetch(monitored, "/healthz")[::2] == (200, "ok\n")
    status, _, text = fetch(monitored, "/readyz")
    assert status == 200
    assert json.loads(text)["ready"] is True
    assert fetch(monitored, "/elsewhere")[0] == 404


def test_counters_move_by_what_was_sent(monitored, connect, topic):
    """Messages by QoS, packets, bytes of payload and of the wire, connections, subscriptions, retained messages."""
    before = read_metrics(monitored)
    subscriber, publisher = connect(V5, "subscriber", broker=monitored), connect(V5, "publisher", broker=monitored)
    subscriber.subscribe(topic, qos=2)
    for qos, count in ((0, 3), (1, 5), (2, 7)):
        for number in range(count):
            publisher.publish(topic, b"%010d" % number, qos=qos)
            subscriber.expect_publish(topic, b"%010d" % number, qos=qos, ack=True)
    publisher.publish("nobody/here", b"kept", retain=True)
    publisher.ping()
    subscriber.ping()
    moved = changes(before, read_metrics(monitored))
    expected = {
        "penstock_connections_total": 2,
        "penstock_connections_open": 2,
        "penstock_sessions": 2,
        "penstock_subscriptions": 1,
        "penstock_retained_messages": 1,
        'penstock_messages_received_total{qos="0"}': 4,
        'penstock_messages_received_total{qos="1"}': 5,
        'penstock_messages_received_total{qos="2"}': 7,
        'penstock_messages_sent_total{qos="0"}': 3,
        'penstock_messages_sent_total{qos="1"}': 5,
        'penstock_messages_sent_total{qos="2"}': 7,
        "penstock_publish_received_bytes_total": 15 * 10 + 4,
        "penstock_publish_sent_bytes_total": 15 * 10,
        "penstock_messages_unmatched_total": 1,
        # CONNECT 2, SUBSCRIBE 1, PUBLISH 16, PUBREL 7, PUBACK 5, PUBREC and PUBCOMP 14, PINGREQ 2
        "penstock_packets_received_total": 47,
        # CONNACK 2, SUBACK 1, PUBLISH 15, PUBACK 5, PUBREC and PUBCOMP 14, PUBREL 7, PINGRESP 2
        "penstock_packets_sent_total": 46,
    }
    assert {name: moved.get(name, 0) for name in expected} == expected


def test_bytes_of_the_wire(monitored, open_client, topic):
    """Every byte read and written is counted once."""
    before = read_metrics(monitored)
    client = open_client(V5, broker=monitored)
    sent = [pack_connect(V5, "bytes"), pack_subscribe(V5, 1, [(topic, 0)]), pack_publish(V5, topic, bytes(1000))]
    for packet in sent:
        client.send_raw(packet)
    received = [client.expect(kind) for kind in (PacketType.CONNACK, PacketType.SUBACK, PacketType.PUBLISH)]
    moved = changes(before, read_metrics(monitored))
    assert moved["penstock_received_bytes_total"] == sum(map(len, sent))
    assert moved["penstock_sent_bytes_total"] == sum(len(packet.raw) for packet in received)


def test_what_goes_down_again(monitored, connect, topic):
    """Gauges follow: connections, sessions, subscriptions, retained messages and those in flight."""
    before = read_metrics(monitored)
    subscriber, publisher = connect(V311, broker=monitored), connect(V311, broker=monitored)
    subscriber.subscribe(topic, f"$share/group/{topic}", qos=1)
    publisher.publish(topic, b"x", qos=1, retain=True)
    publishes = [subscriber.expect_publish(topic) for _ in range(2)]
    moved = changes(before, read_metrics(monitored))
    names = ["connections_open", "sessions", "subscriptions", "shared_subscriptions", "retained_messages"]
    assert [moved[f"penstock_{name}"] for name in names] == [2, 2, 2, 1, 1]
    assert moved["penstock_inflight_messages"] == 2
    for publish in publishes:
        subscriber.ack(publish)
    publisher.publish(topic, b"", qos=1, retain=True)
    for _ in range(2):
        subscriber.expect_publish(topic, b"")
    for client in (subscriber, publisher):
        client.disconnect()
    moved = changes(before, read_metrics(monitored))
    assert not any(moved.get(f"penstock_{name}") for name in [*names, "inflight_messages"])


def test_errors_and_refusals(start_file_broker, open_client, connect):
    """Protocol errors, and connections refused by cause."""
    tables = {"admin": {"address": f"127.0.0.1:{free_port()}"}, "limits": {"max_connections": 2}}
    broker = start_file_broker(tables)
    before = read_metrics(broker)
    wrong = connect(V5, broker=broker)
    wrong.send_raw(b"\xf1\x00")
    wrong.receive()
    wrong.expect_closed()
    clients = [connect(V5, broker=broker) for _ in range(2)]
    refused = open_client(V5, broker=broker)
    with contextlib.suppress(OSError):
        refused.send_connect("refused")
        refused.receive_all(1, at_least=2)  # or the end
    moved = changes(before, read_metrics(broker))
    assert moved["penstock_protocol_errors_total"] == 1
    assert moved['penstock_connections_refused_total{cause="connections"}'] == 1
    assert moved["penstock_connections_open"] == len(clients)


def test_sys_topics_show_the_same(start_file_broker, connect, topic):
    """$SYS/broker/…: exact numbers after the next interval."""
    broker = start_file_broker({"sys": {"interval": 1}})
    publisher, watcher = connect(V311, broker=broker), connect(V311, broker=broker)
    expected = {
        "clients/connected": b"2",
        "publish/messages/received": b"10",
        "publish/bytes/received": b"50",
        "messages/received": b"14",  # CONNECT of both, SUBSCRIBE, 10 PUBLISH, PINGREQ
    }
    watcher.subscribe(*(f"$SYS/broker/{name}" for name in expected))
    for _ in range(9):
        publisher.publish(topic, b"12345", qos=1)
    publisher.publish(f"{topic}/kept", b"12345", retain=True)
    publisher.ping()
    shown = {}
    while shown != expected:  # what has changed is published
        packet = watcher.receive()
        shown[packet.topic.removeprefix("$SYS/broker/")] = packet.payload
    with pytest.raises(NothingCame):
        watcher.receive(1.2)
