"""Durable queues and groups of consumers in a cluster: each is served by one broker, and by another one when that is
gone."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from penstock.services.model import MAIN, SYSTEM_TENANT, ServiceInfo, ServiceType
from penstock.services.service import HashPartitionService
from penstock.services.topics import default_queues
from penstock.settings.services import ServiceSettings
from penstock_client import Admin, Consumer
from tests.support.brokers.cluster import NODES
from tests.support.clients.packets import V5, V311, PacketType, pack_auth
from tests.support.clients.raw_client import RawClient
from tests.support.clients.streams import open_tcp
from tests.support.worlds.application import AppBroker, persistent, until
from tests.support.worlds.queues import QueueClient

NOT_AUTHORIZED = 0x87
QUOTA_EXCEEDED = 0x97


@dataclass
class Served:
    """A queue, the broker that serves it, and the other one, where its consumers are connected."""

    name: str
    owner: AppBroker
    other: AppBroker

    @property
    def address(self) -> str:
        return f"$queue/{self.name}"

    def consumers(self) -> list[str]:
        """As the owner tells them."""
        groups = self.owner.api(f"queues/{self.name}/groups")["groups"]
        return [consumer["client_id"] for group in groups for consumer in group["members"]]

    def pending(self) -> int:
        groups = self.owner.api(f"queues/{self.name}/groups")["groups"]
        return sum(group["pending"] for group in groups)


def owner_of(name: str) -> str:
    """As every broker calculates it."""
    kinds = frozenset([ServiceType.TB_CORE, ServiceType.TB_TRANSPORT])
    first, second = (ServiceInfo(service_id=node, service_types=kinds) for node in NODES)
    service = HashPartitionService(first, default_queues(ServiceSettings()), None)  # type: ignore[arg-type]  # no timers
    service.start([second])
    is_first = service.is_my_partition(ServiceType.TB_CORE, MAIN, SYSTEM_TENANT, name)
    return NODES[0] if is_first else NODES[1]


@pytest.fixture
def make_queue(cluster: dict[str, AppBroker], new_name: Callable[[str], str]) -> Callable[..., Served]:
    def make(node: str | None = None, **settings: Any) -> Served:
        """Known to both brokers, and served by this one, if one is named."""
        name = new_name("q")
        while node is not None and owner_of(name) != node:
            name = new_name("q")
        served = Served(name, *(cluster[each] for each in sorted(NODES, key=lambda each: each != owner_of(name))))
        served.other.api("queues", "POST", {"name": name, **settings})
        found = until(lambda: served.owner.api(f"queues/{name}"), 60, "the owner knows the queue")
        assert found["served_by"] == owner_of(name)
        return served

    return make


@pytest.fixture
def rights(cluster: dict[str, AppBroker]) -> Iterator[None]:
    """At both brokers: the client `narrow` may have messages below eu/ only, `boss` commits for others."""
    everything = cluster[NODES[0]].acl_path.read_text()
    narrow = '[[rules]]\neffect = "deny"\nclients = ["narrow"]\nactions = ["subscribe"]\ntopics = ["$queue/+/us/#"]\n\n'
    boss = '[[rules]]\neffect = "allow"\nclients = ["boss"]\ntopics = ["$queue/+/$commit"]\n\n'
    for rules in (narrow + boss + everything, everything):
        for broker in cluster.values():
            broker.acl_path.write_text(rules)
            start = broker.log_size()
            broker.process.send_signal(signal.SIGHUP)
            broker.await_log("reloaded", start)
        if rules is not everything:
            yield


@pytest.fixture
def consumer(connect: Callable[..., RawClient]) -> Callable[..., QueueClient]:
    def make(broker: AppBroker, version: int = V5, client_id: str | None = None, **options: Any) -> QueueClient:
        return QueueClient(connect(version, client_id, broker=broker, **options))

    return make


def test_consumers_at_any_broker(make_queue, consumer) -> None:
    """What is published at either broker is shared by consumers at both, and settled from both; the link between the
    brokers is no client of anybody."""
    queue = make_queue(retry={"initial_backoff": "50ms"})
    near, far = consumer(queue.owner), consumer(queue.other)
    far.consume(queue.address, "workers", prefetch=1)
    near.consume(queue.address, "workers", prefetch=1)
    node = queue.other.settings["server.node_id"]
    assert sorted(queue.consumers()) == sorted([near.client_id, f"{far.client_id} at {node}"])
    sessions = [session["client_id"] for session in queue.owner.api("sessions")["sessions"]]
    assert near.client_id in sessions
    assert not any(far.client_id in name for name in sessions)
    far.publish(f"{queue.address}/a", b"1")
    near.publish(f"{queue.address}/b", b"2")
    got = {client: client.next() for client in (near, far)}
    assert {delivery.payload for delivery in got.values()} == {b"1", b"2"}
    delivery = got[far]
    assert (delivery.queue, delivery.group, delivery.count) == (queue.name, "workers", 1)
    assert delivery.message_id == f"{queue.name}:{delivery.offset}"
    assert delivery.topic == delivery.value("x-source-topic")
    far.nack(delivery)
    again = far.next(delivery.payload)
    assert (again.message_id, again.count) == (delivery.message_id, 2)
    near.ack(got[near])
    far.settle(got[near], refused=True)  # the other broker's words
    far.settle(again, group="nobody", refused=True)
    far.settle(again, qos=2)
    far.settle(again, qos=2, refused=True)
    assert queue.pending() == 0
    near.raw.unsubscribe(queue.address)
    far.publish(f"{queue.address}/c", b"3")
    rejected = far.next(b"3")
    far.reject(rejected, "no good")
    dead = consumer(queue.other)
    dead.consume(f"$queue/$dlq/{queue.name}", "dead")
    assert dead.next(b"3").value("reason") == "no good"


def test_many_settlements_at_once(make_queue, consumer) -> None:
    """Answers come in the order of what they answer, also those of messages in between [MQTT-4.6.0-2]."""
    queue = make_queue()
    client = consumer(queue.other)
    client.consume(queue.address, "workers", prefetch=50)
    client.publish(f"{queue.address}/n", *(b"%d" % number for number in range(50)))
    sent = []
    for delivery in client.take_any(50):
        pairs = [("message-id", delivery.message_id), ("group-id", delivery.group)]
        sent.append(client.raw.send_publish(f"{queue.address}/$ack", qos=1, properties={"user_property": pairs}))
        if delivery.offset % 10 == 0:
            sent.append(client.raw.send_publish(f"{queue.address}/n", b"more", qos=1))
    answers = []
    while len(answers) < len(sent):
        packet = client.raw.receive()
        if packet.type == PacketType.PUBACK:
            answers.append((packet.packet_id, packet.reason))
    assert answers == [(packet_id, 0) for packet_id in sent]


def test_a_client_with_little_room(make_queue, consumer, topic) -> None:
    """No more is under way than it takes, whatever comes; a message that is too large for it is buried."""
    queue = make_queue(retry={"max_retries": 0})
    publisher = consumer(queue.owner)
    limits = {"receive_maximum": 1, "maximum_packet_size": 1000}
    client = consumer(queue.other, properties=limits)
    client.raw.subscribe(topic, qos=1)
    client.consume(queue.address, "workers", prefetch=3)
    publisher.raw.publish(topic, b"ordinary", qos=1)
    ordinary = client.next(b"ordinary", puback=False)
    publisher.publish(f"{queue.address}/n", b"1", b"x" * 2000, b"3")
    client.nothing()
    client.raw.ack(ordinary.packet)
    first = client.next(b"1", puback=False)
    client.nothing()
    client.ack(first)
    client.raw.ack(first.packet)
    client.take_and_ack(b"3")
    dead = consumer(queue.other)
    dead.consume(f"$queue/$dlq/{queue.name}", "dead")
    dead.take_and_ack(b"x" * 2000)


@pytest.mark.parametrize("node", NODES)
def test_mqtt_3_settles_by_puback(make_queue, consumer, new_name, node) -> None:
    """What was not acknowledged comes again, as soon as the connection is gone, at any broker."""
    queue = make_queue(node)
    name = new_name("till")
    client = consumer(queue.other, V311, name)
    client.consume(queue.address)
    client.publish(f"{queue.address}/a", b"1", b"2")
    client.next(b"1")
    client.next(b"2", puback=False)
    until(lambda: queue.pending() == 1, 60, "the first is settled")
    client.close()
    client = consumer(queue.owner, V311, name)
    client.consume(queue.address)
    client.next(b"2")
    until(lambda: queue.pending() == 0, 60, "the second is settled")


def test_a_stream_served_elsewhere(make_queue, consumer, rights) -> None:
    queue = make_queue(type="stream", primary_group="work")
    client, boss = consumer(queue.other), consumer(queue.other, client_id="boss")
    client.publish(f"{queue.address}/clicks", *(b"%d" % number for number in range(5)))
    client.consume(queue.address, "readers", x_stream_offset="offset=2", x_auto_commit="false")
    first = client.next(b"2")
    assert (first.value("x-stream-offset"), first.value("x-work-group")) == ("2", "work")
    client.take(b"3", b"4")
    client.commit(queue.name, "readers", 2)
    client.commit(queue.name, "readers", 99, refused=True)
    client.raw.unsubscribe(queue.address)
    client.consume(queue.address, "readers", x_auto_commit="false")
    client.take(b"3", b"4")
    boss.commit(queue.name, "readers", 3)  # not only consumers commit
    boss.commit(queue.name, "nobody", 3, refused=True)
    client.consume(queue.address, "readers", x_auto_commit="false")
    client.next(b"4")
    client.consume(queue.address, "readers", x_stream_offset="first", qos=0)
    client.take(*(b"%d" % number for number in range(5)), puback=False)


def test_one_filter_for_queues_of_both_brokers(make_queue, consumer) -> None:
    queues = [make_queue(node) for node in NODES]
    client = consumer(queues[0].owner)
    client.consume("$queue/+/spans", "spans")
    for queue in queues:
        client.publish(f"{queue.address}/spans", queue.name.encode())
    got = client.take_any(2)
    assert {delivery.queue for delivery in got} == {queue.name for queue in queues}
    client.ack(*got)
    late = make_queue(NODES[1])  # one that is made when it consumes already
    client.publish(f"{late.address}/spans", b"late")
    client.ack(client.next(b"late"))
    client.raw.unsubscribe("$queue/+/spans")
    client.publish(f"{late.address}/spans", b"later")
    until(lambda: not late.consumers(), 60, "the link is closed")
    client.nothing()


def test_a_persistent_consumer_moves_between_brokers(make_queue, consumer, new_name) -> None:
    queue = make_queue()
    name = new_name("worker")
    publisher = consumer(queue.owner)
    client = consumer(queue.owner, client_id=name, **persistent(V5))
    client.consume(queue.address, "workers", prefetch=1)
    for turn, broker in enumerate((queue.other, queue.owner, queue.other)):
        client = consumer(broker, client_id=name, **persistent(V5))
        assert client.raw.connack is not None
        assert client.raw.connack.session_present
        publisher.publish(f"{queue.address}/n", b"%d" % turn)
        client.take_and_ack(b"%d" % turn)
    client.raw.disconnect()
    publisher.publish(f"{queue.address}/n", b"away")
    client = consumer(queue.other, client_id=name, **persistent(V5))
    client.take_and_ack(b"away")


def test_a_publisher_away_from_the_consumers_is_not_refused_for_ever(make_queue, consumer) -> None:
    """The depth of a queue follows from what is settled at another broker."""
    queue = make_queue(limits={"max_depth": 4})
    client, publisher = consumer(queue.owner), consumer(queue.other)
    client.consume(queue.address, "workers", prefetch=1)
    publisher.publish(f"{queue.address}/n", b"0", b"1", b"2", b"3")
    publisher.publish(f"{queue.address}/n", b"4", reason=QUOTA_EXCEEDED)
    client.take_and_ack(b"0", b"1", b"2", b"3")

    def is_taken() -> bool:
        answer = publisher.raw.publish(f"{queue.address}/n", b"4", qos=1)
        assert answer is not None
        return answer.reason == 0

    until(is_taken, 60, "there is room again")
    client.take_and_ack(b"4")


def test_commands_about_groups_go_to_the_broker_of_the_queue(make_queue, consumer) -> None:
    """Another one knows the groups as they once were: what it changed of them would be lost, or give out twice what it
    moved. It says so, and who serves the queue."""
    queue, target = make_queue(), make_queue()
    client = consumer(queue.owner)
    client.publish(f"{queue.address}/n", b"0", b"1")
    client.consume(queue.address, "workers")
    client.take(b"0", b"1")
    name = queue.owner.settings["server.node_id"]
    for command, *words in (
        ("purge", "--yes"),
        ("seek", "workers", "--to", "last", "--yes"),
        ("settle", "workers", "ack", "0", "--yes"),
        ("truncate", "--before", "1", "--yes"),
        ("move", target.name, "--yes"),
        ("replay", "--yes"),
        ("groups",),
        ("pending", "workers"),
        ("delete-group", "workers", "--yes"),
    ):
        refused = queue.other.command("queue", command, queue.name, *words, fails=1)
        assert f"is served by the node {name}" in refused, command
    assert queue.pending() == 2
    assert queue.owner.command("queue", "purge", queue.name, "--yes") == f"2 messages removed from {queue.name}\n"
    assert queue.pending() == 0


def test_an_ephemeral_queue_gives_way(cluster, consumer, new_name) -> None:
    """One broker has it in memory, then the other is told to make it for good: both have that one."""
    name = new_name("eph")
    first, second = (cluster[node] for node in sorted(NODES, key=lambda node: node != owner_of(name)))
    client = consumer(second)
    second.api("queues", "POST", {"name": name, "durable": False})
    client.consume(f"$queue/{name}", "workers")
    assert not second.api(f"queues/{name}")["durable"]
    first.api("queues", "POST", {"name": name})
    until(lambda: (second.api(f"queues/{name}") or {}).get("durable"), 60, "the other broker knows it")
    consumer(first).publish(f"$queue/{name}/x", b"1")
    client.take_and_ack(b"1")


@pytest.mark.parametrize("first_use", ["subscribe", "publish"])
def test_a_queue_made_on_first_use_is_one_queue(cluster, consumer, new_name, first_use) -> None:
    """A client uses the name first at the broker that does not serve the queue; clients of both brokers share it."""
    name = new_name("auto")
    owner, other = (cluster[node] for node in sorted(NODES, key=lambda node: node != owner_of(name)))
    client = consumer(other)
    if first_use == "publish":
        client.publish(f"$queue/{name}/x", b"0")
    client.consume(f"$queue/{name}", "workers")
    if first_use == "publish":
        client.take_and_ack(b"0")
    consumer(owner).publish(f"$queue/{name}/x", b"1")
    client.take_and_ack(b"1")
    client.publish(f"$queue/{name}/x", b"2")
    client.take_and_ack(b"2")
    assert owner.api(f"queues/{name}")["durable"]


def test_clients_cannot_come_in_as_brokers(cluster) -> None:
    """Neither with a name and a password, nor with the method of the brokers and a guess."""
    for broker in cluster.values():
        lines = [json.loads(line) for line in broker.log().splitlines() if "listening for other nodes" in line]
        host, _, port = lines[-1]["advertised"].rpartition(":")
        assert host == "127.0.0.1"  # from where Kafka is reached
        with RawClient(open_tcp((host, int(port))), V5) as client:
            client.connect("x", username="node-a", password=b"guess", reason=NOT_AUTHORIZED)
        with RawClient(open_tcp((host, int(port))), V311) as client:
            client.connect("x", reason=5)
        with RawClient(open_tcp((host, int(port))), V5) as client:
            method = {"authentication_method": "penstock-node", "authentication_data": b"0" * 32}
            client.send_connect("x", username="node-a", properties=method)
            challenge = client.expect(PacketType.AUTH)
            assert len(challenge.properties["authentication_data"]) == 32
            client.send_raw(pack_auth(0x18, {**method, "authentication_data": b"1" * 32}))
            client.expect(PacketType.CONNACK, reason=NOT_AUTHORIZED)


def test_a_consumer_goes_on_when_the_owner_is_killed(cluster, make_queue, consumer) -> None:
    """It stays connected and does nothing about it: what it had comes again, what is published meanwhile follows, and
    so it is when the owner is back and takes the queue over."""
    queue = make_queue()
    client, publisher = consumer(queue.other), consumer(queue.other)
    client.consume(queue.address, "workers", prefetch=10)
    publisher.publish(f"{queue.address}/n", b"0", b"1")
    done, kept = client.take_any(2)
    client.ack(done)

    queue.owner.kill()

    publisher.publish(f"{queue.address}/n", b"2")
    got = {delivery.payload: delivery for delivery in client.take_any(2)}
    assert got.keys() == {b"1", b"2"}
    assert (got[b"1"].message_id, got[b"1"].count) == (kept.message_id, 2)
    client.ack(*got.values())
    client.nothing()

    queue.owner.restart()

    until(queue.consumers, 60, "the owner serves its queue again")
    publisher.publish(f"{queue.address}/n", b"3")
    client.take_and_ack(b"3")
    client.nothing()


def test_a_queue_made_at_one_broker_is_known_to_the_other(
    cluster: dict[str, AppBroker], connect: Callable[..., RawClient]
) -> None:
    """Made, changed and deleted while they run, wherever the command goes."""
    first, second = cluster.values()
    first.command_json("queue", "create", "later")

    def has_it(broker: AppBroker) -> bool:
        return "later" in {queue["name"] for queue in broker.command_json("queue", "list")["queues"]}

    until(lambda: has_it(second), 60, "the other broker knows the queue")
    publisher = QueueClient(connect(V5, broker=second))
    publisher.publish("$queue/later/x", b"1")
    consumer = QueueClient(connect(V5, broker=first))
    consumer.consume("$queue/later", "workers")
    consumer.take_and_ack(b"1")
    second.command_json("queue", "delete", "later", "--yes")
    until(lambda: not has_it(first), 60, "the first broker has forgotten the queue")


def last_rebalance(broker: AppBroker) -> str:
    lines = [line for line in broker.log().splitlines() if '"rebalanced"' in line]
    return str(json.loads(lines[-1])["time"]) if lines else ""


def test_a_group_of_consumers_outlives_its_coordinator(
    cluster: dict[str, AppBroker], connect: Callable[..., RawClient]
) -> None:
    """Consumers at both brokers share the partitions; the coordinator is killed, and the consumer at the other broker
    goes on behind what was committed, without an error."""
    servers = {node: {"server": f"127.0.0.1:{broker.data_port}"} for node, broker in cluster.items()}
    with Admin(servers["node-a"]) as admin:
        admin.execute('CREATE TOPIC hot AS SELECT payload.n AS n FROM "hot/#"')
    keys = {"group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumers = {node: Consumer({**server, **keys}) for node, server in servers.items()}
    got: set[int] = set()  # at least once: a row may come twice when partitions move

    def poll(*nodes: str) -> None:
        for node in nodes:
            message = consumers[node].poll(0.05)
            if message is not None:
                assert message.error() is None
                got.update(row["n"] for row in message.to_pylist())

    def is_shared() -> bool:
        poll(*consumers)
        return [len(consumer.assignment()) for consumer in consumers.values()] == [2, 2]

    for consumer in consumers.values():
        consumer.subscribe(["hot"])
    until(is_shared, 60, "both have partitions")
    for node, numbers in (("node-a", range(10)), ("node-b", range(10, 20))):
        publisher = connect(V5, broker=cluster[node])
        for number in numbers:
            publisher.publish(f"hot/{number}", b'{"n": %d}' % number, qos=1)
    until(lambda: poll(*consumers) or len(got) == 20, 60, "all rows")
    assert got == set(range(20))
    for consumer in consumers.values():
        consumer.commit()
    coordinator = max(cluster, key=lambda node: last_rebalance(cluster[node]))
    (heir,) = set(cluster) - {coordinator}
    got.clear()

    cluster[coordinator].kill()

    publisher = connect(V5, broker=cluster[heir])
    for number in range(20, 40):
        publisher.publish(f"hot/{number}", b'{"n": %d}' % number, qos=1)
    until(lambda: poll(heir) or len(got) == 20, 60, "the rows of all partitions")
    assert got == set(range(20, 40))
    consumers[heir].commit()
    for consumer in consumers.values():
        consumer.close()
    cluster[coordinator].restart()


def test_rights_of_a_consumer_at_the_other_broker(make_queue, consumer, rights) -> None:
    """The broker that serves the queue knows them: what one consumer may not have goes to another, or waits."""
    queue = make_queue()
    near, far, narrow = consumer(queue.owner), consumer(queue.other), consumer(queue.other, client_id="narrow")
    narrow.consume(queue.address, "workers")
    far.publish(f"{queue.address}/us/1", b"us1")
    far.publish(f"{queue.address}/eu/1", b"eu1")
    narrow.ack(narrow.next(b"eu1"))
    narrow.nothing()
    near.consume(queue.address, "workers")
    near.ack(near.next(b"us1"))
    far.publish(f"{queue.address}/us/1", b"us2", b"us3")
    near.take_and_ack(b"us2", b"us3")
    narrow.nothing()


def test_commits_for_others_at_the_other_broker(make_queue, consumer, rights) -> None:
    """By a client that consumes nothing: only with a right to the verb itself."""
    queue = make_queue(type="stream")
    reader, stranger = consumer(queue.owner), consumer(queue.other)
    boss, narrow = consumer(queue.other, client_id="boss"), consumer(queue.other, client_id="narrow")
    reader.consume(queue.address, "readers", x_auto_commit="false")
    stranger.publish(f"{queue.address}/us/1", *(b"%d" % number for number in range(5)))
    reader.take(*(b"%d" % number for number in range(5)))
    stranger.commit(queue.name, "readers", 3, refused=True)
    narrow.consume(queue.address, "readers")
    narrow.commit(queue.name, "readers", 3, refused=True)
    narrow.nothing()
    boss.commit(queue.name, "readers", 1)
    groups = queue.owner.api(f"queues/{queue.name}/groups")["groups"]
    assert [group["committed"] for group in groups] == [2]


@pytest.mark.parametrize("ends", ["unsubscribes", "session ends", "session ends later"])
def test_a_group_without_a_name_ends_at_its_owner(make_queue, consumer, connect, ends) -> None:
    """Its client is connected to the other broker; while the client is only absent, its group stays."""
    queue = make_queue()
    seconds = 3 if ends == "session ends later" else 300
    far = consumer(queue.other, client_id=f"far-{queue.name}", **persistent(V5, seconds))
    far.consume(queue.address)

    def groups() -> list[str]:
        return [group["id"] for group in queue.owner.api(f"queues/{queue.name}/groups")["groups"]]

    until(lambda: groups() == [far.client_id], 30, "the group")
    far.close()
    until(lambda: queue.consumers() == [], 30, "the end of the link")
    assert groups() == [far.client_id]
    if ends != "session ends later":
        far = consumer(queue.other, client_id=far.client_id, **persistent(V5, seconds))
        until(queue.consumers, 30, "the consumer is back")
        if ends == "unsubscribes":
            far.raw.unsubscribe(queue.address)
        else:
            far.raw.disconnect(properties={"session_expiry_interval": 0})
    until(lambda: groups() == [], 30, "the end of the group")
