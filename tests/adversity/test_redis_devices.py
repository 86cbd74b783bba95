"""What happens to Redis, as DEVICE clients see it: flushed, out of memory, away, slow. The log is the embedded one."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import contextmanager

import pytest

from tests.support.clients.packets import V5, PacketType, pack_connect
from tests.support.servers.redis_proxy import proxied
from tests.support.servers.redis_server import own_redis
from tests.support.worlds.application import only_penstock, persistent, until
from tests.support.worlds.device import DeviceBroker, publish_all

QUICK = {"redis.command_timeout": 0.5, "redis.response_timeout": 0.3, "redis.reconnect_delay_max": 0.2}


@contextmanager
def broker_on(directory, redis, **settings):
    only_penstock()
    broker = DeviceBroker(directory, "embedded", {**QUICK, **settings}, redis)
    try:
        broker.wait_until_listening()
        yield broker
        assert broker.is_alive
        assert "Traceback" not in broker.log(), broker.log()[-4000:]
        broker.stop()
    finally:
        if broker.is_alive:
            broker.process.kill()
            broker.process.wait()


@pytest.fixture(scope="module")
def redis():
    with own_redis() as server:
        yield server


@pytest.fixture(scope="module")
def broker(tmp_path_factory, redis):
    with broker_on(tmp_path_factory.mktemp("broker"), redis, **{"device.page_size": 10}) as running:
        yield running


@contextmanager
def frozen(redis):
    os.kill(redis.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(redis.pid, signal.SIGCONT)


def leave(broker, name, topic, qos=1, version=V5):
    client = broker.client(version)
    client.connect(name, **persistent(version))
    client.subscribe(topic, qos=qos)
    client.disconnect()


def come_back(broker, name, version=V5, **properties):
    client = broker.client(version)
    client.connect(name, **persistent(version, **properties))
    assert client.connack.session_present
    return client


@pytest.fixture
def publisher(broker):
    client = broker.client(V5)
    client.connect()
    yield client
    client.close()


def test_flushed_in_the_middle_of_a_backlog(broker, redis, publisher, topic):
    """What was stored is lost, and nothing else: what comes afterwards is delivered on the same connection, though
    scores and packet ids of the store begin anew."""
    leave(broker, "flushed", topic)
    publish_all(publisher, topic, [b"%d" % number for number in range(1_100)])
    broker.await_stored("flushed", 1_100)
    client = come_back(broker, "flushed", receive_maximum=20)
    first = client.expect_publish(payload=b"0")
    redis.cli("FLUSHALL")
    client.ack(first)
    seen = []
    new = [b"new %d" % number for number in range(5)]
    publish_all(publisher, topic, new)
    while seen[-5:] != new:
        packet = client.expect_publish()
        client.ack(packet)
        seen.append(packet.payload)
    # A page or two were read before: the rest is lost with the store.
    assert len(seen) < 1_104
    broker.await_stored("flushed", 0)
    publisher.publish(topic, b"live", qos=1)
    client.expect_publish(payload=b"live", ack=True)
    client.close()


def test_out_of_memory(broker, redis, publisher, topic):
    """Publishers are acknowledged, connected clients are served, and everything is stored when there is room again."""
    leave(broker, "away", topic)
    online = broker.client(V5)
    online.connect("online", **persistent(V5))
    online.subscribe(topic, qos=1)
    start = broker.log_size()
    redis.cli("CONFIG", "SET", "maxmemory", "1")
    payloads = [b"%d" % number for number in range(200)]
    publish_all(publisher, topic, payloads[:100])
    online.expect_payloads(payloads[:100], dup=None)
    until(lambda: "messages of clients cannot be stored" in broker.log(start), 60, lambda: broker.log(start)[-4000:])
    publish_all(publisher, topic, payloads[100:])
    redis.cli("CONFIG", "SET", "maxmemory", "0")
    broker.await_stored("away", 200)
    come_back(broker, "away").expect_payloads(payloads, dup=False)
    online.expect_payloads(payloads[100:], dup=None)
    online.expect_nothing(0.1)
    broker.await_stored("online", 0)
    online.close()


@pytest.mark.parametrize("how", ["stays", "kill"])
def test_a_session_that_ends_while_redis_is_away(broker, redis, publisher, topic, how):
    """[MQTT-3.1.2-4]: the next session of the client begins with nothing, also when the broker was killed meanwhile;
    and what comes for it then is not removed with what was the old one's."""
    name = f"ends {how}"
    leave(broker, name, topic)
    publish_all(publisher, topic, [b"old 1", b"old 2"])
    broker.await_stored(name, 2)
    start = broker.log_size()
    client = broker.client(V5)
    with frozen(redis):
        if how == "kill":
            client.connect(name, clean_start=True)
            client.disconnect()
            broker.kill()
        else:
            client.connect(name, **persistent(V5) | {"clean_start": True})
            client.subscribe(topic, qos=1)
            publisher.publish(topic, b"new", qos=1)
            until(
                lambda: "cannot be removed, it is tried again" in broker.log(start),
                60,
                lambda: broker.log(start)[-4000:],
            )
    if how == "kill":
        broker.restart()
        client, publisher = broker.client(V5), broker.client(V5)
        publisher.connect()
        client.connect(name, **persistent(V5))
        assert not client.connack.session_present
        client.subscribe(topic, qos=1)
        publisher.publish(topic, b"new", qos=1)
    client.expect_publish(payload=b"new", ack=True)
    client.expect_nothing(0.1)
    client.close()


@contextmanager
def slow_redis(redis, delay):
    """A proxy before it, on a thread, whose answers take so long."""
    started, stop = threading.Event(), threading.Event()
    found = {}

    async def serve():
        async with proxied(redis.port) as proxy:
            proxy.delay = delay
            found["address"] = proxy.address
            started.set()
            while not stop.is_set():  # noqa: ASYNC110 - another thread sets it
                await asyncio.sleep(0.02)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(60)
    try:
        yield found["address"]
    finally:
        stop.set()
        thread.join()


def test_many_devices_return_to_a_slow_redis(tmp_path, redis):
    """Each has its messages, once and in order."""
    devices = 100
    with (
        slow_redis(redis, 0.05) as address,
        broker_on(tmp_path, redis, **{"redis.addresses": address, "redis.response_timeout": 10}) as broker,
    ):
        for at in range(devices):
            leave(broker, f"d{at}", "t")
        publisher = broker.client(V5)
        publisher.connect()
        publish_all(publisher, "t", [b"a", b"b", b"c"])
        broker.await_stored(f"d{devices - 1}", 3)
        clients = [broker.client(V5) for _ in range(devices)]
        for at, client in enumerate(clients):
            client.send_raw(pack_connect(V5, f"d{at}", **persistent(V5)))
        for client in clients:
            client.expect(PacketType.CONNACK, reason=0, session_present=True, timeout=30)
            client.expect_payloads([b"a", b"b", b"c"], dup=False, timeout=30)
        publisher.publish("t", b"live", qos=1)
        for client in clients:
            client.expect_publish(payload=b"live", timeout=30, ack=True)
            client.close()
