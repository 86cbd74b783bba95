"""Does the server stand storms of connections, subscriptions, garbage and broken packets without harm to others?"""

import contextlib
import random
import threading
import time

from tests.support.clients.packets import V5, V311, PacketType, pack_connect, pack_publish, pack_subscribe
from tests.support.clients.raw_client import RawClient
from tests.support.clients.streams import open_tcp

MIB = 1024 * 1024


def test_connection_storm(broker, new_name, bystander):
    """2,000 connects in bursts of 200: all are accepted, all end, and the memory comes back."""
    before = broker.resident_bytes()
    for _ in range(10):
        burst = [RawClient(open_tcp(broker.address), V5) for _ in range(200)]
        for client in burst:
            client.send_connect(new_name("storm"))
        for client in burst:
            client.expect(PacketType.CONNACK, reason=0)
        bystander.ping()
        for client in burst:
            client.close()
    bystander.ping()
    assert broker.resident_bytes() - before < 20 * MIB


def test_one_client_id_connects_all_the_time(broker, connect, client_id, bystander):
    """A client in a reconnect loop takes itself over 300 times."""
    for _ in range(300):
        client = RawClient(open_tcp(broker.address), V5)
        client.send_connect(client_id)
    client.expect(PacketType.CONNACK, reason=0)
    client.ping()
    client.close()


def test_subscription_storm(broker, connect, topic, new_name):
    """Filters come and go by the thousand while others publish: no subscriber loses or doubles a message."""
    subscribers = [connect(version, keep_alive=0) for version in (V311, V5) for _ in range(2)]
    for index, subscriber in enumerate(subscribers):
        subscriber.subscribe(f"{topic}/#" if index % 2 else f"{topic}/+", qos=1)
    stop = threading.Event()
    churned = []

    def churn(client, seed):
        chance = random.Random(seed)
        while not stop.is_set():
            levels = [topic, *(chance.choice(["+", "a", "b"]) for _ in range(chance.randrange(3)))]
            name = "/".join(levels + chance.choice([[], ["#"]]))
            client.subscribe(name)
            client.unsubscribe(name)
            churned.append(name)
            client.forget_received()

    churners = [threading.Thread(target=churn, args=(connect(V5), seed)) for seed in range(3)]
    for churner in churners:
        churner.start()
    publisher = connect(V5)
    count = 1500
    for number in range(count):
        publisher.publish(f"{topic}/{'ab'[number % 2]}", b"%d" % number, qos=1)
    stop.set()
    for churner in churners:
        churner.join(60)
    for subscriber in subscribers:
        subscriber.expect_payloads(b"%d" % number for number in range(count))
        subscriber.expect_nothing(0.05)
    assert len(churned) > 100


def test_many_subscriptions_of_one_client_come_and_go(broker, connect, topic):
    """A thousand filters in one packet, subscribed and unsubscribed, leave nothing behind."""
    client = connect(V5)
    names = [f"{topic}/{index}" for index in range(1000)]
    for _ in range(5):
        assert client.subscribe(*names) == [0] * 1000
        assert client.unsubscribe(*names) == [0] * 1000
    client.publish(names[0], b"x")
    client.expect_nothing(0.05)


def test_garbage_flood(broker, bystander):
    """Random bytes from 300 connections, before and after CONNECT."""
    chance = random.Random(7)
    before = broker.resident_bytes()
    for number in range(300):
        client = RawClient(open_tcp(broker.address), V5)
        if number % 2:
            client.connect(f"garbage{number}")
        client.try_send_raw(chance.randbytes(chance.randrange(1, 5000)))
        client.close()
        if number % 50 == 0:
            bystander.ping()
    bystander.ping()
    assert broker.resident_bytes() - before < 20 * MIB


def test_mutated_conversations(broker, bystander, topic):
    """Right conversations with a few bytes changed: each ends well or with the end of its own connection."""
    chance = random.Random(11)
    for number in range(300):
        version = chance.choice([V311, V5])
        data = bytearray(
            pack_connect(version, f"mutant{number}")
            + pack_subscribe(version, 1, [(topic, 1)])
            + pack_publish(version, topic, b"payload", qos=2, packet_id=2)
            + b"\x62\x02\x00\x02\xc0\x00"
        )
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        client = RawClient(open_tcp(broker.address), version)
        client.try_send_raw(bytes(data))
        client.close()
    bystander.ping()


def test_connections_that_close_within_a_packet(broker, bystander, new_name):
    """500 connections that end at any byte of a CONNECT or PUBLISH leave nothing behind."""
    chance = random.Random(5)
    before = broker.resident_bytes()
    for _ in range(500):
        data = pack_connect(V5, new_name("cut")) + pack_publish(V5, "cut/short", bytes(20_000))
        connection = open_tcp(broker.address)
        connection.sendall(data[: chance.randrange(1, len(data))])
        connection.close()
    bystander.ping()
    assert broker.resident_bytes() - before < 20 * MIB


def test_slowloris(start_broker, connect, topic):
    """A hundred clients that send a CONNECT byte by byte are cut off in time; others are served meanwhile."""
    broker = start_broker({"limits.connect_timeout": 1})
    slow = [open_tcp(broker.address) for _ in range(100)]
    data = pack_connect(V5, "slow", username="u" * 200)
    client = connect(V5, broker=broker)
    client.subscribe(topic)
    ended = set()
    for byte in data[:20]:
        for connection in slow:
            if connection in ended:
                continue
            try:
                connection.sendall(bytes([byte]))
            except OSError:
                ended.add(connection)
        client.publish(topic, b"x")
        client.expect_publish(topic, b"x")
        time.sleep(0.12)
    for connection in slow:
        connection.settimeout(60)
        with contextlib.suppress(ConnectionError):
            assert connection.recv(10) == b""
        connection.close()


def test_many_idle_connections_are_cheap(start_broker, connect):
    """1,000 idle connections with a subscription each cost little memory and no delay."""
    broker = start_broker()
    first = connect(V5, broker=broker)
    before = broker.resident_bytes()
    idle = []
    for number in range(1000):
        client = RawClient(open_tcp(broker.address), V311)
        client.send_raw(pack_connect(V311, f"idle{number}") + pack_subscribe(V311, 1, [(f"idle/{number}", 0)]))
        idle.append(client)
    for client in idle:
        client.expect(PacketType.CONNACK, reason=0)
        client.expect(PacketType.SUBACK)
    assert (broker.resident_bytes() - before) / 1000 < 10_000
    start = time.monotonic()
    first.publish("idle/999", b"x", qos=1)
    idle[999].expect_publish("idle/999", b"x")
    assert time.monotonic() - start < 15
    for client in idle:
        client.close()
