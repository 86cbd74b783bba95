"""Does an APPLICATION get every message it subscribed to, online or not, once, in order and as it was published?"""

import pytest

from tests.support.clients.packets import V5, V311, PacketType, pack_publish
from tests.support.worlds.application import persistent, topic_of


@pytest.mark.parametrize("qos", [1, 2])
def test_offline_messages_come_in_order(open_app, backlog, topic, version, qos):
    """Seed: every message, including those published while the client was offline [MQTT-3.1.2-5] [MQTT3-3.1.2-5]."""
    payloads = backlog(version, 30, qos)
    client = open_app(version)
    assert client.connack.session_present
    packets = client.expect_payloads(payloads, topic=topic, qos=qos, dup=False)
    assert len({packet.packet_id for packet in packets}) == 30
    client.expect_nothing()
    client.disconnect()
    open_app(version).expect_nothing()


def test_a_backlog_of_many_packs(open_app, publisher, topic, version):
    """More than packs_in_flight * max_poll_records, over several topics: order per topic, nothing twice."""
    client = open_app(version)
    client.subscribe(f"{topic}/+", qos=1)
    client.disconnect()
    numbers = range(2_000)
    for first in range(0, 2_000, 100):
        batch = numbers[first : first + 100]
        publisher.send_raw(
            b"".join(
                pack_publish(V5, f"{topic}/{number % 3}", b"%d" % number, qos=1, packet_id=number + 1)
                for number in batch
            )
        )
        for number in batch:
            publisher.expect(PacketType.PUBACK, packet_id=number + 1)
    client = open_app(version)
    received = [client.expect_publish(qos=1, ack=True) for _ in numbers]
    for level in range(3):
        mine = [int(packet.payload) for packet in received if packet.topic == f"{topic}/{level}"]
        assert mine == [number for number in numbers if number % 3 == level]
    client.expect_nothing()


@pytest.mark.parametrize("qos", [1, 2])
def test_live_messages(open_app, publisher, topic, version, qos):
    """What is published while the client is there comes at once and is done with its acknowledgement."""
    client = open_app(version)
    client.subscribe(topic, qos=2)
    for number in range(10):
        publisher.publish(topic, b"%d" % number, qos=qos)
        client.expect_publish(topic, b"%d" % number, qos=qos, ack=True)
    client.close()
    open_app(version).expect_nothing()


def test_live_messages_wait_for_the_backlog(open_app, backlog, publisher, topic, version):
    """Reference, defect 11: what arrives after CONNECT does not overtake what was stored before."""
    payloads = backlog(version, 300)
    client = open_app(version)
    for number in range(300, 330):
        publisher.publish(topic, b"%d" % number, qos=1)
    received = [client.expect_publish(topic, ack=True).payload for _ in range(330)]
    assert received == payloads + [b"%d" % number for number in range(300, 330)]


def test_qos_0_goes_direct_and_is_not_stored(*, broker, open_app, publisher, app_id, topic, version):
    """Reference 1: a message is persisted only when the lower of both QoS is above 0."""
    client = open_app(version)
    client.subscribe(topic, qos=1)
    publisher.publish(topic, b"seen")
    client.expect_publish(topic, b"seen", qos=0)
    client.disconnect()
    publisher.publish(topic, b"lost")
    publisher.publish(topic, b"kept", qos=1)
    assert [record.payload for record in broker.await_records(topic_of(app_id), 1)] == [b"kept"]
    client = open_app(version)
    client.expect_publish(topic, b"kept", qos=1, ack=True)
    client.expect_nothing()


@pytest.mark.parametrize(("published", "subscribed"), [(1, 1), (1, 2), (2, 1), (2, 2), (2, 0), (0, 2)])
def test_effective_qos(*, open_app, publisher, topic, version, published, subscribed):
    """The lower of what was published and what was granted [MQTT-3.8.4-8] [MQTT3-3.8.4-6]."""
    client = open_app(version)
    assert client.subscribe(topic, qos=subscribed) == [subscribed]
    publisher.publish(topic, b"x", qos=published)
    client.expect_publish(topic, b"x", qos=min(published, subscribed), ack=True)


def test_overlapping_subscriptions_give_one_copy(open_app, publisher, topic, version):
    """Dispatch: the highest QoS over the matching filters [MQTT-3.3.4-2] [MQTT3-3.3.5-1]."""
    client = open_app(version)
    client.subscribe(f"{topic}/#", qos=1)
    client.subscribe(f"{topic}/+", qos=2)
    client.subscribe(f"{topic}/a", qos=0)
    publisher.publish(f"{topic}/a", b"x", qos=2)
    client.expect_publish(f"{topic}/a", b"x", qos=2, ack=True)
    client.expect_nothing()


