"""The port in commands: one EVALSHA per queue and call, values as they are, answers in the scripts' own form."""

from __future__ import annotations

import asyncio
import hashlib
import struct
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import resources
from typing import Any

from penstock._ext.device.commands import (
    IS_DAMAGED,
    IS_SINGLE,
    kind_of,
    pack_addition,
    pack_singles,
    split_pack,
)
from penstock._ext.record.segment import RecordPack
from penstock.core.logging import get_logger
from penstock.settings.redis import DeviceSettings, RedisSettings
from penstock.storage.state.base import StoreError
from penstock.subscribers.device.store.addition_order import AdditionOrder
from penstock.subscribers.device.store.base import (
    Added,
    Addition,
    DeviceStatistics,
    Moved,
    NoPacketIdLeft,
    OnAllDone,
    OnDone,
    PacketIds,
    Page,
    PlacedId,
    Queue,
    QueueState,
    StoreFull,
    build_source,
    group_via,
)
from penstock.subscribers.device.store.redis.client import RedisClient
from penstock.subscribers.device.store.redis.connection import OnReply, pack_command
from penstock.subscribers.device.store.redis.keys import KeyMaker, QueueKeys, pack_word
from penstock.subscribers.device.store.redis.lanes import Job, Lanes

log = get_logger("penstock.stores.redis")

# What a script does at once keeps every other client of Redis waiting, and Lua can unpack only so much.
MOST_AT_ONCE = 500
MOST_IN_PAGE = 1_000
MOST_SINGLES = 50
SIZED_SCRIPTS = ("add", "add_each", "fetch", "remove", "release", "remove_all", "claim", "settle")
OTHER_SCRIPTS = ("reserve", "describe")
TOTAL_KEY = b"stored_bytes"
TOTAL_SECONDS = 2.0


def read_scripts() -> dict[str, bytes]:
    """Return the scripts by name. Those that change what is stored begin with the functions that count its bytes."""
    folder = resources.files(__package__) / "scripts"
    sizes = (folder / "sizes.lua").read_bytes()
    scripts = {name: sizes + (folder / f"{name}.lua").read_bytes() for name in SIZED_SCRIPTS}
    return scripts | {name: (folder / f"{name}.lua").read_bytes() for name in OTHER_SCRIPTS}


IDENTITY = struct.Struct("<qiI")
"""Offset, partition and via: what the scripts know a message by."""

_Single = tuple[int, Queue, QueueKeys, RecordPack]
"""Where it stands in its batch, its queue, and a message."""


class _Batch:
    """Collects the results of a call with several entries."""

    __slots__ = ("left", "on_done", "results", "statistics")

    def __init__(self, size: int, on_done: Callable[[list[Any]], None], statistics: DeviceStatistics) -> None:
        self.results: list[Any] = [None] * size
        self.left = size
        self.on_done = on_done
        self.statistics = statistics

    def finish(self, index: int, result: Any) -> None:
        self.results[index] = result
        self.left -= 1
        if isinstance(result, StoreError):
            self.statistics.failed += 1
        if self.left == 0:
            tell(self.on_done, self.results)


class _Additions(_Batch):
    """The results of additions, whose order is kept when one of them fails."""

    __slots__ = ("numbers", "order", "queues")

    def __init__(
        self,
        queues: list[Queue],
        on_done: Callable[[list[Any]], None],
        statistics: DeviceStatistics,
        *,
        order: AdditionOrder,
    ) -> None:
        super().__init__(len(queues), on_done, statistics)
        self.queues = queues
        self.order = order
        self.numbers = [order.given(queue) for queue in queues]

    def finish(self, index: int, result: Any) -> None:
        super().finish(index, result)
        if self.left == 0:
            self.order.told(self.queues)


class _Parts:
    """Collects the answers of an entry that needs several commands; the first error is its result."""

    __slots__ = ("answers", "finish", "left")

    def __init__(self, count: int, finish: Callable[[list[Any] | StoreError], None]) -> None:
        self.answers: list[Any] = [None] * count
        self.left = count
        self.finish = finish

    def take(self, index: int, answer: Any) -> None:
        self.answers[index] = answer
        self.left -= 1
        if self.left == 0:
            error = next((part for part in self.answers if isinstance(part, StoreError)), None)
            self.finish(error or self.answers)


def tell(on_done: Callable[[Any], None], result: Any) -> None:
    try:
        on_done(result)
    except Exception:
        # A caller's mistake must not end the reading of answers that belong to others.
        log.exception("a callback of the store failed")


