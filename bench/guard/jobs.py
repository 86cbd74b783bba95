"""What the guard counts: each job is prepared outside the count, and says how many operations one call of it does."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from bench.guard.outlets import DeviceRoom, DirectRoom, FeedRoom, LaneRoom, QueueRoom
from bench.guard.room import MESSAGES, PAYLOAD, TOPIC, Client, Loop
from penstock._ext.application.pack import PackTracker
from penstock._ext.hub.connection import Hub
from penstock._ext.hub.inflight import InflightWindow
from penstock._ext.match import partition
from penstock._ext.match.trie import Subscriber, Trie
from penstock._ext.queue.pending import PendingList
from penstock._ext.record import envelope
from penstock._ext.wire import codec, packets

BATCH = 2_000
FILTERS = 1_000
PACK = 200


class Job(NamedTuple):
    """`run` is called once to warm up and once counted."""

    run: Callable[[], object]
    operations: int


def parse_publish(packet: bytes, version: int) -> Job:
    body = packet[2:]
    assert packet[1] == len(body), "a remaining length of one byte"
    return Job(lambda: codec.bench_parse_publish(packet[0] & 15, body, version, BATCH), BATCH)


def codec_jobs() -> dict[str, Job]:
    properties: dict[str, Any] = {"message_expiry": 60, "user_properties": [("k", "v")]}
    plain = packets.build_publish(TOPIC, PAYLOAD, version=4, qos=1, packet_id=7)
    return {
        "codec: PUBLISH 3.1.1, QoS 1": parse_publish(plain, 4),
        "codec: PUBLISH 5, two properties": parse_publish(packets.build_publish(TOPIC, PAYLOAD[:40], **properties), 5),
        "codec: PUBACK": Job(lambda: codec.bench_parse_ack(4, 0, b"\x00\x07", 5, BATCH), BATCH),
        "codec: topic name": Job(lambda: codec.bench_check_topic_name(TOPIC, BATCH), BATCH),
    }


def filled_trie(**cache: int) -> Trie:
    trie = Trie(**cache)
    owners = [Subscriber() for _ in range(10)]
    for i in range(FILTERS):
        trie.subscribe(owners[i % len(owners)], b"site/%d/device/%d/temp" % (i % 50, i), 1)
    return trie


def trie_jobs() -> dict[str, Job]:
    chance = random.Random(1)
    topics = [b"site/%d/device/%d/temp" % (i % 50, i) for i in (chance.randrange(FILTERS) for _ in range(BATCH))]
    cached, afresh, wild = filled_trie(), filled_trie(cache_topics=0), filled_trie(cache_topics=0)
    for topic_filter in (b"site/+/device/+/temp", b"site/#", b"+/+/+/+/temp", b"#"):
        wild.subscribe(Subscriber(), topic_filter, 1)
    return {
        "trie: cached match": Job(lambda: cached.bench_match(topics, 1), BATCH),
        "trie: match afresh": Job(lambda: afresh.bench_match(topics, 1), BATCH),
        "trie: match afresh with wildcards": Job(lambda: wild.bench_match(topics, 1), BATCH),
    }


class Room:
    """A hub with one publisher and its subscribers, without sockets."""

    def __init__(self, subscribers: int, qos: int = 0) -> None:
        self.loop = Loop()
        self.hub = Hub(self.loop, max_inflight=1_000, max_queued_messages=10_000)
        self.clients = [Client(self.hub, f"client-{i}") for i in range(subscribers + 1)]
        for client in self.clients[1:]:
            self.hub.trie.subscribe(client.session, TOPIC, qos)
        # Nobody acknowledges: what both calls of a job deliver fits into the window.
        given = {"qos": qos, "packet_id": 7} if qos else {}
        self.input = packets.build_publish(TOPIC, PAYLOAD, version=4, **given) * MESSAGES

    def publish_all(self) -> None:
        before = self.clients[1].sink.size
        self.clients[0].say(self.input)
        self.loop.turn()
        assert self.clients[1].sink.size > before + MESSAGES * len(PAYLOAD), "nothing was delivered"


def fan_out_jobs() -> dict[str, Job]:
    pair, many, acknowledged = Room(1), Room(100), Room(100, qos=1)
    return {
        "fan-out: 1 to 1, QoS 0": Job(pair.publish_all, MESSAGES),
        "fan-out: 1 to 100, QoS 0": Job(many.publish_all, MESSAGES * 100),
        "fan-out: 1 to 100, QoS 1": Job(acknowledged.publish_all, MESSAGES * 100),
    }


def outlet_jobs() -> dict[str, Job]:
    queue = QueueRoom()
    return {
        "delivery: direct, QoS 1 acknowledged": Job(DirectRoom().run, MESSAGES),
        "delivery: pack of an APPLICATION client": Job(LaneRoom().run, MESSAGES),
        "delivery: to the log of an APPLICATION client": Job(FeedRoom().run, MESSAGES),
        "delivery: live to a DEVICE client": Job(DeviceRoom().run, MESSAGES),
        "delivery: published to a durable queue": Job(queue.publish, MESSAGES),
        "delivery: consumed from a durable queue": Job(queue.settle, MESSAGES),
    }


def track_pack() -> None:
    tracker = PackTracker([], PACK)
    for offset in range(PACK):
        tracker.add(offset, packet_id=offset + 1)
    for index in range(PACK):
        tracker.sent(index)
        tracker.acknowledge(index)
    assert tracker.open_count == 0


def tracker_jobs() -> dict[str, Job]:
    return {"pack tracker: add, send, acknowledge": Job(track_pack, PACK)}


def window_jobs() -> dict[str, Job]:
    window = InflightWindow()
    return {"in-flight window: take and release": Job(lambda: window.bench_cycle(20, 100), 2_000)}


def pending_jobs() -> dict[str, Job]:
    pending = PendingList()
    return {"pending entries: claim and settle": Job(lambda: pending.bench_cycle(20, 100), 2_000)}


def partition_jobs() -> dict[str, Job]:
    import numpy as np  # noqa: PLC0415 - slow under valgrind, and only this part needs it

    keys = np.array([b"device-%029d" % i for i in range(BATCH)], dtype="S36")
    return {
        f"partitioner: {name}": Job(lambda name=name: partition.partitions_of(keys, 10, name), BATCH)  # type: ignore[misc]  # the default binds the name
        for name in partition.FUNCTIONS
    }


def envelope_jobs() -> dict[str, Job]:
    record = envelope.encode(TOPIC.decode(), PAYLOAD, 1, client_id="client-0001", received_at=1_760_000_000_000)
    return {
        "envelope: write": Job(lambda: envelope.bench_put(record, BATCH), BATCH),
        "envelope: read": Job(lambda: envelope.bench_get(record, BATCH), BATCH),
    }


# By what their names begin with, so that one figure can be counted without preparing the others.
PARTS: dict[str, Callable[[], dict[str, Job]]] = {
    "codec": codec_jobs,
    "trie": trie_jobs,
    "fan-out": fan_out_jobs,
    "delivery": outlet_jobs,
    "pack tracker": tracker_jobs,
    "in-flight window": window_jobs,
    "pending entries": pending_jobs,
    "partitioner": partition_jobs,
    "envelope": envelope_jobs,
}


def all_jobs(wanted: Collection[str] = ()) -> dict[str, Job]:
    """Those that are wanted, or all."""
    parts = {name.partition(":")[0] for name in wanted} or PARTS
    jobs = {name: job for part, make in PARTS.items() if part in parts for name, job in make().items()}
    return {name: job for name, job in jobs.items() if not wanted or name in wanted}
