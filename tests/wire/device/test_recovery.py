"""Is every message in its state after a reconnect, a restart and a kill of the broker: which id, DUP, PUBREL, expiry?

The scenarios are those of APPLICATION clients: generators that yield where the client is cut off.
"""

import time

import pytest

from tests.support.brokers.broker import IS_MOSQUITTO
from tests.support.clients.packets import V5, V311, PacketType
from tests.support.worlds.application import persistent
from tests.support.worlds.device import await_quiet, publish_all
from tests.wire.application.test_recovery import (
    Client,
    finish,
    pubrels_come_first,
    qos_1_not_acknowledged,
    qos_1_partly_acknowledged,
    qos_2_after_pubrec,
    qos_2_after_pubrel,
    qos_2_before_pubrec,
)

PUBLISH, PUBREC, PUBREL, PUBCOMP = PacketType.PUBLISH, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP
PERSISTED = 0.5  # seconds; well over device.persist_after
VERSIONS = {"v311": V311, "v5": V5}
needs_a_store = pytest.mark.skipif(IS_MOSQUITTO, reason="mosquitto keeps nothing over its end")


class Device(Client):
    """A DEVICE in the middle of a scenario. After a kill a QoS 1 message that it acknowledged may come once more, as if
    for the first time: it was never stored."""

    def again(self, wanted, acknowledged=()):
        raw = self.open()
        assert raw.connack.session_present
        missing, done = list(wanted), {packet.payload for packet in acknowledged} if self.was_killed else set()
        while missing:
            packet = raw.expect_publish(dup=None)
            if packet.payload in done:
                done.discard(packet.payload)
                raw.ack(packet)
                continue
            known = missing.pop(0)
            assert packet.dup, f"{packet} comes again"
            assert (packet.packet_id, packet.payload) == (known.packet_id, known.payload)
            assert (packet.topic, packet.qos) == (known.topic, known.qos)
        return raw

    def take(self, *payloads):
        """These and no other PUBLISH; a PUBREL of what is completed may come first. Acknowledges all."""
        wanted = list(payloads)
        while wanted:
            packet = self.raw.receive()
            if packet.type == PUBREL:
                self.raw.send_ack(PUBCOMP, packet.packet_id)
                continue
            assert (packet.type, packet.payload) == (PUBLISH, wanted.pop(0))
            self.raw.ack(packet)

    def finished(self):
        """Nothing is left of it: neither now nor after another reconnect."""
        self.raw.expect_nothing(0.03)
        self.raw.close()
        if not self.was_killed:
            self.open().expect_nothing(0.03)
            self.raw.close()

    def other(self, name, version=V5, **options):
        """A further connection, of another client."""
        raw = self.broker.client(version)
        raw.connect(f"{self.client_id}-{name}", **options)
        return raw


def qos_2_completed(client):
    """[MQTT-4.3.3-5]: never again, also when the broker did not live to write that it was completed; a PUBREL may."""
    client.subscribed(2)
    sent = client.receive(*[b"%d" % number for number in range(5)], qos=2)
    for packet in sent:
        client.raw.ack(packet)
    yield
    client.publish(b"after", qos=2)
    client.open()
    client.take(b"after")


def stored_and_in_flight(client):
    """In flight, stored while away, published after the end: in this order, with ids of their own [MQTT-2.2.1-3]."""
    client.subscribed(2)
    sent = client.receive(b"a", b"b", b"c", qos=1)
    client.raw.close()
    client.publish(b"d", b"e", qos=1)
    yield
    client.publish(b"f", qos=2)
    raw = client.again(sent)
    fresh = raw.expect_payloads([b"d", b"e", b"f"], ack=False, dup=None)
    assert len({packet.packet_id for packet in (*sent, *fresh)}) == 6
    for packet in (*sent, *fresh):
        raw.ack(packet)


def many_in_flight(client):
    """[MQTT-4.6.0-6]: in the order they were sent in, wherever in the sequence of ids that is (powers of two)."""
    client.subscribed(1)
    for _ in range(6):
        for packet in client.receive(*[b"%d" % number for number in range(10)], qos=1):
            client.raw.ack(packet)
        client.raw.ping()
    sent = client.receive(*[b"kept %d" % number for number in range(12)], qos=1)
    yield
    raw = client.again(sent)
    for packet in sent:
        raw.ack(packet)


def cut_off_once_more(client):
    """[MQTT-3.3.1-1]: DUP also for what the first connection after the end had no room for."""
    client.subscribed(2)
    sent = client.receive(b"a", b"b", b"c", qos=2)
    yield
    raw = client.broker.client(client.version)
    raw.connect(client.client_id, **persistent(client.version, receive_maximum=1))
    raw.close()
    raw = client.again(sent)
    for packet in sent:
        raw.ack(packet)


