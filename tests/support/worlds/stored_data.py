"""Stored data with something of every kind in it: how it is made, and the files it is kept in.

`fill` drives a broker; the functions below keep what it stored: the data directory of the embedded log, or the records
of a Kafka with the keys of its Redis. `python -m tests.support.worlds.make_stored_data` made the files with the code of
an earlier commit; tests/wire/test_stored_data.py starts the present code on them.
"""

from __future__ import annotations

import base64
import contextlib
import json
import lzma
import socket
import tarfile
import time
from pathlib import Path
from typing import Any

import confluent_kafka
import hiredis
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from penstock_client import Admin, Consumer
from tests.support.brokers.broker import REPOSITORY
from tests.support.clients.packets import V5, V311, PacketType, Will
from tests.support.clients.raw_client import RawClient
from tests.support.servers.kafka_cluster import KafkaCluster
from tests.support.servers.kafka_topics import own_topics
from tests.support.servers.redis_server import RedisServer
from tests.support.worlds.application import persistent
from tests.support.worlds.datasub import read
from tests.support.worlds.queues import QueueBroker, QueueClient

FILES = REPOSITORY / "tests" / "data" / "stored-79aea34"
EMBEDDED, KAFKA = FILES / "embedded.tar.xz", FILES / "kafka.json.xz"

FOREVER = 0xFFFFFFFF
KEEP = "retention.ms:-1;segment.bytes:1048576"
SECRET = "correct horse"  # alice's password, whose hash is in the file of users
RULES = """
[[rules]]
effect = "allow"
topics = ["#", "$SYS/#", "$queue/#", "$queues/#"]

[[data]]
effect = "allow"
users = ["alice"]

[[types]]
type = "application"
clients = ["app*"]
"""
# Nothing expires, however old the files are when they are read.
SETTINGS: dict[str, Any] = {
    "limits.max_session_expiry": FOREVER,
    "ingest.properties": KEEP,
    "application.topic_properties": KEEP,
    "application.shared_topic_properties": KEEP,
    "application.shared_partitions": 2,
    "device.messages_ttl": 2_147_483_647,
    "data_subscription.offsets_retention": 315_360_000,
    "data_subscription.error_properties": KEEP,
    "kafka.topic_properties": f"{KEEP};partitions:1;min.insync.replicas:1",
    "server.node_id": "penstock",
}
QUEUES: list[dict[str, Any]] = [
    {"name": "work", "visibility_timeout": "5s", "limits": {"message_ttl": 0}},
    {"name": "events", "type": "stream", "primary_group": "readers", "limits": {"message_ttl": 0}},
]
QUERY = 'SELECT payload.n AS n, topic FROM "rows/#" WHERE payload.n > 0'
TAKEN_ID = 77  # of a QoS 2 publish that was received and not released
LONG = 100 * b"long "


class StoredDataBroker(QueueBroker):
    """A broker on the embedded log, or on Kafka with Redis."""

    def __init__(self, directory: Path, cluster: KafkaCluster | None = None, redis: RedisServer | None = None) -> None:
        self.users_path = directory / "users"
        provider = "kafka" if cluster else "embedded"
        own = {**SETTINGS, "access.password_file": str(self.users_path)}
        if redis:
            own |= {"device.store": "redis", "redis.addresses": redis.address}
        super().__init__(directory, provider, own, QUEUES, rules=RULES, cluster=cluster)

    def data_keys(self, **keys: Any) -> dict[str, Any]:
        """Configuration of alice's consumers of query topics."""
        given = {key.replace("_", "."): value for key, value in keys.items()}
        return {"server": f"127.0.0.1:{self.data_port}", "user": "alice", "password": SECRET, **given}

    def readers_config(self) -> dict[str, Any]:
        return self.data_keys(group_id="readers", auto_offset_reset="earliest", enable_auto_commit=False)

    def open_client(self, client_id: str, version: int = V5, **options: Any) -> RawClient:
        """A client with a session that stays."""
        client = self.client(version)
        client.connect(client_id, **persistent(version, FOREVER), **options)
        return client

    def open_consumer(self, client_id: str) -> QueueClient:
        raw = self.client(V5)
        raw.connect(client_id)
        return QueueClient(raw)


# Filling


