"""A broker with persistent DEVICE clients on either log and store, and what its store holds of them, from outside.

`embedded` is the embedded log with LMDB, `kafka` is Kafka with a redis-server of the broker's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import lmdb
import pytest

from penstock._ext.device.rows import chunk_count
from penstock.settings.redis import DeviceSettings, RedisSettings
from penstock.subscribers.device.store.base import DeviceStore, client_queue, result_of
from penstock.subscribers.device.store.lmdb import LmdbDeviceStore
from penstock.subscribers.device.store.redis import RedisDeviceStore
from tests.support.brokers.broker import IS_MOSQUITTO
from tests.support.checkers.app_checker import Subscriber
from tests.support.clients.packets import V311, Packet, PacketType, pack_publish
from tests.support.clients.raw_client import RawClient
from tests.support.servers.kafka_topics import forget_topics
from tests.support.servers.redis_server import RedisServer, own_redis
from tests.support.worlds.application import AppBroker, only_penstock, shared_cluster, until

AT_ONCE = 50  # below the receive maximum of the broker
LARGEST_MAP = 1 << 36
QUEUE_NUMBER = struct.Struct("<Q")
# What the client of Redis says on its own account, and what this module asks.
NOT_FOR_MESSAGES = ("info", "ping", "hello", "auth", "client", "select", "config", "command", "script")


class DeviceBroker(AppBroker):
    """Its store can be looked at while it runs, and used in its place while it does not."""

    def __init__(
        self,
        directory: Path,
        provider: str,
        settings: Mapping[str, Any] | None = None,
        redis: RedisServer | None = None,
    ) -> None:
        self.redis = redis
        own = {"device.store": "redis", "redis.addresses": redis.address} if redis else {}
        super().__init__(directory, provider, {"server.drain_seconds": 1, **own, **(settings or {})})

    @property
    def store_path(self) -> Path:
        return self.data_dir / "devices"

    def stored(self, queue: str) -> int:
        """How many messages wait in the store under this name, PUBRELs included: that of a client, or of a group."""
        only_penstock()
        if self.redis is not None:
            return int(self.redis.cli("ZCARD", f"{{{queue}}}_messages"))
        with look_into_lmdb(self.store_path) as environment:
            return _count_in_lmdb(environment, queue.encode())

    def await_stored(self, queue: str, count: int, seconds: float = 60.0) -> None:
        """Until exactly so many wait there. Another broker is trusted."""
        if not IS_MOSQUITTO:
            until(lambda: self.stored(queue) == count, seconds, f"{count} stored for {queue}")

    def store_operations(self) -> int:
        """Commands that Redis has worked on, those inside of scripts too; transactions that LMDB has committed."""
        only_penstock()
        if self.redis is None:
            with look_into_lmdb(self.store_path) as environment:
                return int(environment.info()["last_txnid"])
        return redis_commands(self.redis)

    def trimmed(self) -> int:
        """Messages that gave way to newer ones."""
        return int(self.api("overview")["counters"]["device_trimmed"])

    def use_up_ids(self, client_id: str, last: int) -> None:
        """As if the client had been given all ids up to `last`; only while the broker does not run."""
        assert not self.is_alive

        async def reserve() -> None:
            store: DeviceStore = (
                RedisDeviceStore(RedisSettings(addresses=self.redis.address), DeviceSettings())
                if self.redis
                else LmdbDeviceStore(self.store_path, DeviceSettings())
            )
            await store.start()
            queue = client_queue(client_id)
            given = (await result_of(store.describe, queue)).last_packet_id
            ids = await result_of(store.reserve, queue, last - given, b"")
            assert ids[-1] == last
            await store.close()

        asyncio.run(reserve())

    def restart_with(self, **settings: Any) -> None:
        """Ends it and starts it with other settings of [device]."""
        self.settings |= {f"device.{name}": value for name, value in settings.items()}
        self.end()
        self.restart()


@contextlib.contextmanager
def look_into_lmdb(path: Path) -> Iterator[lmdb.Environment]:
    """The store of a broker that runs; its tables are described in penstock.subscribers.device.store.lmdb_rows."""
    environment = lmdb.open(str(path), map_size=LARGEST_MAP, max_dbs=16, readonly=True, create=False, max_spare_txns=0)
    try:
        yield environment
    finally:
        environment.close()


def redis_commands(redis: RedisServer) -> int:
    """How many it has worked on for messages, those inside of scripts too."""
    found = re.findall(r"cmdstat_([^:|]+)[^:]*:calls=(\d+)", redis.cli("INFO", "commandstats"))
    return sum(int(calls) for name, calls in found if name not in NOT_FOR_MESSAGES)


def _count_in_lmdb(environment: lmdb.Environment, name: bytes) -> int:
    queues, chunks = (environment.open_db(table, create=False) for table in (b"queues", b"chunks"))
    with environment.begin() as transaction:
        row = transaction.get(b"\0" + name, db=queues)
        if row is None:
            return 0
        prefix = QUEUE_NUMBER.unpack_from(row)[0].to_bytes(8, "big")
        cursor = transaction.cursor(db=chunks)
        count = 0
        if cursor.set_range(prefix):
            for key, chunk in cursor:
                if key[:8] != prefix:
                    break
                count += chunk_count(chunk)
        return count


@contextlib.contextmanager
def running_device_broker(
    directory: Path, provider: str, settings: Mapping[str, Any] | None = None, *, keeps_redis: bool = False
) -> Iterator[DeviceBroker]:
    """For fixtures: alone on its Kafka and its Redis, well until its end, exit code 0."""
    if IS_MOSQUITTO and provider == "kafka":
        pytest.skip("mosquitto knows no Kafka")
    with contextlib.ExitStack() as stack:
        redis = None
        if provider == "kafka":
            redis = stack.enter_context(own_redis(is_durable=keeps_redis))
            forget_topics(shared_cluster(1).bootstrap)
        broker = DeviceBroker(directory, provider, settings, redis)
        try:
            broker.wait_until_listening()
            yield broker
            if broker.is_alive:
                broker.stop()
        finally:
            if broker.is_alive:
                broker.process.kill()
                broker.process.wait()


class Device(Subscriber):
    """The checker's client as a DEVICE. What the broker keeps over its own end is judged as strictly as for an
    APPLICATION. A QoS 1 message that was sent at once and not stored yet has no past after a kill: it comes again as
    if for the first time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._life = 0  # of the broker that this connection is to
        self._first_of: dict[bytes, tuple[int, int]] = {}  # payload to the life it came in, and its QoS

    def _connect(self, client: RawClient) -> None:
        super()._connect(client)
        self._life = self.broker.process.pid

    def _on_publish(self, packet: Packet) -> None:
        packet_id, payload = packet.packet_id or 0, packet.payload or b""
        if self._has_no_past(self._open.get(packet_id)):
            del self._open[packet_id]
        if self._has_no_past(payload):
            self.repeated += 1
            if self._open.get(self._ids[payload]) == payload:
                del self._open[self._ids[payload]]
            self._ids[payload] = packet_id
            self._open[packet_id] = payload
        else:
            super()._on_publish(packet)
        self._first_of[payload] = (self._life, packet.qos or 0)

    def _has_no_past(self, payload: bytes | None) -> bool:
        life, qos = self._first_of.get(payload or b"", (self._life, 0))
        return qos == 1 and life != self._life


