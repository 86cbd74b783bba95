"""Does a DEVICE get what it subscribed to, online or not, in order, within its bounds, and is its store empty then?"""

import re
import time

import pytest

from tests.support.clients.packets import V5, V311, PacketType, Reason
from tests.support.worlds.application import only_penstock, persistent, until
from tests.support.worlds.device import await_quiet, publish_all

PUBACK, PUBREC, PUBREL, PUBCOMP = PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP
LIMIT, PAGE = 150, 20
SETTINGS = {"device.messages_limit": LIMIT, "device.page_size": PAGE}


def numbered(count, first=0):
    return [b"%d" % number for number in range(first, first + count)]


@pytest.mark.parametrize("qos", [1, 2])
def test_offline_messages_come_in_order(*, broker, open_device, backlog, client_id, topic, version, qos):
    """Several pages of them [MQTT-3.1.2-5] [MQTT-4.5.0-1] [MQTT3-3.1.2-5]; acknowledged, they are gone for good."""
    payloads = backlog(version, 3 * PAGE + 5, qos)
    client = open_device(version)
    assert client.connack.session_present
    packets = client.expect_payloads(payloads, topic=topic, qos=qos, dup=False)
    assert len({packet.packet_id for packet in packets}) == len(payloads)
    client.expect_nothing()
    broker.await_stored(client_id, 0)
    client.close()
    open_device(version).expect_nothing()


def test_several_topics_and_qos_keep_their_order(*, broker, open_device, publisher, client_id, topic, version):
    """[MQTT-4.6.0-5] [MQTT3-4.6.0-6]: per topic; a QoS 0 message is not kept for the absent (reference 1)."""
    client = open_device(version)
    client.subscribe(f"{topic}/+", qos=2)
    client.disconnect()
    for number in range(30):
        publisher.publish(f"{topic}/{number % 3}", b"%d" % number, qos=number % 3)
    broker.await_stored(client_id, 20)
    client = open_device(version)
    received = [client.expect_publish(ack=True) for _ in range(20)]
    for level in (1, 2):
        mine = [(int(packet.payload), packet.qos) for packet in received if packet.topic == f"{topic}/{level}"]
        assert mine == [(number, level) for number in range(30) if number % 3 == level]
    client.expect_nothing()


def test_live_messages_wait_for_the_backlog(*, broker, open_device, backlog, publisher, client_id, topic, version):
    """Reference, defect 11: what arrives after CONNECT neither overtakes the stored nor comes twice."""
    payloads = backlog(version, 3 * PAGE)
    client = open_device(version)
    publish_all(publisher, topic, numbered(PAGE, 3 * PAGE))
    client.expect_payloads(payloads + numbered(PAGE, 3 * PAGE), topic=topic, dup=False)
    publisher.publish(topic, b"live", qos=1)
    client.expect_publish(topic, b"live", ack=True)
    client.expect_nothing(0.1)
    broker.await_stored(client_id, 0)


def test_after_the_backlog_deliveries_are_direct_again(broker, open_device, backlog, publisher, topic):
    """The issue: the store is used only when it is needed."""
    only_penstock()
    payloads = backlog(V5, PAGE + 5)
    client = open_device(V5)
    client.expect_payloads(payloads)
    await_quiet(broker)
    before = broker.store_operations()
    for number in range(20):
        publisher.publish(topic, b"%d" % number, qos=1)
        client.expect_publish(topic, b"%d" % number, ack=True)
    # A busy machine may keep one or the other for more than persist_after.
    assert broker.store_operations() - before < 20


