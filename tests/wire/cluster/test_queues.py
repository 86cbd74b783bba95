"""Durable queues and groups of consumers in a cluster: each is served by one broker, and by another one when that is
gone."""

from __future__ import annotations

import json
from collections.abc import Callable

from penstock.datasub import Admin, Consumer
from tests.support.application import AppBroker, until
from tests.support.packets import V5
from tests.support.queues import QueueClient
from tests.support.raw_client import RawClient

ADDRESS = "$queue/mqtt"  # the reserved queue, which takes everything under $queue/
IMPLEMENTATION_SPECIFIC = 0x83


def test_one_broker_serves_a_queue_and_its_heir_goes_on(
    cluster: dict[str, AppBroker], connect: Callable[..., RawClient]
) -> None:
    clients = {node: QueueClient(connect(V5, broker=broker)) for node, broker in cluster.items()}
    answers = {node: client.try_consume(ADDRESS, "workers", prefetch=2)[0] for node, client in clients.items()}
    assert sorted(answers.values()) == [1, IMPLEMENTATION_SPECIFIC]
    owner, heir = sorted(cluster, key=lambda node: answers[node])
    for node, client in clients.items():  # publishing works at both
        client.publish(f"$queue/mqtt/{node}", node.encode())
    first, second = clients[owner].take_any(2)
    clients[owner].ack(first)

    cluster[owner].kill()

    def is_heir() -> bool:
        return clients[heir].try_consume(ADDRESS, "workers", prefetch=2) == [1]

    until(is_heir, 60, "the other broker serves the queue")
    again = clients[heir].next(second.packet.payload)
    assert (again.message_id, again.count) == (second.message_id, 2)
    clients[heir].ack(again)
    clients[heir].nothing()
    cluster[owner].restart()


def test_a_queue_made_at_one_broker_is_known_to_the_other(
    cluster: dict[str, AppBroker], connect: Callable[..., RawClient]
) -> None:
    """Made, changed and deleted while they run, wherever the command goes."""
    first, second = cluster.values()
    first.command_json("queue", "create", "later")

    def has_it(broker: AppBroker) -> bool:
        return "later" in {queue["name"] for queue in broker.command_json("queue", "list")["queues"]}

    until(lambda: has_it(second), 30, "the other broker knows the queue")
    publisher = QueueClient(connect(V5, broker=second))
    publisher.publish("$queue/later/x", b"1")
    consumers = [QueueClient(connect(V5, broker=broker)) for broker in cluster.values()]
    granted = [consumer.try_consume("$queue/later", "workers")[0] for consumer in consumers]
    assert sorted(granted) == [1, IMPLEMENTATION_SPECIFIC]
    consumers[granted.index(1)].take_and_ack(b"1")
    second.command_json("queue", "delete", "later", "--yes")
    until(lambda: not has_it(first), 30, "the first broker has forgotten the queue")


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
