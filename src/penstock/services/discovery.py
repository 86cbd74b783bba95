"""Who is in the cluster: alone, or found through a compacted topic in which every member keeps writing that it lives.

The log is the only thing the members share, so it carries the membership too:

    key = service id    value = JSON {"info": …, "incarnation": …, "claims": […], "door": …}
                        tombstone = it left or was expelled

A member lives as long as its heartbeats arrive, measured on the reader's own clock; only what was written before the
reader began is judged by the time in the record. A reader that does not see its own heartbeats is blind, not alone:
it keeps the list it has and holds nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Protocol
from uuid import uuid4

import msgspec

from penstock._ext.record.segment import Record, RecordPack
from penstock.core.logging import get_logger
from penstock.core.tasks import TaskSet
from penstock.services.membership import Door, Heartbeat, MemberTable
from penstock.services.model import ServiceInfo
from penstock.storage.log.base import EARLIEST, Consumer, Log, LogError, TopicPartition
from penstock.storage.log.state_topics import make_state_topic

OnMembers = Callable[[Sequence[ServiceInfo]], None]
OnForgotten = Callable[[str], None]
MEMBERS_TOPIC = "penstock.cluster.members"
DAY = 86_400.0
_MOST_RECORDS = 1_000
_MOST_ABSENT = 10_000
_log = get_logger("penstock.discovery")


class Discovery(Protocol):
    """Tells the whole list of the other members, sorted by id, whenever it changes."""

    async def start(self, on_members: OnMembers) -> None:
        """Returns when this member is announced and the others are known; `on_members` is called on the loop."""
        ...

    async def stop(self) -> None:
        """Leaves: the others learn it at once."""
        ...

    def others(self) -> list[ServiceInfo]: ...


class Claims(Protocol):
    """What only one member of the cluster does at a time."""

    def acquire(self, names: Collection[str]) -> Coroutine[Any, Any, None]:
        """Waits until this member holds them all. Cancelled, it gives them up."""
        ...

    async def release(self, names: Collection[str]) -> None: ...
    def holds(self, names: Collection[str]) -> bool:
        """Whether this member still holds them; it loses them when it was silent for too long."""
        ...


class SingleNode:
    """A cluster of one: it holds everything."""

    async def start(self, on_members: OnMembers) -> None:
        on_members([])

    async def stop(self) -> None:
        pass

    def others(self) -> list[ServiceInfo]:
        return []

    async def acquire(self, names: Collection[str]) -> None:
        pass

    async def release(self, names: Collection[str]) -> None:
        pass

    def holds(self, names: Collection[str]) -> bool:
        return True


class LogDiscovery:
    def __init__(
        self,
        log: Log,
        me: ServiceInfo,
        topic: str = MEMBERS_TOPIC,
        interval: float = 2.0,
        timeout: float = 10.0,
        *,
        forget_after: float = DAY,
        on_forgotten: OnForgotten | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`on_forgotten` is told, by the first of the living, who has been away for `forget_after`: for good."""
        if timeout < 2 * interval:
            raise ValueError(f"a timeout of {timeout} s needs heartbeats more often than each {interval} s")
        self.me = me
        self.incarnation = uuid4().hex
        self.door: Door | None = None
        self.conflicts = 0
        """Heartbeats of another process with this member's id."""
        self._log = log
        self._partition = TopicPartition(topic, 0)
        self._interval = interval
        self._timeout = timeout
        self._forget_after = forget_after
        self._on_forgotten = on_forgotten
        self._clock = clock
        self._wall_clock = wall_clock
        self._table = MemberTable(timeout)
        self._absent: dict[str, float] = {}
        self._claims: dict[str, None] = {}
        self._heard_myself_at = 0.0
        self._on_members: OnMembers | None = None
        self._told: list[ServiceInfo] = []
        self._changed = asyncio.Event()
        self._consumer: Consumer | None = None
        self._tasks = TaskSet()

    # Life

    async def start(self, on_members: OnMembers) -> None:
        topic = self._partition.topic
        await make_state_topic(self._log, topic)
        await self._beat()
        self._consumer = self._log.consumer(group="")
        self._consumer.assign([self._partition])
        await self._consumer.seek(self._partition, EARLIEST)
        await self._catch_up(self._consumer)
        self._heard_myself_at = self._clock()
        self._told = self.others()
        self._on_members = on_members
        on_members(self._told)
        self._tasks.spawn(self._beat_for_ever())
        self._tasks.spawn(self._read_for_ever())

    async def stop(self) -> None:
        await self._tasks.close()
        self._on_members = None
        self._claims.clear()
        with contextlib.suppress(LogError):
            await self._write(self.me.service_id, None)
        if self._consumer is not None:
            await self._consumer.close()
            self._consumer = None

    def others(self) -> list[ServiceInfo]:
        return [info for info in self._table.alive() if info.service_id != self.me.service_id]

    def heard_at(self, service_id: str) -> float:
        """On this member's clock; 0 for one that is not there."""
        member = self._table.get(service_id)
        return 0.0 if member is None else member.heard_at

    async def open_door(self, door: Door) -> None:
        """From now on the others know where to reach this member."""
        self.door = door
        if self._tasks:  # else the first heartbeat says so
            with contextlib.suppress(LogError):
                await self._beat()

    def door_of(self, service_id: str) -> Door | None:
        member = self._table.get(service_id)
        return None if member is None else member.heartbeat.door

    # Claims

    async def acquire(self, names: Collection[str]) -> None:
        self._claims.update(dict.fromkeys(names))
        try:
            await self._beat_until_written()
            while not self.holds(names):
                self._changed.clear()
                # The time-out is for blindness, which ends without a record that would change anything. (wait_for of
                # Python 3.11 may swallow a cancellation.)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._interval):
                        await self._changed.wait()
        except asyncio.CancelledError:
            self._forget_claims(names)
            raise

    async def release(self, names: Collection[str]) -> None:
        self._forget_claims(names)
        # If it cannot be written now, the next heartbeat says the same.
        with contextlib.suppress(LogError):
            await self._beat()

    def holds(self, names: Collection[str]) -> bool:
        mine = self.me.service_id
        # What was released is not held any more, though it may take a moment until that is read back.
        is_mine = all(name in self._claims and self._table.holder(name) == mine for name in names)
        return is_mine and not self._is_blind()

    def _forget_claims(self, names: Collection[str]) -> None:
        for name in names:
            self._claims.pop(name, None)

    def _is_blind(self) -> bool:
        return self._clock() - self._heard_myself_at > self._timeout

    def _is_deaf(self) -> bool:
        """Not even itself is heard, so that the others are not says nothing of them. Longer than a heartbeat takes, or
        nobody would ever be missed; before the timeout, or whoever comes behind this member would be."""
        return self._clock() - self._heard_myself_at > (self._interval + self._timeout) / 2

    def _silent(self) -> list[str]:
        """Missed at the time when this member was heard last: what was written before that has been read."""
        return self._table.silent(self._heard_myself_at)

    # Writing

    async def _beat(self) -> None:
        heartbeat = Heartbeat(self.me, self.incarnation, tuple(self._claims), self.door)
        await self._write(self.me.service_id, msgspec.json.encode(heartbeat))

    async def _beat_until_written(self) -> None:
        while True:
            try:
                return await self._beat()
            except LogError as error:
                _log.warning("cannot write a claim", error=str(error))
                await asyncio.sleep(self._interval)

    async def _write(self, service_id: str, value: bytes | None) -> None:
        pack = RecordPack()
        pack.append(value, service_id.encode(), (), int(self._wall_clock() * 1000))
        await self._log.producer.send(self._partition.topic, self._partition.partition, pack)

    async def _beat_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            try:
                await self._beat()
                await self._expel_the_silent()
            except LogError as error:
                _log.warning("cannot write a heartbeat", error=str(error))

    async def _expel_the_silent(self) -> None:
        """The first of the living does it for all. Only the record takes their claims away, for everybody at once."""
        if self._is_deaf():
            return
        now = self._clock()
        silent = [name for name in self._silent() if name != self.me.service_id]
        if (self._table.alive() or [self.me])[0].service_id != self.me.service_id:
            return
        for service_id in silent:
            _log.warning("member is silent, expelled", service_id=service_id)
            await self._write(service_id, None)
        for service_id in [name for name, since in self._absent.items() if now - since > self._forget_after]:
            del self._absent[service_id]
            if self._on_forgotten is not None:
                self._on_forgotten(service_id)

    # Reading

    async def _catch_up(self, consumer: Consumer) -> None:
        """Everything written so far, this member's first heartbeat included."""
        end = (await consumer.watermarks(self._partition)).end
        while consumer.position(self._partition) < end:
            for fetched in await consumer.poll(_MOST_RECORDS, self._timeout):
                for record in fetched.pack:
                    self._read(record, max(0.0, self._wall_clock() - record.timestamp / 1000))

    async def _read_for_ever(self) -> None:
        assert self._consumer is not None
        while True:
            try:
                packs = await self._consumer.poll(_MOST_RECORDS, min(self._interval, self._timeout / 4))
            except LogError as error:
                _log.warning("cannot read the heartbeats", error=str(error))
                await asyncio.sleep(self._interval)
                continue
            for fetched in packs:
                for record in fetched.pack:
                    self._read(record)
            self._silent()
            self._changed.set()
            self._tell()

    def _read(self, record: Record, age: float = 0.0) -> None:
        service_id = (record.key or b"").decode(errors="replace")
        if record.value is None:
            self._read_departure(service_id)
            return
        try:
            heartbeat = msgspec.json.decode(record.value, type=Heartbeat)
        except msgspec.DecodeError as error:
            _log.warning("not a heartbeat", service_id=service_id, error=str(error))
            return
        self._absent.pop(service_id, None)
        if service_id == self.me.service_id:
            self._read_mine(heartbeat)
        self._table.put(service_id, heartbeat, self._clock(), age)

    def _read_departure(self, service_id: str) -> None:
        self._table.remove(service_id)
        if service_id == self.me.service_id:
            if self._on_members is not None:
                _log.error("expelled: the others heard nothing of this member", service_id=service_id)
        elif len(self._absent) < _MOST_ABSENT:
            self._absent[service_id] = self._clock()

    def _read_mine(self, heartbeat: Heartbeat) -> None:
        if heartbeat.incarnation != self.incarnation:
            # One from before a restart is read once, at the start; more of them come from a living namesake.
            if self._on_members is not None:
                self.conflicts += 1
                _log.error("another process has this member's id", service_id=self.me.service_id)
            return
        if self._is_deaf():
            # What the others wrote meanwhile is only now being read.
            self._table.give_time(self._clock())
        self._heard_myself_at = self._clock()

    def _tell(self) -> None:
        others = self.others()
        if others != self._told and self._on_members is not None:
            self._told = others
            self._on_members(others)