class RedisDeviceStore:
    """See DeviceStore. Made on the loop it is used on."""

    is_shared = True
    is_remote = True

    def __init__(self, settings: RedisSettings, device: DeviceSettings, clock: Callable[[], float] = time.time) -> None:
        self.statistics = DeviceStatistics()
        self._device = device
        self._clock = clock
        self._keys = KeyMaker(settings.prefix)
        scripts = read_scripts()
        # Redis knows a script by the SHA-1 of its text.
        self._sha = {name: hashlib.sha1(text, usedforsecurity=False).hexdigest() for name, text in scripts.items()}
        self._client = RedisClient(settings, list(scripts.values()), self.statistics)
        self._order = AdditionOrder()
        self._lanes = Lanes(self._client, self._pack_addition, MOST_AT_ONCE, self._order)
        self._add_words = pack_word(b"EVALSHA") + pack_word(self._sha["add"].encode())
        self._each_words = pack_word(b"EVALSHA") + pack_word(self._sha["add_each"].encode())
        self._ttl = 1000 * device.messages_ttl
        self._limits_at, self._limits = 0, b""
        self._shares_commands = settings.mode != "cluster"
        # Scripts in a cluster see one slot, and the total would be in another.
        has_total = device.total_bytes_limit > 0 and settings.mode != "cluster"
        self._total_key = settings.prefix.encode() + TOTAL_KEY if settings.mode != "cluster" else b""
        self._asks_total = has_total
        self._asking: asyncio.TimerHandle | None = None
        self._byte_limits = b"".join(
            map(
                pack_word,
                (b"%d" % device.bytes_limit, b"%d" % (device.total_bytes_limit if has_total else 0), self._total_key),
            )
        )

    @property
    def pending_bytes(self) -> int:
        return self._client.pending_bytes + self._lanes.waiting_bytes

    async def start(self) -> None:
        await self._client.start()
        if self._asks_total:
            self._asking = asyncio.get_running_loop().call_later(TOTAL_SECONDS, self._ask_total)

    async def close(self) -> None:
        self._asks_total = False
        if self._asking is not None:
            self._asking.cancel()
        await self._client.close()

    def check(self) -> bool | str:
        return self._client.check()

    def _ask_total(self) -> None:
        """Keep the total in the statistics up to date; other brokers change it, too."""

        def finish(answer: Any) -> None:
            if not isinstance(answer, StoreError):
                self.statistics.stored_bytes = max(0, int(answer or 0))
            if self._asks_total:
                self._asking = asyncio.get_running_loop().call_later(TOTAL_SECONDS, self._ask_total)

        self._client.submit(0, pack_command(("GET", self._total_key)), finish)

    def add(self, batch: Sequence[Addition], on_done: OnAllDone[Added]) -> None:
        if not batch:
            return self._client.soon(on_done, [])
        collector = _Additions([one.queue for one in batch], on_done, self.statistics, order=self._order)
        singles: list[_Single] = []
        for index, (queue, pack, in_flight) in enumerate(batch):
            number = collector.numbers[index]
            if (failure := self._order.failure(queue, number)) is not None:
                self._client.soon(partial(collector.finish, index), failure)
                continue
            keys = self._keys(queue)
            kind = kind_of(pack)
            is_single = kind == IS_SINGLE and self._shares_commands and not in_flight and len(keys.add) == 4
            if is_single and self._lanes.try_hold(queue):
                singles.append((index, queue, keys, pack))
                if len(singles) == MOST_SINGLES:
                    self._add_each(collector, singles)
                    singles = []
                continue
            finish = partial(self._on_added, collector, index)
            if kind == IS_DAMAGED:
                damage = StoreError("the key of a record is not a source")
                self._order.failed(queue, number, damage)
                self._client.soon(finish, damage)
            elif pack.count <= MOST_AT_ONCE:
                self._lanes.submit_addition(queue, keys, pack, in_flight, finish, number=number)
            else:
                packs = split_pack(pack, MOST_AT_ONCE)
                several = _Parts(len(packs), partial(self._on_parts_added, finish))
                parts = [(part, partial(several.take, number)) for number, part in enumerate(packs)]
                self._lanes.submit_parts(queue, keys, parts, in_flight, number=number)
        if singles:
            self._add_each(collector, singles)
        return None

    def _add_each(self, collector: _Additions, singles: list[_Single]) -> None:
        """One message for each of many clients: one command for all of them."""
        count = 4 * len(singles)
        words = [self._each_words, pack_word(b"%d" % count), *(keys.words for _, _, keys, _ in singles), self._now()]
        payload = pack_singles(9 + count, b"".join(words), [pack for _, _, _, pack in singles])
        on_reply = partial(self._on_each_added, collector, singles)
        self._client.submit(singles[0][2].slot, payload, on_reply, 0.0, self._lanes.waiting_bytes)

    def _on_each_added(self, collector: _Additions, singles: list[_Single], answer: Any) -> None:
        if isinstance(answer, StoreError):
            for index, queue, _, _ in singles:
                self._order.failed(queue, collector.numbers[index], answer)
                self._lanes.release(queue, answer)
                collector.finish(index, answer)
            return
        release, finish = self._lanes.release, collector.finish
        for (index, queue, keys, pack), packet_id in zip(singles, answer, strict=True):
            if packet_id:
                self.statistics.added += 1
                release(queue, answer)
                finish(index, Added([packet_id], 0))
            else:
                finish_alone = partial(self._on_added, collector, index)
                self._lanes.submit_held(queue, keys, pack, b"", finish_alone, number=collector.numbers[index])

    def _now(self) -> bytes:
        """Limit of messages, time, default expiry, and limits of bytes, as words of a command."""
        now = int(self._clock() * 1000)
        if now != self._limits_at:
            self._limits_at = now
            numbers = (self._device.messages_limit, now, now + self._ttl)
            self._limits = b"".join(pack_word(b"%d" % number) for number in numbers) + self._byte_limits
        return self._limits

    def _pack_addition(self, keys: QueueKeys, packs: list[RecordPack], in_flight: bytes) -> bytes:
        return pack_addition(9 + len(keys.add), self._add_words + keys.packed + self._now(), in_flight, packs)

    def _on_parts_added(self, finish: Callable[[Any], None], answers: list[Any] | StoreError) -> None:
        if isinstance(answers, StoreError):
            finish(answers)
        else:
            given = [packet_id for answer in answers for packet_id in answer[2]]
            finish((sum(answer[0] for answer in answers), max(answer[1] for answer in answers), given))

    def _on_added(self, collector: _Additions, index: int, answer: Any) -> None:
        if isinstance(answer, StoreError):
            collector.finish(index, answer)
            return
        trimmed, is_full, given = answer
        statistics = self.statistics
        missing = given.count(0)
        statistics.added += len(given) - missing
        statistics.trimmed += trimmed
        if is_full and missing:
            collector.finish(index, NoPacketIdLeft("every packet id of the client is stored or in flight"))
        else:
            collector.finish(index, Added(given, trimmed))

    def fetch(self, queue: Queue, after_score: int, limit: int, on_done: OnDone[Page]) -> None:
        keys = self._keys(queue)

        def finish(answer: Any) -> None:
            tell(on_done, answer if isinstance(answer, StoreError) else self._to_page(answer))

        self._run("fetch", queue, keys.group[:1], (after_score, min(limit, MOST_IN_PAGE)), finish)

    def _to_page(self, answer: list[Any]) -> Page:
        ids = list(map(int, answer[3::3]))
        self.statistics.fetched += len(ids)
        scores, values = list(map(int, answer[4::3])), answer[5::3]
        return Page(ids, scores, values, int(answer[1]), answer[0] == 1, expired=int(answer[2]))

    def remove(self, batch: Sequence[PacketIds], on_done: OnAllDone[int]) -> None:
        self._for_ids("remove", "removed", batch, on_done)

    def release(self, batch: Sequence[PacketIds], on_done: OnAllDone[int]) -> None:
        self._for_ids("release", "released", batch, on_done)

    def _for_ids(self, script: str, counter: str, batch: Sequence[PacketIds], on_done: OnAllDone[int]) -> None:
        if not batch:
            return self._client.soon(on_done, [])
        collector = _Batch(len(batch), on_done, self.statistics)

        def finish(index: int, answers: list[int] | StoreError) -> None:
            if not isinstance(answers, StoreError):
                total = sum(answers)
                setattr(self.statistics, counter, getattr(self.statistics, counter) + total)
                collector.finish(index, total)
            else:
                collector.finish(index, answers)

        for index, (queue, packet_ids) in enumerate(batch):
            keys = self._keys(queue)
            if not packet_ids:
                self._client.soon(partial(finish, index), [])
                continue
            starts = range(0, len(packet_ids), MOST_AT_ONCE)
            parts = _Parts(len(starts), partial(finish, index))
            for number, first in enumerate(starts):
                some = packet_ids[first : first + MOST_AT_ONCE]
                self._run(script, queue, keys.group, some, partial(parts.take, number))
        return None

    def remove_all(self, queues: Sequence[Queue], on_done: OnAllDone[int]) -> None:
        if not queues:
            return self._client.soon(on_done, [])
        collector = _Batch(len(queues), on_done, self.statistics)
        for index, queue in enumerate(queues):
            keys = self._keys(queue)
            self._run("remove_all", queue, keys.all, (), partial(collector.finish, index))
        return None

    def reserve(self, queue: Queue, count: int, in_flight: bytes, on_done: OnDone[list[int]]) -> None:
        keys = self._keys(queue)

        def finish(answer: Any) -> None:
            if not isinstance(answer, StoreError) and len(answer) < count:
                answer = StoreFull(f"only {len(answer)} of {count} packet ids are neither stored nor in flight")
            tell(on_done, answer)

        self._run("reserve", queue, keys.add[:3], (count, in_flight), finish)

    def describe(self, queue: Queue, on_done: OnDone[QueueState]) -> None:
        keys = self._keys(queue)

        def finish(answer: Any) -> None:
            tell(on_done, answer if isinstance(answer, StoreError) else QueueState(*answer))

        self._run("describe", queue, keys.add[:2], (), finish)

    def move(self, group: Queue, member: Queue, delivery: bytes, limit: int, on_done: OnDone[Moved]) -> None:
        """Group and member can be in different slots, so no script can do it: the group notes who a message belongs to,
        the member gets it (once, its source is known there), and the group forgets it. Whoever moves next ends what
        somebody else began."""
        self._claim(group, member, delivery, (min(limit, MOST_AT_ONCE),), on_done)

    def move_some(
        self, group: Queue, member: Queue, delivery: bytes, chosen: Sequence[PlacedId], on_done: OnDone[Moved]
    ) -> None:
        self._claim(group, member, delivery, (0, *(number for placed in chosen for number in placed)), on_done)

    def _claim(
        self, group: Queue, member: Queue, delivery: bytes, which: tuple[int, ...], on_done: OnDone[Moved]
    ) -> None:
        # No name of a queue has a brace in it.
        owner = b"%b}%b" % (member.encode(), delivery)

        def on_claimed(answer: Any) -> None:
            if isinstance(answer, StoreError):
                tell(on_done, answer)
            elif len(answer) == 1:
                tell(on_done, Moved(0, answer[0]))
            else:
                self._add_claimed(group, answer, partial(tell, on_done))

        self._run("claim", group, self._keys(group).group, (owner, *which), on_claimed)

    def _add_claimed(self, group: Queue, claimed: list[Any], on_done: Callable[[Moved | StoreError], None]) -> None:
        now, own_via = int(self._clock() * 1000), group_via(group)
        packs: dict[bytes, RecordPack] = {}
        settled: list[bytes] = []
        for i in range(1, len(claimed), 6):
            packet_id, score, owner, source, lives, value = claimed[i : i + 6]
            offset, partition, via = IDENTITY.unpack(source)
            queue, _, delivery = owner.partition(b"}")
            pack = packs.setdefault(queue, RecordPack())
            pack.append(value + delivery, build_source(partition, offset, now + max(1, lives), 0, via or own_via))
            settled += (packet_id, score)

        def on_added(results: list[Added | StoreError]) -> None:
            trimmed = 0
            for result in results:
                if isinstance(result, StoreError):
                    on_done(result)
                    return
                trimmed += result.trimmed
            keys = self._keys(group)
            finish = partial(self._on_settled, Moved(len(settled) // 2, claimed[0], trimmed), on_done)
            self._run("settle", group, keys.group, settled, finish)

        self.add([Addition(Queue(queue.decode()), pack) for queue, pack in packs.items()], on_added)

    @staticmethod
    def _on_settled(moved: Moved, on_done: Callable[[Moved | StoreError], None], answer: Any) -> None:
        on_done(answer if isinstance(answer, StoreError) else moved)

    def _run(
        self,
        script: str,
        queue: Queue,
        keys: tuple[bytes, ...],
        arguments: Sequence[str | bytes | int],
        on_reply: OnReply,
    ) -> None:
        total = (self._total_key,) if script in SIZED_SCRIPTS else ()
        payload = pack_command(("EVALSHA", self._sha[script], len(keys), *keys, *total, *arguments))
        self._lanes.submit(queue, Job(self._keys(queue), on_reply, payload))
