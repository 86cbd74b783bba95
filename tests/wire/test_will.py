"""Is the will published when, and only when, a connection ends without a normal DISCONNECT?"""

import pytest

from tests.support.clients.packets import V5, V31, V311, Reason, Will

ALL_VERSIONS = pytest.mark.parametrize("version", [V31, V311, V5])


@pytest.fixture
def watcher(connect, topic):
    client = connect(V5)
    client.subscribe(topic, qos=2, retain_as_published=True)
    return client


@ALL_VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_will_after_an_abnormal_end(connect, watcher, topic, version, qos):
    """[MQTT-3.1.2-8] [MQTT-3.1.2-14] [MQTT3-3.1.2-8] [MQTT3-3.1.2-16]: once, at its QoS, not retained."""
    connect(version, will=Will(topic, b"gone", qos)).close()
    watcher.expect_publish(topic, b"gone", qos=qos, retain=False, ack=True)
    watcher.expect_nothing()


@ALL_VERSIONS
def test_no_will_after_disconnect(connect, watcher, topic, version):
    """[MQTT-3.1.2-10] [MQTT-3.14.4-3] [MQTT3-3.1.2-10] [MQTT3-3.14.4-3]"""
    connect(version, will=Will(topic, b"gone")).disconnect()
    watcher.expect_nothing()


def test_will_after_disconnect_with_will(connect, watcher, topic):
    """3.14.2.1: reason 0x04, and any other but 0x00, leaves the will to be published."""
    for reason in (Reason.DISCONNECT_WITH_WILL, Reason.UNSPECIFIED, Reason.ADMINISTRATIVE_ACTION):
        connect(V5, will=Will(topic, b"gone")).disconnect(reason)
        watcher.expect_publish(topic, b"gone")


def test_no_will_without_the_will_flag(connect, watcher, version):
    """[MQTT3-3.1.2-12]"""
    connect(version).close()
    watcher.expect_nothing()


def test_will_after_a_keep_alive_timeout(connect, watcher, topic, version):
    """[MQTT-3.1.2-8] [MQTT-3.1.2-22] [MQTT3-3.1.2-8]"""
    connect(version, keep_alive=1, will=Will(topic, b"gone"))
    watcher.expect_publish(topic, b"gone")


def test_will_after_a_protocol_error(connect, watcher, topic, version):
    """[MQTT-3.1.2-8] [MQTT3-3.1.2-8]: also when the server ends the connection."""
    client = connect(version, will=Will(topic, b"gone"))
    client.send_raw(b"\x82\x00")
    watcher.expect_publish(topic, b"gone")


@ALL_VERSIONS
def test_retained_will(connect, watcher, topic, version):
    """[MQTT-3.1.2-15] [MQTT3-3.1.2-17]: late subscribers find it, too."""
    connect(version, will=Will(topic, b"gone", 1, retain=True)).close()
    watcher.expect_publish(topic, b"gone", qos=1, retain=True, ack=True)
    late = connect(version)
    late.subscribe(topic, qos=1)
    late.expect_publish(topic, b"gone", qos=1, retain=True)


def test_empty_retained_will_removes_a_retained_message(connect, topic, version):
    """[MQTT-3.1.2-15] [MQTT-3.3.1-6] [MQTT3-3.3.1-10]"""
    connect(version).publish(topic, b"old", qos=1, retain=True)
    watcher = connect(version)
    watcher.subscribe(topic)
    watcher.expect_publish(topic, b"old", retain=True)
    connect(version, will=Will(topic, b"", retain=True)).close()
    watcher.expect_publish(topic, b"", retain=False)
    late = connect(version)
    late.subscribe(topic)
    late.expect_nothing()


def test_will_is_published_once(connect, client_id, watcher, topic, version):
    """[MQTT-3.1.2-10] [MQTT3-3.1.2-10]: gone once published; a later connection has its own or none."""
    connect(version, client_id, will=Will(topic, b"first")).close()
    watcher.expect_publish(topic, b"first")
    connect(version, client_id).close()
    connect(version, client_id, will=Will(topic, b"second")).close()
    watcher.expect_publish(topic, b"second")
    watcher.expect_nothing()


def test_will_properties_are_forwarded(connect, watcher, topic):
    """[MQTT-3.1.3-10] [MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17]
    [MQTT-3.3.2-20]: unaltered, in order."""
    properties = {
        "payload_format_indicator": 1,
        "content_type": "text/plain",
        "response_topic": "answer/here",
        "correlation_data": b"\x00\x01\xff",
        "user_property": [("b", "1"), ("a", "2"), ("b", "1")],
    }
    connect(V5, will=Will(topic, b"gone", 1, properties=properties)).close()
    assert watcher.expect_publish(topic, b"gone").properties == properties


def test_will_message_expiry_is_forwarded(connect, watcher, topic):
    """3.1.3.2.4, [MQTT-3.3.2-6]: counted from the publication."""
    connect(V5, will=Will(topic, b"gone", properties={"message_expiry_interval": 100})).close()
    assert watcher.expect_publish(topic, b"gone").properties["message_expiry_interval"] in (99, 100)


def test_will_reaches_persistent_subscribers(connect, client_id, topic, version):
    """[MQTT-3.1.2-8] [MQTT-4.5.0-1] [MQTT3-3.1.2-8]: like any other message."""
    options = {"clean_start": False} | ({"properties": {"session_expiry_interval": 60}} if version == V5 else {})
    connect(version, client_id, **options).subscribe(topic, qos=1)
    connect(version, client_id, **options).disconnect()
    connect(version, will=Will(topic, b"gone", 1)).close()
    watcher = connect(V5)
    watcher.ping()
    connect(version, client_id, **options).expect_publish(topic, b"gone", qos=1)
