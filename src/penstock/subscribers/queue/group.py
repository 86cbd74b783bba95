"""One group of consumers of one queue: what it reads, what is read for it again, when something is due."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any
from zlib import crc32

from penstock._ext.hub.connection import QueueConsumer, QueueGroup
from penstock._ext.queue.pending import CLAIMED, DEAD, HELD, READY, WAITING
from penstock._ext.record.segment import RecordPack
from penstock.core.logging import get_logger
from penstock.core.ports import Timer
from penstock.storage.log.base import LogError
from penstock.storage.state.base import StoreError
from penstock.subscribers.queue.abandoned import Life, longer
from penstock.subscribers.queue.consumer import Client, Outlet
from penstock.subscribers.queue.rights import RELAYED_BY, identity_of
from penstock.subscribers.queue.state import StoredGroup

if TYPE_CHECKING:
    from penstock.subscribers.queue.queue import Queue

log = get_logger("penstock.queues")

FETCHED_AT_ONCE = 500
RETRY_SECONDS = 1.0
SOONEST = 0.001
LASTING = 0x80000000  # pending.pxd
STATES = {WAITING: "waiting", READY: "ready", DEAD: "dead", HELD: "held"}


class Lane:
    """The group as the reader of logs sees it: where it is, and whether it takes more."""

    __slots__ = ("committed", "group", "partition", "position", "topic")

    def __init__(self, group: Group, start: int) -> None:
        self.group = group
        self.topic = group.queue.topic
        self.partition = 0
        self.committed = self.position = start

    def offer(self, packs: list[RecordPack]) -> bool:
        for pack in packs:
            self.group.core.offer(pack)
            self.position = pack.next_offset
        if self.position > self.group.queue.tail:  # published at another node
            self.group.queue.core.appended(self.position)
        return True

    @property
    def has_room(self) -> bool:
        return self.group.core.wants_records

    @property
    def is_paused(self) -> bool:
        return not self.group.core.is_reading

    @is_paused.setter
    def is_paused(self, value: bool) -> None:
        self.group.core.is_reading = not value


class Member:
    """A consumer of the group."""

    __slots__ = ("client", "core", "since")

    def __init__(self, client: Client, core: QueueConsumer) -> None:
        self.client = client
        self.core = core
        self.since = time.time()

    @property
    def client_id(self) -> str:
        """Of a consumer at another node with the name of that node."""
        client_id, relayed, node = self.client.client_id.partition(RELAYED_BY)
        return f"{client_id} at {node}" if relayed else client_id

    @property
    def prefetch(self) -> int:
        return self.core.prefetch

    @property
    def unsettled(self) -> int:
        return self.core.unsettled


class Group:
    """See control.Group for what commands ask of it."""

    def __init__(
        self, queue: Queue, name: str, topic_filter: str, identity: str, start: int, *, made_by: str = ""
    ) -> None:
        self.queue = queue
        self.made_by = made_by
        self.name = name
        self.filter = topic_filter
        self.id = identity
        whole = f"{queue.address}/{topic_filter}".encode() if topic_filter else None
        self.core = QueueGroup(queue.core, name, identity, whole, cursor=start)
        self.core.owner = self
        self.members: list[Member] = []
        self.last_used = time.time()
        self.life: Life = "named"
        self.idle_since = 0.0  # when its last connected consumer left; 0: it has one, or never had
        self.is_removed = False
        self._lane: Lane | None = None
        self._timer: Timer | None = None
        self._rings_at = 0.0
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.configure()

    def configure(self) -> None:
        """As the queue's definition says."""
        definition, core = self.queue.definition, self.core
        core.visibility = int(definition.visibility_timeout * 1000)
        core.max_delay = int(definition.max_delay * 1000)
        core.max_deliveries = definition.retry.max_retries + 1
        core.backoff = definition.retry.initial_backoff * 1000
        core.max_backoff = definition.retry.max_backoff * 1000
        core.multiplier = definition.retry.multiplier
        core.is_paused = definition.paused
        core.pending.limit = definition.max_pending

    def restore(self, stored: StoredGroup) -> None:
        core = self.core
        core.auto_commit = stored.record.auto_commit
        self.life, self.idle_since = stored.record.life, stored.record.idle_since or time.time()
        if stored.head is not None:
            core.pending.load_head(stored.head)
        for number, value in sorted(stored.windows):
            core.pending.load_window(number, value, keep_lasting=True)
        core.reasons.update(stored.reasons)
        core.pending.bury_exhausted(core.max_deliveries)
        now = core.clock_ms  # the time of day may have been set back since
        core.pending.cap_due(now + core.visibility, now + int(core.max_backoff), now + core.max_delay)
        if stored.committed is not None:
            core.seek(stored.committed)
        self._arm()

    def stay_within(self, end: int) -> None:
        """The log ends there. What it has lost (a power cut with ack_durability = "buffered") nobody gets any more, and
        what comes at these offsets is new."""
        if max(self.cursor, self.committed) <= end:
            return
        log.warning(
            "a group was further than its log is", queue=self.queue.name, group=self.id, cursor=self.cursor, end=end
        )
        for entry in self.core.pending.entries(self.pending):
            if entry[0] >= end:
                self.core.settle(entry[0])
        self.core.seek(end)

    # ---- for people and commands ----

    @property
    def is_stream(self) -> bool:
        return self.core.queue.is_stream

    @property
    def is_kept(self) -> bool:
        """Whether its state outlives the process. What is stored of a removed one would come back with its name."""
        return self.queue.definition.durable and not self.is_removed

    @property
    def is_used(self) -> bool:
        """Whether one of its consumers is connected."""
        return any(member.client.connected for member in self.members)

    @property
    def unused_since(self) -> float:
        """Return when the group lost its last consumer, in seconds since the epoch."""
        return self.idle_since or self.last_used

    @property
    def unsettled(self) -> int:
        """Return the messages the group has yet to settle, read or not (classic queues)."""
        return self.core.unsettled

    def note_use(self, leaving: Client | None = None) -> None:
        """Update the idle time after a consumer has joined, connected or left, or before `leaving` leaves."""
        if any(member.client.connected and member.client is not leaving for member in self.members):
            since = 0.0
        else:
            since = self.idle_since or time.time()
        if since != self.idle_since:
            self.idle_since = since
            self.queue.store_group(self)
            self.queue.expect_idle(self)

    def live_longer(self, life: Life) -> None:
        if longer(self.life, life) != self.life:
            self.life = life
            self.queue.store_group(self)

    @property
    def consumers(self) -> list[Member]:
        return self.members

    @property
    def cursor(self) -> int:
        return self.core.cursor

    @property
    def committed(self) -> int:
        return self.core.committed

    @property
    def pending(self) -> int:
        return self.core.pending.count

    @property
    def lag(self) -> int:
        """Messages nobody of the group has got yet, or of a stream: not committed."""
        at: int = self.committed if self.is_stream else self.cursor
        return max(self.queue.tail - at, 0)

    @property
    def delivered(self) -> int:
        return self.core.delivered

    @property
    def redelivered(self) -> int:
        return self.core.redelivered

    @property
    def acked(self) -> int:
        return self.core.acknowledged

    @property
    def nacked(self) -> int:
        return self.core.nacked

    @property
    def rejected(self) -> int:
        return self.core.rejected

    @property
    def last_pending(self) -> int | None:
        """The highest offset that is not settled: a group goes back no further than behind it."""
        return max((entry[0] for entry in self.core.pending.entries(self.pending)), default=None)

    def pending_entries(self, limit: int) -> list[dict[str, Any]]:
        names = {member.core.number: member.client_id for member in self.members}
        return [
            {
                "offset": offset,
                "state": STATES.get(state, "delivered"),
                "consumer": names.get(consumer),
                "deliveries": deliveries,
                "due_in": max(0.0, round((due - self.core.clock_ms) / 1000, 3))
                if state in (CLAIMED, WAITING)
                else None,
            }
            for offset, state, consumer, deliveries, due, _reason in self.core.pending.entries(limit)
        ]

    async def seek(self, offset: int) -> None:
        """The next message of the group is the one at the offset. Of a classic queue what is pending stays so."""
        self._go_to(offset)

    def _go_to(self, offset: int) -> None:
        self.stop_reading()
        self.core.seek(offset)
        if self.members:
            self._start_reading()

    def review(self) -> None:
        """Apply changed rules, or the rights of a consumer that has joined or reconnected, which may receive messages
        that the others may not."""
        offset = self.core.review()
        if offset is not None:
            self._go_to(offset)

    async def delete(self) -> None:
        self.queue.remove_group(self)

    # ---- members ----

    def join(self, client: Client, outlet: Outlet, *, credit: int) -> Member:
        self.last_used = time.time()
        if not self.members:
            if self.is_stream:
                self.core.seek(self.core.committed)  # what lies between is read again
            self._start_reading()
        number = self._lasting_number(client.client_id) if client.expiry_interval else 0
        core = outlet.make_consumer(self.core, credit=credit, number=number)
        core.is_owner = self.made_by == identity_of(client)
        member = Member(client, core)
        self.members.append(member)
        core.join()
        self.review()
        self.note_use()
        self.serve()
        return member

    def _lasting_number(self, client_id: str) -> int:
        """The same after a restart, and another one in each group: a client's PUBACK must settle in the right one. 0
        where it is taken, as by a second subscription of the client: then the consumer gets one of this process."""
        number = crc32(f"{client_id}\0{self.queue.name}\0{self.id}".encode()) | LASTING
        return 0 if any(member.core.number == number for member in self.members) else number

    def leave(self, member: Member) -> None:
        """What it has goes to the others at once."""
        if member not in self.members:
            return
        self.last_used = time.time()
        if self.is_stream:
            self.auto_commit()
        self.members.remove(member)
        member.core.leave()
        self.queue.left()
        self.note_use()
        if not self.members:
            self.stop_reading()

    def auto_commit(self) -> None:
        """Of a stream: what its consumers have acknowledged is done."""
        if self.core.auto_commit:
            lowest = self.core.unacknowledged()
            if lowest > self.core.committed:
                self.core.commit(lowest)

    # ---- reading ----

    def _start_reading(self) -> None:
        if self._lane is None and not self.queue.is_closing:
            self._lane = Lane(self, self.core.cursor)
            self.core.is_reading = True
            self.queue.readers.add(self._lane)

    def stop_reading(self) -> None:
        if self._lane is not None:
            self.queue.readers.remove(self._lane)
            self._lane = None
        self.core.is_reading = False
        self.core.forget_records()

    def serve(self) -> None:
        """Something changed: more can be read, something must be read again, a letter has died."""
        if not self.queue.is_current:
            return  # another node serves it
        if self._lane is not None and self._lane.is_paused and self._lane.has_room:
            self.queue.readers.go_on(self._lane)
        self._arm()
        pending = self.core.pending
        if pending.ready_count and self.members and not self.core.has_again:
            self._run("again", self._fetch_again)
        if pending.dead_count:
            self._run("dead", self._bury)

    def _run(self, name: str, work: Any) -> None:
        if name not in self._tasks and not self.queue.is_closing:
            task = asyncio.get_running_loop().create_task(self._guard(name, work))
            self._tasks[name] = task

    async def _guard(self, name: str, work: Any) -> None:
        try:
            await work()
        except (LogError, StoreError) as error:
            log.warning("messages of a queue cannot be read", queue=self.queue.name, group=self.id, error=str(error))
            await asyncio.sleep(RETRY_SECONDS)
        except Exception as error:
            log.exception("a group cannot be served", queue=self.queue.name, group=self.id, error=repr(error))
            await asyncio.sleep(RETRY_SECONDS)
        finally:
            del self._tasks[name]
        self.serve()

    async def _fetch_again(self) -> None:
        offsets = self.core.pending.ready(FETCHED_AT_ONCE)
        packs = await self.queue.fetch(offsets)
        found: set[int] = set()
        for pack in packs:
            found.update(pack.offsets().tolist())
        for offset in offsets:
            if offset not in found and self.core.settle(offset):
                self.queue.dropped += 1  # retention has removed it
        for pack in packs:
            self.core.offer_again(pack)

    async def _bury(self) -> None:
        await self.queue.bury(self)

    def _arm(self) -> None:
        """The timer rings when the next entry is due."""
        due = self.core.next_due
        if due is None or not self.queue.is_current:
            return
        at = time.monotonic() + max(due, SOONEST)
        if self._timer is not None:
            if self._rings_at <= at:
                return
            self._timer.cancel()
        self._rings_at = at
        self._timer = self.queue.scheduler.call_later(max(due, SOONEST), self._ring)

    def _ring(self) -> None:
        self._timer = None
        if self.queue.is_current:
            self.core.sweep()
            self.serve()

    def saved(self) -> None:
        """Its state is on its way to the store: what was given to consumers has a time by which it must be back."""
        if self._timer is None:
            self._arm()

    async def close(self) -> None:
        self.stop_reading()
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self.core.close()
