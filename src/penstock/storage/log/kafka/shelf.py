"""What a Kafka consumer has of each partition: its position, and records that came before anybody wanted them.

librdkafka gives the records of all partitions in one row. What is too much of one partition for a poll, and what came
of a paused one, waits here. Pausing in librdkafka itself throws away what it has fetched, to fetch it again later, so
that is left for partitions of which a lot waits here already. On the loop only.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from penstock._ext.record.segment import RecordPack
from penstock.storage.log.base import Fetched, LogError, TopicPartition

# A poll gives no more than this of one partition.
LARGEST_FETCH = 1_048_576
# Reading on stops when so much of a partition waits. librdkafka needs up to a second to begin again, so that it is told
# while there is still something to give.
HOLD_ABOVE = 8 * 1_048_576
GO_ON_BELOW = HOLD_ABOVE // 2
# When so much of all partitions waits, reading on stops for each of them that has anything waiting.
MOST_KEPT = 64 * 1_048_576

MOVES = itertools.count(1)
Moves = Mapping[TopicPartition, int]


class Kept:
    """A pack of which the records before `start` were given."""

    __slots__ = ("pack", "start")

    def __init__(self, pack: RecordPack) -> None:
        self.pack = pack
        self.start = pack.base_offset


class Known(NamedTuple):
    """What was so when it was looked last which topic it is: see recreation.py."""

    topic_id: str
    move: int
    position: int | None


class ShelfPartition:
    """A partition. `move` is the number of the last change of position other than by reading."""

    __slots__ = ("bytes", "is_held", "is_paused", "is_queued", "kept", "known", "move", "partition", "position")

    def __init__(self, partition: TopicPartition, position: int | None, move: int) -> None:
        self.partition = partition
        self.position = position  # of the next record that a poll gives; None until it is known
        self.move = move
        self.kept: deque[Kept] = deque()
        self.bytes = 0
        self.is_paused = False
        self.is_queued = False
        self.is_held = False  # librdkafka does not read on
        self.known: Known | None = None


class Shelf:
    def __init__(self) -> None:
        self.places: dict[TopicPartition, ShelfPartition] = {}
        self._unknown: set[TopicPartition] = set()
        self._queue: deque[ShelfPartition] = deque()
        self._bytes = 0
        self._grown: list[ShelfPartition] = []
        self._shrunk: list[ShelfPartition] = []

    @property
    def has_records(self) -> bool:
        """Whether a poll has something to give without reading on."""
        return any(place.kept and not place.is_paused for place in self._queue)

    def add(self, partition: TopicPartition, position: int | None, move: int) -> ShelfPartition:
        place = self.places[partition] = ShelfPartition(partition, position, move)
        if position is None:
            self._unknown.add(partition)
        return place

    def drop(self, partition: TopicPartition) -> bool:
        place = self.places.pop(partition, None)
        if place is None:
            return False
        self.forget(place)
        self._unknown.discard(partition)
        return True

    def find(self, partition: TopicPartition) -> ShelfPartition:
        place = self.places.get(partition)
        if place is None:
            raise LogError(f"{partition.topic}[{partition.partition}] is not assigned to this consumer")
        return place

    def forget(self, place: ShelfPartition) -> None:
        """What waits is not wanted any more."""
        self._bytes -= place.bytes
        place.bytes = 0
        place.kept.clear()

    def set_position(self, partition: TopicPartition, move: int, position: int) -> None:
        """Unless it has been moved, or read, since the question was asked."""
        place = self.places.get(partition)
        if place is not None and place.move == move and place.position is None:
            place.position = position
            self._unknown.discard(partition)

    def unknown(self) -> list[ShelfPartition]:
        """Those whose position nobody knows yet."""
        found = [self.places[partition] for partition in self._unknown if self.places[partition].position is None]
        self._unknown = {place.partition for place in found}
        return found

    def put(self, move: int | None, partition: TopicPartition, pack: RecordPack) -> None:
        """Records that were read; unless the partition has been moved or removed since."""
        place = self.places.get(partition)
        if place is None or place.move != move:
            return
        place.kept.append(Kept(pack))
        place.bytes += pack.size
        self._bytes += pack.size
        self._enqueue(place)
        if not place.is_held and (place.bytes >= HOLD_ABOVE or self._bytes >= MOST_KEPT):
            self._grown.append(place)

    def _enqueue(self, place: ShelfPartition) -> None:
        if not place.is_queued:
            place.is_queued = True
            self._queue.append(place)

    def take(self, max_records: int, max_per_partition: int) -> list[Fetched]:
        """What a poll gives: each partition has a turn, and who has more goes to the end of the queue."""
        given: list[Fetched] = []
        left = max_records
        for _ in range(len(self._queue)):
            if left <= 0:
                break
            place = self._queue.popleft()
            place.is_queued = False
            if place.is_paused:
                continue
            left -= self._take_from(place, min(left, max_per_partition), given)
            if place.kept:
                self._enqueue(place)
            if place.is_held and place.bytes <= GO_ON_BELOW:
                self._shrunk.append(place)
        return given

    def _take_from(self, place: ShelfPartition, most: int, given: list[Fetched]) -> int:
        count = size = 0
        while place.kept and count < most:
            kept = place.kept[0]
            pack = kept.pack
            if kept.start > pack.base_offset or pack.count > most - count:
                pack = pack.slice(kept.start, most - count)
            if count and size + pack.size > LARGEST_FETCH:
                break
            count += pack.count
            size += pack.size
            place.position = kept.start = pack.next_offset
            given.append(Fetched(*place.partition, pack))
            if kept.start >= kept.pack.next_offset:
                place.kept.popleft()
                place.bytes -= kept.pack.size
                self._bytes -= kept.pack.size
        return count

    def pause(self, place: ShelfPartition) -> None:
        place.is_paused = True

    def resume(self, place: ShelfPartition) -> bool:
        """Whether it has something to give."""
        place.is_paused = False
        if place.kept:
            self._enqueue(place)
        elif place.is_held:
            self._shrunk.append(place)
        return bool(place.kept)

    def orders(self) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """The partitions of which librdkafka should stop reading, and those of which it should go on."""
        if not self._grown and not self._shrunk:
            return [], []
        to_hold = [place for place in self._grown if not place.is_held and self._is_full(place)]
        to_let_go = [place for place in self._shrunk if place.is_held and place.bytes <= GO_ON_BELOW]
        self._grown, self._shrunk = [], []
        for place in to_hold:
            place.is_held = True
        for place in to_let_go:
            place.is_held = False
        return self._names(to_hold), self._names(to_let_go)

    def _is_full(self, place: ShelfPartition) -> bool:
        return place.bytes >= HOLD_ABOVE or (self._bytes >= MOST_KEPT and place.bytes > 0)

    def _names(self, places: list[ShelfPartition]) -> list[TopicPartition]:
        return [place.partition for place in places if self.places.get(place.partition) is place]
