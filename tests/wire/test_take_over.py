"""What happens to a connection whose client id connects again?"""

import pytest

from tests.support.clients.packets import V5, V31, V311, Reason, Will


@pytest.mark.parametrize("new_version", [V31, V311, V5])
@pytest.mark.parametrize("version", [V31, V311, V5])
def test_old_connection_is_closed(connect, client_id, version, new_version):
    """[MQTT-3.1.4-3] [MQTT3-3.1.4-2]: MQTT 5 hears 0x8E, earlier versions nothing."""
    old = connect(version, client_id)
    new = connect(new_version, client_id)
    old.expect_disconnect(Reason.SESSION_TAKEN_OVER)
    new.ping()


def test_session_moves_to_the_new_connection(connect, client_id, topic, version):
    """[MQTT-3.1.2-5] [MQTT3-3.1.2-4]: a message in flight is sent again to the new one, which is then the only one."""
    options = {"clean_start": False} | ({"properties": {"session_expiry_interval": 60}} if version == V5 else {})
    old = connect(version, client_id, **options)
    old.subscribe(topic, qos=1)
    publisher = connect(version)
    publisher.publish(topic, b"in flight", qos=1)
    first = old.expect_publish(topic, b"in flight", qos=1)
    new = connect(version, client_id, **options)
    assert new.connack.session_present
    old.expect_disconnect(Reason.SESSION_TAKEN_OVER)
    again = new.expect_publish(topic, b"in flight", qos=1, dup=True)
    assert again.packet_id == first.packet_id
    new.ack(again)
    publisher.publish(topic, b"next", qos=1)
    new.expect_publish(topic, b"next", qos=1, ack=True)


def test_clean_start_takes_over_with_an_empty_session(connect, client_id, topic, version):
    """[MQTT-3.1.2-4] [MQTT3-3.1.2-6]"""
    options = {"clean_start": False} | ({"properties": {"session_expiry_interval": 60}} if version == V5 else {})
    connect(version, client_id, **options).subscribe(topic)
    new = connect(version, client_id, clean_start=True)
    assert not new.connack.session_present
    connect(version).publish(topic, b"x", qos=1)
    new.expect_nothing()


def test_will_of_the_connection_taken_over_is_published(connect, client_id, topic, version):
    """[MQTT-3.1.2-8] [MQTT3-3.1.2-8] and 3.1.4: the old connection closed without a DISCONNECT of the client."""
    watcher = connect(version)
    watcher.subscribe(topic)
    connect(version, client_id, will=Will(topic, b"will"))
    connect(version, client_id)
    watcher.expect_publish(topic, b"will")
    watcher.expect_nothing()


def test_many_take_overs_in_a_row(connect, client_id, version):
    """[MQTT-3.1.4-3] [MQTT3-3.1.4-2]: the last one stays, all others end."""
    connections = [connect(version, client_id) for _ in range(20)]
    for connection in connections[:-1]:
        connection.expect_disconnect(Reason.SESSION_TAKEN_OVER)
    connections[-1].ping()