def fill(broker: StoredDataBroker) -> list[RawClient]:
    """Store everything that test_stored_data.py looks for.

    The clients returned stay connected until the broker is killed, which has to be soon: within the delay of a will.
    """
    publisher = broker.client(V5)
    publisher.connect("publisher")
    _subscribe(broker)
    _retain(publisher)
    _publish_for_absent_clients(publisher)
    _leave_half_acknowledged(broker, publisher)
    _use_queues(broker, publisher)
    _use_query_topics(broker, publisher)
    willing = _leave_will(broker)
    _leave_unreleased(broker)
    publisher.publish("log/last", b"the last message", qos=1)
    return [publisher, willing]


def _subscribe(broker: StoredDataBroker) -> None:
    alice = {"username": "alice", "password": SECRET.encode()}
    with broker.open_client("device1", **alice) as device:
        device.subscribe("device/#", qos=2, properties={"subscription_identifier": 7})
        device.subscribe("wills/#", qos=1)
    with broker.open_client("device2", V311) as device:
        device.subscribe("half/device", qos=2)
    with broker.open_client("app1", **alice) as application:
        application.subscribe("application/#", qos=2, properties={"subscription_identifier": 8})
    with broker.open_client("app2", V311) as application:
        application.subscribe("half/application", qos=2)
    for member in ("app3", "app4"):
        with broker.open_client(member) as application:
            application.subscribe("$share/workers/shared/application/#", qos=1)
    for member in ("device3", "device4"):
        with broker.open_client(member) as device:
            device.subscribe("$share/workers/shared/device/#", qos=1)


def _retain(publisher: RawClient) -> None:
    rich = {"content_type": "text/plain", "user_property": [("colour", "blue")], "response_topic": "answers/1"}
    publisher.publish("kept/plain", b"plain", qos=1, retain=True)
    publisher.publish("kept/rich", b"rich", qos=2, retain=True, properties=rich)
    publisher.publish("kept/gone", b"gone", qos=1, retain=True)
    publisher.publish("kept/gone", b"", qos=1, retain=True)


def _publish_for_absent_clients(publisher: RawClient) -> None:
    for kind in ("device", "application"):
        for number in range(3):
            properties = {"user_property": [("number", str(number))], "correlation_data": b"\x00\xff"}
            publisher.publish(f"{kind}/{number}", b"%s %d" % (kind.encode(), number), qos=1, properties=properties)
        publisher.publish(f"{kind}/twice", b"exactly once", qos=2)
        publisher.publish(f"{kind}/long", LONG, qos=1)
        for number in range(6):
            publisher.publish(f"shared/{kind}/{number}", b"share %d" % number, qos=1)


def _leave_half_acknowledged(broker: StoredDataBroker, publisher: RawClient) -> None:
    """Two clients of MQTT 3.1.1, each with a message at every step of QoS 2."""
    for client_id, topic in (("device2", "half/device"), ("app2", "half/application")):
        client = broker.open_client(client_id, V311)
        for number in range(3):
            publisher.publish(topic, b"half %d" % number, qos=2)
        packets = [client.expect_publish(topic, b"half %d" % number, qos=2) for number in range(3)]
        done, received, _ = (packet.packet_id for packet in packets)
        client.ack(packets[0])
        client.send_ack(PacketType.PUBREC, received)
        client.await_packet(PacketType.PUBREL, received)
        assert done != received
        time.sleep(0.5)  # `device.persist_after`: it is stored then that the last has been sent
        client.close()


def _use_queues(broker: StoredDataBroker, publisher: RawClient) -> None:
    consumer = broker.open_consumer("consumer")
    for queue in ("work", "events"):
        for number in range(5):
            publisher.publish(f"$queue/{queue}/key", b"%s %d" % (queue.encode(), number), qos=1)
    consumer.consume("$queue/work", "crew", prefetch=5)
    acknowledged, rejected, *_ = consumer.take(*(b"work %d" % number for number in range(5)))
    consumer.ack(acknowledged)
    consumer.reject(rejected, "no good")
    broker.await_progress("work", "crew", pending=3)
    consumer.close()
    publisher.publish("$queue/work/key", b"work 5", qos=1)
    reader = broker.open_consumer("reader")
    reader.consume("$queue/events", "readers", x_stream_offset="first")
    read_events = reader.take(*(b"events %d" % number for number in range(5)))
    reader.commit("events", "readers", read_events[-1].offset)
    reader.close()
    for number in range(5, 8):
        publisher.publish("$queue/events/key", b"events %d" % number, qos=1)


