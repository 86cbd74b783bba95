"""What the guard counts: each job is prepared outside the count, and says how many operations one call of it does."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from penstock._ext.application.pack import PackTracker
from penstock._ext.hub.connection import Connection, Hub, Session
from penstock._ext.hub.inflight import InflightWindow
from penstock._ext.match import partition
from penstock._ext.match.trie import Subscriber, Trie
from penstock._ext.queue.pending import PendingList
from penstock._ext.record import envelope
from penstock._ext.wire import codec, packets

TOPIC = b"sensors/building-7/floor-3/temperature"
PAYLOAD = b"x" * 66
BATCH = 2_000
FILTERS = 1_000
MESSAGES = 100
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


class Loop:
    """The part of an event loop that a hub needs."""

    def __init__(self) -> None:
        self._soon: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    def call_soon(self, callback: Callable[..., object], *arguments: Any) -> None:
        self._soon.append((callback, arguments))

    def turn(self) -> None:
        while self._soon:
            soon, self._soon = self._soon, []
            for callback, arguments in soon:
                callback(*arguments)


class Sink:
    """A transport that takes everything at once."""

    def __init__(self) -> None:
        self.size = 0

    def get_extra_info(self, name: str) -> None:
        return None

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...

    def write(self, data: bytes) -> None:
        self.size += len(data)


class Handler:
    """Nothing rare happens here."""

    def on_open(self, connection: Connection) -> None: ...

    def on_error(self, connection: Connection, error: BaseException) -> None:
        raise error


class Room:
    """A hub with one publisher and its subscribers, without sockets."""

    def __init__(self, subscribers: int, qos: int = 0) -> None:
        self.loop = Loop()
        self.hub = Hub(self.loop, max_inflight=1_000, max_queued_messages=10_000)
        self.sinks = [Sink() for _ in range(subscribers + 1)]
        self.clients = [self._connect(f"client-{i}", sink) for i, sink in enumerate(self.sinks)]
        for _, session in self.clients[1:]:
            self.hub.trie.subscribe(session, TOPIC, qos)
        # Nobody acknowledges: what both calls of a job deliver fits into the window.
        given = {"qos": qos, "packet_id": 7} if qos else {}
        self.input = packets.build_publish(TOPIC, PAYLOAD, version=4, **given) * MESSAGES

    def _connect(self, name: str, sink: Sink) -> tuple[Connection, Session]:
        session = Session(self.hub, name)
        connection = Connection(self.hub, Handler())
        connection.connection_made(sink)
        session.attach(connection, version=4, keeps=False, receive_maximum=65_535)
        connection.accept(session, packets.build_connack(4, False))
        return connection, session

    def feed(self, connection: Connection, data: bytes) -> None:
        connection.get_buffer(-1)[: len(data)] = data
        connection.buffer_updated(len(data))

    def publish_all(self) -> None:
        before = self.sinks[1].size
        self.feed(self.clients[0][0], self.input)
        self.loop.turn()
        assert self.sinks[1].size > before + MESSAGES * len(PAYLOAD), "nothing was delivered"


def fan_out_jobs() -> dict[str, Job]:
    pair, many, acknowledged = Room(1), Room(100), Room(100, qos=1)
    return {
        "fan-out: 1 to 1, QoS 0": Job(pair.publish_all, MESSAGES),
        "fan-out: 1 to 100, QoS 0": Job(many.publish_all, MESSAGES * 100),
        "fan-out: 1 to 100, QoS 1": Job(acknowledged.publish_all, MESSAGES * 100),
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