def test_subscription_identifiers(open_app, publisher, topic):
    """[MQTT-3.3.4-3] [MQTT-3.3.4-4]: those of all matching subscriptions, also from the log."""
    client = open_app(V5)
    client.subscribe(f"{topic}/#", qos=1, properties={"subscription_identifier": 7})
    client.subscribe(f"{topic}/a", qos=1, properties={"subscription_identifier": 300_000})
    client.subscribe(f"{topic}/+", qos=1)
    client.disconnect()
    publisher.publish(f"{topic}/a", b"both", qos=1)
    publisher.publish(f"{topic}/b", b"one", qos=1)
    client = open_app(V5)
    packets = [client.expect_publish(ack=True) for _ in range(2)]  # topics have no order among each other
    found = {packet.payload: sorted(packet.properties["subscription_identifier"]) for packet in packets}
    assert found == {b"both": [7, 300_000], b"one": [7]}


def test_properties_are_delivered_unchanged(open_app, publisher, topic):
    """[MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20]: after a time in the log."""
    properties = {
        "payload_format_indicator": 1,
        "content_type": "text/plain",
        "response_topic": "answer/here",
        "correlation_data": b"\x00\xff",
        "user_property": [("b", "1"), ("a", "2"), ("b", "3")],
    }
    client = open_app(V5)
    client.subscribe(topic, qos=1)
    client.disconnect()
    publisher.publish(topic, "ä".encode(), qos=1, properties=properties)
    open_app(V5).expect_publish(topic, "ä".encode(), qos=1, properties=properties, retain=False)


def test_no_local(open_app, publisher, topic):
    """[MQTT-3.8.3-3]: not to the client that published it."""
    client = open_app(V5)
    client.subscribe(topic, qos=1, no_local=True)
    client.publish(topic, b"mine", qos=1)
    publisher.publish(topic, b"theirs", qos=1)
    client.expect_publish(topic, b"theirs", qos=1, ack=True)
    client.expect_nothing()


@pytest.mark.parametrize("keeps", [False, True])
def test_retain_as_published(open_app, publisher, topic, keeps):
    """[MQTT-3.3.1-12] [MQTT-3.3.1-13]"""
    client = open_app(V5)
    client.subscribe(topic, qos=1, retain_as_published=keeps)
    client.disconnect()
    publisher.publish(topic, b"x", qos=1, retain=True)
    open_app(V5).expect_publish(topic, b"x", qos=1, retain=keeps)


def test_retained_messages_on_subscribe(open_app, publisher, topic, version):
    """[MQTT-3.3.1-9] [MQTT3-3.3.1-6]: at the QoS of the subscription, and acknowledged like all others."""
    publisher.publish(topic, b"kept", qos=1, retain=True)
    client = open_app(version)
    client.subscribe(topic, qos=1)
    retained = client.expect_publish(topic, b"kept", qos=1, retain=True)
    publisher.publish(topic, b"live", qos=1)
    live = client.expect_publish(topic, b"live", qos=1, retain=False)
    assert live.packet_id != retained.packet_id
    client.ack(retained)
    client.ack(live)
    client.ping()
    client.close()
    open_app(version).expect_nothing()


def test_acknowledging_a_retained_message_removes_no_other(open_app, backlog, publisher, topic, version):
    """Reference, defect 12: one id space per session; a PUBACK removes only what it was given for."""
    publisher.publish(f"{topic}/retained", b"kept", qos=1, retain=True)
    payloads = backlog(version, 5)
    client = open_app(version)
    stored = client.expect_payloads(payloads, ack=False)
    client.subscribe(f"{topic}/retained", qos=1)
    retained = client.expect_publish(f"{topic}/retained", b"kept", qos=1, ack=True)
    assert retained.packet_id not in {packet.packet_id for packet in stored}
    client.ping()
    client.close()
    again = open_app(version).expect_payloads(payloads, ack=False, dup=True)
    assert [packet.packet_id for packet in again] == [packet.packet_id for packet in stored]


def test_unsubscribe(open_app, publisher, topic, version):
    """[MQTT-3.10.4-2] [MQTT3-3.10.4-2]: nothing more is stored; what was stored before is still the client's."""
    client = open_app(version)
    client.subscribe(topic, f"{topic}/other", qos=1)
    publisher.publish(topic, b"before", qos=1)
    client.expect_publish(topic, b"before", ack=True)
    client.unsubscribe(topic)
    client.disconnect()
    publisher.publish(topic, b"after", qos=1)
    publisher.publish(f"{topic}/other", b"other", qos=1)
    client = open_app(version)
    client.expect_publish(f"{topic}/other", b"other", ack=True)
    client.expect_nothing()