def expiring_messages(client):
    """[MQTT-3.3.2-5] [MQTT-3.3.2-6]: time goes on while the broker is away; what is left of it is forwarded."""
    client.subscribed(2).disconnect()
    publisher, started = client.other("publisher"), time.monotonic()
    for payload, seconds in {b"short": 2, b"long": 100, b"longest": 0xFFFFFFFF}.items():
        publisher.publish(client.topic, payload, qos=2, properties={"message_expiry_interval": seconds})
    publisher.publish(client.topic, b"none", qos=2)
    publisher.close()
    yield
    time.sleep(max(0.0, started + 2.2 - time.monotonic()))
    packets = client.open().expect_payloads([b"long", b"longest", b"none"], dup=None)
    if client.version == V5:
        gone = time.monotonic() - started
        assert 98 - gone <= packets[0].properties["message_expiry_interval"] <= 98
        assert 0xFFFFFFFF - gone - 2 <= packets[1].properties["message_expiry_interval"] <= 0xFFFFFFFF - 2
        assert "message_expiry_interval" not in packets[2].properties


def a_publisher_in_its_handshakes(client):
    """[MQTT-4.3.3-10] [MQTT-4.3.3-12] [MQTT3-4.3.3-2]: PUBLISH again with DUP and the same id is not delivered twice;
    its PUBREL is answered though the broker that sent the PUBREC is gone."""
    client.subscribed(2)
    options = persistent(client.version)
    publisher = client.other("publisher", client.version, **options)
    for packet_id in (7, 8, 9):
        publisher.send_publish(client.topic, b"%d" % packet_id, qos=2, packet_id=packet_id)
        publisher.expect(PUBREC, packet_id=packet_id, reason=0)
    publisher.send_ack(PUBREL, 9)
    publisher.expect(PUBCOMP, packet_id=9)
    yield
    publisher.close()
    publisher = client.other("publisher", client.version, **options)
    assert publisher.connack.session_present
    for _ in range(2):
        publisher.send_publish(client.topic, b"7", qos=2, packet_id=7, dup=True)
        publisher.expect(PUBREC, packet_id=7, reason=0)
    for packet_id in (7, 8):
        publisher.send_ack(PUBREL, packet_id)
        publisher.expect(PUBCOMP, packet_id=packet_id, reason=0)
    # Completed, the id is that of a new message; 9 was completed before.
    for packet_id in (7, 9):
        publisher.publish(client.topic, b"new %d" % packet_id, qos=2, packet_id=packet_id)
    publisher.close()
    # A broker may deliver at the PUBLISH or at the PUBREL.
    raw = client.open()
    received = [raw.expect_publish(qos=2, dup=None, ack=True).payload for _ in range(5)]
    assert sorted(received) == [b"7", b"8", b"9", b"new 7", b"new 9"]


def retained_messages(client):
    """[MQTT-3.3.1-5] [MQTT3-3.3.1-5]: acknowledged means kept, or removed; what expired meanwhile is not there."""
    publisher, properties = client.other("publisher"), {"user_property": [("a", "b")], "content_type": "c"}
    topic = client.topic

    def retain(level, payload, qos=1, **options):
        publisher.publish(f"{topic}/{level}", payload, qos=qos, retain=True, **options)

    started = time.monotonic()
    retain("kept", b"old")
    retain("kept", b"new", 2, properties=properties)
    retain("removed", b"x")
    retain("removed", b"")
    retain("short", b"x", properties={"message_expiry_interval": 1})
    retain("long", b"x", properties={"message_expiry_interval": 100})
    client.open()
    yield
    publisher.close()
    time.sleep(max(0.0, started + 1.2 - time.monotonic()))
    watcher = client.other("watcher")
    watcher.subscribe(f"{topic}/#", qos=2)
    found = {packet.topic.removeprefix(f"{topic}/"): packet for packet in watcher.receive_all(0.3, at_least=2)}
    assert {name: packet.payload for name, packet in found.items()} == {"kept": b"new", "long": b"x"}
    assert all(packet.retain for packet in found.values())
    assert (found["kept"].qos, found["kept"].properties) == (2, properties)
    assert found["long"].properties["message_expiry_interval"] <= 99
    watcher.close()
    client.open()


def a_clean_start(client):
    """[MQTT-3.1.2-4] [MQTT3-3.1.2-6]: what was stored for the session before it never comes back."""
    client.subscribed(2).disconnect()
    client.publish(b"a", b"b", qos=2)
    client.broker.await_stored(client.client_id, 2)
    client.raw = client.broker.client(client.version)
    client.raw.connect(client.client_id, **persistent(client.version) | {"clean_start": True})
    client.raw.subscribe(client.topic, qos=2)
    yield
    raw = client.open()
    assert raw.connack.session_present == (client.version == V5)
    raw.expect_nothing(0.05)