def publish_all(publisher: RawClient, topic: str, payloads: Iterable[bytes], qos: int = 1, **options: Any) -> None:
    """All of them acknowledged, in order, AT_ONCE under way at a time."""
    waiting = list(payloads)
    while waiting:
        some, waiting = waiting[:AT_ONCE], waiting[AT_ONCE:]
        ids = [publisher.new_packet_id() for _ in some]
        packets = (
            pack_publish(publisher.version, topic, payload, qos=qos, packet_id=packet_id, **options)
            for packet_id, payload in zip(ids, some, strict=True)
        )
        publisher.send_raw(b"".join(packets))
        for packet_id in ids:
            if qos == 2:
                publisher.await_packet(PacketType.PUBREC, packet_id)
                publisher.send_ack(PacketType.PUBREL, packet_id)
        for packet_id in ids:
            publisher.await_packet(PacketType.PUBACK if qos == 1 else PacketType.PUBCOMP, packet_id)


def pump(publisher: RawClient, device: RawClient, topic: str, count: int, window: int = 100) -> list[int]:
    """So many QoS 1 messages of 62 bytes to a device of MQTT 3.1.1 that acknowledges at once; gives the packet ids.
    Packets of one size are taken apart by their places, because nothing else is as fast in Python."""
    assert device.version == V311
    payload = bytes(62)
    size = len(pack_publish(V311, topic, payload, qos=1, packet_id=1))
    id_at = size - len(payload) - 2
    ids: list[int] = []
    while len(ids) < count:
        some = range(1, 1 + min(window, count - len(ids)))
        version = publisher.version
        publisher.send_raw(b"".join(pack_publish(version, topic, payload, qos=1, packet_id=number) for number in some))
        data = _receive_exactly(device, size * len(some))
        heads = {data[at] for at in range(0, len(data), size)}
        assert heads == {0x32}, f"something else than PUBLISH of QoS 1 without DUP: {heads}"
        given = [data[at : at + 2] for at in range(id_at, len(data), size)]
        device.send_raw(b"".join(b"\x40\x02" + one for one in given))
        ids += [int.from_bytes(one, "big") for one in given]
        assert _receive_exactly(publisher, 4 * len(some))[:2] == b"\x40\x02"
    return ids


def _receive_exactly(client: RawClient, size: int) -> bytes:
    client.stream.settimeout(client.timeout)
    data = b""
    while len(data) < size:
        more = client.stream.recv(size - len(data))
        assert more, "closed by the server"
        data += more
    return data


def await_quiet(broker: DeviceBroker, seconds: float = 0.3, limit: float = 60.0) -> None:
    """Until the store has had nothing to do for a while."""
    deadline = time.monotonic() + limit
    last, since = broker.store_operations(), time.monotonic()
    while time.monotonic() - since < seconds:
        assert time.monotonic() < deadline, "the store is never quiet"
        time.sleep(0.05)
        if (now := broker.store_operations()) != last:
            last, since = now, time.monotonic()
