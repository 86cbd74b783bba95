"""Is every publish in the log, once, whole and in order, and is it acknowledged only when it is there?"""

import time

import pytest

from tests.support.brokers.broker import IS_MOSQUITTO
from tests.support.checkers.naive_partition import murmur3_128
from tests.support.clients.packets import V5, V311, PacketType, Reason, Will, pack_connect, pack_publish
from tests.support.clients.publishers import Publisher
from tests.support.worlds.application import until

pytestmark = pytest.mark.skipif(IS_MOSQUITTO, reason="the log is Penstock's own")

PUBACK, PUBREC = PacketType.PUBACK, PacketType.PUBREC
PARTITIONS = 16


def await_logged(broker, count):
    """What is in the log as soon as `count` records are; QoS 0 has no acknowledgement to wait for."""
    deadline = time.monotonic() + 30
    while len(found := broker.logged()) < count and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def by_topic(records):
    topics = {}
    for record in sorted(records, key=lambda record: (record.partition, record.offset)):
        topics.setdefault(record.publish.topic, []).append(record.publish.payload)
    return topics


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_publish_is_logged_with_all_its_fields(log_broker, connect, qos):
    """Topic, payload, QoS, retain, client id, user name, time, expiry and all properties, user properties in order."""
    properties = {
        "payload_format_indicator": 1,
        "message_expiry_interval": 60,
        "content_type": "text/plain",
        "response_topic": "answer/here",
        "correlation_data": b"\x00\xff",
        "user_property": [("b", "1"), ("a", "2"), ("b", "3")],
    }
    before = int(time.time() * 1000)
    client = connect(V5, "sender", broker=log_broker, username="alice", password=b"alice-secret")
    client.publish("all/fields", b"payload \xff", qos=qos, retain=True, properties=properties)
    client.ping()
    [record] = await_logged(log_broker, 1)
    publish = record.publish
    assert (publish.topic, publish.payload, publish.qos, publish.retain) == ("all/fields", b"payload \xff", qos, True)
    assert (publish.client_id, publish.username) == ("sender", "alice")
    assert before - 1 <= publish.received_at <= int(time.time() * 1000) + 1
    assert publish.expires_at == pytest.approx(publish.received_at + 60_000, abs=1000)
    assert (publish.payload_format, publish.content_type, publish.response_topic, publish.correlation_data) == (
        1,
        "text/plain",
        "answer/here",
        b"\x00\xff",
    )
    assert publish.user_properties == [("b", "1"), ("a", "2"), ("b", "3")]
    assert record.key == b"all/fields"


def test_a_publish_of_an_older_client_has_no_more_than_it_said(log_broker, connect):
    client = connect(V311, "old", broker=log_broker)
    client.publish("t", b"", qos=1)
    [record] = log_broker.logged()
    publish = record.publish
    assert (publish.topic, publish.payload, publish.qos, publish.retain) == ("t", b"", 1, False)
    assert (publish.client_id, publish.username, publish.expires_at) == ("old", None, 0)
    assert publish.user_properties == []
    assert publish.content_type is None


def test_a_topic_alias_is_resolved(log_broker, connect):
    """[MQTT-3.3.2-12]: the log knows topics, not what one connection agreed upon."""
    client = connect(V5, broker=log_broker)
    client.publish("long/name", b"1", qos=1, properties={"topic_alias": 1})
    client.publish("", b"2", qos=1, properties={"topic_alias": 1})
    assert by_topic(log_broker.logged()) == {"long/name": [b"1", b"2"]}


def test_partition_is_the_hash_of_the_topic(log_broker, connect):
    client = connect(V5, broker=log_broker)
    names = [f"plant/{number}/température" for number in range(100)]
    client.send_raw(
        b"".join(pack_publish(V5, name, b"x", qos=1, packet_id=at) for at, name in enumerate(names[:90], 1))
    )
    for at in range(1, 91):
        client.expect(PUBACK, packet_id=at)
    for name in names[90:]:
        client.publish(name, b"x", qos=2)
    records = log_broker.logged()
    assert sorted(record.publish.topic for record in records) == sorted(names)
    for record in records:
        assert record.partition == abs(murmur3_128(record.publish.topic.encode())) % PARTITIONS
    assert len({record.partition for record in records}) > PARTITIONS / 2


