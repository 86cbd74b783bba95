"""Is a client connected at one broker at a time, and does its session go with it?"""

import os
import signal
import time

import pytest

from penstock._ext.application.context import read_context
from penstock.subscribers.application.contexts import OWN, TABLE, make_key
from tests.support.brokers.cluster import await_dispatched, stored
from tests.support.clients.packets import V5, V311, PacketType, Reason, Will
from tests.support.worlds.application import persistent, topic_of, until


@pytest.mark.parametrize("version", [V311, V5])
def test_a_client_that_comes_to_another_broker_leaves_the_first(pair, connect, client_id, version):
    """[MQTT-3.1.4-3] [MQTT3-3.1.4-2]: the old connection is gone before the new one has its CONNACK."""
    a, b = pair
    old = connect(version, client_id, broker=a)
    connect(version, client_id, broker=b).ping()
    if version == V5:
        assert old.expect(PacketType.DISCONNECT).reason == Reason.SESSION_TAKEN_OVER
    old.expect_closed()
    connect(version, client_id, broker=a).ping()


@pytest.mark.parametrize("kind", ["client", "app"])
def test_the_session_goes_with_the_client(pair, connect, new_name, topic, kind):
    """[MQTT-3.1.2-5]: subscriptions, what waits for it and what is in flight, with its packet id and DUP
    [MQTT-4.4.0-1]; to and fro, nothing lost and nothing twice."""
    a, b = pair
    name = new_name(kind)
    publisher = connect(V5, broker=a)
    client = connect(V5, name, broker=a, **persistent(V5))
    assert not client.connack.session_present
    client.subscribe(topic, qos=1)
    publisher.publish(topic, b"0", qos=1)
    unacknowledged = client.expect_publish(topic, b"0")
    client = connect(V5, name, broker=b, **persistent(V5))
    assert client.connack.session_present
    again = client.expect_publish(topic, b"0", dup=True, ack=True)
    assert again.packet_id == unacknowledged.packet_id
    sent = 1
    for turn in range(4):
        client.disconnect()
        for _ in range(20):
            publisher.publish(topic, b"%d" % sent, qos=1)
            sent += 1
        client = connect(V5, name, broker=(a, b)[turn % 2], **persistent(V5))
        assert client.connack.session_present
        assert _receive(client, 20) == [b"%d" % number for number in range(sent - 20, sent)]
        client.expect_nothing(0.1)


def test_nothing_is_lost_or_doubled_while_clients_move(pair, connect, new_name, topic):
    """Messages come all the time, and the client is at another broker every few of them."""
    a, b = pair
    name = new_name("app")
    publisher = connect(V5, broker=b)
    client = connect(V5, name, broker=a, **persistent(V5))
    client.subscribe(topic, qos=2)
    got = []
    for turn in range(6):
        for number in range(50):
            publisher.publish(topic, b"%d" % (turn * 50 + number), qos=1)
        client = connect(V5, name, broker=(b, a)[turn % 2], **persistent(V5))
        got += [packet.payload for packet in client.receive_all(0.1) if not client.ack(packet)]
    sent = {b"%d" % number for number in range(300)}
    while not sent <= set(got):
        got.append(client.expect_publish(topic, dup=None, ack=True).payload)
    assert sent == set(got)


def test_qos_2_publishes_are_known_at_the_other_broker(pair, connect, client_id, topic):
    """[MQTT-4.3.3-10]: a message that was received at one broker and not released is not taken again at the other."""
    a, b = pair
    subscriber = connect(V5, broker=b)
    subscriber.subscribe(topic, qos=2)
    client = connect(V5, client_id, broker=a, **persistent(V5))
    client.send_publish(topic, b"once", qos=2, packet_id=9)
    client.expect(PacketType.PUBREC)
    client = connect(V5, client_id, broker=b, **persistent(V5))
    client.send_publish(topic, b"once", qos=2, packet_id=9, dup=True)
    client.expect(PacketType.PUBREC)
    client.send_ack(PacketType.PUBREL, 9)
    client.expect(PacketType.PUBCOMP)
    subscriber.expect_publish(topic, b"once", ack=True)
    subscriber.expect_nothing(0.3)


