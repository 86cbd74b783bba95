"""Do retained messages and the state of QoS 2 publishers survive the end of the broker?"""

import time

import pytest

from tests.support.brokers.log_broker import LogBroker
from tests.support.clients.packets import V5, V311, PacketType


@pytest.fixture
def broker(tmp_path):
    running = LogBroker(tmp_path)
    running.wait_until_listening()
    yield running
    running.kill()


def end_and_start(broker, how="kill", seconds=0.0):
    if how == "kill":
        broker.kill()
    else:
        broker.process.terminate()
        broker.process.wait(60)
    time.sleep(seconds)
    broker.restart()


def persistent(version):
    return {"clean_start": False} | ({"properties": {"session_expiry_interval": 600}} if version == V5 else {})


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_retained_messages(broker, connect, end):
    """[MQTT-3.3.1-5]: the last of each topic, with its properties; what was deleted or has expired is not there."""
    publisher = connect(V5, broker=broker)
    for payload in (b"old", b"new"):
        publisher.publish("r/kept", payload, qos=1, retain=True, properties={"content_type": "a"})
    publisher.publish("r/deleted", b"x", qos=1, retain=True)
    publisher.publish("r/deleted", b"", qos=1, retain=True)
    publisher.publish("r/short", b"x", qos=1, retain=True, properties={"message_expiry_interval": 1})
    publisher.publish("r/long", b"x", qos=1, retain=True, properties={"message_expiry_interval": 500})
    publisher.publish("r/qos0", b"0", qos=0, retain=True)
    publisher.publish("r/last", b"", qos=1)  # the publishes before it are in the log now
    end_and_start(broker, end, 1.1)
    subscriber = connect(V5, broker=broker)
    subscriber.subscribe("r/#", qos=1)
    found = {packet.topic: packet for packet in subscriber.receive_all(1.0, at_least=3)}
    assert sorted(found) == ["r/kept", "r/long", "r/qos0"]
    assert found["r/kept"].payload == b"new"
    assert found["r/kept"].properties["content_type"] == "a"
    assert found["r/kept"].retain
    assert 490 < found["r/long"].properties["message_expiry_interval"] < 500


@pytest.mark.parametrize("version", [V311, V5])
def test_a_qos_2_publish_is_taken_once(broker, connect, version):
    """[MQTT-4.3.3-10] [MQTT3-4.3.3-2]: the packet id counts as received until PUBREL, also after a kill -9."""
    subscriber = connect(version, "reader", broker=broker, **persistent(version))
    subscriber.subscribe("q", qos=1)
    publisher = connect(version, "writer", broker=broker, **persistent(version))
    publisher.send_publish("q", b"once", qos=2, packet_id=7)
    publisher.expect(PacketType.PUBREC, packet_id=7)
    subscriber.expect_publish("q", b"once", ack=True)
    end_and_start(broker)
    subscriber = connect(version, "reader", broker=broker, **persistent(version))
    publisher = connect(version, "writer", broker=broker, **persistent(version))
    publisher.send_publish("q", b"once", qos=2, packet_id=7, dup=True)
    publisher.expect(PacketType.PUBREC, packet_id=7)
    publisher.send_ack(PacketType.PUBREL, 7)
    publisher.expect(PacketType.PUBCOMP, packet_id=7)
    end_and_start(broker)
    publisher = connect(version, "writer", broker=broker, **persistent(version))
    publisher.send_publish("q", b"another", qos=2, packet_id=7)
    publisher.expect(PacketType.PUBREC, packet_id=7)
    subscriber = connect(version, "reader", broker=broker, **persistent(version))
    payloads = []
    while b"another" not in payloads:
        payloads.append(subscriber.receive().payload)
    payloads += [packet.payload for packet in subscriber.receive_all(1.0)]
    # QoS 1 towards the subscriber: what was acknowledged just before the kill may come again, the second sending not
    assert payloads.count(b"another") == 1
    assert payloads.count(b"once") <= 1