def test_clean_start_drops_the_backlog(*, open_app, backlog, connect, app_id, topic, version):
    """[MQTT-3.1.2-4] [MQTT3-3.1.2-6]: neither messages nor subscriptions of the old session remain."""
    backlog(version, 5)
    options = persistent(version) | {"clean_start": True}
    client = connect(version, app_id, **options)
    assert not client.connack.session_present
    client.expect_nothing()
    client.disconnect()
    again = open_app(version)
    assert again.connack.session_present == (version == V5)
    again.expect_nothing()
    again.subscribe(topic, qos=1)
    again.publish(topic, b"new", qos=1)
    again.expect_publish(topic, b"new", qos=1, ack=True)


def test_an_application_without_a_persistent_session_goes_direct(*, broker, connect, publisher, app_id, topic, version):
    """The issue: clean session, or MQTT 5 with session expiry 0, gets no topic of its own."""
    client = connect(version, app_id, clean_start=version != V5)
    client.subscribe(topic, qos=2)
    publisher.publish(topic, b"x", qos=2)
    client.expect_publish(topic, b"x", qos=2, ack=True)
    assert topic_of(app_id) not in broker.topics()


def test_a_device_has_no_topic(*, broker, connect, publisher, client_id, topic, version):
    """The type is that of the credentials: this one is a DEVICE and persistent."""
    client = connect(version, client_id, **persistent(version))
    client.subscribe(topic, qos=1)
    publisher.publish(topic, b"x", qos=1)
    client.expect_publish(topic, b"x", qos=1, ack=True)
    assert topic_of(client_id) not in broker.topics()


def test_one_message_for_many(*, broker, open_app, connect, publisher, topic, new_name):
    """APPLICATIONs of both versions and a DEVICE side by side: each gets its own copy at its own QoS."""
    apps = [(new_name("app"), (V311, V5)[number % 2], 1 + number // 2) for number in range(4)]
    for name, version, qos in apps:
        open_app(version, name).subscribe(topic, qos=qos)
    device = connect(V5)
    device.subscribe(topic, qos=2)
    publisher.publish(topic, b"x", qos=2)
    device.expect_publish(topic, b"x", qos=2)
    for name, version, qos in apps:
        again = open_app(version, name)
        again.expect_publish(topic, b"x", qos=qos, dup=None, ack=True)
        again.expect_nothing(0.05)


def test_large_and_empty_payloads(open_app, publisher, topic, version):
    payloads = [b"", b"x" * 300_000, b"", b"y" * 900_000, b"z"]
    client = open_app(version)
    client.subscribe(topic, qos=1)
    client.disconnect()
    for payload in payloads:
        publisher.publish(topic, payload, qos=1)
    open_app(version).expect_payloads(payloads, qos=1)


def test_a_message_larger_than_the_client_takes_is_skipped(open_app, publisher, topic):
    """[MQTT-3.1.2-24] [MQTT-3.1.2-25]: as if it had been delivered; it holds nothing up."""
    client = open_app(V5, maximum_packet_size=1000)
    client.subscribe(topic, qos=1)
    client.disconnect()
    for payload in (b"small", b"x" * 2000, b"after"):
        publisher.publish(topic, payload, qos=1)
    client = open_app(V5, maximum_packet_size=1000)
    client.expect_payloads([b"small", b"after"])
    client.expect_nothing()
    client.close()
    open_app(V5).expect_nothing()


def test_take_over(open_app, backlog, version):
    """[MQTT-3.1.4-3] [MQTT3-3.1.4-2]: the new connection goes on where the old one was, with the same ids."""
    payloads = backlog(version, 10)
    first = open_app(version)
    sent = first.expect_payloads(payloads, ack=False)
    first.ack(sent[0])
    first.ping()
    second = open_app(version)
    again = second.expect_payloads(payloads[1:], dup=True)
    assert [packet.packet_id for packet in again] == [packet.packet_id for packet in sent[1:]]
    second.expect_nothing()


def test_published_by_the_application_itself(open_app, topic, version):
    client = open_app(version)
    client.subscribe(topic, qos=2)
    for qos in (1, 2):
        client.publish(topic, b"%d" % qos, qos=qos)
        client.expect_publish(topic, b"%d" % qos, qos=qos, ack=True)


def test_what_was_published_before_the_subscription_does_not_come(open_app, publisher, topic, version, new_name):
    client, witness = open_app(version), open_app(version, new_name("app"))
    witness.subscribe(topic, qos=1)
    publisher.publish(topic, b"before", qos=1)
    witness.expect_publish(topic, b"before")
    client.subscribe(topic, qos=1)
    publisher.publish(topic, b"after", qos=1)
    client.expect_publish(topic, b"after", ack=True)
    client.expect_nothing()
