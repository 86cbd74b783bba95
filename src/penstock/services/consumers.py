"""Consumers follow the partitions: what is given is consumed, what is taken away stops after the pack it is handling.

Updates of the partitions are only noted, the newest replaces those before it, and one task applies them. So however
fast they come, a partition has at most one consumer here, and a new one starts where the old one has committed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.core.logging import Throttled, get_logger
from penstock.services.discovery import Claims, SingleNode
from penstock.services.model import TopicPartitionInfo
from penstock.services.topic_creator import EnsureTopic, TopicsExist
from penstock.storage.log.base import Admin, Committed, Consumer, Fetched, Log, LogError, TopicPartition

Handler = Callable[[Sequence[Fetched]], Awaitable[None]]
"""Handles packs; when it returns they are committed, when it raises they come again after a pause."""
GroupOf = Callable[[TopicPartitionInfo | None], str]
"""The consumer group of one partition, or (None) of all."""
WARNING_SECONDS = 10.0
# With an offset of a group that is not asked any more; the group writes none when it goes on.
TAKEN_OVER = "taken over"
_log = get_logger("penstock.consumers")


class GivenBack(Exception):
    """Raised by a handler that cannot do with the pack now: it comes again after the pause, and nobody is alarmed."""


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    is_per_partition: bool = True
    max_records: int = 1_000
    poll_seconds: float = 1.0
    retry_seconds: float = 1.0
    stop_seconds: float = 30.0
    """How long a stop waits for the pack that is being handled. Then it is cancelled and not committed."""


class _Runner:
    """One consumer and the task that feeds the handler with it, as long as this node holds the partitions."""

    def __init__(
        self,
        log: Log,
        group: str,
        partitions: Iterable[TopicPartitionInfo],
        handler: Handler,
        *,
        claims: Claims,
        ensure_topic: EnsureTopic,
        options: ConsumerOptions,
        other_groups: Mapping[TopicPartition, str],
    ) -> None:
        """`other_groups`: who consumed a partition if the queue had the other kind of groups before."""
        self.partitions = frozenset(partitions)
        self._names = sorted(f"{group}/{info}" for info in self.partitions)
        self._log = log
        self._group = group
        self._handler = handler
        self._claims = claims
        self._ensure_topic = ensure_topic
        self._options = options
        self._other_groups = {place: other for place, other in other_groups.items() if other != group}
        self._stopping = asyncio.Event()
        self._warnings = Throttled(_log, interval=WARNING_SECONDS)
        self.task = asyncio.create_task(self._run())

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    async def stop(self) -> bool:
        """Waits for the pack in hand. False if it had to be cancelled: it was not committed and will come again."""
        self._stopping.set()
        done, _ = await asyncio.wait([self.task], timeout=self._options.stop_seconds)
        if done:
            return True
        _log.error("a pack did not end in time, cancelled", group=self._group, seconds=self._options.stop_seconds)
        self.task.cancel()
        await asyncio.wait([self.task], timeout=self._options.stop_seconds)
        return False

    async def _run(self) -> None:
        while not self.is_stopping:
            try:
                if await self._unless_stopping(self._claims.acquire(self._names)):
                    await self._consume()
            except Exception as error:  # whatever it is, the partition must not be left without a consumer
                self._complain("a consumer failed, it starts again", error)
                await self._pause()
            finally:
                await self._claims.release(self._names)

    def _complain(self, event: str, error: Exception) -> None:
        """It may last: it is tried again every second, and said every ten."""
        self._warnings.error(event, group=self._group, error=repr(error))

    def _may_go_on(self) -> bool:
        return not self.is_stopping and self._claims.holds(self._names)

    async def _consume(self) -> None:
        for creation in filter(None, map(self._ensure_topic, self.partitions)):
            await creation
        consumer = self._log.consumer(self._group)
        try:
            await self._carry_over(consumer)
            # One assignment for all of them: a second one would replace the first.
            consumer.assign(sorted(info.log_partition for info in self.partitions))
            while self._may_go_on():
                await self._run_once(consumer)
        finally:
            with contextlib.suppress(LogError):
                await consumer.close()

    async def _carry_over(self, consumer: Consumer) -> None:
        """A queue whose groups were of the other kind (one for all, one for each) goes on where those were: forward
        only, so that nothing is handled again when it is changed back. Once: see _retire."""
        before: dict[TopicPartition, Committed] = {}
        for group in sorted(set(self._other_groups.values())):
            topics = {place.topic for place, other in self._other_groups.items() if other == group}
            for place, committed in (await self._log.admin.group_offsets(group, topics)).items():
                if self._other_groups.get(place) == group and committed.metadata != TAKEN_OVER:
                    before[place] = committed
        if not before:
            return
        now = await consumer.committed(before)
        ahead: dict[TopicPartition, Committed] = {}
        for place, committed in before.items():
            own = now[place]
            if own is None or own.metadata == TAKEN_OVER or own.offset < committed.offset:
                ahead[place] = Committed(committed.offset)
        if ahead:
            await consumer.commit(ahead)
            _log.info("offsets taken over from the other groups of the queue", group=self._group, partitions=len(ahead))
        await self._retire(before)

    async def _retire(self, taken: Mapping[TopicPartition, Committed]) -> None:
        """Offsets that were taken over are marked: they would move the group forward again after an operator has put it
        back, or over new records after the log has lost its end."""
        by_group: dict[str, dict[TopicPartition, Committed]] = {}
        for place, committed in taken.items():
            by_group.setdefault(self._other_groups[place], {})[place] = Committed(committed.offset, TAKEN_OVER)
        for group, offsets in by_group.items():
            consumer = self._log.consumer(group)
            try:
                await consumer.commit(offsets)
            except LogError as error:
                _log.warning("offsets that were taken over stay", group=group, error=error.message)
            finally:
                await consumer.close()

    async def _run_once(self, consumer: Consumer) -> None:
        try:
            packs = await self._poll(consumer)
        except LogError as error:
            self._complain("cannot read", error)
            await self._pause()
            return
        if not packs:
            return
        try:
            await self._handler(packs)
            # Who has lost the partitions meanwhile must not move the offsets of the new owner.
            if self._claims.holds(self._names):
                await consumer.commit(positions_after(packs))
        except GivenBack:
            await self._pause()
            await self._rewind(consumer, packs)
        except Exception as error:  # whatever a handler raises means the same here: not done, so again
            self._complain("a pack failed, it comes again", error)
            await self._pause()
            await self._rewind(consumer, packs)

    async def _unless_stopping(self, work: Coroutine[Any, Any, object]) -> bool:
        """Whether it was done; a stop ends it at once."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([task, stop], return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not task.cancelled():
                task.result()
                return True
            return False
        finally:
            for future in (task, stop):
                future.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)

    async def _poll(self, consumer: Consumer) -> list[Fetched]:
        """What a stop cuts off was not committed: it comes to the next owner."""
        packs: list[Fetched] = []

        async def poll() -> None:
            packs.extend(await consumer.poll(self._options.max_records, self._options.poll_seconds))

        await self._unless_stopping(poll())
        return packs if self._may_go_on() else []

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._options.retry_seconds):
                await self._stopping.wait()

    async def _rewind(self, consumer: Consumer, packs: Sequence[Fetched]) -> None:
        first: dict[TopicPartition, int] = {}
        for fetched in packs:
            partition = TopicPartition(fetched.topic, fetched.partition)
            first[partition] = min(first.get(partition, fetched.pack.base_offset), fetched.pack.base_offset)
        while not self._stopping.is_set():
            try:
                for partition, offset in first.items():
                    await consumer.seek(partition, offset)
            except LogError as error:
                self._complain("cannot go back", error)
                await self._pause()
            else:
                return


