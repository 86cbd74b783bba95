"""Can a subscriber harm those who publish to it, or those who subscribed to the same?"""

import socket
import time

import pytest

from tests.support.packets import V5, V311, PacketType, pack_publish

SMALL = {"limits.write_high_watermark": 200_000, "limits.write_low_watermark": 100_000}


def test_half_closed_subscriber_that_does_not_read(start_broker, connect):
    """It has said that it sends no more and takes nothing: its publishers go on, and the others get everything."""
    broker = start_broker(SMALL)
    witness = connect(V311, broker=broker)
    half = connect(V311, broker=broker, keep_alive=0)
    half.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    half.subscribe("t", qos=0)
    witness.subscribe("t", qos=1)
    publisher = connect(V311, broker=broker)
    payload = bytes(50_000)
    total = 0
    for _ in range(20):  # until the broker's own buffer holds some, below the watermark
        publisher.publish("t", payload, qos=1)
        witness.expect_publish("t", ack=True)
        total += 1
    half.stream.shutdown(socket.SHUT_WR)
    time.sleep(0.2)
    for _ in range(200):
        publisher.publish("t", payload, qos=1)
        witness.expect_publish("t", ack=True)
    broker.assert_healthy()


@pytest.mark.parametrize("many", [70])
def test_client_that_never_says_pubcomp(start_broker, connect, many):
    """Released messages of one connection after the other: the window is bounded, publishers and others do not pay."""
    broker = start_broker({"limits.max_packet_size": 1_000_000, "limits.max_queued_messages": 100})
    publisher = connect(V5, broker=broker)
    witness = connect(V5, broker=broker)
    hoarder = connect(V5, "hoarder", broker=broker, properties={"session_expiry_interval": 1000})
    hoarder.subscribe("t", qos=2)
    witness.subscribe("t", qos=0)
    start = broker.resident_bytes()
    for _ in range(many):
        publisher.send_raw(b"".join(pack_publish(V5, "t", b"x", qos=1, packet_id=i) for i in range(1, 1001)))
        for i in range(1, 1001):
            publisher.await_packet(PacketType.PUBACK, i)
        hoarder.receive_all(0.05)
        hoarder.close()
        hoarder = connect(V5, "hoarder", broker=broker, clean_start=False, properties={"session_expiry_interval": 1000})
        publisher.ping()
    broker.assert_healthy()
    assert broker.resident_bytes() - start < 50 << 20
