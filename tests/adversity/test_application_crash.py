"""Is nothing lost and nothing doubled for APPLICATIONs, whenever the broker or Kafka ends in the middle of packs?"""

import contextlib
import random
import time

import pytest

from tests.support.brokers.broker import IS_MOSQUITTO
from tests.support.checkers.app_checker import Subscriber, await_deliveries, check_delivered, version_of
from tests.support.clients.packets import V5
from tests.support.clients.publishers import Publisher
from tests.support.servers.kafka_cluster import KafkaCluster
from tests.support.worlds.application import AppBroker, running_app_broker, until

pytestmark = pytest.mark.skipif(IS_MOSQUITTO, reason="mosquitto keeps nothing over a kill")

ROUNDS = {"embedded": 5, "kafka": 2}
# Small packs: ends fall between them as well as into them.
SETTINGS = {
    "application.max_poll_records": 40,
    "application.packs_in_flight": 3,
    "limits.receive_maximum": 500,
    "server.drain_seconds": 1,
}


@pytest.fixture(params=["embedded", "kafka"])
def broker(request, tmp_path):
    # Small segments too, as small as the log takes.
    size = 65_536 if request.param == "embedded" else 1_048_576
    properties = {"application.topic_properties": f"retention.ms:604800000;segment.bytes:{size}"}
    with running_app_broker(tmp_path, request.param, {**SETTINGS, **properties}) as started:
        request.node.broker_logs = [(started, 0)]
        yield started


class Load:
    """Publishers of both versions and QoS to topics that every subscriber wants; new ones after each cut."""

    def __init__(self, broker):
        self._broker = broker
        self._running = []
        self.everybody = []

    def start(self):
        number = len(self.everybody)
        self._running = [
            Publisher(self._broker, f"p{number + at}", version_of(at), qos=1 + at // 2, window=(5, 40, 20, 60)[at])
            for at in range(4)
        ]
        self.everybody += self._running
        for publisher in self._running:
            publisher.start()

    def stop(self):
        for publisher in self._running:
            publisher.stop()
        self.join()

    def join(self):
        for publisher in self._running:
            publisher.join()
        self._running = []

    def stop_after(self, seconds, least=250):
        """The machine may be busy: not before so many are acknowledged."""
        time.sleep(seconds)
        until(lambda: sum(len(one.acknowledged) for one in self.everybody) >= least, 60, f"{least} acknowledged")
        self.stop()

    @property
    def acknowledged(self):
        return {payload for publisher in self.everybody for payload in publisher.acknowledged}


@contextlib.contextmanager
def subscribed(broker, seed, count=4):
    """APPLICATIONs of both versions and QoS, and the load for them; both end with the test."""
    load = Load(broker)
    subscribers = [
        Subscriber(broker, f"app{number}", version_of(number), 1 + number // 2, ("load/#",), seed + number)
        for number in range(count)
    ]
    try:
        for subscriber in subscribers:
            subscriber.start()
        for subscriber in subscribers:
            subscriber.await_subscribed()
        yield subscribers, load
    finally:
        load.stop()
        for subscriber in subscribers:
            subscriber.stop()


def finish(subscribers, load, note):
    """No more disturbance: everything that is left arrives, then all is judged."""
    for subscriber in subscribers:
        subscriber.acknowledge_at_once()
    acknowledged = load.acknowledged
    for subscriber in subscribers:
        subscriber.await_payloads(acknowledged, 60)
    note = f"{note} {[subscriber.broker.application(subscriber.client_id) for subscriber in subscribers]}"
    for subscriber in subscribers:
        subscriber.stop()
    for subscriber in subscribers:
        check_delivered(subscriber, load.everybody, note)
    assert len(acknowledged) > 200, f"too little load {note}"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["kill", "end"])
def test_the_broker_ends_in_the_middle_of_packs(broker, how):
    """[MQTT-4.3.2-4] [MQTT-4.3.3-8] [MQTT-4.4.0-1]: kill -9 and SIGTERM, several times, under load."""
    seed = time.time_ns()
    chance = random.Random(seed)
    with subscribed(broker, seed) as (subscribers, load):
        for _ in range(ROUNDS[broker.provider] if how == "kill" else 1):
            load.start()
            await_deliveries(subscribers)
            time.sleep(chance.uniform(0.0, 1.2))
            getattr(broker, how)()
            load.join()
            broker.restart()
        load.start()
        load.stop_after(0.7)
        finish(subscribers, load, f"(seed {seed})")
    if how == "kill":
        assert any(subscriber.repeated for subscriber in subscribers), "no kill fell into a pack"


def cut_off_all(subscribers):
    """Each is back then."""
    connections = [subscriber.connections for subscriber in subscribers]
    for subscriber in subscribers:
        subscriber.cut_off()

    def are_back():
        return all(one.errors or one.connections > count for one, count in zip(subscribers, connections, strict=True))

    until(are_back, 60, "all connected again")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_connections_end_in_the_middle_of_packs(broker):
    """The clients are cut off and return, the broker stays."""
    seed = time.time_ns()
    with subscribed(broker, seed) as (subscribers, load):
        load.start()
        for _ in range(4):
            time.sleep(0.3)
            cut_off_all(subscribers)
        load.stop_after(0)
        finish(subscribers, load, f"(seed {seed})")
    assert all(subscriber.connections > 3 for subscriber in subscribers)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_kafka_ends_in_the_middle_of_packs(tmp_path, request):
    """The issue: a restart of the Kafka broker in between. Refused publishes were not promised; the rest arrives."""
    seed = time.time_ns()
    cluster = KafkaCluster(1).start()
    broker = AppBroker(tmp_path, "kafka", {**SETTINGS, "kafka.delivery_timeout_ms": 20_000}, cluster)
    try:
        request.node.broker_logs = [(broker, 0)]
        broker.wait_until_listening()
        with subscribed(broker, seed) as (subscribers, load):
            load.start()
            await_deliveries(subscribers)
            time.sleep(0.8)
            cluster.kill(1)
            cluster.restart(1)
            cluster.wait_until_ready()
            load.stop_after(1.0)
            finish(subscribers, load, f"(seed {seed})")
        broker.stop()
    finally:
        if broker.is_alive:
            broker.process.kill()
            broker.process.wait()
        cluster.stop()


def test_a_kill_between_ingest_and_dispatch(broker):
    """What was acknowledged to the publisher and not yet in the client's topic is dispatched at the next start."""
    everybody = []
    with subscribed(broker, 0, 1) as ([subscriber], _):
        for number in range(ROUNDS[broker.provider]):
            publisher = Publisher(broker, f"q{number}", V5, qos=1, window=100)
            publisher.start()
            until(lambda publisher=publisher: len(publisher.acknowledged) >= 100, 60, "100 acknowledged")
            broker.kill()
            publisher.join()
            everybody.append(publisher)
            broker.restart()
        subscriber.acknowledge_at_once()
        subscriber.await_payloads({payload for one in everybody for payload in one.acknowledged}, 60)
    check_delivered(subscriber, everybody)