def test_order_of_a_topic_is_that_of_its_publishes(log_broker, connect, version):
    """Whatever the QoS of each, and however many come at once."""
    client = connect(version, broker=log_broker)
    packets, ids, expected = [], [], {}
    for number in range(90):
        name, qos, payload = f"order/{number % 3}", number % 7 % 3, b"%d" % number
        packet_id = client.new_packet_id() if qos else None
        ids += [(PUBACK if qos == 1 else PUBREC, packet_id)] if qos else []
        packets.append(pack_publish(version, name, payload, qos=qos, packet_id=packet_id))
        expected.setdefault(name, []).append(payload)
    client.send_raw(b"".join(packets))
    for packet_type, packet_id in ids:
        client.expect(packet_type, packet_id=packet_id)
    assert by_topic(await_logged(log_broker, 90)) == expected


def test_a_publish_sent_again_is_logged_once(log_broker, connect, version):
    """QoS 2: exactly once is also true of the log [MQTT-4.3.3-10] [MQTT3-4.3.3-2]."""
    client = connect(version, broker=log_broker)
    client.send_publish("twice", b"x", qos=2, packet_id=7)
    client.expect(PUBREC, packet_id=7)
    client.send_publish("twice", b"x", qos=2, packet_id=7, dup=True)
    client.expect(PUBREC, packet_id=7)
    client.send_ack(PacketType.PUBREL, 7)
    client.expect(PacketType.PUBCOMP, packet_id=7)
    client.publish("twice", b"y", qos=2, packet_id=7)
    assert by_topic(log_broker.logged()) == {"twice": [b"x", b"y"]}


def test_only_what_is_acknowledged_is_logged_with_persistent(start_log_broker, connect, version):
    broker = start_log_broker({"ingest.log": "persistent"})
    client = connect(version, broker=broker)
    for qos in (0, 1, 2, 0):
        client.publish("mixed", b"%d" % qos, qos=qos)
    client.ping()
    assert by_topic(broker.logged()) == {"mixed": [b"1", b"2"]}


def test_nothing_is_kept_with_none(start_log_broker, connect):
    broker = start_log_broker({"ingest.log": "none"})
    client = connect(V5, broker=broker)
    client.publish("t", b"x", qos=1)
    assert not (broker.data_dir / "log").exists()


def test_memory_provider_acknowledges_and_delivers(start_log_broker, connect, version):
    broker = start_log_broker({"log.provider": "memory"})
    client = connect(version, broker=broker)
    client.subscribe("t", qos=2)
    for qos in (0, 1, 2):
        client.publish("t", b"%d" % qos, qos=qos)
    received = [client.expect_publish("t", qos=qos, ack=True).payload for qos in (0, 1, 2)]
    assert received == [b"0", b"1", b"2"]
    assert not (broker.data_dir / "log").exists()


def test_what_nobody_may_publish_is_not_logged(start_log_broker, tmp_path, connect):
    acl = tmp_path / "acl.toml"
    acl.write_text('[[rules]]\neffect = "allow"\nanonymous = true\ntopics = ["open/#"]\n')
    broker = start_log_broker({"access.acl_file": str(acl)})
    client = connect(V5, broker=broker)
    assert client.publish("closed", b"x", qos=1).reason == Reason.NOT_AUTHORIZED
    client.publish("closed", b"x")
    client.publish("open/a", b"y", qos=1)
    assert by_topic(broker.logged()) == {"open/a": [b"y"]}


def test_acknowledgements_come_in_the_order_of_the_publishes(log_broker, connect, version):
    """[MQTT-4.6.0-2] [MQTT-4.6.0-3] [MQTT3-4.6.0-2] [MQTT3-4.6.0-3], over many partitions."""
    client = connect(version, broker=log_broker)
    expected = []
    for number in range(1, 91):
        qos = 1 + number % 2
        client.send_publish(f"many/{number}", b"x", qos=qos, packet_id=number)
        expected.append((PUBACK if qos == 1 else PUBREC, number))
    assert [(packet.type, packet.packet_id) for packet in (client.receive() for _ in expected)] == expected


def test_what_is_acknowledged_can_be_read_at_once(log_broker, connect):
    """Another process finds the record in the files as soon as the PUBACK is there."""
    client = connect(V5, broker=log_broker)
    for number in range(20):
        client.publish(f"now/{number}", b"%d" % number, qos=1)
        assert b"%d" % number in log_broker.logged_payloads()


