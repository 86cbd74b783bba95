"""How far each group is in each topic: the next position of each partition, durable before a commit is answered.

One record for each `group:topic` with all partitions, so a commit is one write whatever it covers; commits that come
while a group's write is under way are the next one together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from penstock.core.logging import get_logger
from penstock.core.tasks import TaskSet
from penstock.storage.state.base import Change
from penstock.subscribers.query.stored import OFFSETS, Stored
from penstock_client.errors import DataError

log = get_logger("penstock.datasub")

Key = tuple[str, str]
"""Group and topic."""


class Offsets(msgspec.Struct, frozen=True, omit_defaults=True):
    """`starts`: where a partition without a commit was begun. As long as the group lives the next consumer begins there
    too, or what the first had read without committing would be skipped."""

    committed: dict[int, int] = {}
    starts: dict[int, int] = {}
    active: int = 0  # ms: when the group last had to do with the topic
    term: int = 0  # of the node that wrote it: a later owner of the group has a higher one
    node: str = ""

    def next_of(self, partition: int) -> int | None:
        return self.committed.get(partition, self.starts.get(partition))

    def needs_more_than(self, before: Offsets) -> bool:
        """A partition that the group did not have, or an earlier place of one."""
        for partition, position in {**self.starts, **self.committed}.items():
            known = before.next_of(partition)
            if known is None or position < known:
                return True
        return False


NOTHING = Offsets()


def key_of(group: str, topic: str) -> bytes:
    return f"{group}:{topic}".encode()


def split_key(key: bytes) -> Key:
    group, _, topic = key.decode().partition(":")
    return group, topic


@dataclass(slots=True, eq=False)
class _Wanted:
    """A change that waits for its turn. `check` says at that moment whether it may still be made."""

    check: Callable[[], None]
    apply: Callable[[dict[str, Offsets]], None]
    done: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


OnNeedingMore = Callable[[], Awaitable[None]]


class OffsetBook:
    """Of all groups; those of others as they were heard last. `is_mine`: groups whose coordinator is this node."""

    def __init__(
        self,
        stored: Stored,
        *,
        node: str = "",
        is_mine: Callable[[str], bool] | None = None,
        wall_clock: Callable[[], float] = time.time,
        on_needing_more: OnNeedingMore | None = None,
    ) -> None:
        """`on_needing_more` is awaited before a group learns that a place is its own: what it needs must not go between
        two looks at it."""
        self._stored = stored
        self._wall_clock = wall_clock
        self._node = node
        self.is_mine = is_mine or (lambda _: True)
        self._records: dict[str, dict[str, Offsets]] = {}  # group: topic
        self._terms: dict[str, int] = {}
        self._waiting: dict[str, list[_Wanted]] = {}
        self._under_way: set[Key] = set()
        self._tasks = TaskSet()
        self._on_needing_more = on_needing_more or _nothing
        stored.listen(OFFSETS, self._on_change)

    def of(self, group: str, topic: str) -> Offsets:
        return self._records.get(group, {}).get(topic, NOTHING)

    def __iter__(self) -> Iterator[Key]:
        """A copy: it may change meanwhile."""
        return iter([(group, topic) for group, topics in self._records.items() for topic in topics])

    def __contains__(self, key: Key) -> bool:
        return key[1] in self._records.get(key[0], ())

    def groups(self) -> Mapping[str, object]:
        """By name."""
        return self._records

    # ---- changes ----

    def open(self, group: str) -> int:
        """This node is the group's coordinator from now on; the term, higher than any before."""
        before = [record.term for record in self._records.get(group, {}).values()]
        self._terms[group] = term = max([int(self._wall_clock() * 1_000), *(each + 1 for each in before)])
        return term

    async def commit(self, group: str, offsets: Iterable[tuple[str, int, int]], check: Callable[[], None]) -> None:
        """Raises what `check` raises, and Unavailable."""

        by_topic: dict[str, dict[int, int]] = {}
        for topic, partition, offset in offsets:
            by_topic.setdefault(topic, {})[partition] = offset

        def apply(records: dict[str, Offsets]) -> None:
            for topic, new in by_topic.items():
                committed = {**records[topic].committed, **new}
                starts = {number: start for number, start in records[topic].starts.items() if number not in new}
                records[topic] = msgspec.structs.replace(records[topic], committed=committed, starts=starts)

        await self._change(group, _Wanted(check, apply))

    async def begin(self, group: str, starts: Mapping[tuple[str, int], int]) -> None:
        """Notes where partitions without a commit are begun."""

        by_topic: dict[str, dict[int, int]] = {}
        for (topic, partition), offset in starts.items():
            by_topic.setdefault(topic, {})[partition] = offset

        def apply(records: dict[str, Offsets]) -> None:
            for topic, new in by_topic.items():
                committed = records[topic].committed
                begun = {number: offset for number, offset in new.items() if number not in committed}
                if begun:
                    begun = {**records[topic].starts, **begun}
                    records[topic] = msgspec.structs.replace(records[topic], starts=begun)

        await self._change(group, _Wanted(lambda: None, apply))

    async def keep(self, group: str, topics: Iterable[str]) -> None:
        """The group is alive, though it has nothing new to say."""

        def apply(records: dict[str, Offsets]) -> None:
            known = self._records.get(group, {})
            records.update({topic: records[topic] for topic in topics if topic in known})

        await self._change(group, _Wanted(lambda: None, apply))

    async def rest(self, group: str) -> None:
        """The group has no members any more: what was begun and not committed is forgotten."""

        def apply(records: dict[str, Offsets]) -> None:
            for topic in self._records.get(group, ()):
                records[topic] = msgspec.structs.replace(records[topic], starts={})

        await self._change(group, _Wanted(lambda: None, apply))

    async def remove(self, keys: Iterable[Key]) -> None:
        """Raises Unavailable."""
        changes: list[Change] = [(OFFSETS, key_of(*key), None) for key in keys if key in self]
        if changes:
            for _, key, _ in changes:
                self._forget(split_key(key))
            await self._stored.write(changes, is_heard=False)

    def topic_dropped(self, topic: str) -> None:
        """What is stored of it was removed with it."""
        for key in [key for key in (*self, *self._under_way) if key[1] == topic]:
            self._forget(key)

    def _forget(self, key: Key) -> None:
        self._remove(key)
        self._under_way.discard(key)

    async def _change(self, group: str, wanted: _Wanted) -> None:
        waiting = self._waiting.get(group)
        if waiting is None:
            self._waiting[group] = [wanted]
            self._tasks.spawn(self._write(group))
        else:
            waiting.append(wanted)
        await wanted.done

    async def _write(self, group: str) -> None:
        try:
            while self._waiting[group]:
                batch, self._waiting[group] = self._waiting[group], []
                await self._write_batch(group, batch)
        finally:
            del self._waiting[group]

    async def _write_batch(self, group: str, batch: list[_Wanted]) -> None:
        records = _Records(self._records.get(group, {}))
        allowed: list[_Wanted] = []
        for wanted in batch:
            try:
                wanted.check()
                wanted.apply(records)
                allowed.append(wanted)
            except DataError as error:
                _fail(wanted, error)
        changed = {topic: self._stamped(group, record) for topic, record in records.items()}
        changes = [(OFFSETS, key_of(group, topic), _encode(record)) for topic, record in changed.items()]
        keys = {(group, topic) for topic in changed}
        self._under_way |= keys
        try:
            if changes:
                await self._stored.write(changes, is_heard=False)
        except DataError as error:
            self._under_way -= keys
            for wanted in allowed:
                _fail(wanted, error)
            return
        needs_more = False
        for topic, record in changed.items():
            if (group, topic) in self._under_way:
                needs_more = needs_more or record.needs_more_than(self.of(group, topic))
                self._put((group, topic), record)
            else:  # dropped meanwhile: what was written behind the removal is removed too
                self._write_later([(OFFSETS, key_of(group, topic), None)])
        self._under_way -= keys
        if needs_more:
            await self._on_needing_more()
        for wanted in allowed:
            if not wanted.done.done():
                wanted.done.set_result(None)

    def _stamped(self, group: str, record: Offsets) -> Offsets:
        term = self._terms.get(group, 0)
        return msgspec.structs.replace(record, active=int(self._wall_clock() * 1_000), term=term, node=self._node)

    def _put(self, key: Key, record: Offsets) -> None:
        if record.committed or record.starts:
            self._records.setdefault(key[0], {})[key[1]] = record
        else:
            self._remove(key)

    def _remove(self, key: Key) -> None:
        topics = self._records.get(key[0], {})
        topics.pop(key[1], None)
        if not topics:
            self._records.pop(key[0], None)

    # ---- what was stored ----

    def _on_change(self, key: bytes, value: bytes | None) -> None:
        """From the store, and in a cluster what any node has written."""
        group, topic = split_key(key)
        mine = self.is_mine(group) and group in self._terms
        if value is None:
            if not mine:
                self._remove((group, topic))
            return
        record = msgspec.msgpack.decode(value, type=Offsets)
        if not mine:
            self._put((group, topic), record)
        elif record.node != self._node and record.term < self._terms[group] and (group, topic) in self:
            # A node that does not know yet that it is not the coordinator any more has written over ours.
            log.warning("a commit of a former coordinator is overruled", group=group, topic=topic, node=record.node)
            ours = self.of(group, topic)
            self._write_later([(OFFSETS, key, _encode(msgspec.structs.replace(ours, term=self._terms[group])))])

    def _write_later(self, changes: list[Change]) -> None:
        async def write() -> None:
            try:
                await self._stored.write(changes, is_heard=False)
            except DataError as error:
                log.error("offsets could not be stored", error=str(error))

        self._tasks.spawn(write())

    def close(self, group: str) -> None:
        """Another node is the coordinator from now on."""
        self._terms.pop(group, None)
        for topic in list(self._records.get(group, ())):
            value = self._stored.items(OFFSETS).get(key_of(group, topic))
            self._put((group, topic), NOTHING if value is None else msgspec.msgpack.decode(value, type=Offsets))


async def _nothing() -> None:
    """Nobody wants to know."""


class _Records(dict[str, Offsets]):
    """Those of one group that a batch changes, by topic."""

    def __init__(self, before: Mapping[str, Offsets]) -> None:
        super().__init__()
        self._before = before

    def __missing__(self, topic: str) -> Offsets:
        return self._before.get(topic, NOTHING)


def _encode(record: Offsets) -> bytes | None:
    return msgspec.msgpack.encode(record) if record.committed or record.starts else None


def _fail(wanted: _Wanted, error: DataError) -> None:
    if not wanted.done.done():
        wanted.done.set_exception(error)
