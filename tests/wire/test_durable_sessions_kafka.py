"""Are sessions kept in Kafka as they are on the disk, and what does a broker do that cannot read them yet?"""

import time

import pytest

from tests.support.brokers.broker import IS_MOSQUITTO
from tests.support.brokers.log_broker import LogBroker
from tests.support.clients.packets import V5, V311, Reason, Will
from tests.support.servers.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.skipif(IS_MOSQUITTO, reason="the store is Penstock's own")

KEPT = {"clean_start": False, "properties": {"session_expiry_interval": 3_600}}
RECOVERY_SECONDS = 60.0


@pytest.fixture
def cluster():
    started = KafkaCluster(1).start()
    yield started
    started.stop()


def start(directory, cluster):
    settings = {
        "log.provider": "kafka",
        "kafka.bootstrap_servers": cluster.bootstrap,
        "kafka.delivery_timeout_ms": 3_000,
        "ingest.partitions": 2,
        "server.drain_seconds": 1,
    }
    broker = LogBroker(directory, settings)
    broker.wait_until_listening()
    return broker


@pytest.mark.timeout(300)
def test_sessions_in_kafka(cluster, tmp_path, connect, open_client, request):
    """[MQTT-3.1.2-5] [MQTT-3.1.2-8]: kill -9, then a start without Kafka, which comes later."""
    broker = start(tmp_path, cluster)
    request.node.broker_logs = [(broker, 0)]
    client = connect(V5, "kept", broker=broker, **KEPT, will=Will("wills", b"gone", qos=1))
    client.subscribe("t/+", "wills", qos=1)
    client.unsubscribe("t/+")
    client.subscribe("u/+", qos=1)
    connect(V311, "old", broker=broker, clean_start=False).subscribe("u/1", qos=1)
    broker.kill()

    broker.restart()
    assert connect(V311, "old", broker=broker, clean_start=False).connack.session_present
    publisher = connect(V5, broker=broker)
    publisher.publish("t/1", b"", qos=1)
    publisher.publish("u/1", b"", qos=1)
    client = connect(V5, "kept", broker=broker, **KEPT)
    assert client.connack.session_present
    packets = [client.expect_publish(ack=True) for _ in range(2)]  # topics have no order among each other
    assert {packet.topic: packet.payload for packet in packets} == {"wills": b"gone", "u/1": b""}
    client.expect_nothing(0.1)
    broker.kill()

    cluster.kill(1)
    broker.restart()
    # who has no session is served; nobody is told that he has none
    connect(V5, broker=broker).subscribe("u/2")
    connect(V5, "kept", broker=broker, clean_start=True).close()
    for version, options in ((V5, KEPT), (V311, {"clean_start": False})):
        refused = open_client(version, broker=broker)
        refused.send_connect("old", **options)
        refused.expect_refused_connect(Reason.SERVER_UNAVAILABLE, code=3)
    assert "sessions are not restored yet" in broker.is_ready()[1]
    cluster.restart(1)
    deadline = time.monotonic() + RECOVERY_SECONDS
    while not broker.is_ready()[0] and time.monotonic() < deadline:
        time.sleep(0.2)
    assert connect(V311, "old", broker=broker, clean_start=False).connack.session_present
    broker.assert_healthy()
    assert broker.terminate() == 0
