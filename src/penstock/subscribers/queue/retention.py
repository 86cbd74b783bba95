"""What may go from the log of a queue.

Classic: what every group has settled, and of that, with a policy, only what is over a limit; unread messages stay.
Where there is no group, the oldest go when their time to live is over: they would keep room from those that live.
Stream: what is over a limit, whoever has read it; without a limit nothing goes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock._ext.record.envelope import EnvelopeError, decode
from penstock._ext.record.segment import Record
from penstock.core.clock import now_ms
from penstock.storage.log.base import EARLIEST, TopicPartition
from penstock.subscribers.queue.sizes import Sizes

if TYPE_CHECKING:
    from penstock.subscribers.queue.queue import Queue

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
        start = max(queue.head, queue.core.floor)  # a removed group has settled everything before it
        before = await _first_alive(queue, start)  # there is no group yet, and expired messages are never read
        if queue.groups:
            return  # the first of them came meanwhile, and counts what has expired itself
        queue.expired_late += max(before - start, 0)
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


async def _first_alive(queue: Queue, at: int) -> int:
    """Return the offset of the first message from `at` on that has not expired."""
    now = now_ms()
    while at < queue.end:
        packs = await queue.read(at, min(READ_AT_ONCE, queue.end - at))
        if not packs:
            return at
        for pack in packs:
            for record in pack:
                if record.offset >= at and not _is_expired(record, now):
                    return record.offset
            at = max(at, pack.next_offset)
    return at


def _is_expired(record: Record, now: int) -> bool:
    try:
        return record.value is not None and 0 < decode(record.value).expires_at <= now
    except EnvelopeError:
        return False  # whoever reads it is told of the damage


async def _first_younger(queue: Queue, seconds: float) -> int:
    place = TopicPartition(queue.topic, 0)
    consumer = queue.log.consumer(group="")
    try:
        await consumer.add({place: EARLIEST})
        return await consumer.seek_to_time(place, now_ms() - int(seconds * 1000))
    finally:
        await consumer.close()
