"""Do the rate limits hold: of a publisher, of a subscriber, of all together; and what is stored for DEVICE clients?"""

import time
import urllib.request

from tests.support.brokers.broker import free_port
from tests.support.clients.packets import V5, V311, PacketType, pack_publish

QUOTA_EXCEEDED = 0x97


def await_dropped(broker, cause, count, seconds=60):
    """The page is made once a second at most."""
    deadline = time.monotonic() + seconds
    sample = f'penstock_messages_dropped_total{{cause="{cause}"}} {float(count)}'
    while True:
        with urllib.request.urlopen(f"http://{broker.tables['admin']['address']}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        if sample in text.splitlines():
            return
        found = [line for line in text.splitlines() if line.startswith("penstock_messages_dropped_total")]
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def rates(**limits):
    enabled = {f"{name}_enabled": True for name in limits}
    return {"rate_limits": {**limits, **enabled}, "admin": {"address": f"127.0.0.1:{free_port()}"}}


def test_what_a_client_publishes(start_file_broker, connect, topic):
    """MQTT 5: refused with 0x97, and it may go on later; another client has a limit of its own."""
    broker = start_file_broker(rates(incoming="5:1,8:60"))
    subscriber, client = connect(V5, broker=broker), connect(V5, broker=broker)
    subscriber.subscribe(topic, qos=2)
    # In one go: the second must not end meanwhile.
    client.send_raw(
        b"".join(pack_publish(V5, topic, b"%d" % n, qos=1 + n % 2, packet_id=n + 1) for n in range(7)),
    )
    kinds = [PacketType.PUBREC if number % 2 else PacketType.PUBACK for number in range(7)]
    answers = [client.expect(kind, packet_id=number) for number, kind in enumerate(kinds, 1)]
    assert [answer.reason for answer in answers] == [0] * 5 + [QUOTA_EXCEEDED] * 2
    for packet_id in (2, 4):
        client.send_ack(PacketType.PUBREL, packet_id)
        client.expect(PacketType.PUBCOMP, packet_id=packet_id)
    assert connect(V5, broker=broker).publish(topic, b"other", qos=1).reason == 0
    time.sleep(1.1)
    # Three are left of the eight in a minute.
    assert [client.publish(topic, b"late", qos=1).reason for _ in range(5)] == [0] * 3 + [QUOTA_EXCEEDED] * 2
    client.publish(topic, b"QoS 0")
    client.ping()
    expected = [b"0", b"1", b"2", b"3", b"4", b"other", b"late", b"late", b"late"]
    assert sorted(subscriber.expect_publish(ack=True).payload for _ in expected) == sorted(expected)
    subscriber.expect_nothing(0.1)
    await_dropped(broker, "rate_incoming", 5)


def test_an_old_client_loses_its_connection(start_file_broker, connect, topic):
    """MQTT 3 has no word for it."""
    broker = start_file_broker(rates(incoming="3:1"))
    client = connect(V311, broker=broker)
    client.send_raw(b"".join(pack_publish(V311, topic, b"x", qos=1, packet_id=number) for number in range(1, 5)))
    assert {packet.type for packet in client.receive_until_closed()} <= {PacketType.PUBACK}


def test_what_a_client_is_sent(start_file_broker, connect, topic):
    """QoS 0 to those whose session ends with their connection; neither QoS 1 nor a session that stays."""
    broker = start_file_broker(rates(outgoing="4:60"))
    passing, publisher = connect(V5, broker=broker), connect(V5, broker=broker)
    staying = connect(V5, broker=broker, clean_start=False, properties={"session_expiry_interval": 60})
    for client in (passing, staying):
        client.subscribe(topic, qos=1)
    for number in range(10):
        publisher.publish(topic, b"%d" % number)
    publisher.publish(topic, b"QoS 1", qos=1)
    assert [passing.expect_publish(ack=True).payload for _ in range(5)] == [b"0", b"1", b"2", b"3", b"QoS 1"]
    assert len([staying.expect_publish(ack=True) for _ in range(11)]) == 11
    passing.expect_nothing(0.1)
    await_dropped(broker, "rate_outgoing", 6)


def test_all_together(start_file_broker, connect, topic):
    """What is published and what is sent with QoS 0 count."""
    broker = start_file_broker(rates(total="10:60"))
    subscriber, one, two = (connect(V5, broker=broker) for _ in range(3))
    subscriber.subscribe(topic, qos=0)
    reasons = [client.publish(topic, b"x", qos=1).reason for _ in range(4) for client in (one, two)]
    assert reasons == [0] * 5 + [QUOTA_EXCEEDED] * 3
    assert len([subscriber.expect_publish() for _ in range(5)]) == 5
    await_dropped(broker, "rate_all", 3)


def test_what_is_stored(start_file_broker, connect, topic, new_name):
    """For DEVICE clients that are away; the publisher does not hear of it."""
    broker = start_file_broker(rates(device="6:60"))
    name = new_name("device")
    kept = {"clean_start": False, "properties": {"session_expiry_interval": 60}}
    client = connect(V5, name, broker=broker, **kept)
    client.subscribe(topic, qos=1)
    client.disconnect()
    publisher = connect(V5, broker=broker)
    assert {publisher.publish(topic, b"%d" % number, qos=1).reason for number in range(10)} == {0}
    await_dropped(broker, "rate_stored", 4)
    client = connect(V5, name, broker=broker, **kept)
    client.expect_payloads([b"%d" % number for number in range(6)])
