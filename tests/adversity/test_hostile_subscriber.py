"""Can a subscriber harm those who publish to it, or those who subscribed to the same?"""

import socket
import time

from tests.support.clients.packets import V5, V311, PacketType, pack_ack, pack_publish

BATCH = 20_000


def test_half_closed_subscriber_that_does_not_read(start_broker, connect):
    """It has said that it sends no more and takes nothing: its publishers go on, and the others get everything."""
    broker = start_broker({"limits.write_high_watermark": 2_000_000, "limits.write_low_watermark": 1_000_000})
    witness = connect(V311, broker=broker)
    witness.subscribe("t", qos=1)
    publisher = connect(V311, broker=broker)
    for count in (70, 110):  # with the sockets' buffers about full, and beyond
        half = connect(V311, broker=broker, keep_alive=0)
        half.subscribe("t")
        for _ in range(count):
            publisher.publish("t", bytes(50_000), qos=1)
            witness.expect_publish("t", ack=True)
        half.stream.shutdown(socket.SHUT_WR)
        time.sleep(0.1)
        for _ in range(60):
            publisher.publish("t", bytes(50_000), qos=1)
            witness.expect_publish("t", ack=True)
    broker.assert_healthy()


def publish_many(client, count: int) -> None:
    """At QoS 2, each with all its acknowledgements."""
    for _ in range(count // 1_000):
        client.send_raw(b"".join(pack_publish(V311, "t", b"x", qos=2, packet_id=i + 1) for i in range(1_000)))
        client.send_raw(b"".join(pack_ack(PacketType.PUBREL, V311, i + 1) for i in range(1_000)))
        for _ in range(2_000):
            assert client.receive().type in (PacketType.PUBREC, PacketType.PUBCOMP)


def receive_many(client, count: int) -> list[int]:
    found = []
    while len(found) < count:
        packet = client.receive()
        if packet.type == PacketType.PUBLISH:
            found.append(packet.packet_id)
    return found


def test_client_that_never_says_pubcomp(start_broker, connect):
    """[MQTT-2.2.1-4]: packet ids of several connections pile up in one session. When none is left its messages wait;
    the publisher and the other subscribers do not notice."""
    settings = {"limits.max_inflight": 65_535, "limits.max_queued_messages": 1_000_000, "ingest.log": "none"}
    broker = start_broker(settings)
    publisher = connect(V311, broker=broker)
    hoarder = connect(V311, "hoarder", broker=broker, clean_start=False)
    hoarder.subscribe("t", qos=2)
    for _ in range(3):
        publish_many(publisher, BATCH)
        ids = receive_many(hoarder, BATCH)
        hoarder.send_raw(b"".join(pack_ack(PacketType.PUBREC, V311, packet_id) for packet_id in ids))
        hoarder.ping()
        hoarder.close()
        hoarder = connect(V311, "hoarder", broker=broker, clean_start=False)
    witness = connect(V5, broker=broker)
    witness.subscribe("t", qos=0)
    publish_many(publisher, BATCH)
    publisher.ping()
    receive_many(witness, BATCH)
    broker.assert_healthy()