def positions_after(packs: Sequence[Fetched]) -> dict[TopicPartition, Committed]:
    ends: dict[TopicPartition, Committed] = {}
    for fetched in packs:
        partition = TopicPartition(fetched.topic, fetched.partition)
        if partition not in ends or ends[partition].offset < fetched.next_offset:
            ends[partition] = Committed(fetched.next_offset)
    return ends


class ConsumerManager:
    """The consumers of one queue on this node."""

    def __init__(
        self,
        log: Log,
        group_of: GroupOf,
        handler: Handler,
        options: ConsumerOptions | None = None,
        *,
        claims: Claims | None = None,
        ensure_topic: EnsureTopic | None = None,
    ) -> None:
        """With the `claims` of the cluster a partition runs on one node at a time, not only once on this one."""
        self.cancelled_packs = 0
        self._claims: Claims = claims or SingleNode()
        self._ensure_topic: EnsureTopic = ensure_topic or TopicsExist()
        self._log = log
        self._group_of = group_of
        self._handler = handler
        self._options = options or ConsumerOptions()
        self._wanted: frozenset[TopicPartitionInfo] = frozenset()
        self._runners: dict[frozenset[TopicPartitionInfo], _Runner] = {}
        self._is_stopped = False
        self._has_update = asyncio.Event()
        self._is_settled = asyncio.Event()
        self._is_settled.set()
        self._worker: asyncio.Task[None] | None = None

    def update(self, partitions: Iterable[TopicPartitionInfo]) -> None:
        """From now on exactly these partitions. Returns at once; of several updates the last one wins."""
        if self._is_stopped:
            return
        self._wanted = frozenset(partitions)
        self._is_settled.clear()
        self._has_update.set()
        if self._worker is None:
            self._worker = asyncio.create_task(self._apply_for_ever())

    async def settled(self) -> None:
        """Waits until the newest update is applied."""
        await self._is_settled.wait()

    def running(self) -> frozenset[TopicPartitionInfo]:
        """Partitions that have a consumer now, those that are about to stop included."""
        return frozenset(info for runner in self._runners.values() for info in runner.partitions)

    async def stop(self) -> None:
        """Stops all; each after the pack it has in hand."""
        self.update(())
        await self.settled()
        self._is_stopped = True
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
            self._worker = None

    async def delete(
        self, admin: Admin, partitions: Iterable[TopicPartitionInfo], drain: Handler, drain_seconds: float = 15.0
    ) -> list[TopicPartitionInfo]:
        """The queue is gone: stops, hands what is left to `drain` (which moves it to the system's queue) and deletes
        the topics. What could not be drained in time keeps its topic and is returned: nothing is thrown away."""
        await self.stop()
        infos = sorted(set(partitions))
        try:
            async with asyncio.timeout(drain_seconds):
                await asyncio.gather(*(self._drain(info, drain) for info in infos))
        except TimeoutError:
            _log.error("a deleted queue could not be drained in time", seconds=drain_seconds)
        return [info for info in infos if not await self._delete_drained(admin, info)]

    def _group(self, info: TopicPartitionInfo) -> str:
        return self._group_of(info if self._options.is_per_partition else None)

    def _other_group(self, info: TopicPartitionInfo) -> str:
        return self._group_of(None if self._options.is_per_partition else info)

    async def _drain(self, info: TopicPartitionInfo, drain: Handler) -> None:
        consumer = self._log.consumer(self._group(info))
        try:
            consumer.assign([info.log_partition])
            end = (await consumer.watermarks(info.log_partition)).end
            while await _committed(consumer, info.log_partition) < end:
                packs = await consumer.poll(self._options.max_records, self._options.poll_seconds)
                if packs:
                    await drain(packs)
                    await consumer.commit(positions_after(packs))
        finally:
            await consumer.close()

    async def _delete_drained(self, admin: Admin, info: TopicPartitionInfo) -> bool:
        consumer = self._log.consumer(self._group(info))
        try:
            consumer.assign([info.log_partition])
            end = (await consumer.watermarks(info.log_partition)).end
            if await _committed(consumer, info.log_partition) < end:
                return False
        finally:
            await consumer.close()
        if not info.use_internal_partition:
            await admin.delete(info.full_topic_name)
            self._ensure_topic.forget(info.full_topic_name)
        return True

    # Applying updates

    async def _apply_for_ever(self) -> None:
        while True:
            await self._has_update.wait()
            self._has_update.clear()
            try:
                is_complete = await self._apply(self._assignments(self._wanted))
            except Exception as error:  # a group that cannot be named must not end the care for the others
                _log.error("cannot apply the partitions, again soon", error=repr(error))
                await asyncio.sleep(self._options.retry_seconds)
                self._has_update.set()
                continue
            if is_complete and not self._has_update.is_set():
                self._is_settled.set()

    def _assignments(
        self, wanted: frozenset[TopicPartitionInfo]
    ) -> Mapping[frozenset[TopicPartitionInfo], TopicPartitionInfo | None]:
        """Which partitions share a consumer."""
        if self._options.is_per_partition:
            return {frozenset([info]): info for info in wanted}
        return {wanted: None} if wanted else {}

    async def _apply(self, wanted: Mapping[frozenset[TopicPartitionInfo], TopicPartitionInfo | None]) -> bool:
        """False if a pack that ignores its cancellation still has a partition: its end is the next update."""
        await asyncio.gather(*(self._stop_runner(key) for key in self._runners.keys() - wanted.keys()))
        is_complete = True
        for key, info in wanted.items():
            if self._has_update.is_set():
                return False  # what the newer update does not want need not start
            running = self._runners.get(key)
            if running is not None and not running.is_stopping:
                continue
            if key & self.running():
                is_complete = False
                continue
            self._runners[key] = self._start_runner(key, info)
        return is_complete

    def _start_runner(self, key: frozenset[TopicPartitionInfo], info: TopicPartitionInfo | None) -> _Runner:
        runner = _Runner(
            self._log,
            self._group_of(info),
            key,
            self._handler,
            claims=self._claims,
            ensure_topic=self._ensure_topic,
            options=self._options,
            other_groups={one.log_partition: self._other_group(one) for one in key},
        )
        runner.task.add_done_callback(lambda _: self._runner_ended(key))
        return runner

    def _runner_ended(self, key: frozenset[TopicPartitionInfo]) -> None:
        del self._runners[key]
        self._has_update.set()

    async def _stop_runner(self, key: frozenset[TopicPartitionInfo]) -> None:
        runner = self._runners.get(key)
        if runner is None or (runner.is_stopping and not runner.task.done()):
            return
        if not await runner.stop():
            self.cancelled_packs += 1


async def _committed(consumer: Consumer, partition: TopicPartition) -> int:
    found = (await consumer.committed([partition]))[partition]
    return found.offset if found is not None else (await consumer.watermarks(partition)).first