def test_unacknowledged_qos_1_counts_for_the_receive_maximum(start_log_broker, connect):
    """[MQTT-3.3.4-7] [MQTT-3.3.4-8]: a publish that waits for the disk is not acknowledged yet."""
    broker = start_log_broker({"limits.receive_maximum": 5})
    polite, greedy = connect(V5, broker=broker), connect(V5, broker=broker)
    for round_number in range(3):
        first = 5 * round_number + 1
        burst = [pack_publish(V5, "polite", b"x", qos=1, packet_id=first + at) for at in range(5)]
        polite.send_raw(b"".join(burst))
        for at in range(5):
            polite.expect(PUBACK, packet_id=first + at)
    greedy.send_raw(b"".join(pack_publish(V5, "greedy", b"x", qos=1, packet_id=at) for at in range(1, 7)))
    greedy.expect_disconnect(Reason.RECEIVE_MAXIMUM_EXCEEDED)
    assert by_topic(broker.logged())["polite"] == [b"x"] * 15


def test_a_will_is_logged(log_broker, connect, version):
    """As a publish of the client that left it [MQTT-3.1.2-8] [MQTT3-3.1.2-8]."""
    client = connect(version, "mortal", broker=log_broker, will=Will("last/words", b"bye", qos=1, retain=True))
    client.close()
    [record] = await_logged(log_broker, 1)
    publish = record.publish
    assert (publish.topic, publish.payload, publish.qos, publish.retain) == ("last/words", b"bye", 1, True)
    assert publish.client_id == "mortal"
    assert record.partition == abs(murmur3_128(b"last/words")) % PARTITIONS


def test_sys_topics_are_not_logged(start_log_broker, connect):
    broker = start_log_broker({"sys.interval": 1})
    client = connect(V5, broker=broker)
    client.subscribe("$SYS/#")
    seen = [client.receive() for _ in range(3)]
    assert all(packet.topic.startswith("$SYS/") for packet in seen)
    time.sleep(1.1)
    client.publish("$SYS/mine", b"x", qos=1)
    client.publish("t", b"x", qos=1)
    assert {record.publish.topic for record in broker.logged()} <= {"t", "$SYS/mine"}


def test_publishers_wait_when_much_is_pending(start_log_broker, connect):
    """log.max_pending_bytes slows publishers down; nothing of theirs is lost or refused."""
    broker = start_log_broker({"log.max_pending_bytes": 20_000, "limits.receive_maximum": 1000})
    subscriber = connect(V5, broker=broker)
    subscriber.subscribe("flood/#")
    flooders = [connect(V5, broker=broker) for _ in range(3)]
    payload = b"." * 500
    for number in range(400):
        for at, flooder in enumerate(flooders):
            flooder.send_raw(pack_publish(V5, f"flood/{at}", b"%d %b" % (number, payload), qos=1, packet_id=number + 1))
    for flooder in flooders:
        for number in range(400):
            assert flooder.expect(PUBACK, packet_id=number + 1).reason < 0x80
    logged = by_topic(broker.logged())
    expected = [b"%d %b" % (number, payload) for number in range(400)]
    assert logged == {f"flood/{at}": expected for at in range(3)}
    delivered = {f"flood/{at}": [] for at in range(3)}
    for _ in range(1200):
        packet = subscriber.expect_publish()
        delivered[packet.topic].append(packet.payload)
    assert delivered == logged


def test_a_connection_that_ends_meanwhile_loses_nothing(log_broker, connect):
    """What was received before the end is logged, and nobody is left waiting for an answer."""
    for number in range(10):
        client = log_broker.client(V311)
        packets = [pack_publish(V311, f"hasty/{number}", b"%d" % at, qos=1, packet_id=at) for at in range(1, 31)]
        client.send_raw(b"".join([pack_connect(V311, f"hasty{number}"), *packets]))
        client.expect(PacketType.CONNACK)
        client.close()
    deadline = time.monotonic() + 30
    while log_broker.logged_payloads().count(b"30") < 10 and time.monotonic() < deadline:
        time.sleep(0.05)
    for name, payloads in by_topic(log_broker.logged()).items():
        assert payloads == [b"%d" % at for at in range(1, len(payloads) + 1)], name
    publisher = Publisher(log_broker, "after", V5, qos=1)
    publisher.start()
    until(lambda: publisher.acknowledged)
    publisher.stop()
    publisher.join()
    assert publisher.acknowledged
    assert publisher.acknowledged <= set(log_broker.logged_payloads())
