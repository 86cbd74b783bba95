"""Brokers killed under publishers that send again in order.

The log has each publisher's messages of a topic in the order in which they were sent. Messages of QoS 1 may be there
twice, those of QoS 2 once."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from penstock.storage.log.kafka.producer import CLOSE_SECONDS
from tests.support.brokers.log_broker import TOPIC
from tests.support.clients.packets import V5, V311
from tests.support.clients.returning_publisher import ReturningPublisher
from tests.support.servers.kafka_cluster import KafkaCluster
from tests.support.worlds.application import AppBroker, only_penstock, running_app_broker, until

KILLS = 5
KAFKA_KILLS = int(os.environ.get("PENSTOCK_TEST_KAFKA_KILLS", "3"))
DELIVERY_MS = 3_000
ENDS = int(os.environ.get("PENSTOCK_TEST_ENDS", "2"))


def check(broker: AppBroker, publishers: list[ReturningPublisher]) -> None:
    by_publisher = {publisher.name: publisher for publisher in publishers}
    logged: dict[tuple[str, str], list[int]] = {}
    for record in broker.records(TOPIC):
        name, number = record.payload.decode().split()
        logged.setdefault((name, record.topic), []).append(int(number))
    for (name, topic), numbers in logged.items():
        firsts = list(dict.fromkeys(numbers))
        assert firsts == sorted(firsts), f"{name} on {topic}: another order"
        if by_publisher[name].qos == 2:
            assert [number for number, count in Counter(numbers).items() if count > 1] == [], (
                f"{name} on {topic}: twice"
            )
    for name, publisher in by_publisher.items():
        found = {(topic, f"{name} {number}".encode()) for topic in publisher.topics for number in logged[name, topic]}
        assert publisher.acknowledged <= found, f"{name}: acknowledged and not logged"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("provider", ["embedded", "kafka"])
def test_kills_keep_the_order_of_each_publisher_and_topic(provider: str, tmp_path: Path) -> None:
    only_penstock()
    seed = time.time_ns()
    chance = random.Random(seed)
    with running_app_broker(tmp_path, provider) as broker:
        publishers = [
            ReturningPublisher(
                broker, f"p{at}", (V311, V5)[at % 2], 1 + at // 2, tuple(f"o/{at}/{n}" for n in range(3))
            )
            for at in range(4)
        ]
        try:
            for publisher in publishers:
                publisher.start()
            for _ in range(KILLS):
                time.sleep(chance.uniform(0.3, 1.5))
                broker.kill()
                broker.restart()
            time.sleep(0.5)
        finally:
            for publisher in publishers:
                publisher.finish()
        assert all(publisher.connections > KILLS // 2 for publisher in publishers), f"seed {seed}"
        assert sum(publisher.sent_again for publisher in publishers) > 0
        check(broker, publishers)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kills_of_kafka_double_no_qos_2_publish(tmp_path: Path) -> None:
    """Kafka is killed under load and is away for less or more than an append of QoS 0 or 1 waits for it."""
    only_penstock()
    seed = time.time_ns()
    chance = random.Random(seed)
    cluster = KafkaCluster(1).start()
    broker = AppBroker(tmp_path, "kafka", {"kafka.delivery_timeout_ms": DELIVERY_MS}, cluster)
    publishers: list[ReturningPublisher] = []
    try:
        broker.wait_until_listening()
        publishers = [
            ReturningPublisher(broker, f"p{at}", (V311, V5)[at % 2], 2, tuple(f"o/{at}/{n}" for n in range(3)))
            for at in range(4)
        ]
        # refused publishes of MQTT 5 are for the application to send again, which this one does not
        publishers.append(ReturningPublisher(broker, "p4", V311, 1, ("o/4/0", "o/4/1")))
        for publisher in publishers:
            publisher.start()
        for _ in range(KAFKA_KILLS):
            time.sleep(chance.uniform(0.3, 1.5))
            cluster.kill(1)
            time.sleep(chance.uniform(0, 2 * DELIVERY_MS / 1000))
            cluster.restart(1)
            cluster.wait_until_ready()
            counts = {publisher.name: len(publisher.acknowledged) for publisher in publishers}
            until(
                lambda counts=counts: all(len(one.acknowledged) > counts[one.name] for one in publishers),
                what=f"progress of all publishers (seed {seed})",
            )
        for publisher in publishers:
            publisher.finish()
        check(broker, publishers)
        print(f"{KAFKA_KILLS} kills, {sum(len(one.acknowledged) for one in publishers)} acknowledged publishes")
        broker.stop()
    finally:
        for publisher in publishers:
            publisher.abandon()
        if broker.is_alive:
            broker.process.kill()
            broker.process.wait()
        cluster.stop()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_frozen", [True, False])
def test_an_end_while_kafka_is_away_doubles_no_qos_2_publish(tmp_path: Path, is_frozen: bool) -> None:
    """SIGTERM under load while Kafka is away or answers nothing, for longer than its producer waits when it is closed:
    what was under way is given up, though Kafka may have it, and is sent again to the next process."""
    only_penstock()
    cluster = KafkaCluster(1).start()
    settings = {"server.drain_seconds": 1, "server.close_seconds": CLOSE_SECONDS + 4}
    broker = AppBroker(tmp_path, "kafka", settings, cluster)
    publishers: list[ReturningPublisher] = []
    try:
        broker.wait_until_listening()
        publishers = [
            ReturningPublisher(broker, f"p{at}", (V311, V5)[at % 2], 2, tuple(f"o/{at}/{n}" for n in range(3)))
            for at in range(4)
        ]
        for publisher in publishers:
            publisher.start()
        for _ in range(ENDS):
            time.sleep(0.7)
            if is_frozen:
                cluster.nodes[0].process.send_signal(signal.SIGSTOP)
            else:
                cluster.kill(1)
            assert broker.terminate() == 0
            if is_frozen:
                cluster.nodes[0].process.send_signal(signal.SIGCONT)
            else:
                cluster.restart(1)
            cluster.wait_until_ready()
            counts = {publisher.name: len(publisher.acknowledged) for publisher in publishers}
            broker.restart()
            until(
                lambda counts=counts: all(len(one.acknowledged) > counts[one.name] for one in publishers),
                what="progress of all publishers",
            )
        for publisher in publishers:
            publisher.finish()
        assert sum(publisher.sent_again for publisher in publishers) > 0
        check(broker, publishers)
        broker.stop()
    finally:
        for publisher in publishers:
            publisher.abandon()
        if broker.is_alive:
            broker.process.kill()
            broker.process.wait()
        cluster.stop()