def _use_query_topics(broker: StoredDataBroker, publisher: RawClient) -> None:
    for number in range(4):
        publisher.publish("rows/a", json.dumps({"n": number}).encode(), qos=1)
    with Admin(broker.data_keys()) as admin:
        admin.execute(f"CREATE TOPIC numbers AS {QUERY}")
        admin.execute("GRANT SUBSCRIBE ON numbers TO bob")
    consumer = Consumer(broker.readers_config())
    consumer.subscribe(["numbers"])
    assert read(consumer, 3) == [1, 2, 3]
    consumer.commit()
    consumer.close()
    for number in range(4, 7):
        publisher.publish("rows/a", json.dumps({"n": number}).encode(), qos=1)


def _leave_will(broker: StoredDataBroker) -> RawClient:
    """Leave one will that waits for its delay, and one of a client that is connected when the broker is killed."""
    late = Will("wills/late", b"late", qos=1, properties={"will_delay_interval": 60})
    broker.open_client("willing1", will=late).close()
    return broker.open_client("willing2", will=Will("wills/early", b"early", qos=1))


def _leave_unreleased(broker: StoredDataBroker) -> None:
    sender = broker.open_client("sender")
    sender.send_publish("device/unreleased", b"unreleased", qos=2, packet_id=TAKEN_ID)
    assert sender.await_packet(PacketType.PUBREC, TAKEN_ID).reason == 0
    time.sleep(1)  # contexts of packs are stored meanwhile, and a published record reaches its subscribers


# The data directory