SCENARIOS = [
    expiring_messages,
    retained_messages,
    qos_1_not_acknowledged,
    qos_1_partly_acknowledged,
    qos_2_before_pubrec,
    qos_2_after_pubrec,
    qos_2_after_pubrel,
    pubrels_come_first,
    qos_2_completed,
    many_in_flight,
    cut_off_once_more,
    stored_and_in_flight,
    a_publisher_in_its_handshakes,
    a_clean_start,
]


@pytest.mark.parametrize("scenario", SCENARIOS[2:])
def test_reconnect(broker, new_name, version, scenario):
    client = Device(broker, new_name("device"), version, new_name("topic/"))
    running = scenario(client)
    next(running)
    client.raw.close()
    finish(running, client)


@needs_a_store
@pytest.mark.parametrize("how", ["kill", "end"])
def test_the_broker_starts_again(broker, new_name, how):
    """All scenarios at once, of both versions: one end of the broker for all of them."""
    everybody = []
    for scenario in SCENARIOS:
        for version in VERSIONS.values():
            client = Device(broker, new_name("device"), version, new_name("topic/"))
            running = scenario(client)
            next(running)
            everybody.append((running, client))
    # What a device has not acknowledged yet is stored soon; before, only its QoS 2 messages have a past.
    await_quiet(broker, PERSISTED)
    getattr(broker, how)()
    broker.restart()
    failures = []
    for running, client in everybody:
        client.was_killed = how == "kill"
        client.raw.close()
        try:
            finish(running, client)
        except (AssertionError, StopIteration) as error:
            failures.append(f"{running.__name__} (MQTT {client.version}): {error}")
    assert not failures, "\n".join(failures)


@needs_a_store
def test_a_kill_at_once_loses_nothing(broker, connect, new_name, topic):
    """What the publisher was told is safe before it is stored for anybody; QoS 2 comes exactly once."""
    clients = [(new_name("device"), version, qos) for version in VERSIONS.values() for qos in (1, 2)]
    for name, version, qos in clients:
        connect(version, name, **persistent(version)).subscribe(topic, qos=qos)
    payloads = [b"%d" % number for number in range(40)]
    publish_all(connect(V5), topic, payloads, 2)
    broker.kill()
    broker.restart()
    for name, version, qos in clients:
        client = connect(version, name, **persistent(version))
        client.expect_payloads(payloads, qos=qos, dup=None)
        client.expect_nothing(0.05)


@needs_a_store
def test_packet_ids_start_again_behind_65535(broker, connect, new_name):
    """The issue: 65535 → 1, never one still stored (reference, defect 7); over a restart, too."""
    devices = []
    for version in VERSIONS.values():
        topic = new_name("topic/")
        device = connect(version, new_name("device"), **persistent(version))
        device.subscribe(topic, qos=2)
        publisher, held = connect(V5), []
        for qos in (1, 2, 2):
            publisher.publish(topic, b"held %d" % len(held), qos=qos)
            held.append(device.expect_publish(qos=qos))
        devices.append((device, topic, held))
    await_quiet(broker, PERSISTED)
    broker.end()
    for device, _, _ in devices:
        broker.use_up_ids(device.client_id, 65_530)
    broker.restart()
    for before, topic, held in devices:
        check_ids_at_the_end(broker, connect, before, topic, held)


def check_ids_at_the_end(broker, connect, before, topic, held):
    client_id, version = before.client_id, before.version
    device, publisher = connect(version, client_id, **persistent(version)), connect(V5)
    again = [device.expect_publish(dup=True) for _ in held]  # of two QoS, whose order is free
    assert {packet.payload: packet.packet_id for packet in again} == {one.payload: one.packet_id for one in held}
    ids = []
    for number in range(12):
        publisher.publish(topic, b"%d" % number, qos=1 + number % 2)
        ids.append(device.expect_publish(topic, b"%d" % number, dup=False, ack=True).packet_id)
    # Messages that are sent as they come take ids of the connection's sequence, stored ones those of the store's: the
    # latter go from 65535 to 1, and none is one that is held.
    stored = ids[1::2]
    assert stored[:5] == [*range(65_531, 65_536)]
    assert stored[5] < 20
    assert not set(ids) & {packet.packet_id for packet in held}
    for packet in held:
        device.ack(packet)
    device.expect_nothing(0.05)
    broker.await_stored(client_id, 0)
