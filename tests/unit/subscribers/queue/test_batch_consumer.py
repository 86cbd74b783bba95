"""Consumers whose deliveries are handed to Python: credit, and how far a group of a stream is done."""

from __future__ import annotations

import asyncio

from penstock._ext.hub.connection import BatchConsumer, Delivered
from penstock._ext.match.trie import Subscriber
from penstock.subscribers.queue.settling import Outcome, settle
from tests.support.machine.waiting import until
from tests.support.worlds.queue_world import QueueWorld, in_world, record_of


def test_a_consumer_of_a_stream_gets_what_it_has_credit_for_and_commits_what_is_settled() -> None:
    async def work(world: QueueWorld) -> None:
        queue = await world.fill("events", type="stream")
        group = queue.group("readers", "")
        got: list[Delivered] = []
        consumer = BatchConsumer(group.core, Subscriber(), lambda _, batch: got.extend(batch))
        consumer.join()
        for number in range(4):
            pack = record_of(f"$queue/events/k{number}", b"%d" % number)
            await queue.append(pack)
        for pack in await queue.read(0, 4):
            group.core.offer(pack)
        await asyncio.sleep(0.05)
        assert got == []
        consumer.grant(3)
        await until(lambda: len(got) == 3)
        assert [(one.offset, one.topic, one.payload) for one in got[:1]] == [(0, b"$queue/events/k0", b"0")]
        assert (consumer.credit, consumer.revoke()) == (0, 0)
        for offset, outcome, unacknowledged in (
            (0, Outcome.ACCEPTED, 1),
            (1, Outcome.RELEASED, 1),
            (2, Outcome.ACCEPTED, 1),
            (1, Outcome.REJECTED, 3),
        ):
            settle(consumer, offset, outcome)
            assert group.core.unacknowledged() == unacknowledged
        consumer.leave()

    in_world(work)
