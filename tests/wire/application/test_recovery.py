"""Do unacknowledged messages come again, with their packet ids, after a reconnect, a restart and a kill of the broker?

Each scenario is a generator that yields where its client is cut off; what it does then is the same whether only the
connection ended or the broker too. `again` connects to the session again and tells what may come a second time.
"""

from collections import deque

import pytest

from tests.support.clients.packets import V5, V311, PacketType, Reason
from tests.support.worlds.application import persistent

PUBLISH, PUBACK, PUBREC = PacketType.PUBLISH, PacketType.PUBACK, PacketType.PUBREC
PUBREL, PUBCOMP = PacketType.PUBREL, PacketType.PUBCOMP
# Messages that come one by one are a pack each; nothing here is about how many of those there may be.
SETTINGS = {"application.packs_in_flight": 100, "server.drain_seconds": 1}
VERSIONS = {"v311": V311, "v5": V5}


class Client:
    """An APPLICATION in the middle of a scenario."""

    def __init__(self, broker, client_id, version, topic):
        self.broker, self.client_id, self.version, self.topic = broker, client_id, version, topic
        self.was_killed = False
        self.raw = None

    def open(self):
        self.raw = self.broker.client(self.version)
        self.raw.connect(self.client_id, **persistent(self.version))
        return self.raw

    def subscribed(self, qos):
        self.open().subscribe(self.topic, qos=qos)
        return self.raw

    def publish(self, *payloads, qos):
        with self.broker.client(V5) as publisher:
            publisher.connect(f"of-{self.client_id}")
            for payload in payloads:
                publisher.publish(self.topic, payload, qos=qos)

    def receive(self, *payloads, qos):
        self.publish(*payloads, qos=qos)
        return self.raw.expect_payloads(payloads, ack=False, topic=self.topic, qos=qos, dup=False)

    def again(self, wanted, acknowledged=()):
        """Reconnects: `wanted` come with the ids they had and DUP, in order. What was acknowledged does not come,
        unless the broker was killed: then it may not have known, and a repetition is under the same id with DUP."""
        raw = self.open()
        assert raw.connack.session_present
        missing, done = deque(wanted), {packet.packet_id: packet for packet in acknowledged}
        while missing:
            packet = raw.expect_publish(dup=True)
            known = missing[0]
            if packet.packet_id != known.packet_id and self.was_killed:
                known = done.pop(packet.packet_id)
                raw.ack(packet)
            else:
                missing.popleft()
            assert (packet.packet_id, packet.payload) == (known.packet_id, known.payload)
            assert (packet.topic, packet.qos) == (known.topic, known.qos)
        return raw

    def finished(self):
        """Nothing is left of it: neither now nor after another reconnect."""
        self.raw.expect_nothing(0.1)
        self.raw.close()
        if self.was_killed:
            return
        raw = self.open()
        raw.expect_nothing(0.1)
        raw.close()


def qos_1_not_acknowledged(client):
    """[MQTT-4.4.0-1] [MQTT3-4.4.0-1]"""
    client.subscribed(1)
    sent = client.receive(b"a", b"b", b"c", qos=1)
    yield
    raw = client.again(sent)
    for packet in sent:
        raw.ack(packet)


def qos_1_partly_acknowledged(client):
    """Reference, defects 2 and 3: the acknowledged are not sent again, the others keep id and DUP."""
    client.subscribed(1)
    sent = client.receive(*[b"%d" % number for number in range(10)], qos=1)
    acknowledged = [sent[at] for at in (0, 1, 4, 5, 8)]
    for packet in acknowledged:
        client.raw.ack(packet)
    client.raw.ping()
    yield
    left = [packet for packet in sent if packet not in acknowledged]
    raw = client.again(left, acknowledged)
    for packet in left:
        raw.ack(packet)


def qos_2_before_pubrec(client):
    """[MQTT-4.3.3-7]: the PUBLISH again."""
    client.subscribed(2)
    sent = client.receive(b"a", b"b", qos=2)
    yield
    raw = client.again(sent)
    for packet in sent:
        raw.ack(packet)


def qos_2_after_pubrec(client):
    """The PUBREC went out and the connection ended at once: either the PUBLISH again or the PUBREL, same id."""
    client.subscribed(2)
    [sent] = client.receive(b"a", qos=2)
    client.raw.send_ack(PUBREC, sent.packet_id)
    yield
    raw = client.open()
    packet = raw.receive()
    assert packet.packet_id == sent.packet_id
    if packet.type == PUBLISH:
        assert packet.dup
        assert packet.payload == b"a"
        raw.send_ack(PUBREC, packet.packet_id)
        raw.expect(PUBREL, packet_id=sent.packet_id)
    else:
        assert packet.type == PUBREL
    raw.send_ack(PUBCOMP, sent.packet_id)


