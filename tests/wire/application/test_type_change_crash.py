"""The type of a client changes with messages under way, and then the broker ends: nothing is lost, nothing doubled."""

import pytest

from tests.support.brokers.broker import IS_MOSQUITTO
from tests.support.clients.packets import V5, PacketType
from tests.support.worlds.application import persistent, topic_of

pytestmark = pytest.mark.skipif(IS_MOSQUITTO, reason="types of clients are Penstock's own")
PROVIDERS = ["embedded"]


@pytest.fixture
def types(broker):
    """Changes the types; they are as before at the end."""
    yield broker.change_types
    broker.change_types(("app*",))


def restarted(broker, connect, client_id, how, **properties):
    getattr(broker, how)()
    broker.restart()
    return connect(V5, client_id, **persistent(V5, **properties))


@pytest.mark.parametrize("how", ["kill", "end"])
def test_a_device_becomes_an_application_before_it_has_everything(
    *, broker, types, connect, publisher, client_id, topic, how
):
    """What is stored comes first, in pieces, over connections and restarts; then what its own topic has."""
    client = connect(V5, client_id, **persistent(V5))
    client.subscribe(topic, qos=2)
    publisher.publish(topic, b"completed", qos=2)
    client.expect_publish(payload=b"completed", ack=True)
    publisher.publish(topic, b"received", qos=2)
    received = client.expect_publish(payload=b"received")
    client.send_ack(PacketType.PUBREC, received.packet_id)
    client.expect(PacketType.PUBREL, packet_id=received.packet_id)
    client.close()
    stored = [b"%d" % number for number in range(12)]
    for number, payload in enumerate(stored):
        publisher.publish(topic, payload, qos=1 + number % 2)
    types(("app*", client_id))
    client = connect(V5, client_id, **persistent(V5, receive_maximum=5))
    broker.await_topic(topic_of(client_id))
    client.expect(PacketType.PUBREL, packet_id=received.packet_id)
    client.send_ack(PacketType.PUBCOMP, received.packet_id)
    publisher.publish(topic, b"for its topic", qos=2)
    sent = [client.expect_publish(dup=False) for _ in range(5)]
    assert [packet.payload for packet in sent] == stored[:5]
    client.ack(sent[0])
    client.ping()
    client.close()
    client = restarted(broker, connect, client_id, how, receive_maximum=5)
    seen = {}
    while b"for its topic" not in seen:
        packet = client.receive()
        if packet.type == PacketType.PUBREL:  # that it was answered was perhaps not written either
            assert packet.packet_id == received.packet_id
            client.send_ack(PacketType.PUBCOMP, received.packet_id)
            continue
        assert packet.type == PacketType.PUBLISH
        client.ack(packet)
        assert packet.payload not in seen
        seen[packet.payload] = packet.packet_id
    # The first may come once more: that it was acknowledged was perhaps not written when the broker was killed.
    assert [payload for payload in seen if payload != stored[0]] == [*stored[1:], b"for its topic"]
    assert [seen[packet.payload] for packet in sent[1:]] == [packet.packet_id for packet in sent[1:]]
    client.expect_nothing(0.1)
    client.close()
    connect(V5, client_id, **persistent(V5)).expect_nothing(0.1)


def test_an_application_that_became_a_device_while_connected(
    *, broker, types, backlog, connect, publisher, app_id, topic
):
    """It is one at once: what it has not acknowledged is stored, and there after a kill."""
    payloads = backlog(V5, 5)
    types(())
    client = connect(V5, app_id, **persistent(V5))
    client.expect_payloads(payloads, dup=None)
    broker.await_topic(topic_of(app_id), exists=False)
    publisher.publish(topic, b"held", qos=1)
    client.expect_publish(payload=b"held")
    client.close()
    publisher = connect(V5)
    publisher.publish(topic, b"while away", qos=1)
    client = restarted(broker, connect, app_id, "kill")
    seen = [client.expect_publish(dup=None, ack=True).payload]
    while seen[-1] != b"while away":
        seen.append(client.expect_publish(dup=None, ack=True).payload)
    # At least once: what was stored in the last moments before a kill may be dispatched again.
    assert list(dict.fromkeys(seen)) == [b"held", b"while away"]
    client.expect_nothing(0.1)