def pack_directory(broker: StoredDataBroker) -> None:
    FILES.mkdir(parents=True, exist_ok=True)
    with tarfile.open(EMBEDDED, "w:xz", preset=9) as archive:
        for name in ("data", "users"):
            archive.add(broker.directory / name, name, filter=_plain)


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Without what belongs to one machine or one process."""
    if entry.name.endswith((".sock", ".lock", "lock.mdb", "admin.token")):
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def unpack_directory(directory: Path) -> None:
    with tarfile.open(EMBEDDED) as archive:
        archive.extractall(directory, filter="data")


# Kafka and Redis


def pack_servers(broker: StoredDataBroker, cluster: KafkaCluster, redis: RedisServer) -> None:
    found = {
        "users": broker.users_path.read_text(),
        "topics": [_dump_topic(cluster.bootstrap, name) for name in sorted(own_topics(cluster.bootstrap))],
        "groups": _dump_groups(cluster.bootstrap),
        "redis": _dump_redis(redis),
    }
    FILES.mkdir(parents=True, exist_ok=True)
    KAFKA.write_bytes(lzma.compress(json.dumps(found, indent=0).encode(), preset=9))


def unpack_servers(directory: Path, cluster: KafkaCluster, redis: RedisServer) -> None:
    found = json.loads(lzma.decompress(KAFKA.read_bytes()))
    (directory / "users").write_text(found["users"])
    (directory / "users").chmod(0o600)
    for topic in found["topics"]:
        _restore_topic(cluster.bootstrap, topic)
    _restore_groups(cluster.bootstrap, found["groups"])
    _restore_redis(redis, found["redis"])


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _data(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _dump_topic(bootstrap: str, name: str) -> dict[str, Any]:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    resource = ConfigResource(ResourceType.TOPIC, name)
    entries = admin.describe_configs([resource])[resource].result(60)
    config = {entry.name: entry.value for entry in entries.values() if not entry.is_default}
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "dump", "log_level": 0})
    partitions = []
    for number in sorted(admin.list_topics(name, timeout=60).topics[name].partitions):
        place = confluent_kafka.TopicPartition(name, number)
        first, end = consumer.get_watermark_offsets(place, timeout=60)
        consumer.assign([confluent_kafka.TopicPartition(name, number, first)])
        records: list[Any] = []
        while first + len(records) < end:
            record = consumer.poll(60)
            assert record is not None, f"{name}: {len(records)} of {end - first} records"
            assert record.error() is None, f"{name}: {record.error()}"
            assert record.offset() == first + len(records), f"a gap in {name}: offset {record.offset()}"
            headers = [(key, _text(value)) for key, value in record.headers() or []]
            records.append((_text(record.key()), _text(record.value()), headers, record.timestamp()[1]))
        partitions.append({"first": first, "records": records})
    consumer.close()
    return {"name": name, "config": config, "partitions": partitions}


def _restore_topic(bootstrap: str, topic: dict[str, Any]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    new = NewTopic(topic["name"], len(topic["partitions"]), 1, config=topic["config"])
    admin.create_topics([new], operation_timeout=60)[topic["name"]].result(60)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "log_level": 0, "enable.idempotence": True})
    starts = []
    for number, partition in enumerate(topic["partitions"]):
        for _ in range(partition["first"]):  # offsets that were removed already
            producer.produce(topic["name"], b"", b"removed", number)
        for key, value, headers, timestamp in partition["records"]:
            pairs = [(name, _data(data)) for name, data in headers]
            producer.produce(topic["name"], _data(value), _data(key), number, timestamp=timestamp, headers=pairs)
        if partition["first"]:
            starts.append(confluent_kafka.TopicPartition(topic["name"], number, partition["first"]))
    assert producer.flush(60) == 0
    for removed in admin.delete_records(starts).values() if starts else ():
        removed.result(60)


def _dump_groups(bootstrap: str) -> dict[str, Any]:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    found: dict[str, Any] = {}
    for listed in admin.list_consumer_groups(request_timeout=60).result().valid:
        asked = confluent_kafka.ConsumerGroupTopicPartitions(listed.group_id)
        offsets = admin.list_consumer_group_offsets([asked])[listed.group_id].result(60)
        found[listed.group_id] = [
            (one.topic, one.partition, one.offset, one.metadata) for one in offsets.topic_partitions if one.offset >= 0
        ]
    return {group: offsets for group, offsets in found.items() if offsets and group != "dump"}


def _restore_groups(bootstrap: str, groups: dict[str, Any]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for group, offsets in groups.items():
        places = [
            confluent_kafka.TopicPartition(topic, partition, offset, metadata)
            for topic, partition, offset, metadata in offsets
        ]
        asked = confluent_kafka.ConsumerGroupTopicPartitions(group, places)
        admin.alter_consumer_group_offsets([asked])[group].result(60)


class RedisLink:
    """One connection on which commands are answered in turn."""

    def __init__(self, server: RedisServer) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.port), 60)
        self._reader = hiredis.Reader()

    def ask(self, *words: Any) -> Any:
        self._socket.sendall(hiredis.pack_command(words))
        while (answer := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(65_536))
        assert not isinstance(answer, hiredis.ReplyError), f"{words}: {answer}"
        return answer

    def close(self) -> None:
        self._socket.close()


# How the keys of each kind are read, and how they are written. Not by DUMP: any version of Redis can have them back.
READ_KEY = {b"string": ("GET",), b"hash": ("HGETALL",), b"zset": ("ZRANGE", 0, -1, "WITHSCORES")}
WRITE_KEY = {b"string": "SET", b"hash": "HSET", b"zset": "ZADD"}


def _dump_redis(server: RedisServer) -> list[Any]:
    with contextlib.closing(RedisLink(server)) as link:
        found = []
        for key in sorted(link.ask("KEYS", "*")):
            kind = link.ask("TYPE", key)
            verb, *more = READ_KEY[kind]
            value = link.ask(verb, key, *more)
            values = [value] if isinstance(value, bytes) else value
            if kind == b"zset":  # ZADD has the score first
                values = [word for at in range(0, len(values), 2) for word in (values[at + 1], values[at])]
            found.append((kind.decode(), _text(key), [_text(each) for each in values], link.ask("PEXPIRETIME", key)))
        return found


def _restore_redis(server: RedisServer, keys: list[Any]) -> None:
    with contextlib.closing(RedisLink(server)) as link:
        for kind, key, values, expires in keys:
            link.ask(WRITE_KEY[kind.encode()], _data(key), *map(_data, values))
            if expires > 0:
                link.ask("PEXPIREAT", _data(key), expires)
