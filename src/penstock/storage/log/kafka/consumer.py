"""Reads packs through librdkafka's consumer.

What is asked at once (assignment, position) is kept on the loop; everything else runs in the consumer's own thread, in
order. A poll looks for other jobs every SLICE_SECONDS while there is nothing to read. What is not wanted yet waits.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, TypeVar

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, KafkaError, KafkaException

from penstock._ext.kafka.client import PackConsumer
from penstock._ext.record.segment import RecordPack
from penstock.core.logging import get_logger
from penstock.storage.log.base import (
    EARLIEST,
    LATEST,
    Committed,
    Fetched,
    LogError,
    LogUnavailable,
    OffsetOutOfRange,
    OnPartitions,
    TopicPartition,
    Watermarks,
    check_new,
)
from penstock.storage.log.kafka.errors import is_passing, to_log_error
from penstock.storage.log.kafka.health import Health
from penstock.storage.log.kafka.questions import Questions, text
from penstock.storage.log.kafka.shelf import LARGEST_FETCH, MOVES, Shelf, ShelfPartition
from penstock.storage.log.kafka.worker import Worker

log = get_logger("penstock.logs.kafka")
Answer = TypeVar("Answer")
# Records, and the number of their partition's last move when they were read.
Found = list[tuple[int | None, TopicPartition, RecordPack]]
# What librdkafka says instead of a record, and of which topic (None: of none) and partition.
Failure = tuple[KafkaError, str | None, int]

SLICE_SECONDS = 0.02
SEEK_SECONDS = 5.0
REPLACEMENT_SECONDS = 10.0  # two processes do not take a place from each other all the time


class KafkaConsumer:
    """See Consumer in base.py. Callbacks of a rebalance may be coroutine functions: awaited, and may commit."""

    def __init__(
        self,
        new_client: Callable[[], PackConsumer],
        group: str,
        *,
        auto_offset_reset: str,
        max_poll_records: int,
        on_close: Callable[[KafkaConsumer], None],
        health: Health,
        is_cooperative: bool = True,
    ) -> None:
        self._new_client = new_client
        self._client = new_client()
        self._questions = Questions(self._client, group, auto_offset_reset)
        self._group = group
        self._reset = auto_offset_reset
        self._max_poll_records = max_poll_records
        self._on_close = on_close
        self._health = health
        self._is_cooperative = is_cooperative
        self._worker = Worker(f"kafka-consumer-{group}")
        self._shelf = Shelf()
        self._is_subscribed = False
        self._is_polling = False
        self._fetching: asyncio.Future[Found] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._is_cut_short = False
        self._asking: set[asyncio.Future[dict[TopicPartition, int]]] = set()
        self._is_closing = False
        self._is_closed = False
        self._on_assigned: OnPartitions | None = None
        self._on_revoked: OnPartitions | None = None
        # These belong to the thread.
        self._moves: dict[TopicPartition, int] = {}
        self._applied: set[TopicPartition] = set()
        self._starts: dict[TopicPartition, int] = {}
        self._has_new_assignment = False
        self._failure: Failure | None = None
        self._revoked: set[TopicPartition] = set()
        self._names: list[str] = []
        self._out = ""  # why librdkafka will never read anything again
        self._next_replacement = 0.0
        self.resets = 0

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self._check_unsubscribed()
        wanted = sorted(set(partitions))
        positions = {partition: place.position for partition, place in self._shelf.places.items()}
        for partition in positions:
            self._shelf.drop(partition)
        starts = {partition: positions.get(partition) for partition in wanted}
        moves = {partition: self._shelf.add(partition, start, next(MOVES)).move for partition, start in starts.items()}
        self._worker.submit(lambda: self._apply(starts, moves))

    async def add(self, starts: Mapping[TopicPartition, int]) -> None:
        self._check_unsubscribed()
        check_new(starts, self._shelf.places)
        added = [self._shelf.add(one, start if start >= 0 else None, next(MOVES)) for one, start in starts.items()]
        moves = {place.partition: place.move for place in added}
        try:
            found = await self._find_offsets({partition: start for partition, start in starts.items() if start < 0})
            # what was removed meanwhile is not added any more
            chosen = {one: found.get(one, start) for one, start in starts.items() if self._is_at(one, moves[one])}
            await self._submit("add partitions", lambda: self._extend(chosen, moves))
        except BaseException:
            for partition, move in moves.items():
                if self._is_at(partition, move):
                    self._shelf.drop(partition)
            raise
        for partition, position in found.items():
            self._shelf.set_position(partition, moves[partition], position)

    def _is_at(self, partition: TopicPartition, move: int) -> bool:
        place = self._shelf.places.get(partition)
        return place is not None and place.move == move

    async def _find_offsets(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Not in the consumer's thread, so that nobody's records wait for the answer."""
        if not times:
            return {}
        asking = asyncio.get_running_loop().run_in_executor(None, self._questions.offsets, times)
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)
        try:
            return await asking
        except KafkaException as error:
            raise to_log_error(error, "find the ends of partitions") from None

    async def remove(self, partitions: Iterable[TopicPartition]) -> None:
        self._check_unsubscribed()
        dropped = [partition for partition in partitions if self._shelf.drop(partition)]
        if dropped:
            await self._submit("remove partitions", lambda: self._shrink(dropped))

    def subscribe(
        self, topics: Iterable[str], on_assigned: OnPartitions | None = None, on_revoked: OnPartitions | None = None
    ) -> None:
        self._check_open()
        if not self._group:
            raise LogError("a consumer without a group cannot subscribe, only be assigned partitions")
        if self._shelf.places and not self._is_subscribed:
            raise LogError("the consumer has partitions assigned to it: it cannot subscribe as well")
        self._on_assigned, self._on_revoked = on_assigned, on_revoked
        self._is_subscribed = True
        names = sorted(set(topics))
        self._worker.submit(lambda: self._join(names))

    async def poll(
        self, max_records: int = 500, timeout: float = 1.0, max_per_partition: int | None = None
    ) -> list[Fetched]:
        if max_records < 1 or (max_per_partition is not None and max_per_partition < 1):
            raise ValueError("a poll of no records makes no sense")
        if self._is_polling:
            raise LogError("the consumer is polled already")
        most = min(max_records, self._max_poll_records)
        deadline = time.monotonic() + timeout
        self._is_polling = True
        try:
            while True:
                self._check_open()
                await self._read_on(most, deadline)
                given = self._shelf.take(most, max_per_partition or most)
                self._give_orders()
                if given:
                    return given
                if time.monotonic() >= deadline:
                    break
        finally:
            self._is_polling = False
        await self._find_positions()
        return []

    async def _read_on(self, most: int, deadline: float) -> None:
        """Puts what is read onto the shelf. Does not wait for it if there is something on it already."""
        loop = asyncio.get_running_loop()
        # What a poll asked for that did not wait to the end (cancelled, woken) is not lost: the next one gets it.
        fetching = self._fetching
        if fetching is None:
            until = 0.0 if self._shelf.has_records else deadline
            self._is_cut_short = False
            fetching = self._fetching = self._worker.submit(lambda: self._fetch(most, until))
            fetching.add_done_callback(self._wake)
        elif self._shelf.has_records:
            loop.call_soon(self._wake)
        if not fetching.done():
            self._waiter = loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if fetching.done():
            self._fetching = None
            for move, partition, pack in fetching.result():
                self._shelf.put(move, partition, pack)

    def _wake(self, _: object = None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _give_orders(self) -> None:
        to_hold, to_let_go = self._shelf.orders()
        if to_hold or to_let_go:
            self._worker.submit(lambda: self._hold(to_hold, to_let_go))

    async def _find_positions(self) -> None:
        """Asks for the positions of partitions that nothing was read of, once."""
        asked = {place.partition: place.move for place in self._shelf.unknown()}
        if not asked or self._is_closing or self._health.reason is not None:
            return
        try:
            found = await self._submit("find positions", lambda: self._questions.locate(asked))
        except LogError as error:
            log.debug("positions are not known", group=self._group, reason=error.message)
            return
        for partition, position in found.items():
            self._shelf.set_position(partition, asked[partition], position)

    @property
    def is_subscribed(self) -> bool:
        return self._is_subscribed

    def places(self) -> list[ShelfPartition]:
        return list(self._shelf.places.values())

    def has(self, place: ShelfPartition) -> bool:
        return self._shelf.places.get(place.partition) is place

    def assignment(self) -> list[TopicPartition]:
        return sorted(self._shelf.places)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        for place in [self._shelf.find(partition) for partition in partitions]:
            self._shelf.pause(place)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        has_records = False
        for partition in partitions:
            place = self._shelf.places.get(partition)
            if place is not None and place.is_paused:
                has_records |= self._shelf.resume(place)
        self._give_orders()
        if has_records:
            self._is_cut_short = True
            # a member of a group must not be told of a rebalance while it processes what it has polled
            if not self._is_subscribed:
                self._wake()

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        place = self._shelf.find(partition)
        if offset < 0 and offset not in {EARLIEST, LATEST}:
            raise ValueError(f"{offset} is not an offset")
        self._shelf.forget(place)
        place.move = move = next(MOVES)
        found = await self._submit(f"seek in {text(partition)}", lambda: self._seek(partition, offset, move))
        if place.move == move:
            place.position = found

    async def seek_to_time(self, partition: TopicPartition, timestamp_ms: int) -> int:
        self._shelf.find(partition)
        offset = await self._submit(
            f"find a time in {text(partition)}", lambda: self._questions.offset_at(partition, timestamp_ms)
        )
        await self.seek(partition, offset)
        return offset

    def position(self, partition: TopicPartition) -> int:
        """Known after the first poll or seek; Kafka has to be asked for the committed one."""
        position = self._shelf.find(partition).position
        if position is None:
            raise LogUnavailable(f"the position of {text(partition)} is known after the first poll")
        return position

    async def commit(self, offsets: Mapping[TopicPartition, Committed] | None = None) -> None:
        if not self._group:
            raise LogError("a consumer without a group has nothing to commit to")
        if offsets is None:
            # What was never read has nothing new to say about itself.
            known = {partition: place.position for partition, place in self._shelf.places.items()}
            offsets = {one: Committed(position) for one, position in known.items() if position is not None}
        for partition, committed in offsets.items():
            if committed.offset < 0:
                raise ValueError(f"{committed.offset} of {partition} is not an offset")
        asked = {partition: (one.offset, one.metadata) for partition, one in offsets.items()}
        if asked:
            await self._submit("commit offsets", lambda: self._commit(asked))

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Committed | None]:
        chosen = list(partitions)
        if not self._group or not chosen:
            return dict.fromkeys(chosen)
        return await self._submit("read committed offsets", lambda: self._questions.committed(chosen))

    async def watermarks(self, partition: TopicPartition) -> Watermarks:
        return await self._submit(f"read the ends of {text(partition)}", lambda: self._questions.watermarks(partition))

    async def lag(self) -> dict[TopicPartition, int]:
        positions = {partition: place.position for partition, place in self._shelf.places.items()}
        return await self._submit("measure the lag", lambda: self._questions.lag(positions))

    def serve_callbacks(self) -> None:
        """librdkafka's reports and errors wait for a poll, and pile up in a consumer that is only asked things."""
        if not (self._shelf.places or self._is_subscribed or self._is_closing):
            self._worker.submit(self._poll_unassigned)

    async def close(self) -> None:
        """Who processes the partitions is told to give them back and may commit for the last time."""
        if self._is_closing:
            return
        self._is_closing = True
        try:
            await asyncio.gather(*self._asking, return_exceptions=True)
            await self._worker.submit_end(self._close_client)
        finally:
            self._is_closed = True
            self._worker.stop()
            self._wake()
            for partition in list(self._shelf.places):
                self._shelf.drop(partition)
            self._on_close(self)

    async def __aenter__(self) -> KafkaConsumer:
        return self

    async def __aexit__(self, *_: object) -> Literal[False]:
        await self.close()
        return False

    def _check_open(self) -> None:
        if self._is_closing:
            raise LogError("the consumer is closed")

    def _check_unsubscribed(self) -> None:
        self._check_open()
        if self._is_subscribed:
            raise LogError("the consumer has subscribed: its group decides what it has")

    async def _submit(self, doing: str, function: Callable[[], Answer]) -> Answer:
        if self._is_closed:
            raise LogError("the consumer is closed")
        try:
            return await self._worker.submit(function)
        except KafkaException as error:
            raise to_log_error(error, doing) from None
        except RuntimeError:
            self._check_open()  # it was closed before it was the turn of this
            raise

    # From here on in the thread.

    def _join(self, names: list[str]) -> None:
        self._names = names
        self._client.subscribe(names, self._take, self._give_back)

    def _close_client(self) -> None:
        """The one there is then: it may have been replaced since somebody asked for it."""
        self._client.close()

    def _poll_unassigned(self) -> None:
        if not self._applied:  # or it would read records
            self._client.read(1, 0.0, LARGEST_FETCH)

    def _replace_client(self) -> None:
        """librdkafka fails for good when its place in the group was given to another of the same instance id. That may
        have been itself: after an outage it joins again while an answer to its old self is still on its way."""
        if time.monotonic() < self._next_replacement:
            raise LogUnavailable(f"the consumer of group {self._group!r} is out: {self._out}")
        log.error("kafka consumer failed for good and is replaced", group=self._group, reason=self._out)
        self._next_replacement = time.monotonic() + REPLACEMENT_SECONDS
        self._give_up(list(self._applied))
        old, self._client = self._client, self._new_client()
        self._questions = Questions(self._client, self._group, self._reset)
        self._out, self._failure = "", None
        # what it still wants to say is nobody's business, and may take it a while
        threading.Thread(target=old.close, name=f"kafka-consumer-{self._group}-old", daemon=True).start()
        self._join(self._names)

    def _apply(self, starts: Mapping[TopicPartition, int | None], moves: Mapping[TopicPartition, int]) -> None:
        """Takes effect with the next poll, so that a seek before it needs no round trip through the old position."""
        self._moves = dict(moves)
        self._applied.clear()
        self._starts = {partition: OFFSET_INVALID if start is None else start for partition, start in starts.items()}
        self._has_new_assignment = True

    def _extend(self, starts: Mapping[TopicPartition, int], moves: Mapping[TopicPartition, int]) -> None:
        self._moves.update((partition, moves[partition]) for partition in starts)
        if self._has_new_assignment:
            self._starts |= starts
        elif starts:
            self._questions.look_up({one.topic for one in starts} - {one.topic for one in self._applied})
            self._client.incremental_assign(dict(starts))
            self._applied.update(starts)

    def _shrink(self, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self._moves.pop(partition, None)
            self._starts.pop(partition, None)
        applied = [partition for partition in partitions if partition in self._applied]
        self._applied.difference_update(applied)
        if applied:
            self._client.incremental_unassign(applied)

    def _hold(self, to_hold: list[TopicPartition], to_let_go: list[TopicPartition]) -> None:
        held = [one for one in to_hold if one in self._applied]
        free = [one for one in to_let_go if one in self._applied]
        if held:
            self._client.pause(held)
        if free:
            self._client.resume(free)

    def _start_assigned(self) -> None:
        without_group = OFFSET_END if self._reset == "latest" else OFFSET_BEGINNING
        self._client.assign(
            {
                one: without_group if start == OFFSET_INVALID and not self._group else start
                for one, start in self._starts.items()
            }
        )
        self._applied.update(self._starts)
        self._starts = {}
        self._has_new_assignment = False

    def _fetch(self, most: int, deadline: float) -> Found:
        """Waits for the first record, then takes what is there already, up to `most`."""
        while True:
            self._worker.serve_waiting()
            if self._is_closing:
                return []
            if self._out and self._is_subscribed:
                self._replace_client()
            if self._has_new_assignment:
                self._start_assigned()
            self._revoked.clear()
            found = self._read(most, min(SLICE_SECONDS, max(0.0, deadline - time.monotonic())))
            if found or self._is_cut_short or time.monotonic() >= deadline:
                return found

    def _read(self, most: int, seconds: float) -> Found:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._raise(*failure)
        try:
            packs, failures = self._client.read(most, seconds, LARGEST_FETCH)
        except KafkaException as error:
            raise to_log_error(error, "read from Kafka") from None
        found = self._without_revoked(packs)
        if failures and found:
            self._failure = failures[0]  # what was read must be given; the error comes next time
        elif failures:
            self._raise(*failures[0])
        return found

    def _without_revoked(self, packs: list[tuple[str, int, RecordPack]]) -> Found:
        """A rebalance in the middle of reading: what was read of a partition that is gone belongs to its new owner."""
        kept: Found = []
        dropped: dict[TopicPartition, int] = {}
        for topic, number, pack in packs:
            place = TopicPartition(topic, number)
            if place in self._revoked:
                dropped.setdefault(place, pack.base_offset)
            else:
                kept.append((self._moves.get(place), place, pack))
        for place, offset in dropped.items():
            if place in self._applied:  # it came back at once
                self._seek(place, offset, self._moves[place])
        return kept

    def _raise(self, error: KafkaError, topic: str | None, number: int) -> None:
        code = error.code()
        if code in (KafkaError._PARTITION_EOF, KafkaError._MAX_POLL_EXCEEDED):
            log.warning("kafka consumer", group=self._group, reason=error.str())
            return
        if error.fatal() or code == KafkaError._FATAL:
            self._out = error.str()
            raise LogUnavailable(f"the consumer of group {self._group!r} is out: {error.str()}")
        if topic is None:
            place, failed = None, to_log_error(error, "read from Kafka")
        else:
            place = TopicPartition(topic, number)
            failed = to_log_error(error, f"read {text(place)}")
        if place is not None and code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            marks = self._questions.watermarks(place)
            failed = OffsetOutOfRange(f"{text(place)}: {error.str()}", marks.first, marks.end)
        elif is_passing(error):
            log.debug("kafka consumer", group=self._group, reason=error.str())
            return
        failed.partition = place
        raise failed

    def _commit(self, asked: Mapping[TopicPartition, tuple[int, str]]) -> None:
        try:
            self._questions.commit(asked)
        except KafkaException as error:
            if error.args[0].code() == KafkaError._FATAL:
                self._out = error.args[0].str()
            raise

    def _seek(self, partition: TopicPartition, offset: int, move: int) -> int:
        if offset in (EARLIEST, LATEST):
            marks = self._questions.watermarks(partition)
            offset = marks.first if offset == EARLIEST else marks.end
        self._moves[partition] = move
        if partition not in self._applied:
            if partition in self._starts:
                self._starts[partition] = offset
            return offset
        deadline = time.monotonic() + SEEK_SECONDS
        while True:
            try:
                self._client.seek(*partition, offset)
                return offset
            except KafkaException as error:
                # A partition that was assigned just now is not being fetched yet.
                if error.args[0].code() != KafkaError._STATE or time.monotonic() > deadline:
                    raise
            time.sleep(0.01)

    def _take(self, client: PackConsumer, assigned: list[tuple[str, int]]) -> None:
        """New partitions: who processes them hears of it first, and may still seek."""
        if client is not self._client:
            return  # it is about to end
        places = [TopicPartition(*one) for one in assigned]
        moves = {place: next(MOVES) for place in places}
        self._moves |= moves
        self._starts = dict.fromkeys(places, OFFSET_INVALID)

        def tell() -> object:
            for place, move in moves.items():
                self._shelf.drop(place)
                self._shelf.add(place, None, move)
            return self._on_assigned(places) if self._on_assigned is not None and places else None

        self._worker.run_on_loop(tell)
        starts, self._starts = self._starts, {}
        if self._is_cooperative:
            client.incremental_assign(starts)
        else:
            client.assign(starts)
        self._applied.update(places)

    def _give_back(self, client: PackConsumer, revoked: list[tuple[str, int]]) -> None:
        """The group waits until who processes these partitions is done with them."""
        if client is self._client:
            self._give_up([TopicPartition(*one) for one in revoked])
        if self._is_cooperative:
            client.incremental_unassign(revoked)
        else:
            client.unassign()

    def _give_up(self, places: list[TopicPartition]) -> None:
        self._revoked.update(places)
        for place in places:
            self._moves.pop(place, None)

        def tell() -> object:
            return self._on_revoked(places) if self._on_revoked is not None and places else None

        def drop() -> None:
            for place in places:
                self._shelf.drop(place)

        self._worker.run_on_loop(tell)
        self._worker.run_on_loop(drop)
        self._applied.difference_update(places)