def qos_2_after_pubrel(client):
    """[MQTT-4.3.3-5] [MQTT-4.3.3-6]: only the PUBREL, however often; the state is durable before a PUBREL is sent."""
    client.subscribed(2)
    [sent] = client.receive(b"a", qos=2)
    client.raw.send_ack(PUBREC, sent.packet_id)
    client.raw.expect(PUBREL, packet_id=sent.packet_id)
    yield
    client.open().expect(PUBREL, packet_id=sent.packet_id)
    client.raw.close()
    raw = client.open()
    raw.expect(PUBREL, packet_id=sent.packet_id)
    raw.send_ack(PUBCOMP, sent.packet_id)


def pubrels_come_first(client):
    """The issue: PUBREL first where due, then the publishes in their order."""
    client.subscribed(2)
    a, b, c, d = client.receive(b"a", b"b", b"c", b"d", qos=2)
    for packet in (b, d):
        client.raw.send_ack(PUBREC, packet.packet_id)
        client.raw.expect(PUBREL, packet_id=packet.packet_id)
    yield
    raw = client.open()
    for packet in (b, d):
        raw.expect(PUBREL, packet_id=packet.packet_id)
    for packet in (a, c):
        again = raw.expect_publish(client.topic, packet.payload, qos=2, dup=True)
        assert again.packet_id == packet.packet_id
    for packet in (b, d):
        raw.send_ack(PUBCOMP, packet.packet_id)
    for packet in (a, c):
        raw.ack(packet)


def new_messages_follow_with_other_ids(client):
    """[MQTT-2.2.1-3]: the sequence goes on; no id that is in flight is given to another message."""
    client.subscribed(1)
    sent = client.receive(*[b"%d" % number for number in range(20)], qos=1)
    yield
    client.publish(*[b"new %d" % number for number in range(20)], qos=1)
    raw = client.again(sent)
    fresh = raw.expect_payloads([b"new %d" % number for number in range(20)], ack=False, dup=False)
    assert not {packet.packet_id for packet in fresh} & {packet.packet_id for packet in sent}
    ids = [packet.packet_id for packet in fresh]
    assert ids[0] == sent[-1].packet_id + 1, "the sequence goes on after the last id given"
    assert ids == list(range(ids[0], ids[0] + 20))
    for packet in (*sent, *fresh):
        raw.ack(packet)


def main_and_shared_topic(client):
    """Reference, defect 6: equal offsets in the client's own topic and in a shared one are not mixed up."""
    raw = client.open()
    raw.subscribe(client.topic, qos=1)
    assert raw.subscribe(f"$share/of{client.client_id}/{client.topic}/shared", qos=1) == [1]
    client.publish(b"own", qos=1)
    own = raw.expect_publish(client.topic, b"own", dup=False)
    with client.broker.client(V5) as publisher:
        publisher.connect(f"of-{client.client_id}")
        publisher.publish(f"{client.topic}/shared", b"shared", qos=1)
    shared = raw.expect_publish(f"{client.topic}/shared", b"shared", dup=False)
    assert own.packet_id != shared.packet_id
    yield
    raw = client.open()
    again = {packet.payload: packet for packet in (raw.expect_publish(dup=True) for _ in range(2))}
    assert again[b"own"].packet_id == own.packet_id
    assert again[b"shared"].packet_id == shared.packet_id
    for packet in again.values():
        raw.ack(packet)


SCENARIOS = [
    qos_1_not_acknowledged,
    qos_1_partly_acknowledged,
    qos_2_before_pubrec,
    qos_2_after_pubrec,
    qos_2_after_pubrel,
    pubrels_come_first,
    new_messages_follow_with_other_ids,
    main_and_shared_topic,
]


def finish(scenario, client):
    with pytest.raises(StopIteration):
        next(scenario)
    client.finished()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_reconnect(broker, new_name, version, scenario):
    """Seed: the same packet ids, DUP, PUBREL state; acknowledged messages are done."""
    client = Client(broker, new_name("app"), version, new_name("topic/"))
    running = scenario(client)
    next(running)
    client.raw.close()
    finish(running, client)


