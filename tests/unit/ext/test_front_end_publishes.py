"""What a front-end in Python publishes to queues: when it is durable, and how fast it may be."""

from __future__ import annotations

from typing import Any

import pytest

from penstock._ext.hub.connection import QUEUE_BUSY, DurableQueue, Hub, Session
from penstock._ext.match.trie import Subscriber
from tests.support.worlds.lanes import StepLoop


class FrontEnd:
    """A hub with a queue, whose log finishes batches when a test says so."""

    def __init__(self) -> None:
        self.loop = StepLoop()
        self.hub = Hub(self.loop)
        self.hub.log_to(self._submit, mode="all", partitions=1)
        self.hub.queues.serve(lambda *_: None, lambda _: None, lambda _: None)
        self.queue = DurableQueue(self.hub, "q")
        self.hub.queues.bind(self.queue, b"$queue/q/#")
        self.client = Subscriber()
        self.submitted: list[int] = []
        self.is_broken = False
        self.told: list[tuple[str, bool]] = []

    def _submit(self, ticket: int, packs: Any, size: int, beside: Any) -> None:
        if self.is_broken:
            raise OSError
        self.submitted.append(ticket)

    def publish(self, client: Subscriber | None = None) -> int:
        [answer] = self.hub.queues.publish(client or self.client, b"c", None, [(b"$queue/q/a", b"x", b"", 0)])
        return answer

    def submit(self) -> int:
        """A message goes out with a batch of its own."""
        assert self.publish() == 0
        self.loop.turn()
        return self.submitted[-1]

    def ask(self, name: str) -> None:
        self.hub.queues.when_durable(lambda is_durable: self.told.append((name, is_durable)))


@pytest.mark.parametrize("is_open", [False, True])
def test_a_batch_that_fails_before_the_last_one_is_not_confirmed(is_open: bool) -> None:
    front = FrontEnd()
    first, second = front.submit(), front.submit()
    if is_open:
        front.publish()
    front.ask("both")
    front.loop.turn()
    front.hub.log_committed(first, 0, 1)
    assert front.told == []
    front.hub.log_committed(second, 0, 0)
    if is_open:
        assert front.told == []
        front.hub.log_committed(front.submitted[-1], 0, 0)
    assert front.told == [("both", False)]


def test_a_failure_is_nobody_elses() -> None:
    front = FrontEnd()
    first = front.submit()
    front.ask("first")
    second = front.submit()
    front.ask("second")
    front.hub.log_committed(first, 0, 0)
    front.hub.log_committed(second, 0, 1)
    third = front.submit()
    front.ask("third")
    front.hub.log_committed(third, 0, 0)
    assert front.told == [("first", True), ("second", False), ("third", True)]


def test_a_batch_that_cannot_be_submitted_is_not_confirmed() -> None:
    front = FrontEnd()
    front.is_broken = True
    front.publish()
    front.ask("all")
    front.loop.turn()
    assert front.told == [("all", False)]
    assert len(front.loop.failures) == 1


def test_the_rate_of_everybody_together() -> None:
    front = FrontEnd()
    front.hub.limit_rates(total=[(2, 3600)])
    assert [front.publish() for _ in range(4)] == [0, 0, QUEUE_BUSY, QUEUE_BUSY]
    assert front.queue.tail == 2
    assert front.hub.counters_now()["messages_dropped_rate_all"] == 2


def test_the_rate_of_a_client_with_a_session() -> None:
    front = FrontEnd()
    front.hub.limit_rates(incoming=[(1, 3600)])
    one, other = Session(front.hub, "one"), Session(front.hub, "other")
    assert [front.publish(client) for client in (one, one, other)] == [0, QUEUE_BUSY, 0]
    assert [front.publish() for _ in range(3)] == [0, 0, 0], "only sessions have a rate of their own"
