"""Do the properties of a PUBLISH reach every subscriber as they were sent?"""

import pytest

from tests.support.clients.packets import V5, V311, Reason

EVERY_PROPERTY = {
    "payload_format_indicator": 1,
    "content_type": "application/json; charset=utf-8",
    "response_topic": "answers/for/me",
    "correlation_data": bytes(range(256)),
    "user_property": [("b", "2"), ("a", "1"), ("b", "2"), ("b", "1"), ("", ""), ("ключ", "значение")],
}


@pytest.fixture
def subscriber(connect, topic):
    client = connect(V5)
    client.subscribe(topic, qos=2)
    return client


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_all_together(connect, subscriber, topic, qos):
    """[MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20]"""
    connect(V5).publish(topic, b'{"a": 1}', qos=qos, properties=EVERY_PROPERTY)
    subscriber.expect_publish(topic, b'{"a": 1}', qos=qos, properties=EVERY_PROPERTY, ack=True)


@pytest.mark.parametrize("name", EVERY_PROPERTY)
def test_each_alone(connect, subscriber, topic, name):
    """As above, one property a packet, so that none depends on another."""
    connect(V5).publish(topic, b"x", properties={name: EVERY_PROPERTY[name]})
    subscriber.expect_publish(topic, b"x", properties={name: EVERY_PROPERTY[name]})


@pytest.mark.parametrize(
    "properties", [{"payload_format_indicator": 0}, {"correlation_data": b""}, {"content_type": ""}]
)
def test_values_that_look_like_nothing(connect, subscriber, topic, properties):
    """[MQTT-3.3.2-4] [MQTT-3.3.2-16] [MQTT-3.3.2-20]: zero and empty are values, too."""
    connect(V5).publish(topic, b"x", properties=properties)
    received = subscriber.expect_publish(topic, b"x").properties
    assert received == properties or (not received and properties == {"payload_format_indicator": 0})


def test_other_versions_get_the_message_without_properties(connect, topic):
    """A 3.1.1 subscriber and publisher work together with MQTT 5 ones."""
    old, new = connect(V311), connect(V5)
    old.subscribe(topic, qos=1)
    new.subscribe(topic, qos=1)
    new.send_publish(topic, b"from new", qos=1, properties=EVERY_PROPERTY)
    old.expect_publish(topic, b"from new", qos=1, ack=True)
    old.send_publish(topic, b"from old", qos=1)
    everything = new.receive_all(at_least=3)  # its own message, the acknowledgement of it, the other's message
    received = [packet for packet in everything if packet.payload == b"from old"]
    assert [packet.properties for packet in received] == [{}]


def test_request_and_response(connect, new_name, client_id):
    """4.10: a whole exchange with response topic and correlation data."""
    requests = new_name("requests/")
    requester = connect(V5, client_id, properties={"request_response_information": 1})
    answers = f"{requester.connack.properties['response_information']}/answers"
    requester.subscribe(answers, qos=1)
    responder = connect(V5)
    responder.subscribe(requests, qos=1)
    properties = {"response_topic": answers, "correlation_data": b"\x07"}
    requester.publish(requests, b"question", qos=1, properties=properties)
    request = responder.expect_publish(requests, b"question", ack=True)
    answer_to = {"correlation_data": request.properties["correlation_data"]}
    responder.publish(request.properties["response_topic"], b"answer", qos=1, properties=answer_to)
    requester.expect_publish(answers, b"answer", properties={"correlation_data": b"\x07"})


BAD = {
    "payload format twice": (Reason.PROTOCOL_ERROR, b"\x01\x01\x01\x01"),
    "message expiry twice": (Reason.PROTOCOL_ERROR, b"\x02\0\0\0\1" * 2),
    "content type twice": (Reason.PROTOCOL_ERROR, b"\x03\0\1a" * 2),
    "response topic twice": (Reason.PROTOCOL_ERROR, b"\x08\0\1a" * 2),
    "correlation data twice": (Reason.PROTOCOL_ERROR, b"\x09\0\1a" * 2),
    "topic alias twice": (Reason.PROTOCOL_ERROR, b"\x23\0\1" * 2),
    "payload format 2": ((Reason.PROTOCOL_ERROR, Reason.MALFORMED, Reason.PAYLOAD_FORMAT_INVALID), b"\x01\x02"),
    "response topic with + [MQTT-3.3.2-14]": (
        (Reason.PROTOCOL_ERROR, Reason.MALFORMED, Reason.TOPIC_NAME_INVALID),
        b"\x08\0\3a/+",
    ),
    "response topic with # [MQTT-3.3.2-14]": (
        (Reason.PROTOCOL_ERROR, Reason.MALFORMED, Reason.TOPIC_NAME_INVALID),
        b"\x08\0\1#",
    ),
    "response topic not UTF-8 [MQTT-3.3.2-13]": (Reason.MALFORMED, b"\x08\0\1\xff"),
    "content type not UTF-8 [MQTT-3.3.2-19]": (Reason.MALFORMED, b"\x03\0\1\xff"),
    "user property name not UTF-8 [MQTT-1.5.7-1]": (Reason.MALFORMED, b"\x26\0\1\xff\0\0"),
    "user property value not UTF-8 [MQTT-1.5.7-1]": (Reason.MALFORMED, b"\x26\0\0\0\1\xff"),
    "unknown property": (Reason.MALFORMED, b"\x04\0"),
    "property of CONNECT": (Reason.MALFORMED, b"\x11\0\0\0\1"),
    "property of the will": (Reason.MALFORMED, b"\x18\0\0\0\1"),
    "reason string": (Reason.MALFORMED, b"\x1f\0\1a"),
    "truncated value": (Reason.MALFORMED, b"\x02\0\0"),
    "truncated user property": (Reason.MALFORMED, b"\x26\0\1a"),
    "identifier of two bytes longer than needed [MQTT-1.5.5-1]": (Reason.MALFORMED, b"\x81\x00\x01"),
}


@pytest.mark.parametrize(("reason", "block"), BAD.values(), ids=BAD.keys())
def test_bad_properties(connect, bystander, topic, reason, block):
    """2.2.2.2, 3.3.2.3, [MQTT-4.13.1-1]"""
    client = connect(V5)
    client.send_publish(topic, b"x", properties=block)
    client.expect_disconnect(reason)