def test_a_message_for_many_devices(broker, open_device, publisher, topic, new_name):
    """Online and offline, both versions, each at its own QoS."""
    devices = [(new_name("many"), (V311, V5)[number % 2], 1 + number // 2 % 2) for number in range(8)]
    clients = []
    for name, version, qos in devices:
        client = open_device(version, name)
        client.subscribe(topic, qos=qos)
        clients.append(client)
    for client in clients[4:]:
        client.disconnect()
    publisher.publish(topic, b"x", qos=2)
    for (name, version, qos), client in zip(devices, clients, strict=True):
        is_there = client in clients[:4]
        current = client if is_there else open_device(version, name)
        current.expect_publish(topic, b"x", qos=qos, dup=None if is_there else False, ack=True)
        current.expect_nothing(0.02)


def test_properties_are_stored_whole(broker, open_device, publisher, client_id, topic):
    """[MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20] [MQTT-3.3.4-3]"""
    client = open_device(V5)
    client.subscribe(topic, qos=1, retain_as_published=True, properties={"subscription_identifier": 268_435_455})
    client.disconnect()
    properties = {
        "payload_format_indicator": 1,
        "content_type": "a/b",
        "response_topic": "r",
        "correlation_data": b"\x00\xff",
        "user_property": [("z", "1"), ("a", "2"), ("z", "1")],
    }
    publisher.publish(topic, b"x", qos=1, retain=True, properties=properties)
    publisher.publish(topic, b"", qos=1)
    publisher.publish(topic, bytes(500_000), qos=1)
    broker.await_stored(client_id, 3)
    client = open_device(V5)
    packet = client.expect_publish(topic, b"x", qos=1, retain=True, ack=True)
    assert packet.properties == {**properties, "subscription_identifier": [268_435_455]}
    client.expect_payloads([b"", bytes(500_000)], retain=False)


# Bounds


def test_receive_maximum(*, broker, open_device, backlog, publisher, client_id, topic):
    """[MQTT-3.3.4-9] [MQTT-4.9.0-1]: stored and live ones; each acknowledgement lets the next out (defect 18)."""
    payloads = backlog(V5, PAGE + 10)
    client = open_device(V5, receive_maximum=4)
    first = client.expect_payloads(payloads[:4], ack=False)
    client.expect_nothing(0.1)
    publish_all(publisher, topic, numbered(5, PAGE + 10))
    client.expect_nothing(0.1)
    waiting = [*first]
    for payload in (payloads + numbered(5, PAGE + 10))[4:]:
        client.ack(waiting.pop(0))
        waiting.append(client.expect_publish(topic, payload, dup=False))
    for packet in waiting:
        client.ack(packet)
    client.expect_nothing(0.1)
    broker.await_stored(client_id, 0)


@pytest.mark.parametrize("qos", [1, 2])
def test_over_its_quota_a_connected_device_waits_in_the_store(*, broker, open_device, publisher, client_id, topic, qos):
    """The issue: not writable or over the quota is like being away; nothing is lost, order stays."""
    client = open_device(V5, receive_maximum=3)
    client.subscribe(topic, qos=qos)
    publish_all(publisher, topic, numbered(3 * PAGE), qos)
    packets = client.expect_payloads(numbered(3), ack=False, dup=False)
    broker.await_stored(client_id, 3 * PAGE)
    for number in range(3, 3 * PAGE):
        client.ack(packets.pop(0))
        packets.append(client.expect_publish(topic, b"%d" % number, dup=False))
    for packet in packets:
        client.ack(packet)
    client.expect_nothing(0.1)
    broker.await_stored(client_id, 0)


def test_the_limit_drops_the_oldest(*, broker, open_device, leave, publisher, client_id, topic, version):
    """Seed: trimmed from the front; the issue: and counted."""
    only_penstock()
    leave(version)
    before = broker.trimmed()
    publish_all(publisher, topic, numbered(LIMIT + 30))
    until(lambda: broker.trimmed() - before == 30, 60, "30 counted")
    assert broker.stored(client_id) == LIMIT
    client = open_device(version)
    client.expect_payloads(numbered(LIMIT, 30), dup=False)
    client.expect_nothing(0.1)


def dropped_as_store_full(broker):
    found = re.search(r'^penstock_messages_dropped_total\{cause="store_full"\} (\S+)$', broker.metrics(), re.MULTILINE)
    return float(found[1])


def test_what_gave_way_is_counted_by_cause_and_client(*, broker, leave, publisher, client_id, topic, penstock_command):
    """Like every other drop: in the metric of all of them, and in what is shown of the client."""
    only_penstock()
    leave()
    before = dropped_as_store_full(broker)
    publish_all(publisher, topic, numbered(LIMIT + 12))
    until(lambda: dropped_as_store_full(broker) - before == 12, 60, "12 counted")  # the page is a second old at most
    url = f"http://127.0.0.1:{broker.admin_port}"
    shown = penstock_command("session", "show", client_id, "--url", url, "--data-dir", str(broker.data_dir))
    assert shown.returncode == 0, shown.stderr
    assert re.search(r"^dropped\W+store_full 12$", shown.stdout, re.MULTILINE), shown.stdout


def test_what_gave_way_in_a_group_is_counted(*, broker, open_device, publisher, client_id, topic):
    """While it is the group's it is of no client; where it is more than its member has room for, it is the member's."""
    only_penstock()
    open_device().subscribe(f"$share/limited/{topic}", topic, qos=1)
    open_device().disconnect()
    before = dropped_as_store_full(broker)
    publish_all(publisher, topic, numbered(LIMIT + 7))
    until(lambda: dropped_as_store_full(broker) - before == 14, 60, "7 of the group and 7 of the client counted")
    assert broker.api(f"sessions/{client_id}")["dropped"] == {"store_full": 7}
    open_device(receive_maximum=1)
    until(lambda: dropped_as_store_full(broker) - before == 14 + LIMIT, 60, "counted when the member gets them")
    assert broker.api(f"sessions/{client_id}")["dropped"] == {"store_full": 7 + LIMIT}


# Packet ids


@pytest.mark.parametrize("qos", [1, 2])
def test_unacknowledged_ones_keep_their_ids(*, open_device, publisher, broker, client_id, topic, version, qos):
    """[MQTT-4.4.0-1] [MQTT3-4.4.0-1] [MQTT-2.2.1-3]: DUP, the same id, in order, then those that came meanwhile."""
    client = open_device(version)
    client.subscribe(topic, qos=qos)
    publish_all(publisher, topic, numbered(10), qos)
    sent = client.expect_payloads(numbered(10), ack=False, dup=False)
    for packet in sent[3:6]:
        client.ack(packet)
    client.ping()
    client.close()
    publish_all(publisher, topic, numbered(PAGE, 10), qos)
    left = sent[:3] + sent[6:]
    broker.await_stored(client_id, len(left) + PAGE)
    client = open_device(version)
    again = client.expect_payloads([packet.payload for packet in left], ack=False, dup=True)
    assert [packet.packet_id for packet in again] == [packet.packet_id for packet in left]
    fresh = client.expect_payloads(numbered(PAGE, 10), ack=False, dup=False)
    assert len({packet.packet_id for packet in (*left, *fresh)}) == len(left) + PAGE
    for packet in (*left, *fresh):
        client.ack(packet)
    client.expect_nothing(0.1)
    broker.await_stored(client_id, 0)


@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_sent_comes_before_what_was_stored(*, broker, open_device, publisher, client_id, topic, qos):
    """[MQTT-4.6.0-1] [MQTT-4.6.0-6]: though some were stored only when the connection was lost, behind the others."""
    client = open_device(V5, receive_maximum=4)
    client.subscribe(topic, qos=qos)
    publish_all(publisher, topic, numbered(12), qos)
    sent = client.expect_payloads(numbered(4), ack=False, dup=False)
    client.close()
    publish_all(publisher, topic, numbered(4, 12), qos)
    broker.await_stored(client_id, 16)
    client = open_device(V5)
    again = client.expect_payloads(numbered(4), dup=True)
    assert [packet.packet_id for packet in again] == [packet.packet_id for packet in sent]
    client.expect_payloads(numbered(12, 4), dup=False)
    client.expect_nothing(0.05)
    broker.await_stored(client_id, 0)


def test_acknowledgements_in_any_order_and_of_nothing(broker, open_device, backlog, client_id, version):
    """A PUBACK removes what it was given for; ids that were not given, and wrong kinds, remove nothing."""
    payloads = backlog(version, 6)
    client = open_device(version)
    packets = client.expect_payloads(payloads, ack=False)
    for packet_id in (60_000, 60_001):
        client.send_ack(PUBACK, packet_id)
        client.send_ack(PUBCOMP, packet_id)
    for at in (5, 2, 0):
        client.ack(packets[at])
    client.ping()
    broker.await_stored(client_id, 3)
    client.close()
    again = open_device(version).expect_payloads([payloads[at] for at in (1, 3, 4)], dup=True)
    assert [packet.packet_id for packet in again] == [packets[at].packet_id for at in (1, 3, 4)]


def test_acknowledging_a_retained_message_removes_no_stored_one(
    *, broker, open_device, backlog, publisher, client_id, topic, version
):
    """Reference, defect 12: one id space per session; those of retained messages are not given to others."""
    publish_all(publisher, f"{topic}/a", [b"kept"], retain=True)
    payloads = backlog(version, PAGE + 5)
    client = open_device(version)
    stored = client.expect_payloads(payloads, ack=False)
    client.subscribe(f"{topic}/a", qos=1)
    retained = client.expect_publish(f"{topic}/a", b"kept", qos=1, retain=True)
    publisher.publish(topic, b"live", qos=1)
    live = client.expect_publish(topic, b"live")
    assert len({packet.packet_id for packet in (*stored, retained, live)}) == len(stored) + 2
    client.ack(retained)
    client.ping()
    client.close()
    again = open_device(version).expect_payloads([*payloads, b"live"], ack=True, dup=True)
    assert [packet.packet_id for packet in again] == [packet.packet_id for packet in (*stored, live)]
    broker.await_stored(client_id, 0)


def test_pubrec_with_an_error_ends_the_message(broker, open_device, backlog, client_id):
    """4.3.3: no PUBREL, and it leaves the store."""
    backlog(V5, 2, qos=2)
    client = open_device(V5)
    refused, other = client.expect_payloads(numbered(2), ack=False)
    client.send_ack(PUBREC, refused.packet_id, Reason.UNSPECIFIED)
    client.ack(other)
    client.expect_nothing(0.1)
    broker.await_stored(client_id, 0)
    client.close()
    open_device(V5).expect_nothing(0.1)


# Expiry


def test_expired_while_offline(*, broker, open_device, leave, publisher, client_id, topic, version):
    """[MQTT-3.3.2-5] [MQTT-3.3.2-6]: not delivered; of the others, what is left of the interval."""
    leave(version)
    intervals = {b"none": None, b"short": 1, b"long": 100, b"zero": 0, b"past 2**31": 0xFFFFFFFF}
    for payload, seconds in intervals.items():
        properties = None if seconds is None else {"message_expiry_interval": seconds}
        publisher.publish(topic, payload, qos=1, properties=properties)
    time.sleep(1.3)
    client = open_device(version)
    packets = client.expect_payloads([b"none", b"long", b"past 2**31"], dup=False)
    if version == V5:
        lefts = [packet.properties.get("message_expiry_interval") for packet in packets]
        assert lefts[0] is None
        assert 95 <= lefts[1] <= 99
        assert 0xFFFFFFFF - 6 <= lefts[2] <= 0xFFFFFFFF - 1
    client.expect_nothing(0.1)
    broker.await_stored(client_id, 0)


# The ends of sessions


def test_clean_start_removes_the_stored(*, broker, connect, open_device, backlog, client_id, topic, version):
    """[MQTT-3.1.2-4] [MQTT3-3.1.2-6]: and nothing of the old session reaches the new one."""
    backlog(version, 5)
    client = connect(version, client_id, **persistent(version) | {"clean_start": True})
    assert not client.connack.session_present
    client.subscribe(topic, qos=1)
    client.expect_nothing(0.1)
    broker.await_stored(client_id, 0)
    client.publish(topic, b"new", qos=1)
    assert client.expect_publish(topic, b"new", ack=True).packet_id
    client.expect_nothing(0.05)


@pytest.mark.parametrize("how", ["expiry", "disconnect"])
def test_the_end_of_a_session_removes_the_stored(*, broker, open_device, backlog, client_id, topic, how):
    """[MQTT-3.1.2-23] [MQTT-4.1.0-2]: when its interval has passed, not when a job runs (reference, defect 22)."""
    backlog(V5, 5, seconds=1 if how == "expiry" else 300)
    if how == "disconnect":
        client = open_device(V5)
        client.expect_payloads(numbered(5), ack=False)
        client.disconnect(properties={"session_expiry_interval": 0})
    broker.await_stored(client_id, 0, 5)
    client = open_device(V5)
    assert not client.connack.session_present
    client.subscribe(topic, qos=1)
    client.expect_nothing(0.1)


@pytest.mark.parametrize("qos", [1, 2])
def test_take_over(*, broker, open_device, backlog, publisher, client_id, topic, version, qos):
    """[MQTT-3.1.4-3] [MQTT-4.4.0-1]: the new connection gets all that the old one had not acknowledged."""
    payloads = backlog(version, PAGE + 5, qos)
    old = open_device(version)
    packets = old.expect_payloads(payloads, ack=False)
    old.ack(packets[0])
    old.ping()
    new = open_device(version)
    old.expect_disconnect(Reason.SESSION_TAKEN_OVER)
    publisher.publish(topic, b"live", qos=qos)
    again = new.expect_payloads(payloads[1:], dup=True)
    assert [packet.packet_id for packet in again] == [packet.packet_id for packet in packets[1:]]
    new.expect_publish(topic, b"live", ack=True)
    new.expect_nothing(0.1)
    broker.await_stored(client_id, 0)


def test_one_message_for_each_connection(broker, open_device, backlog, client_id, version):
    """[MQTT-4.4.0-1]: a device that takes one and goes gets all, with the id each had before."""
    payloads, ids = backlog(version, 5), {}
    for payload in payloads:
        client = open_device(version)
        for packet in (client.expect_publish(dup=None) for _ in range(len(payloads) - int(payload))):
            assert ids.setdefault(packet.payload, packet.packet_id) == packet.packet_id
            if packet.payload == payload:
                client.ack(packet)
        client.ping()
        client.close()
    open_device(version).expect_nothing(0.1)
    broker.await_stored(client_id, 0)


def test_ids_that_look_like_keys(*, broker, connect, publisher, topic):
    """Reference, defect 14: a client id never meets another's keys, whatever it looks like."""
    names = ["}a", "{a}", "%", "a%7B", f"ss_g_{topic}", "a_messages", "a_last_packet_id", "ä/+#", "a"]
    for name in names:
        client = connect(V5, name, **persistent(V5))
        client.subscribe(f"{topic}/{names.index(name)}", qos=1)
        client.disconnect()
    for at, _ in enumerate(names):
        publisher.publish(f"{topic}/{at}", b"%d" % at, qos=1)
    for at, name in enumerate(names):
        client = connect(V5, name, **persistent(V5))
        client.expect_publish(f"{topic}/{at}", b"%d" % at, dup=False, ack=True)
        client.expect_nothing(0.02)
        client.disconnect(properties={"session_expiry_interval": 0})