def test_a_clean_start_at_another_broker_ends_the_session(pair, connect, client_id, topic):
    """[MQTT-3.1.2-4]"""
    a, b = pair
    client = connect(V5, client_id, broker=a, **persistent(V5))
    client.subscribe(topic, qos=1)
    client.disconnect()
    client = connect(V5, client_id, broker=b, clean_start=True, properties={"session_expiry_interval": 300})
    assert not client.connack.session_present
    connect(V5, broker=a).publish(topic, b"x", qos=1)
    client.expect_nothing(0.3)
    client.disconnect()
    assert connect(V5, client_id, broker=a, **persistent(V5)).connack.session_present


def test_the_later_of_two_at_the_same_time_stays(pair, open_client, client_id):
    """Both brokers ask each other: one client is left."""
    a, b = pair
    for _ in range(4):
        both = [open_client(V5, broker=broker) for broker in (a, b)]
        for client in both:
            client.send_connect(client_id, **persistent(V5))
        came: list[list[PacketType]] = [[], []]
        deadline, steady = time.monotonic() + 60, 0
        while steady < 3 and time.monotonic() < deadline:
            for types, client in zip(came, both, strict=True):
                types += [packet.type for packet in client.receive_all(0.15)]
            steady = steady + 1 if came.count([PacketType.CONNACK]) == 1 else 0
        assert came.count([PacketType.CONNACK]) == 1, came


@pytest.mark.parametrize("expiry", [0, 300])
def test_a_broker_that_could_not_answer_lets_go_later(pair, connect, open_client, client_id, expiry):
    """[MQTT-3.1.4-3]: it stood still when the client came to another one, and goes on with the connection it had."""
    a, b = pair
    properties = {"session_expiry_interval": expiry}
    old = connect(V5, client_id, broker=a, properties=properties)
    staying = connect(V5, broker=a)
    os.kill(a.process.pid, signal.SIGSTOP)
    try:
        client = open_client(V5, broker=b)
        client.send_connect(client_id, clean_start=False, properties=properties)
        connack = client.expect(PacketType.CONNACK, timeout=30)
    finally:
        os.kill(a.process.pid, signal.SIGCONT)
    assert connack.session_present == bool(expiry)
    assert old.expect(PacketType.DISCONNECT, timeout=30).reason == Reason.SESSION_TAKEN_OVER
    old.expect_closed(30)
    client.ping()
    staying.ping()
    until(lambda: 'penstock_pack_messages_total{queue="tb_transport.notifications"}' in a.metrics(), 60)
    metrics = b.metrics()
    assert 'penstock_request_timeout_count_total{channel="sessions"}' in metrics
    assert 'penstock_pending_requests_count{channel="sessions"}' in metrics
    assert 'penstock_response_lag_seconds_bucket{channel="sessions",le="5.0"}' in metrics


@pytest.mark.parametrize("kind", ["client", "app"])
def test_a_broker_dies_and_its_clients_go_on_at_another(pair, connect, new_name, topic, kind):
    """kill -9: acknowledged, in flight, stored and published meanwhile; everything arrives at the other broker."""
    a, b = pair
    name = new_name(kind)
    client = connect(V5, name, broker=a, **persistent(V5))
    client.subscribe(topic, qos=1)
    publisher = connect(V5, broker=b)
    publisher.publish(topic, b"done", qos=1)
    client.expect_publish(topic, b"done", ack=True)
    await_acknowledged(a, name)
    publisher.publish(topic, b"in flight", qos=1)
    client.expect_publish(topic, b"in flight")
    gone = connect(V5, f"{name}gone", broker=a, **persistent(V5))
    gone.subscribe(topic, qos=1)
    gone.disconnect()
    for number in range(20):
        publisher.publish(topic, b"%d" % number, qos=1)
    a.kill()
    try:
        for number in range(20, 40):
            publisher.publish(topic, b"%d" % number, qos=1)
        client = connect(V5, name, broker=b, **persistent(V5))
        assert client.connack.session_present
        expected = [b"in flight", *(b"%d" % number for number in range(40))]
        assert _receive(client, len(expected)) == expected
        client.expect_nothing(0.2)
        away = connect(V5, f"{name}gone", broker=b, **persistent(V5))
        assert _receive(away, 40) == expected[1:]
        publisher.publish(topic, b"after", qos=1)
        client.expect_publish(topic, b"after", ack=True)
        away.expect_publish(topic, b"after", ack=True)
    finally:
        a.restart()
    # it leaves alone what is another's now
    client.ping()
    until(lambda: "sessions restored" in a.log(), 60)
    client = connect(V5, name, broker=a, **persistent(V5))
    assert client.connack.session_present
    publisher.publish(topic, b"back", qos=1)
    client.expect_publish(topic, b"back", ack=True)


