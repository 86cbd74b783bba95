"""One queue: its log, its limits, its groups."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from penstock._ext.hub.connection import DurableQueue
from penstock._ext.queue.pending import MAX_DELIVERIES
from penstock._ext.record.envelope import EnvelopeError, decode
from penstock._ext.record.segment import Record, RecordPack
from penstock.core.clock import now_ms
from penstock.core.logging import get_logger
from penstock.core.ports import Scheduler
from penstock.storage.log.base import Appended, Log, LogError, LogUnavailable, TopicNotFound, TopicPartition
from penstock.storage.log.waiting import retry_while
from penstock.subscribers.queue import state
from penstock.subscribers.queue.abandoned import Life, time_left, why_full
from penstock.subscribers.queue.dead_letters import dead_letter
from penstock.subscribers.queue.definitions import ALL_QUEUES, DEFAULT_QUEUE, QueueDefinition, dead_letters
from penstock.subscribers.queue.group import Group
from penstock.subscribers.queue.names import ROOT, group_id, is_dead_letters, parse_publish, topic_of
from penstock.subscribers.queue.overflow import drop_oldest, start_of_new_group, unsettled_before
from penstock.subscribers.queue.readers import Readers
from penstock.subscribers.queue.removed import RemovedOffsets
from penstock.subscribers.queue.retention import enforce_retention
from penstock.subscribers.queue.sizes import Sizes
from penstock.subscribers.queue.state import GroupRecord, StoredQueue

if TYPE_CHECKING:
    from penstock.subscribers.queue.manager import QueueManager

log = get_logger("penstock.queues")

BURIED_AT_ONCE = 100
DROPPED_AT_ONCE = 1_000
NEW_SECONDS = 10.0
RETRY_SECONDS = 0.2
NO_LIMIT = 0xFFFFFFFF
FLUSH_MS = "1000"
FOREVER = {"retention.ms": "-1", "retention.bytes": "-1"}

OnDone = Callable[[Appended | LogError], None]


class Queue:
    """See control.Queue for what commands ask of it. Its topic is made when it is first needed."""

    def __init__(self, manager: QueueManager, definition: QueueDefinition, log_provider: Log) -> None:
        self._manager = manager
        self.definition = definition
        self.name = definition.name
        self.address = f"{ROOT}/{self.name}"
        self.topic = topic_of(self.name, manager.prefix)
        self.log = log_provider
        self.core = DurableQueue(manager.hub, self.name, is_stream=definition.type == "stream")
        self.core.owner = self
        self.head = 0  # of what is not dropped
        self.log_head = 0  # of what the log still has
        self.end = 0  # of what is durable
        self.groups: dict[str, Group] = {}
        self.used()
        self.dropped = 0
        self.dead = 0
        self.expired_late = 0  # besides those that the groups have counted
        self.is_closing = False
        self.is_deleted = False
        self.is_current = True  # its groups are as they were left, whichever node served them last
        self.sizes: Sizes | None = None
        self.is_made = False
        self.is_stored = True  # its definition; False just after it was created on first use
        self._is_tidying = False
        self._making: asyncio.Task[None] | None = None
        self._waiting: list[tuple[RecordPack, OnDone, bool]] = []
        self.configure(definition)

    # ---- what it is ----

    def configure(self, definition: QueueDefinition) -> None:
        self.definition = definition
        core, limits = self.core, definition.limits
        core.max_message_size = min(limits.max_message_size or NO_LIMIT, NO_LIMIT)
        core.message_ttl = int(limits.message_ttl * 1000)
        core.max_depth = 0 if definition.type == "stream" else limits.max_depth
        core.drops_oldest = definition.overflow == "drop-oldest"
        core.is_closed = is_dead_letters(self.name)
        core.is_spare = self.name == DEFAULT_QUEUE and definition.topics == (ALL_QUEUES,)
        core.max_memory = 0 if definition.durable else self._manager.settings.ephemeral_bytes
        if self.sizes is None and (definition.retention.max_length_bytes or core.max_memory):
            self.sizes = Sizes()
        for group in self.groups.values():
            group.configure()
        self._name_primary()

    @property
    def scheduler(self) -> Scheduler:
        return self._manager.scheduler

    @property
    def readers(self) -> Readers:
        return self._manager.readers_of(self.log)

    @property
    def tail(self) -> int:
        return self.core.tail

    @property
    def depth(self) -> int:
        """Messages the slowest group has yet to settle; all messages for a stream or without a group."""
        if not self.core.is_stream:
            return self.core.depth
        removed = self.core.removed
        return max(self.tail - self.head - (0 if removed is None else removed.count_from(self.head)), 0)

    @property
    def bytes(self) -> int | None:
        """Of the log; Kafka does not tell, so there it is known only where a limit makes it worth counting."""
        size = self.log.admin.size(self.topic)
        return size if size is not None or self.sizes is None else self.sizes.total

    @property
    def refused(self) -> int:
        """Return the number of publishes that were refused."""
        return self.core.refused

    def why_full(self) -> builtins.bytes:
        """Return the reason string for a refused publisher. Called by the hub."""
        return why_full(self)

    @property
    def expired(self) -> int:
        return self.expired_late + sum(group.core.expired for group in self.groups.values())

    @property
    def has_consumers(self) -> bool:
        return any(group.members for group in self.groups.values())

    def used(self) -> None:
        self.last_used = time.time()
        self.idle_since = time.monotonic()  # the time of day may be set

    def left(self) -> None:
        """Note that a consumer has left."""
        self.used()
        if not self.definition.durable:
            self._manager.upkeep.expect(self.definition.expires_after)

    def has_ended(self, now: float) -> bool:
        """An ephemeral queue that nobody has used for long enough."""
        definition = self.definition
        return not definition.durable and not self.has_consumers and now - self.idle_since >= definition.expires_after

    # ---- its log ----

    async def alter_log(self, definition: QueueDefinition, *, altered_to: QueueDefinition | None = None) -> None:
        """Give its topic the properties of the definition, if there is one yet. Raises LogError when it cannot.
        `altered_to`: the definition it has them of; None: the queue's own."""
        wanted = properties_of(definition)
        if wanted != properties_of(altered_to or self.definition):
            with contextlib.suppress(TopicNotFound):
                await self.log.admin.alter(self.topic, wanted)

    async def make(self, *, is_there: bool = False) -> None:
        """The topic is there when this returns, and where it begins and ends is known."""
        if self.is_made:
            return
        if not self.is_stored:
            await self._manager.first_use.store(self)
        if not is_there:
            async with self._manager.turn_of(self.topic):
                pass  # one of the same name was on its way out
            await self.log.admin.create(self.topic, 1, properties_of(self.definition))
        await self._look_at_new()
        self.is_made = True

    async def _look_at_new(self) -> None:
        """A topic that was made a moment ago may not be known everywhere."""
        give_up_at = time.monotonic() + NEW_SECONDS
        while True:
            try:
                return await self.look()
            except LogError:
                if time.monotonic() > give_up_at:
                    raise
            await asyncio.sleep(RETRY_SECONDS)

    async def look(self) -> None:
        marks = await self._manager.looker_of(self.log).watermarks(TopicPartition(self.topic, 0))
        self.log_head = marks.first
        if self.is_made and self.is_current:
            self._count_unread(marks.first)  # the log itself may remove what is over max_age
        self.head = max(self.head, marks.first)  # what was dropped may still lie in the log
        self.end = max(self.end, marks.end)
        self.core.appended(marks.end)
        self.update_floor()

    def append_pack(
        self, pack: RecordPack, on_done: OnDone, *, is_lasting: bool = False, refusal: LogError | None = None
    ) -> None:
        """Append what one loop iteration published, in order; or refuse it. `is_lasting`: see Producer.append."""
        self.used()
        if self.is_closing:
            self._tell_closed(pack, on_done)
        elif refusal is not None:
            self._on_appended(pack, on_done, refusal)
        elif self.is_made and not self._waiting:
            self._append(pack, on_done, is_lasting)
        else:
            self._waiting.append((pack, on_done, is_lasting))
            if self._making is None:
                self._making = asyncio.get_running_loop().create_task(self._make_and_append())

    async def _make_and_append(self) -> None:
        failure: LogError | None = None
        try:
            await retry_while(self._has_lasting, self.make)
        except LogError as error:
            failure = error
        finally:
            self._making = None
        waiting, self._waiting = self._waiting, []
        for pack, on_done, is_lasting in waiting:
            if failure is None:
                self._append(pack, on_done, is_lasting)
            else:
                self._on_appended(pack, on_done, failure)

    def _has_lasting(self) -> bool:
        return not self.is_closing and any(is_lasting for _, _, is_lasting in self._waiting)

    def _append(self, pack: RecordPack, on_done: OnDone, is_lasting: bool) -> None:
        on_appended = partial(self._on_appended, pack, on_done)
        self.log.patient_producer.append(self.topic, 0, pack, on_appended, is_lasting=is_lasting)

    def _tell_closed(self, pack: RecordPack, on_done: OnDone) -> None:
        """What came before the queue was deleted is gone with it: nobody has to send it again."""
        if self.is_deleted:
            on_done(Appended(self.topic, 0, self.end, pack.count))
        else:
            on_done(LogUnavailable(f"the queue {self.name!r} is closed"))

    def _on_appended(self, pack: RecordPack, on_done: OnDone, result: Appended | LogError) -> None:
        if isinstance(result, Appended):
            self._note_appended(result, pack.size, pack.count)
        elif self.is_deleted:
            self._tell_closed(pack, on_done)
            return
        else:
            self.core.refused_by_log(pack.count)
            if self.core.max_memory:
                self.core.memory -= min(pack.size, self.core.memory)
            if self.is_made:  # else there is no topic to look at
                self._manager.spawn(self._look_again())
        on_done(result)

    def _note_appended(self, result: Appended, size: int, under_way: int) -> None:
        if result.base_offset < 0:  # the log knows where they are
            self.core.appended(self.end + result.count, under_way)
            self._manager.spawn(self._look_again())
            return
        self.end = max(self.end, result.base_offset + result.count)
        self.core.appended(result.base_offset + result.count, under_way)
        if self.sizes is not None:
            self.sizes.add(result.base_offset, size)
        self.mind_depth()

    async def _look_again(self) -> None:
        try:
            await self.look()
        except LogError as error:
            log.warning("a queue cannot be looked at", queue=self.name, error=str(error))

    async def append(self, pack: RecordPack) -> int:
        await self.make()
        result = await self.log.patient_producer.send(self.topic, 0, pack)
        if self.core.max_memory:
            self.core.memory += pack.size
        self._note_appended(result, pack.size, 0)
        return result.base_offset

    async def fetch(self, offsets: Sequence[int]) -> list[RecordPack]:
        return await self._manager.fetcher_of(self.log).fetch(self.topic, offsets)

    async def read(self, offset: int, count: int) -> list[RecordPack]:
        await self.make()
        offset = max(offset, self.head)
        count = min(count, self.tail - offset)
        return await self._manager.fetcher_of(self.log).read(self.topic, offset, count) if count > 0 else []

    # ---- groups ----

    def group(
        self,
        name: str,
        topic_filter: str,
        *,
        start: int | None = None,
        auto_commit: bool | None = None,
        made_by: str = "",
        life: Life = "named",
    ) -> Group:
        """The group of this name and filter; a new one begins at `start`, or with the first message that is kept.
        Whether it commits by itself is what was said last; a new one does where nothing is said."""
        identity = group_id(name, topic_filter)
        group = self.groups.get(identity)
        if group is None:
            begin = start_of_new_group(self) if start is None else start
            group = Group(self, name, topic_filter, identity, begin, made_by=made_by)
            group.core.auto_commit = auto_commit is not False
            group.life = life
            self.groups[identity] = group
            self._name_primary()
            self.update_floor()
            self.store_group(group)
            if group.is_kept:
                self._manager.state.save([group.core])
            return group
        if auto_commit is not None and auto_commit != group.core.auto_commit:
            group.core.auto_commit = auto_commit
            self.store_group(group)
        group.live_longer(life)
        return group

    def store_group(self, group: Group) -> None:
        if group.is_kept and self.is_current and group.id in self.groups:
            record = GroupRecord(
                group.name, group.filter, group.core.auto_commit, group.made_by, group.life, group.idle_since
            )
            self._manager.state.add_group(self.name, group.id, record)

    def expect_idle(self, group: Group) -> None:
        """Schedule the upkeep for the end of an idle group."""
        left = time_left(group, time.time())
        if left < float("inf"):
            self._manager.upkeep.expect(max(left, 0.0))

    def restore(self, stored: StoredQueue) -> None:
        if stored.removed is not None:
            self.core.removed = stored.removed
            self._prune_removed()
        self.dead = max(self.dead, stored.dead)
        for identity, kept in stored.groups.items():
            if not kept.record.name:
                continue
            group = Group(self, kept.record.name, kept.record.filter, identity, self.head, made_by=kept.record.made_by)
            group.restore(kept)
            if self.is_made:
                group.stay_within(self.end)
            self.groups[identity] = group
        self._name_primary()
        self.update_floor()
        self.mind_depth()

    async def renew(self, stored: StoredQueue | None) -> None:
        """Another node may have served it, and this one does from now on."""
        await self.reread(stored)
        self.is_current = True
        for group in self.groups.values():
            group.serve()

    async def reread(self, stored: StoredQueue | None) -> None:
        """Its groups, as the node that serves it has stored them."""
        groups, self.groups = self.groups, {}
        for group in groups.values():
            await group.close()
        if self.is_made:
            await self.look()
        if stored is not None:
            self.restore(stored)

    def remove_group(self, group: Group) -> None:
        if self.groups.pop(group.id, None) is None:
            return
        self._manager.figures.keep_group(group)
        if group.is_kept:
            self._manager.state.remove_group(group.core)
        group.is_removed = True
        self._manager.spawn(group.close())
        self._name_primary()
        self.update_floor()

    def _name_primary(self) -> None:
        name = self.definition.primary_group
        self.core.primary_name = name.encode()
        self.core.primary = next((group.core for group in self.groups.values() if name and group.name == name), None)

    def update_floor(self) -> None:
        """What every group has done with."""
        floor = min((group.committed for group in self.groups.values()), default=self.head)
        self.core.floor = floor if self.core.removed is None else self.core.removed.first_kept(floor)
        if self.core.memory > self.core.max_memory // 4 and self.core.floor > self.log_head:
            self._tidy_soon()

    def _tidy_soon(self) -> None:
        if not self._is_tidying and not self.is_closing:
            self._is_tidying = True
            self._manager.spawn(self._tidy())

    async def _tidy(self) -> None:
        try:
            await enforce_retention(self)
        except LogError as error:
            log.warning("a queue cannot be tidied", queue=self.name, error=str(error))
        finally:
            self._is_tidying = False

    # ---- commands ----

    async def purge(self) -> int:
        """Every message goes, whoever has it."""
        await self.make()
        return await self.cut(self.end)  # what is under way to the log comes behind it

    async def cut(self, before: int) -> int:
        """Messages before the offset go, whoever has them; how many of them somebody had still to settle."""
        await self.make()
        count = unsettled_before(self, before)
        for group in self.groups.values():
            for entry in group.core.pending.entries(group.pending):
                if entry[0] < before:
                    group.core.settle(entry[0])
            if max(group.cursor, group.committed if group.is_stream else 0) < before:
                await group.seek(before)
            elif group.is_stream and group.committed < before:
                group.core.commit(before)
        await self.truncate(before, is_asked=True)
        self._manager.state.save([group.core for group in self.groups.values()])
        await self._manager.state.flush()
        return count

    async def pause(self, paused: bool) -> None:
        await self._manager.update(msgspec.structs.replace(self.definition, paused=paused))

    async def remove(self, offsets: Sequence[int]) -> None:
        """No group is given these any more."""
        removed = self.core.removed or RemovedOffsets()
        removed.add(offsets)
        self.core.removed = removed
        for group in self.groups.values():
            for offset in offsets:
                group.core.settle(offset)
        self.update_floor()
        if self.definition.durable:
            key = state.state_key(self.name, "", state.REMOVED)
            self._manager.state.store([(state.STATE, key, removed.encode())])
            await self._manager.state.flush()

    def mark_removed(self, spans: Sequence[tuple[int, int]]) -> None:
        """Keep these offsets from later groups."""
        if not spans:
            return
        removed = self.core.removed or RemovedOffsets()
        removed.add_spans(spans)
        self.core.removed = removed
        if self.definition.durable:
            key = state.state_key(self.name, "", state.REMOVED)
            self._manager.state.store([(state.STATE, key, removed.encode())])
        self._tidy_soon()

    def _prune_removed(self) -> None:
        if self.core.removed is not None:
            self.core.removed.prune(self.head)
            if not self.core.removed.spans():
                self.core.removed = None

    def is_removed(self, offset: int) -> bool:
        return self.core.removed is not None and offset in self.core.removed

    def mind_depth(self) -> None:
        """Apply the policy drop-oldest, and count what it drops."""
        dropped = drop_oldest(self)
        self.dropped += dropped
        gone = max(self.core.floor, self.head) - self.log_head
        if dropped and gone >= max(self.core.max_depth // 4, DROPPED_AT_ONCE):
            self._tidy_soon()

    def _count_unread(self, before: int) -> None:
        """Retention takes what is before the offset from a stream, whoever has read it: that is told."""
        if self.core.is_stream:
            done = min((group.committed for group in self.groups.values()), default=self.head)
            self.dropped += max(before - max(self.head, done), 0)

    async def truncate(self, before: int, *, is_asked: bool = False) -> None:
        """What is before the offset may go. `is_asked`: an operator wants it so, it is no loss."""
        if before <= self.log_head:
            return
        try:
            await self.log.admin.truncate(TopicPartition(self.topic, 0), before)
        except TopicNotFound:
            return
        if not is_asked:
            self._count_unread(before)
        self.log_head = max(self.log_head, before)
        self.head = max(self.head, before)
        self._prune_removed()
        if self.sizes is not None:
            known = self.sizes.total
            self.sizes.prune(self.head, self.end)
            if self.core.max_memory:
                self.core.memory -= min(known - self.sizes.total, self.core.memory)
        self.update_floor()

    # ---- dead letters ----

    async def bury(self, group: Group) -> None:
        """Dead letters are published before they are settled: what fails in between is there twice, never gone."""
        dead = group.core.pending.dead(BURIED_AT_ONCE)
        if not self.definition.dlq.enabled:
            self.dropped += self._settle_dead(group, dead)
            return
        records: dict[int, Record] = {}
        for pack in await self.fetch([offset for offset, _, _ in dead]):
            records.update((record.offset, record) for record in pack)
        pack = RecordPack()
        address = self.definition.dead_letter_topic
        now = now_ms()
        buried: list[tuple[bytes, int]] = []
        expired: list[int] = []
        for offset, reason, deliveries in dead:
            record = records.get(offset)
            if record is None or record.value is None or group.core.pending.find(offset) is None:
                continue  # retention has removed it, or an operator
            try:
                message = decode(record.value)
                if reason == MAX_DELIVERIES and 0 < message.expires_at <= now:
                    expired.append(offset)  # with its last consumer: no dead letter
                    continue
                key, value = dead_letter(
                    record,
                    message,
                    queue=self.name,
                    group=group.name,
                    address=address,
                    deliveries=deliveries,
                    reason=reason,
                    client_reason=group.core.reasons.get(offset),
                    now_ms=now,
                )
            except EnvelopeError:
                continue
            pack.append(value, key=key, timestamp=now)
            buried.append((record.key or b"", reason))
        if pack.count:
            target = await self._dead_letter_queue()
            await target.append(pack)
        self.expired_late += sum(group.core.settle(offset) for offset in expired)
        self._settle_dead(group, dead)
        self._manager.tell_buried(self.name, buried)

    def _settle_dead(self, group: Group, dead: Sequence[tuple[int, int, int]]) -> int:
        settled = sum(group.core.settle(offset) for offset, _, _ in dead)
        self.dead += settled
        if self.definition.durable:
            key = state.state_key(self.name, "", state.DEAD)
            self._manager.state.store([(state.STATE, key, self.dead.to_bytes(8, "big"))])
        return settled

    async def _dead_letter_queue(self) -> Queue:
        name, _ = parse_publish(self.definition.dead_letter_topic)
        found = self._manager.queues.get(name)
        if found is None:
            definition = dead_letters(self.definition)
            found = await self._manager.create(msgspec.structs.replace(definition, name=name))
        return found

    # ---- end ----

    async def close(self) -> None:
        self.is_closing = True
        for group in list(self.groups.values()):
            await group.close()
        if self._making is not None:
            self._making.cancel()
            await asyncio.wait([self._making])
        waiting, self._waiting = self._waiting, []
        for pack, on_done, _ in waiting:
            self._tell_closed(pack, on_done)


def properties_of(definition: QueueDefinition) -> dict[str, str]:
    """Of the topic of such a queue."""
    properties = dict(FOREVER)
    if definition.type == "stream" and definition.retention.max_age:
        properties["retention.ms"] = str(int(definition.retention.max_age * 1000))
    if definition.ack_durability == "buffered":
        properties["flush.ms"] = FLUSH_MS
    if definition.replication.enabled:
        properties["replication.factor"] = str(definition.replication.replication_factor)
        properties["min.insync.replicas"] = str(definition.replication.min_in_sync_replicas)
    return properties
