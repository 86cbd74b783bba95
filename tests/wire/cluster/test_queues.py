"""Durable queues in a cluster: each is served by one broker, and by another one when that is gone."""

from __future__ import annotations

from collections.abc import Callable

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
