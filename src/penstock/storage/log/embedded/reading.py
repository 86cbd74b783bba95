"""Finds a partition's records in segment files. The steps ask for bytes and do not care how they come: at once from
the page cache on the loop, from a thread that may wait for the disk, or in another process."""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict, deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from penstock._ext.record.segment import DamagedBatch, RecordPack, read_batches
from penstock.storage.log.embedded.recovery import damaged
from penstock.storage.log.embedded.segments import OpenFile, Segment

WINDOW = 262_144
WINDOWS = 16
CURSORS = 4_096
OPEN_SEGMENTS = 256
# Windows that the loop copies from the page cache before it lets others have their turn.
WINDOWS_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Load:
    """Bytes that the next step needs."""

    file: OpenFile
    position: int
    size: int

    def now(self) -> bytes | None:
        """From the page cache, or None when they are not there (all)."""
        buffer = bytearray(self.size)
        try:
            got = os.preadv(self.file.fd, [buffer], self.position, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError:
            # a file system that cannot tell: at most a window is read, which is a short wait
            return self.wait() if self.size <= WINDOW else None
        return bytes(buffer) if got == self.size else None

    def wait(self) -> bytes:
        return os.pread(self.file.fd, self.size, self.position)


@dataclass(frozen=True, slots=True)
class Window:
    segment: Segment
    start: int
    data: bytes


class Windows:
    """The last pieces of files that were read: partitions share files, so the next one often needs the same piece."""

    def __init__(self) -> None:
        self._kept: deque[Window] = deque(maxlen=WINDOWS)
        self._open: OrderedDict[Segment, None] = OrderedDict()

    def open(self, segment: Segment) -> OpenFile:
        """The segment's file; of all that are open the one used longest ago is closed beyond a number."""
        self._open[segment] = None
        self._open.move_to_end(segment)
        if len(self._open) > OPEN_SEGMENTS:
            self._open.popitem(last=False)[0].close()
        return segment.open()

    def find(self, segment: Segment, position: int) -> Window | None:
        for window in self._kept:
            if window.segment is segment and window.start <= position < window.start + len(window.data):
                return window
        return None

    def add(self, window: Window) -> Window:
        self._kept.appendleft(window)
        return window

    def forget(self, window: Window) -> None:
        """It is not sound: perhaps it was only read wrongly, or its file is repaired meanwhile."""
        with contextlib.suppress(ValueError):  # others may have pushed it out
            self._kept.remove(window)


class Cursors:
    """Where reading of (partition, offset) goes on, as long as someone goes on there."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, int], tuple[Segment, int]] = OrderedDict()

    def take(self, partition: int, offset: int) -> tuple[Segment, int] | None:
        return self._kept.pop((partition, offset), None)

    def put(self, partition: int, offset: int, segment: Segment, position: int) -> None:
        self._kept[partition, offset] = (segment, position)
        if len(self._kept) > CURSORS:
            self._kept.popitem(last=False)

    def clear(self) -> None:
        self._kept.clear()


@dataclass(frozen=True, slots=True)
class Request:
    """A partition's records at and after the offset, at least one and within the limits."""

    partition: int
    offset: int
    max_records: int
    max_bytes: int


Steps = Generator[Load, bytes, RecordPack]


class SegmentReader:
    """Reads one topic's segments, which the owner of the list adds to and takes from."""

    def __init__(self, topic: str, segments: Sequence[Segment], windows: Windows) -> None:
        self._topic = topic
        self._segments = segments
        self._windows = windows
        self._cursors = Cursors()

    def forget_positions(self) -> None:
        """The list of segments has changed other than at its end."""
        self._cursors.clear()

    def _locate(self, partition: int, offset: int) -> tuple[int, int] | None:
        """Number in the list and position from which to look for the offset."""
        low, high = 0, len(self._segments)
        while low < high:
            middle = (low + high) // 2
            if self._segments[middle].end_of(partition) <= offset:
                low = middle + 1
            else:
                high = middle
        for number in range(low, len(self._segments)):
            index = self._segments[number].partitions.get(partition)
            if index is not None and index.end > offset:
                return number, index.find_offset(offset)
        return None

    def _start(self, partition: int, offset: int) -> tuple[int, int] | None:
        cursor = self._cursors.take(partition, offset)
        if cursor is not None:
            segment, position = cursor
            for number in range(len(self._segments) - 1, -1, -1):
                if self._segments[number] is segment:
                    if position < segment.size:
                        return number, position
                    break
        return self._locate(partition, offset)

    def read(self, request: Request) -> Steps:
        """A pack of the records; empty when there are none."""
        pack = RecordPack()
        place = self._start(request.partition, request.offset)
        while place is not None:
            segment, position = self._segments[place[0]], place[1]
            position = yield from self._read_segment(segment, position, pack, request)
            if pack.count:
                self._cursors.put(request.partition, pack.next_offset, segment, position)
                return pack
            # a cursor may stand behind the partition's last batch in its segment
            place = self._locate(request.partition, max(request.offset, segment.end_of(request.partition)))
        return pack

    def _read_segment(
        self, segment: Segment, position: int, pack: RecordPack, request: Request
    ) -> Generator[Load, bytes, int]:
        """Fills the pack from one segment; where it stopped."""
        needed = 0
        while position < segment.size and not pack.count:
            window = self._windows.find(segment, position) if not needed else None
            if window is None:
                size = min(max(WINDOW, needed), segment.size - position)
                if needed > size:
                    raise damaged(self._topic, segment.path, position, "the batch is not whole")
                data = yield Load(self._windows.open(segment), position, size)
                if len(data) < size:
                    raise damaged(self._topic, segment.path, position + len(data), "the file is shorter than it was")
                window = self._windows.add(Window(segment, position, data))
            try:
                stop, needed = read_batches(
                    pack,
                    window.data,
                    position - window.start,
                    request.partition,
                    request.offset,
                    request.max_records,
                    request.max_bytes,
                )
            except DamagedBatch as error:
                self._windows.forget(window)
                raise damaged(self._topic, segment.path, window.start + error.position, str(error)) from None
            position = window.start + stop
        return position

    def find_time(self, partition: int, timestamp: int, first: int) -> Generator[Load, bytes, int | None]:
        """The offset of the first record at or after the time (and the offset); None when there is none."""
        for segment in list(self._segments):
            index = segment.partitions.get(partition)
            if index is None or index.max_timestamp < timestamp or index.end <= first:
                continue
            position = index.find_time(timestamp)
            offset = first
            while position < segment.size:
                pack = RecordPack()
                request = Request(partition, offset, 10_000, WINDOW)
                position = yield from self._read_segment(segment, position, pack, request)
                if not pack.count:
                    break
                found = pack.find_time(timestamp, first)
                if found >= 0:
                    return found
                offset = pack.next_offset
        return None


def run_at_once(steps: Steps) -> RecordPack | None:
    """The result if every byte is at hand, else None."""
    try:
        load = next(steps)
        for _ in range(WINDOWS_AT_ONCE):
            data = load.now()
            if data is None:
                return None
            load = steps.send(data)
    except StopIteration as stop:
        pack: RecordPack = stop.value
        return pack
    return None
