"""Is a pack sent only when there is room for it, with one pack at a time and with several?"""

import pytest

from tests.support.clients.packets import V5, PacketType
from tests.support.worlds.application import until

SETTINGS = {"application.max_poll_records": 5, "application.packs_in_flight": 1, "application.pack_timeout": 60}


def test_the_next_pack_waits_for_the_last_acknowledgement(open_app, backlog, version):
    """Seed: deliver, wait, commit. No sixth message before the first five are acknowledged."""
    payloads = backlog(version, 12)
    client = open_app(version)
    for first in (0, 5):
        pack = client.expect_payloads(payloads[first : first + 5], ack=False)
        client.expect_nothing()
        for packet in (pack[4], pack[0], pack[1], pack[3]):
            client.ack(packet)
        client.expect_nothing(0.1)
        client.ack(pack[2])
    client.expect_payloads(payloads[10:])
    client.expect_nothing(0.1)


def test_qos_2_counts_until_pubcomp(open_app, backlog, version):
    """Seed: only after PUBCOMP is the message acknowledged."""
    payloads = backlog(version, 6, 2)
    client = open_app(version)
    pack = client.expect_payloads(payloads[:5], ack=False, qos=2)
    for packet in pack[:4]:
        client.ack(packet)
    last = pack[4].packet_id
    client.send_ack(PacketType.PUBREC, last)
    client.expect(PacketType.PUBREL, packet_id=last)
    client.expect_nothing()
    client.send_ack(PacketType.PUBCOMP, last)
    client.expect_publish(payload=payloads[5], qos=2, ack=True)


def test_receive_maximum_below_the_pack(open_app, backlog):
    """[MQTT-3.3.4-9]: released by the acknowledgement itself (reference, defect 18)."""
    payloads = backlog(V5, 10)
    client = open_app(V5, receive_maximum=2)
    for pack in (payloads[:5], payloads[5:]):
        in_flight = client.expect_payloads(pack[:2], ack=False)
        client.expect_nothing()
        for payload in pack[2:]:
            client.ack(in_flight.pop(0))
            in_flight.append(client.expect_publish(payload=payload))
            client.expect_nothing(0.03)
        for packet in in_flight:
            client.ack(packet)
    client.expect_nothing(0.1)


def test_no_more_than_a_pack_of_live_messages(open_app, publisher, topic, version):
    """What is published while the client does not acknowledge waits in the log."""
    client = open_app(version)
    client.subscribe(topic, qos=1)
    payloads = [b"%d" % number for number in range(20)]
    for payload in payloads:
        publisher.publish(topic, payload, qos=1)
    received, in_flight = [], []
    while len(received) < 20:
        packet = client.expect_publish(topic)
        received.append(packet.payload)
        in_flight.append(packet)
        in_flight += [late for late in client.receive_all(0.1) if received.append(late.payload) is None]
        assert len(in_flight) <= 5
        for one in in_flight:
            client.ack(one)
        in_flight.clear()
    assert received == payloads


@pytest.mark.parametrize("qos", [1, 2])
def test_packs_that_mix_qos(open_app, publisher, topic, version, qos):
    """Every message of a pack counts, whatever its QoS."""
    client = open_app(version)
    client.subscribe(topic, qos=2)
    client.disconnect()
    expected = []
    for number in range(12):
        level = qos if number % 2 else 3 - qos
        publisher.publish(topic, b"%d" % number, qos=level)
        expected.append((b"%d" % number, level))
    client = open_app(version)
    assert [(packet.payload, packet.qos) for packet in client.expect_payloads(dict(expected))] == expected


def test_the_commit_follows_the_acknowledgements(broker, open_app, backlog, app_id, version):
    """`penstock app lag` sees what is committed: nothing while one of the pack is missing, then all of it."""
    payloads = backlog(version, 5)
    client = open_app(version)
    pack = client.expect_payloads(payloads, ack=False)
    for packet in pack[1:]:
        client.ack(packet)
    client.ping()
    assert lag_of(broker, app_id) == 5
    client.ack(pack[0])
    until(lambda: lag_of(broker, app_id) == 0, 60, "committed")


def lag_of(broker, app_id):
    return broker.application(app_id)["lag"]
