"""Reads packs through librdkafka's consumer.

What is asked at once (assignment, position) is kept on the loop; everything else runs in the consumer's own thread, one
job after the other. A poll looks for other jobs every SLICE_SECONDS while there is nothing to read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, TypeVar

import confluent_kafka
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, Message

from penstock._ext.kafka_records import packs_of
from penstock.core.logging import get_logger
from penstock.logs.base import (
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
)
from penstock.logs.kafka.errors import is_passing, to_log_error
from penstock.logs.kafka.health import Health
from penstock.logs.kafka.worker import Worker

log = get_logger("penstock.logs.kafka")

Answer = TypeVar("Answer")
# Records, and how often their partition had been moved when they were read.
Found = list[tuple[int, Fetched]]

SLICE_SECONDS = 0.1
QUERY_SECONDS = 5.0
SEEK_SECONDS = 5.0
COMMIT_SECONDS = 10.0
GROUP_CHANGES = (KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION)


class KafkaConsumer:
    """See Consumer in base.py. Callbacks of a rebalance may be coroutine functions: awaited, and may commit."""

    def __init__(
        self,
        new_client: Callable[[], confluent_kafka.Consumer],
        group: str,
        *,
        auto_offset_reset: str,
        max_poll_records: int,
        on_close: Callable[[KafkaConsumer], None],
        health: Health,
        is_cooperative: bool = True,
    ) -> None:
        self._client = new_client()
        self._group = group
        self._reset = auto_offset_reset
        self._max_poll_records = max_poll_records
        self._on_close = on_close
        self._health = health
        self._is_cooperative = is_cooperative
        self._worker = Worker(f"kafka-consumer-{group}")
        self._positions: dict[TopicPartition, int | None] = {}  # on the loop; None until it is known
        self._topics: set[str] = set()  # every topic and partition it was ever given; they only grow
        self._numbers: set[int] = set()
        self._is_subscribed = False
        self._is_polling = False
        self._leftover: asyncio.Future[Found] | None = None
        self._is_closing = False
        self._is_closed = False
        self._on_assigned: OnPartitions | None = None
        self._on_revoked: OnPartitions | None = None
        # These belong to the thread. A move is a change of position other than by reading; they are counted.
        self._moves: dict[TopicPartition, int] = {}
        self._applied: set[TopicPartition] = set()
        self._starts: dict[TopicPartition, int] = {}
        self._held: set[TopicPartition] = set()
        self._has_new_assignment = False
        self._failure: Message | None = None
        self._revoked: set[TopicPartition] = set()
        self.resets = 0

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self._check_open()
        if self._is_subscribed:
            raise LogError("the consumer has subscribed: its group decides what it has")
        wanted = sorted(set(partitions))
        self._topics |= {partition.topic for partition in wanted}
        self._numbers |= {partition.partition for partition in wanted}
        self._positions = {partition: self._positions.get(partition) for partition in wanted}
        starts = dict(self._positions)
        self._worker.submit(lambda: self._apply(starts))

    def subscribe(
        self, topics: Iterable[str], on_assigned: OnPartitions | None = None, on_revoked: OnPartitions | None = None
    ) -> None:
        self._check_open()
        if not self._group:
            raise LogError("a consumer without a group cannot subscribe, only be assigned partitions")
        if self._positions and not self._is_subscribed:
            raise LogError("the consumer has partitions assigned to it: it cannot subscribe as well")
        self._on_assigned, self._on_revoked = on_assigned, on_revoked
        self._is_subscribed = True
        names = sorted(set(topics))
        # a pattern stands for topics that are not known here
        self._topics |= {*names, ""} if any(name.startswith("^") for name in names) else set(names)
        self._worker.submit(
            lambda: self._client.subscribe(
                names, on_assign=self._take, on_revoke=self._give_back, on_lost=self._give_back
            )
        )

    async def poll(self, max_records: int = 500, timeout: float = 1.0) -> list[Fetched]:
        if max_records < 1:
            raise ValueError("a poll of no records makes no sense")
        self._check_open()
        if self._is_polling:
            raise LogError("the consumer is polled already")
        most = min(max_records, self._max_poll_records)
        deadline = time.monotonic() + timeout
        # What a poll that was cancelled has read is not lost: the next one gives it.
        fetching, self._leftover = self._leftover, None
        if fetching is None:
            fetching = self._worker.submit(lambda: self._fetch(most, deadline))
        self._is_polling = True
        try:
            found = await asyncio.shield(fetching)
        except asyncio.CancelledError:
            self._leftover = None if fetching.cancelled() else fetching
            raise
        finally:
            self._is_polling = False
        if not found:
            await self._find_positions()
        return [fetched for move, fetched in found if self._accept(move, fetched)]

    def _accept(self, move: int, fetched: Fetched) -> bool:
        """Whether the records are still wanted: no seek or rebalance came after they were read."""
        place = TopicPartition(fetched.topic, fetched.partition)
        if place not in self._positions or self._moves.get(place, 0) != move:
            return False
        self._positions[place] = fetched.next_offset
        return True

    async def _find_positions(self) -> None:
        """Asks for the positions of partitions that nothing was read of, once."""
        unknown: dict[TopicPartition, int | None] = {
            partition: None for partition, position in self._positions.items() if position is None
        }
        if not unknown or self._is_closing or self._health.reason is not None:
            return
        try:
            await self._submit("find positions", lambda: self._locate(unknown))
        except LogError as error:
            log.debug("positions are not known", group=self._group, reason=error.message)
        for partition, position in unknown.items():
            if self._positions.get(partition, 0) is None:
                self._positions[partition] = position

    def assignment(self) -> list[TopicPartition]:
        return sorted(self._positions)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        chosen = [self._assigned(partition) for partition in partitions]
        self._worker.submit(lambda: self._hold(chosen))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        chosen = list(partitions)
        self._worker.submit(lambda: self._let_go(chosen))

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        self._assigned(partition)
        if offset < 0 and offset not in {EARLIEST, LATEST}:
            raise ValueError(f"{offset} is no offset")
        found = await self._submit(f"seek in {_text(partition)}", lambda: self._seek(partition, offset))
        if partition in self._positions:
            self._positions[partition] = found

    async def seek_to_time(self, partition: TopicPartition, timestamp_ms: int) -> int:
        self._assigned(partition)

        def find() -> int:
            asked = [_named(partition, timestamp_ms)]
            found = self._client.offsets_for_times(asked, timeout=QUERY_SECONDS)[0]
            _check(found.error)
            return int(found.offset) if found.offset >= 0 else self._ask_watermarks(partition).end

        offset = await self._submit(f"find a time in {_text(partition)}", find)
        await self.seek(partition, offset)
        return offset

    def position(self, partition: TopicPartition) -> int:
        """Known after the first poll or seek; Kafka has to be asked for the committed one."""
        position = self._positions[self._assigned(partition)]
        if position is None:
            raise LogUnavailable(f"the position of {_text(partition)} is known after the first poll")
        return position

    async def commit(self, offsets: Mapping[TopicPartition, Committed] | None = None) -> None:
        if not self._group:
            raise LogError("a consumer without a group has nothing to commit to")
        if offsets is None:
            # What was never read has nothing new to say about itself.
            known = {partition: position for partition, position in self._positions.items() if position is not None}
            offsets = {partition: Committed(position) for partition, position in known.items()}
        for partition, committed in offsets.items():
            if committed.offset < 0:
                raise ValueError(f"{committed.offset} of {partition} is no offset")
        asked = [_named(partition, one.offset, one.metadata) for partition, one in offsets.items()]

        if asked:
            await self._submit("commit offsets", lambda: self._commit(asked))

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Committed | None]:
        chosen = list(partitions)
        if not self._group or not chosen:
            return dict.fromkeys(chosen)
        return await self._submit("read committed offsets", lambda: self._ask_committed(chosen))

    async def watermarks(self, partition: TopicPartition) -> Watermarks:
        return await self._submit(f"read the ends of {_text(partition)}", lambda: self._ask_watermarks(partition))

    async def lag(self) -> dict[TopicPartition, int]:
        positions = dict(self._positions)

        def measure() -> dict[TopicPartition, int]:
            self._locate(positions)
            return {one: self._ask_watermarks(one).end - (position or 0) for one, position in positions.items()}

        return await self._submit("measure the lag", measure)

    async def close(self) -> None:
        """Who processes the partitions is told to give them back and may commit for the last time."""
        if self._is_closing:
            return
        self._is_closing = True
        try:
            await self._worker.submit(self._client.close)
        finally:
            self._is_closed = True
            self._worker.stop()
            self._positions.clear()
            self._on_close(self)

    async def __aenter__(self) -> KafkaConsumer:
        return self

    async def __aexit__(self, *_: object) -> Literal[False]:
        await self.close()
        return False

    def _check_open(self) -> None:
        if self._is_closing:
            raise LogError("the consumer is closed")

    def _assigned(self, partition: TopicPartition) -> TopicPartition:
        if partition not in self._positions:
            raise LogError(f"{_text(partition)} is not assigned to this consumer")
        return partition

    async def _submit(self, doing: str, function: Callable[[], Answer]) -> Answer:
        if self._is_closed:
            raise LogError("the consumer is closed")
        try:
            return await self._worker.submit(function)
        except KafkaException as error:
            raise to_log_error(error, doing) from None

    # From here on in the thread.

    def _apply(self, starts: Mapping[TopicPartition, int | None]) -> None:
        """Takes effect with the next poll, so that a seek before it needs no round trip through the old position."""
        self._note_moves(self._applied)
        self._applied.clear()
        self._starts = {partition: OFFSET_INVALID if start is None else start for partition, start in starts.items()}
        self._held.intersection_update(starts)
        self._has_new_assignment = True

    def _hold(self, partitions: Iterable[TopicPartition]) -> None:
        """Pauses what is assigned; the rest when it is."""
        self._held.update(partitions)
        self._client.pause([_named(one) for one in self._held & self._applied])

    def _let_go(self, partitions: Iterable[TopicPartition]) -> None:
        self._held.difference_update(partitions)
        self._client.resume([_named(one) for one in partitions if one in self._applied])

    def _start_assigned(self) -> None:
        without_group = confluent_kafka.OFFSET_END if self._reset == "latest" else confluent_kafka.OFFSET_BEGINNING
        chosen = [
            _named(one, without_group if start == OFFSET_INVALID and not self._group else start)
            for one, start in self._starts.items()
        ]
        self._client.assign(chosen)
        self._applied.update(self._starts)
        self._hold(self._held)
        self._starts = {}
        self._has_new_assignment = False

    def _fetch(self, most: int, deadline: float) -> Found:
        """Waits for the first record, then takes what is there already, up to `most`."""
        while True:
            self._worker.serve_waiting()
            if self._has_new_assignment:
                self._start_assigned()
            self._revoked.clear()
            messages = self._read(most, min(SLICE_SECONDS, max(0.0, deadline - time.monotonic())))
            packs, errors = packs_of(self._without_revoked(messages), *self._only())
            if errors and packs:
                self._failure = errors[0]  # what was read must be given; the error comes next time
            elif errors:
                self._raise(errors[0])
            if packs or time.monotonic() >= deadline:
                return [(self._moves.get(TopicPartition(*pack[:2]), 0), Fetched(*pack)) for pack in packs]

    def _only(self) -> tuple[str | None, int]:
        """The topic, and the partition, if this consumer never had another: then no message can be of another."""
        topic = next(iter(self._topics)) if len(self._topics) == 1 else None
        is_alone = topic is not None and not self._is_subscribed and len(self._numbers) == 1
        return topic, next(iter(self._numbers)) if is_alone else -1

    def _read(self, most: int, seconds: float) -> list[Message]:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._raise(failure)
        try:
            first = self._client.poll(seconds)
        except KafkaException as error:
            raise to_log_error(error, "read from Kafka") from None
        if first is None or most == 1:
            return [] if first is None else [first]
        try:
            return [first, *self._client.consume(most - 1, 0)]
        except KafkaException as error:
            log.warning("kafka consumer", group=self._group, reason=str(error))
            return [first]  # it is read, so it must be given

    def _note_moves(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._moves[partition] = self._moves.get(partition, 0) + 1

    def _without_revoked(self, messages: list[Message]) -> list[Message]:
        """A rebalance in the middle of reading: what was read of a partition that is gone belongs to its new owner."""
        if not self._revoked:
            return messages
        kept: list[Message] = []
        dropped: dict[TopicPartition, int] = {}
        for message in messages:
            place = TopicPartition(message.topic() or "", message.partition() or 0)
            if message.error() is None and place in self._revoked:
                dropped.setdefault(place, message.offset() or 0)
            else:
                kept.append(message)
        for place, offset in dropped.items():
            if place in self._applied:  # it came back at once
                self._seek(place, offset)
        return kept

    def _raise(self, message: Message) -> None:
        error = message.error()
        assert error is not None
        code = error.code()
        if code in (KafkaError._PARTITION_EOF, KafkaError._MAX_POLL_EXCEEDED):
            log.warning("kafka consumer", group=self._group, reason=error.str())
            return
        if error.fatal():
            raise LogError(f"the consumer of group {self._group!r} is out: {error.str()}")
        place = TopicPartition(message.topic() or "", message.partition() or 0)
        if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            marks = self._ask_watermarks(place)
            raise OffsetOutOfRange(f"{_text(place)}: {error.str()}", marks.first, marks.end)
        if is_passing(error):
            log.debug("kafka consumer", group=self._group, reason=error.str())
            return
        raise to_log_error(error, f"read {_text(place)}")

    def _commit(self, asked: list[confluent_kafka.TopicPartition]) -> None:
        """While the group changes Kafka takes no offsets. It soon does again, and until we have agreed to give a
        partition back nobody else can have it, so trying again is safe."""
        deadline = time.monotonic() + COMMIT_SECONDS
        while True:
            try:
                for written in self._client.commit(offsets=asked, asynchronous=False) or ():
                    _check(written.error)
                return
            except KafkaException as error:
                if error.args[0].code() not in GROUP_CHANGES or time.monotonic() > deadline:
                    raise
            time.sleep(0.02)

    def _seek(self, partition: TopicPartition, offset: int) -> int:
        if offset in (EARLIEST, LATEST):
            marks = self._ask_watermarks(partition)
            offset = marks.first if offset == EARLIEST else marks.end
        self._note_moves([partition])
        if partition not in self._applied:
            if partition in self._starts:
                self._starts[partition] = offset
            return offset
        deadline = time.monotonic() + SEEK_SECONDS
        while True:
            try:
                self._client.seek(_named(partition, offset))
                return offset
            except KafkaException as error:
                # A partition that was assigned just now is not being fetched yet.
                if error.args[0].code() != KafkaError._STATE or time.monotonic() > deadline:
                    raise
            time.sleep(0.01)

    def _ask_committed(self, partitions: list[TopicPartition]) -> dict[TopicPartition, Committed | None]:
        answer: dict[TopicPartition, Committed | None] = {}
        for one in self._client.committed([_named(each) for each in partitions], timeout=QUERY_SECONDS):
            _check(one.error)
            known = Committed(one.offset, one.metadata or "") if one.offset >= 0 else None
            answer[TopicPartition(one.topic, one.partition)] = known
        return answer

    def _ask_watermarks(self, partition: TopicPartition) -> Watermarks:
        marks = self._client.get_watermark_offsets(_named(partition), timeout=QUERY_SECONDS)
        if marks is None:
            raise LogUnavailable(f"Kafka does not say where {_text(partition)} ends")
        return Watermarks(*marks)

    def _locate(self, positions: dict[TopicPartition, int | None]) -> None:
        """Fills in the positions that are not known: where reading will start."""
        unknown = [partition for partition, position in positions.items() if position is None]
        committed = self._ask_committed(unknown) if unknown and self._group else {}
        for partition in unknown:
            known = committed.get(partition)
            if known is None:
                marks = self._ask_watermarks(partition)
                positions[partition] = marks.end if self._reset == "latest" else marks.first
            else:
                positions[partition] = known.offset

    def _take(self, client: confluent_kafka.Consumer, assigned: list[confluent_kafka.TopicPartition]) -> None:
        """New partitions: who processes them hears of it first, and may still seek."""
        places = [TopicPartition(one.topic, one.partition) for one in assigned]
        self._starts = dict.fromkeys(places, OFFSET_INVALID)

        def tell() -> object:
            for place in places:
                self._positions[place] = None
            return self._on_assigned(places) if self._on_assigned is not None and places else None

        self._worker.run_on_loop(tell)
        starts, self._starts = self._starts, {}
        chosen = [_named(place, start) for place, start in starts.items()]
        if self._is_cooperative:
            client.incremental_assign(chosen)
        else:
            client.assign(chosen)
        self._applied.update(places)
        self._hold(self._held)

    def _give_back(self, client: confluent_kafka.Consumer, revoked: list[confluent_kafka.TopicPartition]) -> None:
        """The group waits until who processes these partitions is done with them."""
        places = [TopicPartition(one.topic, one.partition) for one in revoked]
        self._revoked.update(places)
        self._note_moves(places)

        def tell() -> object:
            return self._on_revoked(places) if self._on_revoked is not None and places else None

        def drop() -> None:
            for place in places:
                self._positions.pop(place, None)

        self._worker.run_on_loop(tell)
        self._worker.run_on_loop(drop)
        self._applied.difference_update(places)
        self._held.difference_update(places)
        if self._is_cooperative:
            client.incremental_unassign(revoked)
        else:
            client.unassign()


def _named(
    partition: TopicPartition, offset: int = OFFSET_INVALID, metadata: str = ""
) -> confluent_kafka.TopicPartition:
    return confluent_kafka.TopicPartition(partition.topic, partition.partition, offset, metadata)


def _text(partition: TopicPartition) -> str:
    return f"{partition.topic}[{partition.partition}]"


def _check(error: KafkaError | None) -> None:
    if error is not None:
        raise KafkaException(error)
