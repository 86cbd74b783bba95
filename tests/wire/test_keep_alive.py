"""Does the server end a connection that is silent for one and a half times its keep-alive, and only such a one?"""

import time

import pytest

from tests.support.clients.packets import V5, V31, V311, PacketType, Reason, pack_publish

VERSIONS = [V31, V311, V5]


@pytest.mark.parametrize("version", VERSIONS)
def test_ping_is_answered(connect, version):
    """[MQTT-3.12.4-1] [MQTT3-3.12.4-1]"""
    client = connect(version)
    client.send_raw(b"\xc0\x00")
    assert client.expect(PacketType.PINGRESP).raw == b"\xd0\x00"


def test_silent_client_is_disconnected(connect):
    """[MQTT-3.1.2-22] [MQTT3-3.1.2-24]: after 1.5 s for a keep-alive of 1 s."""
    start = time.monotonic()
    silent = [connect(version, keep_alive=1) for version in VERSIONS]
    part_of_a_packet = [connect(version, keep_alive=1) for version in VERSIONS]
    time.sleep(0.5)
    for client in part_of_a_packet:
        client.send_raw(b"\x30\x7f\x00")
    time.sleep(0.8)
    for client in silent + part_of_a_packet:
        client.expect_disconnect(Reason.KEEP_ALIVE_TIMEOUT)
        assert 1.4 <= time.monotonic() - start <= 60


def test_any_packet_keeps_a_connection_alive_and_zero_means_for_ever(connect, topic):
    """[MQTT-3.1.2-22] [MQTT3-3.1.2-24]: pings and publishes count; keep-alive 0 turns it off."""
    pinging = [connect(version, keep_alive=2) for version in VERSIONS]
    publishing = [connect(version, keep_alive=2) for version in VERSIONS]
    never = [connect(version, keep_alive=0) for version in VERSIONS]
    for _ in range(7):
        for client in pinging:
            client.ping()
        for client in publishing:
            client.send_raw(pack_publish(client.version, topic, b"x"))
        time.sleep(0.5)
    for client in pinging + publishing + never:
        client.ping()


def test_server_traffic_does_not_keep_a_silent_client_alive(connect, topic):
    """[MQTT-3.1.2-22] [MQTT3-3.1.2-24]: what the server sends is no sign of life of the client."""
    silent = [connect(version, keep_alive=1) for version in VERSIONS]
    for client in silent:
        client.subscribe(topic)
    publisher = connect(V5)
    for _ in range(7):
        publisher.publish(topic, b"x")
        time.sleep(0.4)
    for client in silent:
        assert {packet.type for packet in client.receive_until_closed()} <= {PacketType.PUBLISH, PacketType.DISCONNECT}


def test_server_keep_alive_caps_the_clients_wish(connect):
    """[MQTT-3.2.2-21] [MQTT-3.2.2-22]: at most 600 s; a wish within is taken as it is."""
    assert connect(V5, keep_alive=3600).connack.properties["server_keep_alive"] == 600
    assert connect(V5, keep_alive=60).connack.properties.get("server_keep_alive", 60) == 60