def await_stored(broker, connect, new_name):
    """Nobody is told when the will of a session that ends with its connection is stored. A session that outlives it has
    its CONNACK when it is, and with it everything before."""
    connect(V5, new_name("kept"), broker=broker, **persistent(V5)).disconnect()


def await_acknowledged(broker, name):
    """Until a kill does not repeat to the client what it has acknowledged."""
    await_dispatched(broker)
    if name.startswith("app"):
        place = make_key(OWN, name, topic_of(name), 0)

        def is_stored():
            context = stored(broker, TABLE).get(place)
            return context is not None and read_context(context)["committed"] == 1

        until(is_stored, 60, "the acknowledgement is stored")


def _receive(client, count):
    """Payloads, whether they may have been sent before or not."""
    payloads = []
    for _ in range(count):
        packet = client.receive()
        assert packet.type == PacketType.PUBLISH, packet
        client.ack(packet)
        payloads.append(packet.payload)
    return payloads


def test_the_sessions_of_a_dead_broker_are_taken_up(pair, connect, new_name, topic):
    """Nobody comes back: after a while another broker has the sessions, publishes the wills [MQTT-3.1.2-8] and
    gathers what is published for them."""
    a, b = pair
    name = new_name("client")
    watcher = connect(V5, broker=b)
    watcher.subscribe(f"{topic}/will", qos=1)
    client = connect(V5, name, broker=a, **persistent(V5), will=Will(f"{topic}/will", b"gone", qos=1))
    client.subscribe(topic, qos=1)
    connect(V5, new_name("clean"), broker=a, will=Will(f"{topic}/will", b"gone too", qos=1))
    connect(V5, new_name("leaver"), broker=a, will=Will(f"{topic}/will", b"withdrawn", qos=1)).disconnect()
    await_stored(a, connect, new_name)
    a.kill()
    try:
        connect(V5, broker=b).publish(topic, b"meanwhile", qos=1)
        wills = [watcher.expect_publish(f"{topic}/will", ack=True, timeout=90).payload for _ in range(2)]
        assert sorted(wills) == [b"gone", b"gone too"]
        b.await_log("the sessions of a broker that is gone were taken up", seconds=90)
        watcher.expect_nothing(0.2)
    finally:
        a.restart()
    client = connect(V5, name, broker=a, **persistent(V5))
    assert client.connack.session_present
    assert _receive(client, 1) == [b"meanwhile"]


def test_a_will_of_a_dead_broker_comes_before_what_its_client_says_next(pair, connect, new_name, topic):
    """[MQTT-3.1.2-8]: the session ended with its connection. Who is back is not declared dead later."""
    a, b = pair
    name = new_name("client")
    watcher = connect(V5, broker=b)
    watcher.subscribe(topic, qos=1)
    connect(V5, name, broker=a, will=Will(topic, b"offline", qos=1)).publish(topic, b"online", qos=1)
    watcher.expect_publish(topic, b"online", ack=True)
    await_stored(a, connect, new_name)
    a.kill()
    try:
        connect(V5, name, broker=b).publish(topic, b"online again", qos=1)
        watcher.expect_publish(topic, b"offline", ack=True, timeout=30)
        watcher.expect_publish(topic, b"online again", ack=True, timeout=30)
    finally:
        a.restart()
    connect(V5, broker=a).ping()
    watcher.expect_nothing(1.0)