@pytest.mark.parametrize("how", ["end", "kill"])
def test_the_broker_ends_and_starts_again(broker, new_name, how):
    """The issue: unacknowledged ids, their offsets and PUBREL states survive SIGTERM and kill -9."""
    everybody = []
    for scenario in SCENARIOS:
        for version in VERSIONS.values():
            client = Client(broker, new_name("app"), version, new_name("topic/"))
            running = scenario(client)
            next(running)
            everybody.append((running, client))
    getattr(broker, how)()
    broker.restart()
    for running, client in everybody:
        client.was_killed = how == "kill"
        client.raw.close()
        finish(running, client)


def test_ids_go_on_over_many_reconnects(open_app, publisher, topic, version):
    """Seed: the sequence is restored from the last id given, so that none meets one in flight."""
    client = open_app(version)
    client.subscribe(topic, qos=1)
    held, ids = [], []
    for number in range(5):
        publisher.publish(topic, b"kept %d" % number, qos=1)
        publisher.publish(topic, b"done %d" % number, qos=1)
        kept = client.expect_publish(topic, b"kept %d" % number, dup=False)
        done = client.expect_publish(topic, b"done %d" % number, dup=False, ack=True)
        held.append(kept)
        ids += [kept.packet_id, done.packet_id]
        client.ping()
        client.close()
        client = open_app(version)
        again = [client.expect_publish(dup=True) for _ in held]
        assert [(one.packet_id, one.payload) for one in again] == [(one.packet_id, one.payload) for one in held]
    assert len(set(ids)) == 10
    for packet in held:
        client.ack(packet)
    client.expect_nothing()


def test_pubrec_with_an_error_ends_the_message(open_app, publisher, topic):
    """[MQTT-4.3.3-4] 4.3.3: no PUBREL, no repetition, and the next message is not held up."""
    client = open_app(V5)
    client.subscribe(topic, qos=2)
    publisher.publish(topic, b"refused", qos=2)
    refused = client.expect_publish(topic, b"refused", qos=2)
    client.send_ack(PUBREC, refused.packet_id, Reason.UNSPECIFIED)
    client.expect_nothing()
    publisher.publish(topic, b"next", qos=2)
    client.expect_publish(topic, b"next", qos=2, ack=True)
    client.ping()
    client.close()
    open_app(V5).expect_nothing()


def test_puback_with_an_error_ends_the_message(open_app, publisher, topic):
    """4.3.2: whatever its reason, a PUBACK completes the delivery."""
    client = open_app(V5)
    client.subscribe(topic, qos=1)
    publisher.publish(topic, b"refused", qos=1)
    client.send_ack(PUBACK, client.expect_publish(topic, b"refused").packet_id, Reason.QUOTA_EXCEEDED)
    client.ping()
    client.close()
    open_app(V5).expect_nothing()


def test_pubrel_comes_at_once(open_app, publisher, topic, version):
    """Reference, defect 5: not with the next pack; and a message is done only at PUBCOMP."""
    client = open_app(version)
    client.subscribe(topic, qos=2)
    publisher.publish(topic, b"x", qos=2)
    packet = client.expect_publish(topic, b"x", qos=2)
    client.send_ack(PUBREC, packet.packet_id)
    client.expect(PUBREL, packet_id=packet.packet_id)
    client.close()
    client = open_app(version)
    client.expect(PUBREL, packet_id=packet.packet_id)
    client.send_ack(PUBCOMP, packet.packet_id)
    client.expect_nothing()


def test_acknowledgements_of_nothing_change_nothing(open_app, backlog, version):
    """Ids that are not in flight, and the wrong kind for one that is: PUBREC for QoS 1, PUBACK for QoS 2."""
    payloads = backlog(version, 4)
    client = open_app(version)
    sent = client.expect_payloads(payloads, ack=False)
    for packet_id in (60_000, 60_001):
        client.send_ack(PUBACK, packet_id)
        client.send_ack(PUBCOMP, packet_id)
    client.ping()
    client.close()
    again = open_app(version).expect_payloads(payloads, dup=True)
    assert [packet.packet_id for packet in again] == [packet.packet_id for packet in sent]


def test_a_smaller_receive_maximum_after_a_reconnect(open_app, backlog):
    """[MQTT-3.3.4-9] [MQTT-4.9.0-1]: the new connection's maximum counts for what is sent again, too."""
    payloads = backlog(V5, 8)
    client = open_app(V5)
    sent = client.expect_payloads(payloads, ack=False)
    client.close()
    client = open_app(V5, receive_maximum=3)
    for at, packet in enumerate(sent):
        again = client.expect_publish(payload=packet.payload, dup=True)
        assert again.packet_id == packet.packet_id
        if at == 2:
            client.expect_nothing()
        if at >= 2:
            client.ack(sent[at - 2])
    for packet in sent[-2:]:
        client.ack(packet)
    client.expect_nothing()
