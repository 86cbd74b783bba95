"""Is the store used when it is needed and only then?

`persist_after` is long here, so that how busy the machine is decides nothing.
"""

import os
import signal
import time

import pytest

from tests.support.clients.packets import V5, V311, PacketType
from tests.support.worlds.application import only_penstock, persistent, until
from tests.support.worlds.device import await_quiet, publish_all, pump

PUBLISH, PUBREC, PUBREL, PUBCOMP = PacketType.PUBLISH, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP
PERSIST_AFTER = 3.0
SETTINGS = {"device.persist_after": PERSIST_AFTER}
MOST_OPERATIONS = 0.05  # of the issue, for each online message


@pytest.fixture(autouse=True)
def _has_a_store():
    only_penstock()


def test_acknowledged_at_once_it_never_reaches_the_store(*, broker, connect, open_device, client_id, topic, provider):
    """The issue: at most 0.05 commands of Redis for an online message; the original has 10."""
    count = 10_000 if provider == "embedded" else 4_000
    device, publisher = open_device(V311), connect(V5, f"{client_id}-p", **persistent(V5))
    device.subscribe(topic, qos=1)
    pump(publisher, device, topic, 100)
    await_quiet(broker)
    before = broker.store_operations()
    ids = pump(publisher, device, topic, count)
    operations = broker.store_operations() - before
    assert operations <= MOST_OPERATIONS * count
    assert broker.stored(client_id) == 0
    assert ids == list(range(ids[0], ids[0] + count)), "ids go on one by one"
    device.close()
    open_device(V311).expect_nothing(0.1)


def test_stored_when_not_acknowledged_in_time(*, broker, open_device, publisher, client_id, topic, version):
    """The issue: only after persist_after; then a later PUBACK removes it."""
    device = open_device(version)
    device.subscribe(topic, qos=1)
    publish_all(publisher, topic, [b"a", b"b"])
    first, second = device.expect_payloads([b"a", b"b"], ack=False)
    assert broker.stored(client_id) == 0
    broker.await_stored(client_id, 2, PERSIST_AFTER + 30)
    device.ack(first)
    broker.await_stored(client_id, 1)
    device.ack(second)
    broker.await_stored(client_id, 0)
    device.expect_nothing(0.05)


def test_a_lost_connection_stores_what_was_under_way(*, broker, open_device, publisher, client_id, topic, version):
    """Not only after persist_after: the device is away now."""
    device = open_device(version)
    device.subscribe(topic, qos=1)
    publish_all(publisher, topic, [b"%d" % number for number in range(10)])
    sent = device.expect_payloads([b"%d" % number for number in range(10)], ack=False)
    device.ack(sent[4])
    device.ping()
    device.close()
    broker.await_stored(client_id, 9, PERSIST_AFTER)
    left = sent[:4] + sent[5:]
    again = open_device(version).expect_payloads([packet.payload for packet in left], dup=True)
    assert [packet.packet_id for packet in again] == [packet.packet_id for packet in left]
    broker.await_stored(client_id, 0)


def test_qos_2_is_stored_before_it_is_sent(*, broker, open_device, publisher, client_id, topic, version):
    """So that it comes exactly once whatever happens; it leaves with its PUBCOMP, not before [MQTT-4.3.3-7]."""
    device = open_device(version)
    device.subscribe(topic, qos=2)
    publisher.publish(topic, b"x", qos=2)
    packet = device.expect_publish(topic, b"x", qos=2)
    assert broker.stored(client_id) == 1
    device.send_ack(PUBREC, packet.packet_id)
    device.expect(PUBREL, packet_id=packet.packet_id)
    assert broker.stored(client_id) == 1
    device.send_ack(PUBCOMP, packet.packet_id)
    broker.await_stored(client_id, 0)


def test_no_pubrel_before_the_store_knows(broker, open_device, publisher, topic):
    """Reference, defect 4: else a crash would send the PUBLISH again to a client that has completed it."""
    if broker.redis is None:
        pytest.skip("LMDB cannot be stopped")
    device = open_device(V5)
    device.subscribe(topic, qos=2)
    publisher.publish(topic, b"x", qos=2)
    packet = device.expect_publish(topic, b"x", qos=2)
    os.kill(broker.redis.pid, signal.SIGSTOP)
    try:
        device.send_ack(PUBREC, packet.packet_id)
        device.expect_nothing(0.2)
        device.close()
        device = open_device(V5)
        early = device.receive_all(0.4)
        assert PUBREL not in {one.type for one in early}
    finally:
        os.kill(broker.redis.pid, signal.SIGCONT)
    came = early.pop(0) if early else device.receive()
    if came.type == PUBLISH:  # at once with DUP: that is true, too
        device.send_ack(PUBREC, came.packet_id)
        came = device.receive()
    assert (came.type, came.packet_id) == (PUBREL, packet.packet_id)
    device.send_ack(PUBCOMP, packet.packet_id)
    device.expect_nothing(0.1)


def test_a_kill_keeps_the_order(broker, connect, client_id, topic):
    """[MQTT-4.6.0-6]: some were sent at once and not stored yet, later ones were stored because of the quota."""
    options = persistent(V5, receive_maximum=4)
    device = connect(V5, client_id, **options)
    device.subscribe(topic, qos=1)
    payloads = [b"%d" % number for number in range(12)]
    publish_all(connect(V5), topic, payloads)
    device.expect_payloads(payloads[:4], ack=False)
    until(lambda: broker.stored(client_id) >= 8, 60, "those over the quota are stored")
    broker.kill()
    broker.restart()
    device = connect(V5, client_id, **options)
    received = [device.expect_publish(dup=None, ack=True).payload for _ in payloads]
    assert received == payloads
    device.expect_nothing(0.05)


def test_clean_sessions_use_no_store(*, broker, connect, publisher, client_id, topic, version):
    """Reference 1: persistent means clean session 0, or an expiry above 0."""
    await_quiet(broker)
    before = broker.store_operations()
    device = connect(version, client_id, clean_start=True)
    device.subscribe(topic, qos=2)
    for qos in (1, 2):
        publisher.publish(topic, b"x", qos=qos)
        device.expect_publish(topic, b"x", qos=qos)
    time.sleep(0.2)
    device.close()
    time.sleep(0.1)
    assert broker.stored(client_id) == 0
    assert broker.store_operations() - before <= 2


def test_store_first(*, broker, connect, topic, client_id):
    """`device.persist_after = 0`: TBMQ's behaviour; what a device has got is stored until it is acknowledged.
    The last test here: the setting stays."""
    broker.restart_with(persist_after=0)
    publisher = connect(V5)
    device = connect(V5, client_id, **persistent(V5))
    device.subscribe(topic, qos=2)
    for qos in (1, 2):
        for number in range(5):
            publisher.publish(topic, b"%d" % number, qos=qos)
            packet = device.expect_publish(topic, b"%d" % number, qos=qos, dup=False)
            assert broker.stored(client_id) == 1
            device.ack(packet)
            broker.await_stored(client_id, 0)
    # An end without a word loses nothing, not even the ids of what was just sent.
    publish_all(publisher, topic, [b"a", b"b", b"c"])
    sent = device.expect_payloads([b"a", b"b", b"c"], ack=False)
    broker.kill()
    broker.restart()
    again = connect(V5, client_id, **persistent(V5)).expect_payloads([b"a", b"b", b"c"], dup=True)
    assert [packet.packet_id for packet in again] == [packet.packet_id for packet in sent]
