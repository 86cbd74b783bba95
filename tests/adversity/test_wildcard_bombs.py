"""Can filters that nearly match keep the loop from everybody else? Matching costs all nodes of the filter tree that fit
a prefix of the topic, and one client chooses both."""

from __future__ import annotations

import random
import threading
import time

from tests.support.clients.packets import V5, V311, PacketType, Will, pack_publish

LEVELS = 100
FILTERS = 1_000
PUBLISHES = 40
DEEP = {"limits.max_topic_levels": 128, "limits.max_subscription_bytes": 100_000_000}


def plant(connect, broker, clients: int) -> list:
    """Subscribe to filters that fit every prefix of the topics below `bomb_topic`, and none of them as a whole."""
    chance = random.Random(7)
    planted = []
    for _ in range(clients):
        client = connect(V5, broker=broker, keep_alive=0)
        for _ in range(FILTERS // 100):
            names = ["low/" + "/".join(chance.choice("+a") for _ in range(LEVELS)) + "/n" for _ in range(100)]
            assert client.subscribe(*names) == [0] * 100
        planted.append(client)
    return planted


def bomb_topic(number: int) -> str:
    return "low/" + "/".join("a" * LEVELS) + f"/z{number}"


class Bystander(threading.Thread):
    """Round trips of a client that has nothing to do with it, for as long as `stop` is not set."""

    def __init__(self, client) -> None:
        super().__init__()
        self._client = client
        self.waits: list[float] = []
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.is_set():
            start = time.monotonic()
            self._client.ping()
            self.waits.append(time.monotonic() - start)
            time.sleep(0.002)

    def finish(self) -> float:
        self.stop.set()
        self.join(60)
        return max(self.waits)


def test_others_have_their_turn(start_broker, connect):
    """One write with many publishes that are expensive to match: they are matched in slices, nothing is lost, and the
    order of each publisher stays."""
    broker = start_broker(DEEP)
    planted = plant(connect, broker, 10)
    witness = connect(V5, broker=broker)
    witness.subscribe("low/#")
    publisher = connect(V5, broker=broker, keep_alive=0)
    bystander = Bystander(connect(V311, broker=broker))
    bystander.start()
    start = time.monotonic()
    publisher.send_raw(b"".join(pack_publish(V5, bomb_topic(n), b"%d" % n) for n in range(PUBLISHES)))
    publisher.ping()
    took = time.monotonic() - start
    longest = bystander.finish()
    witness.expect_payloads([b"%d" % n for n in range(PUBLISHES)])
    # without turns it waits about as long as all of them take
    assert longest < max(took / 4, 0.1), (longest, took)
    for client in planted:
        client.close()


def test_many_publishers_share_the_turn(start_broker, connect):
    """Ten publishers get no more of the loop than one."""
    broker = start_broker(DEEP)
    plant(connect, broker, 2)
    publishers = [connect(V5, broker=broker, keep_alive=0) for _ in range(10)]
    bystander = Bystander(connect(V311, broker=broker))
    bystander.start()
    start = time.monotonic()
    for number, publisher in enumerate(publishers):
        topics = [bomb_topic(number * 100 + n) for n in range(20)]
        publisher.send_raw(b"".join(pack_publish(V5, topic, b"x", qos=0) for topic in topics))
    for publisher in publishers:
        publisher.ping()
    took = time.monotonic() - start
    longest = bystander.finish()
    assert longest < max(took / 4, 0.1), (longest, took)


def test_subscriptions_change_meanwhile(start_broker, connect):
    """A publish waits for its match while subscriptions come and go: who is subscribed all the time gets all of it."""
    broker = start_broker(DEEP | {"limits.match_steps": 1_000})
    plant(connect, broker, 1)
    witness = connect(V5, broker=broker)
    witness.subscribe("low/#", "low/a/#", "low/+/a/#")
    publisher = connect(V5, broker=broker, keep_alive=0)
    publisher.send_raw(b"".join(pack_publish(V5, bomb_topic(n), b"%d" % n) for n in range(20)))
    churner = connect(V5, broker=broker)
    for number in range(100):
        churner.subscribe(f"low/a/+/{number}", "low/+/+/#")
        churner.unsubscribe("low/+/+/#")
    publisher.ping()
    witness.expect_payloads([b"%d" % n for n in range(20)])


def test_publisher_that_leaves_meanwhile(start_broker, connect):
    """Its walk ends with it, its will is published, and others go on."""
    broker = start_broker(DEEP | {"limits.match_steps": 1_000})
    plant(connect, broker, 1)
    witness = connect(V5, broker=broker)
    witness.subscribe("low/#")
    leaver = connect(V5, broker=broker, will=Will(bomb_topic(999), b"gone"))
    leaver.send_raw(b"".join(pack_publish(V5, bomb_topic(n), b"leaver") for n in range(20)))
    leaver.close()
    publisher = connect(V5, broker=broker)
    publisher.publish(bomb_topic(500), b"mine", qos=1)
    payloads = {b"leaver"}
    while payloads != {b"leaver", b"gone", b"mine"}:
        payloads.add(witness.expect(PacketType.PUBLISH).payload)
