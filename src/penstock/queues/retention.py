"""What may go from the log of a queue.

Classic: what every group has settled, and of that, with a policy, only what is over a limit; unread messages stay.
Stream: what is over a limit, whoever has read it; without a limit nothing goes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.logs.base import EARLIEST, TopicPartition
from penstock.queues.sizes import Sizes

if TYPE_CHECKING:
    from penstock.queues.queue import Queue

READ_AT_ONCE = 500


async def enforce_retention(queue: Queue) -> None:
    tail, retention = queue.end, queue.definition.retention
    if tail == queue.log_head:
        return
    over: list[int] = []
    if retention.max_length_messages:
        over.append(tail - retention.max_length_messages)
    if retention.max_length_bytes and queue.sizes is not None:
        await _account(queue, queue.sizes)
        over.append(queue.sizes.first_within(retention.max_length_bytes))
    if retention.max_age:
        over.append(await _first_younger(queue, retention.max_age))
    if queue.core.is_stream:
        before = max(over, default=queue.head)
    elif queue.groups:
        settled = min(group.committed for group in queue.groups.values())
        before = min(settled, max(over)) if over else settled
    else:
        before = queue.head  # nobody has read it yet
    await queue.truncate(max(before, queue.head))


async def _account(queue: Queue, sizes: Sizes) -> None:
    """What was in the log before the broker started is read once."""
    end = queue.end if sizes.first is None else sizes.first
    at = queue.head
    while at < end:
        packs = await queue.read(at, min(READ_AT_ONCE, end - at))
        if not packs:
            return
        for pack in packs:
            sizes.add(max(pack.base_offset, at), pack.size)
            at = max(at, pack.next_offset)


async def _first_younger(queue: Queue, seconds: float) -> int:
    place = TopicPartition(queue.topic, 0)
    consumer = queue.log.consumer(group="")
    try:
        await consumer.add({place: EARLIEST})
        return await consumer.seek_to_time(place, queue.now_ms() - int(seconds * 1000))
    finally:
        await consumer.close()
