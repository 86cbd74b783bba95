"""Commands of one queue go one at a time, so nothing that happens to one of them lets a later one overtake it.

A queue with a command on its way has a lane where the next ones wait. Additions that wait side by side leave as one
command, so a busy queue has larger commands and not longer waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from penstock._ext.device.commands import read_given
from penstock._ext.record.segment import RecordPack
from penstock.storage.state.base import StoreError
from penstock.subscribers.device.store.addition_order import AdditionOrder
from penstock.subscribers.device.store.base import NoPacketIdLeft, Queue, StoreUnavailable
from penstock.subscribers.device.store.redis.client import COMMAND_OVERHEAD, RedisClient
from penstock.subscribers.device.store.redis.connection import OnReply
from penstock.subscribers.device.store.redis.keys import QueueKeys


class Job:
    """A command that may have to wait: `payload`, or packs of messages that become one when it leaves."""

    __slots__ = ("deadline", "in_flight", "is_admitted", "keys", "number", "on_reply", "packs", "payload", "size")

    def __init__(
        self, keys: QueueKeys, on_reply: OnReply, payload: bytes = b"", packs: list[RecordPack] | None = None
    ) -> None:
        self.keys = keys
        self.on_reply = on_reply
        self.payload = payload
        self.packs = packs
        self.in_flight = b""
        self.number = 0  # of an addition: see AdditionOrder
        self.is_admitted = False  # a part of something that there is room for
        self.deadline = 0.0
        self.size = 0


PackAddition = Callable[[QueueKeys, list[RecordPack], bytes], bytes]


class Lanes:
    def __init__(
        self, client: RedisClient, pack_addition: PackAddition, most_messages: int, order: AdditionOrder
    ) -> None:
        self._order = order
        self._client = client
        self._pack_addition = pack_addition
        self._most_messages = most_messages
        self._loop = asyncio.get_running_loop()
        self._timeout = client.settings.command_timeout
        # None: a command is on its way and nobody waits behind it.
        self._lanes: dict[Queue, deque[Job] | None] = {}
        self.waiting_bytes = 0

    def try_hold(self, queue: Queue) -> bool:
        """Whether nothing of the queue is on its way; from now on something is, until `release`."""
        if queue in self._lanes:
            return False
        self._lanes[queue] = None
        return True

    def release(self, queue: Queue, reply: Any) -> None:
        """What was on its way was answered: the next may leave."""
        lane = self._lanes[queue]
        if lane is None:
            del self._lanes[queue]
        else:
            self._start_next(queue, lane, reply)

    def submit_held(
        self, queue: Queue, keys: QueueKeys, pack: RecordPack, in_flight: bytes, on_reply: OnReply, *, number: int
    ) -> None:
        """An addition to a queue that is held for it."""
        payload = self._pack_addition(keys, [pack], in_flight)
        on_added = partial(self._on_added, queue, on_reply, number)
        self._client.submit(keys.slot, payload, on_added, 0.0, self.waiting_bytes)

    def submit_addition(
        self, queue: Queue, keys: QueueKeys, pack: RecordPack, in_flight: bytes, on_reply: OnReply, *, number: int
    ) -> None:
        if self.try_hold(queue):
            self.submit_held(queue, keys, pack, in_flight, on_reply, number=number)
            return
        job = Job(keys, on_reply, packs=[pack])
        job.in_flight, job.number = in_flight, number
        self._wait(queue, job)

    def submit_parts(
        self,
        queue: Queue,
        keys: QueueKeys,
        parts: Sequence[tuple[RecordPack, OnReply]],
        in_flight: bytes,
        *,
        number: int,
    ) -> None:
        """All of them or none, so that what is given again does not fail again at the same part."""
        is_admitted = self._client.has_room(sum(pack.size for pack, _ in parts), self.waiting_bytes)
        for pack, on_reply in parts:
            if not is_admitted:
                self._refuse(queue, on_reply, number)
                continue
            job = Job(keys, on_reply, packs=[pack])
            job.in_flight, job.is_admitted, job.number = in_flight, True, number
            self.submit(queue, job)

    def submit(self, queue: Queue, job: Job) -> None:
        if self.try_hold(queue):
            self._start(queue, job)
        else:
            self._wait(queue, job)

    def _wait(self, queue: Queue, job: Job) -> None:
        job.size = COMMAND_OVERHEAD + len(job.payload) + sum(pack.size for pack in job.packs or ())
        if not job.is_admitted and not self._client.has_room(job.size, self.waiting_bytes):
            if job.packs is None:
                self._loop.call_soon(job.on_reply, self._client.refuse())
            else:
                self._refuse(queue, job.on_reply, job.number)
            return
        self.waiting_bytes += job.size
        job.deadline = self._loop.time() + self._timeout
        lane = self._lanes[queue]
        if lane is None:
            lane = self._lanes[queue] = deque()
        lane.append(job)

    def _refuse(self, queue: Queue, on_reply: OnReply, number: int) -> None:
        """For an addition: a smaller one, that there would be room for, must not overtake it."""
        refusal = self._client.refuse()
        self._order.failed(queue, number, refusal)
        self._loop.call_soon(on_reply, refusal)

    def _start(self, queue: Queue, job: Job) -> None:
        if job.packs is None:
            payload, on_reply = job.payload, partial(self._on_reply, queue, job.on_reply)
        else:
            payload = self._pack_addition(job.keys, job.packs, job.in_flight)
            on_reply = partial(self._on_added, queue, job.on_reply, job.number)
        beside = -1 if job.is_admitted else self.waiting_bytes
        self._client.submit(job.keys.slot, payload, on_reply, job.deadline, beside)

    def _on_added(self, queue: Queue, on_reply: OnReply, number: int, reply: Any) -> None:
        """Who adds gets how many gave way, whether ids ran out, and a list of packet ids; or a StoreError."""
        answer = reply if isinstance(reply, StoreError) else (reply[0], reply[1], read_given(reply[2]))
        if isinstance(answer, StoreError):
            self._order.failed(queue, number, answer)
        elif answer[1] and 0 in answer[2]:
            self._order.failed(queue, number, NoPacketIdLeft("there are too few packet ids"))
        self.release(queue, reply)
        on_reply(answer)

    def _on_reply(self, queue: Queue, on_reply: OnReply, reply: Any) -> None:
        self.release(queue, reply)
        on_reply(reply)

    def _start_next(self, queue: Queue, lane: deque[Job], reply: Any) -> None:
        now = self._loop.time()
        while lane:
            job = lane.popleft()
            self.waiting_bytes -= job.size
            failure = None if job.packs is None else self._order.failure(queue, job.number)
            if failure is None and job.deadline > now:
                self._start(queue, self._merge(queue, job, lane))
                break
            # It waited for the one before it, which had the same bad luck.
            error = reply if isinstance(reply, StoreError) else StoreUnavailable("Redis answers too slowly")
            if job.packs is not None:
                self._order.failed(queue, job.number, error)
            self._loop.call_soon(job.on_reply, failure or error)
        else:
            del self._lanes[queue]
            return
        if not lane:
            self._lanes[queue] = None

    def _merge(self, queue: Queue, job: Job, lane: deque[Job]) -> Job:
        if job.packs is None or not lane or lane[0].packs is None:
            return job
        packs, in_flight, is_admitted = list(job.packs), job.in_flight, job.is_admitted
        total = sum(pack.count for pack in packs)
        shares = [(job.on_reply, total)]
        while lane:
            packs_of_next = lane[0].packs
            count = sum(pack.count for pack in packs_of_next or ())
            if packs_of_next is None or total + count > self._most_messages:
                break
            if self._order.failure(queue, lane[0].number) is not None:
                break
            other = lane.popleft()
            self.waiting_bytes -= other.size
            packs += packs_of_next
            total += count
            in_flight += other.in_flight
            is_admitted = is_admitted or other.is_admitted
            shares.append((other.on_reply, count))
        merged = Job(job.keys, partial(_share_out, shares), packs=packs)
        merged.in_flight, merged.is_admitted, merged.number = in_flight, is_admitted, job.number
        merged.deadline = job.deadline
        return merged


def _share_out(shares: list[tuple[OnReply, int]], reply: Any) -> None:
    """What gave way is counted with the first of them."""
    if isinstance(reply, StoreError):
        for on_reply, _ in shares:
            on_reply(reply)
        return
    trimmed, is_full, given = reply
    position = 0
    for on_reply, count in shares:
        on_reply((trimmed, is_full, given[position : position + count]))
        position, trimmed = position + count, 0
