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
