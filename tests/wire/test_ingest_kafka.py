"""Does the broker work the same with Kafka as its log, and what happens when Kafka goes away and comes back?"""

import asyncio
import time

import pytest

from penstock._ext.record import envelope
from penstock.settings.kafka import KafkaSettings
from penstock.storage.log.base import EARLIEST, TopicPartition
from penstock.storage.log.kafka import KafkaLog
from tests.support.brokers.broker import IS_MOSQUITTO, free_port
from tests.support.clients.packets import V5, PacketType, Reason, pack_publish
from tests.support.servers.kafka_cluster import KafkaCluster
from tests.support.servers.kafka_fixtures import shared_cluster

pytestmark = pytest.mark.skipif(IS_MOSQUITTO, reason="the log is Penstock's own")


def logged(bootstrap, topic, count, seconds=60.0):
    """The publishes of the topic, all partitions, as soon as there are `count`."""

    async def read():
        log = KafkaLog(KafkaSettings(bootstrap_servers=bootstrap))
        await log.start()
        try:
            partitions = (await log.admin.describe(topic)).partitions
            consumer = log.consumer("")
            assigned = [TopicPartition(topic, number) for number in range(partitions)]
            consumer.assign(assigned)
            for partition in assigned:
                await consumer.seek(partition, EARLIEST)
            found = []
            deadline = time.monotonic() + seconds
            while len(found) < count and time.monotonic() < deadline:
                for fetched in await consumer.poll(1000, 0.5):
                    found += [envelope.decode(value) for value in fetched.pack.values()]
            await consumer.close()
            return found
        finally:
            await log.close()

    return asyncio.run(read())


def settings_for(cluster, topic):
    return {
        "log.provider": "kafka",
        "kafka.bootstrap_servers": cluster.bootstrap,
        "kafka.delivery_timeout_ms": 3000,
        "ingest.topic": topic,
        "ingest.partitions": 4,
        "ingest.properties": "retention.ms:600000",
    }


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publishes_are_in_kafka_when_they_are_acknowledged(start_broker, connect, qos):
    cluster = shared_cluster(1)
    topic = f"ingest.qos{qos}"
    broker = start_broker(settings_for(cluster, topic))
    subscriber = connect(V5, broker=broker)
    subscriber.subscribe("t/#", qos=qos)
    client = connect(V5, "sender", broker=broker)
    for number in range(50):
        client.publish(f"t/{number % 7}", b"%d" % number, qos=qos)
    for number in range(50):
        subscriber.expect_publish(f"t/{number % 7}", b"%d" % number, qos=qos)
    client.ping()
    found = logged(cluster.bootstrap, topic, 50)
    assert sorted(int(publish.payload) for publish in found) == list(range(50))
    for level in range(7):
        mine = [int(publish.payload) for publish in found if publish.topic == f"t/{level}"]
        assert mine == sorted(mine)
    assert {publish.client_id for publish in found} == {"sender"}


def test_kafka_goes_away_and_comes_back(start_broker, connect):
    """An acknowledged publish is there; one that cannot be written is refused with a reason, never acknowledged."""
    cluster = KafkaCluster(1).start()
    try:
        broker = start_broker(settings_for(cluster, "ingest.away"))
        client = connect(V5, "sender", broker=broker)
        client.publish("t", b"before", qos=1)
        cluster.kill(0)
        client.send_raw(pack_publish(V5, "t", b"lost", qos=1, packet_id=9))
        answer = client.expect(PacketType.PUBACK, timeout=60)
        assert answer.reason == Reason.QUOTA_EXCEEDED
        client.ping()
        cluster.restart(0)
        deadline = time.monotonic() + 90
        while True:
            client.send_raw(pack_publish(V5, "t", b"after", qos=1, packet_id=10))
            if client.expect(PacketType.PUBACK, timeout=60).reason < 0x80:
                break
            assert time.monotonic() < deadline, "publishes are still refused after Kafka came back"
        payloads = [publish.payload for publish in logged(cluster.bootstrap, "ingest.away", 2)]
        assert payloads[0] == b"before"
        assert payloads[-1] == b"after"
    finally:
        cluster.stop()


def test_a_qos_2_publish_waits_for_kafka(start_broker, connect):
    """Refused, it would be sent again, and Kafka may have it. So it waits, longer than an append of QoS 1 does."""
    cluster = KafkaCluster(1).start()
    try:
        broker = start_broker(settings_for(cluster, "ingest.waits"))
        client = connect(V5, "sender", broker=broker, properties={"session_expiry_interval": 300})
        client.publish("t", b"before", qos=1)
        cluster.kill(0)
        client.send_raw(pack_publish(V5, "t", b"waits", qos=2, packet_id=9))
        client.send_raw(pack_publish(V5, "t", b"too", qos=1, packet_id=10))
        time.sleep(7)
        client.ping()  # nothing else has come
        client.send_raw(pack_publish(V5, "t", b"waits", qos=2, packet_id=9, dup=True))
        cluster.restart(0)
        answer = client.expect(PacketType.PUBREC, timeout=90)
        assert answer.packet_id == 9
        assert (answer.reason or 0) < 0x80
        answer = client.expect(PacketType.PUBACK, timeout=90)
        assert answer.packet_id == 10
        assert (answer.reason or 0) < 0x80
        answer = client.expect(PacketType.PUBREC, timeout=90)
        assert answer.packet_id == 9
        assert (answer.reason or 0) < 0x80
        client.send_ack(PacketType.PUBREL, 9)
        client.expect(PacketType.PUBCOMP)
        client.publish("t", b"after", qos=1)
        payloads = [publish.payload for publish in logged(cluster.bootstrap, "ingest.waits", 4)]
        assert payloads == [b"before", b"waits", b"too", b"after"]
    finally:
        cluster.stop()


def test_a_broker_without_kafka_serves_and_refuses_what_it_cannot_keep(start_broker, connect):
    """Kafka is not there when the broker starts: it listens, QoS 0 passes, QoS 1 is refused, SIGTERM ends it with 0."""
    broker = start_broker(
        {
            "log.provider": "kafka",
            "kafka.bootstrap_servers": f"127.0.0.1:{free_port()}",
            "kafka.delivery_timeout_ms": 1500,
        }
    )
    subscriber = connect(V5, broker=broker)
    subscriber.subscribe("t", qos=0)
    client = connect(V5, broker=broker)
    client.publish("t", b"passes")
    subscriber.expect_publish("t", b"passes")
    client.send_raw(pack_publish(V5, "t", b"refused", qos=1, packet_id=1))
    assert client.expect(PacketType.PUBACK, timeout=60).reason == Reason.QUOTA_EXCEEDED
