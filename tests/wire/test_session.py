"""Is a session kept, resumed and discarded as clean start and session expiry say, and session present true?"""

import time

import pytest

from tests.support.clients.packets import V5, V31, V311, Reason

FOREVER = {"session_expiry_interval": 0xFFFFFFFF}


def persistent(version):
    """Options of a CONNECT whose session outlives the connection."""
    return {"clean_start": False} | ({"properties": FOREVER} if version == V5 else {})


def test_new_session_is_not_present(connect, version):
    """[MQTT-3.1.2-6] [MQTT-3.2.2-3] [MQTT3-3.2.2-3]"""
    assert not connect(version, **persistent(version)).connack.session_present


@pytest.mark.parametrize("gracefully", [True, False])
def test_session_is_resumed(connect, client_id, topic, version, gracefully):
    """[MQTT-3.1.2-5] [MQTT-3.1.2-23] [MQTT-3.2.2-3] [MQTT-4.1.0-1] [MQTT3-3.1.2-4] [MQTT3-3.2.2-2]
    [MQTT3-4.1.0-1] [MQTT3-4.1.0-2]: with its subscriptions."""
    first = connect(version, client_id, **persistent(version))
    first.subscribe(topic, qos=1)
    first.disconnect() if gracefully else first.close()
    second = connect(version, client_id, **persistent(version))
    assert second.connack.session_present
    connect(version).publish(topic, b"x", qos=1)
    second.expect_publish(topic, b"x", qos=1)


def test_clean_start_discards_the_session(connect, client_id, topic, version):
    """[MQTT-3.1.2-4] [MQTT-3.1.4-4] [MQTT-3.2.2-2] [MQTT3-3.1.2-6] [MQTT3-3.1.4-3] [MQTT3-3.2.2-1]"""
    first = connect(version, client_id, **persistent(version))
    first.subscribe(topic, qos=1)
    first.disconnect()
    second = connect(version, client_id, clean_start=True)
    assert not second.connack.session_present
    connect(version).publish(topic, b"x", qos=1)
    second.expect_nothing()


def test_clean_session_leaves_nothing_behind(connect, client_id, topic):
    """[MQTT3-3.1.2-6]: a session begun with clean session 1 ends with its connection."""
    first = connect(V311, client_id)
    first.subscribe(topic, qos=1)
    first.disconnect()
    second = connect(V311, client_id, clean_start=False)
    assert not second.connack.session_present
    connect(V311).publish(topic, b"x", qos=1)
    second.expect_nothing()


@pytest.mark.parametrize("properties", [None, {"session_expiry_interval": 0}], ids=["absent", "0"])
def test_session_without_expiry_ends_with_the_connection(connect, client_id, properties):
    """[MQTT-3.1.2-23] [MQTT-4.1.0-2]: absent means 0."""
    connect(V5, client_id, properties=properties).disconnect()
    assert not connect(V5, client_id, clean_start=False).connack.session_present
    connect(V5, client_id, properties=properties).close()
    time.sleep(0.05)
    assert not connect(V5, client_id, clean_start=False).connack.session_present


def test_sessions_end_when_their_expiry_has_passed(connect, new_name):
    """[MQTT-3.1.2-23] [MQTT-4.1.0-2]: set in CONNECT, set and changed in DISCONNECT; counted from the disconnection."""
    keeps, short, shortened, lengthened, ended, resumed = (new_name("session") for _ in range(6))
    connect(V5, keeps, properties={"session_expiry_interval": 30}).close()
    connect(V5, short, properties={"session_expiry_interval": 1}).close()
    connect(V5, shortened, properties=FOREVER).disconnect(properties={"session_expiry_interval": 1})
    connect(V5, lengthened, properties={"session_expiry_interval": 1}).disconnect(
        properties={"session_expiry_interval": 30}
    )
    connect(V5, ended, properties=FOREVER).disconnect(properties={"session_expiry_interval": 0})
    connect(V5, resumed, properties={"session_expiry_interval": 2}).close()
    stays = connect(V5, resumed, clean_start=False, properties={"session_expiry_interval": 2})
    assert stays.connack.session_present
    assert not connect(V5, ended, clean_start=False).connack.session_present
    time.sleep(2.2)
    present = {
        name: connect(V5, client_id, clean_start=False).connack.session_present
        for name, client_id in {
            "keeps": keeps,
            "short": short,
            "shortened": shortened,
            "lengthened": lengthened,
        }.items()
    }
    assert present == {"keeps": True, "short": False, "shortened": False, "lengthened": True}
    # A session does not expire while it is connected [MQTT-4.1.0-1].
    stays.ping()
    assert connect(V5, resumed, clean_start=False).connack.session_present


def test_disconnect_may_not_turn_expiry_0_into_another(connect, client_id):
    """3.14.2.2.2: a protocol error; the session ends as was agreed."""
    client = connect(V5, client_id)
    client.send_raw(b"\xe0\x07\x00\x05\x11\x00\x00\x00\x0a")
    client.expect_disconnect(Reason.PROTOCOL_ERROR)
    assert not connect(V5, client_id, clean_start=False).connack.session_present


def test_reconnect_sets_the_expiry_anew(connect, client_id):
    """3.1.2.11.2: the interval of the last CONNECT counts, absent is 0."""
    connect(V5, client_id, properties=FOREVER).disconnect()
    connect(V5, client_id, clean_start=False).disconnect()
    assert not connect(V5, client_id, clean_start=False).connack.session_present


def test_clean_start_with_expiry_begins_a_session_that_stays(connect, client_id):
    """[MQTT-3.1.2-4] [MQTT-3.1.2-23]"""
    connect(V5, client_id, clean_start=True, properties=FOREVER).disconnect()
    assert connect(V5, client_id, clean_start=False).connack.session_present


@pytest.mark.parametrize(("first", "second"), [(V311, V5), (V5, V311), (V31, V5)])
def test_session_can_be_resumed_in_another_version(connect, client_id, topic, first, second):
    """A client that is upgraded finds its session; its messages come in the form of the new version."""
    before = connect(first, client_id, **persistent(first))
    before.subscribe(topic, qos=1)
    before.disconnect()
    connect(V5).publish(topic, b"x", qos=1, properties={"user_property": [("a", "b")]})
    after = connect(second, client_id, **persistent(second))
    if first != V31:
        assert after.connack.session_present
    expected = {"user_property": [("a", "b")]} if second == V5 else {}
    after.expect_publish(topic, b"x", qos=1, properties=expected)


def test_mqtt_31_session_is_resumed_without_a_session_present_flag(connect, client_id, topic):
    """MQTT 3.1 has no such flag: the first byte of its CONNACK is reserved."""
    connect(V31, client_id, clean_start=False).subscribe(topic, qos=1)
    second = connect(V31, client_id, clean_start=False)
    assert second.connack.raw == b"\x20\x02\x00\x00"
    connect(V31).publish(topic, b"x", qos=1)
    second.expect_publish(topic, b"x", qos=1)


def test_retained_messages_outlive_the_session(connect, topic, version):
    """[MQTT3-3.1.2-7]: retained messages are no part of a session."""
    connect(version).publish(topic, b"kept", qos=1, retain=True)
    subscriber = connect(version)
    subscriber.subscribe(topic)
    subscriber.expect_publish(topic, b"kept", retain=True)


def test_subscriptions_do_not_move_between_clients(connect, topic, version, new_name):
    """[MQTT-3.1.3-2] [MQTT3-3.1.3-2]: the client id names the session."""
    connect(version, new_name("one"), **persistent(version)).subscribe(topic, qos=1)
    other = connect(version, new_name("two"), **persistent(version))
    connect(version).publish(topic, b"x", qos=1)
    other.expect_nothing()
