"""A segment as its readers see it: what is in the file, and where.

The index is sparse: for each partition the place of a batch about every 32 KiB, with its offset and the newest time
before it. From there the headers of the batches lead on.
"""

from __future__ import annotations

import os
import struct
from array import array
from dataclasses import dataclass
from pathlib import Path

from penstock._ext.record.segment import (
    FLAG_CONTROL,
    HEADER_SIZE,
    NEVER,
    BatchInfo,
    PartitionIndex,
    RecordPack,
    build_control,
    crc32c,
)
from penstock.storage.log.embedded.files import INDEX

NO_PARTITION = 0xFFFFFFFF
START, TRUNCATE, PROBE = 1, 2, 3

Noted = RecordPack | BatchInfo

_START = struct.Struct("<qqqI")
_SIDECAR = struct.Struct("<4sIqqqqqI")
_SIDECAR_PART = struct.Struct("<IqqqqI")
_SIDECAR_MAGIC = b"PSI1"


def control_kind(batch: BatchInfo) -> int:
    """START, TRUNCATE, … or 0 for a batch of records."""
    return batch.flags >> 8 & 0xFF if batch.flags & FLAG_CONTROL else 0


@dataclass(frozen=True, slots=True)
class SegmentStart:
    """What a segment begins with: where each partition stood, so that everything before it can be removed."""

    sequence: int
    covers_to: int  # compaction put the segments up to this one in here
    created_ms: int
    ends: list[int]  # per partition: the offset that its next record gets
    firsts: list[int]  # per partition: the first offset that was kept (truncation moves it)

    def build(self) -> bytes:
        numbers = array("q", self.ends + self.firsts)
        body = _START.pack(self.sequence, self.covers_to, self.created_ms, len(self.ends)) + numbers.tobytes()
        return build_control(NO_PARTITION, START, 0, self.created_ms, body)

    @classmethod
    def parse(cls, batch: bytes) -> SegmentStart:
        """Of the whole batch, whose checksum was compared. Raises ValueError or struct.error on nonsense."""
        sequence, covers_to, created_ms, count = _START.unpack_from(batch, HEADER_SIZE)
        numbers = array("q", batch[HEADER_SIZE + _START.size :])
        if len(numbers) != 2 * count:
            raise ValueError("the start of the segment has another number of partitions than it says")
        return cls(sequence, covers_to, created_ms, list(numbers[:count]), list(numbers[count:]))


class OpenFile:
    """A descriptor that lives as long as someone reads with it, also in another thread."""

    __slots__ = ("fd",)

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        fd = getattr(self, "fd", -1)
        if fd >= 0:
            os.close(fd)


class Segment:
    """Owned by the loop's thread; `size` is how far it may be read."""

    def __init__(self, path: Path, start: SegmentStart, size: int) -> None:
        self.path = path
        self.start = start
        self.size = size
        self.partitions: dict[int, PartitionIndex] = {}
        self.max_timestamp = NEVER
        self.records = 0
        self.is_clean = False  # nothing to compact in it
        self._file: OpenFile | None = None

    @property
    def sequence(self) -> int:
        return self.start.sequence

    def open(self) -> OpenFile:
        if self._file is None:
            self._file = OpenFile(self.path)
        return self._file

    def close(self) -> None:
        self._file = None

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def note(self, position: int, partition: int, batch: Noted) -> None:
        """A batch of records lies at the position."""
        index = self.partitions.get(partition)
        if index is None:
            index = self.partitions[partition] = PartitionIndex(batch.base_offset)
        index.note(position, batch)
        self.records += batch.count
        self.max_timestamp = max(self.max_timestamp, batch.max_timestamp)

    def end_of(self, partition: int) -> int:
        index = self.partitions.get(partition)
        return index.end if index is not None else self.start.ends[partition]

    def encode_index(self) -> bytes:
        parts = []
        for number, index in sorted(self.partitions.items()):
            parts.append(
                _SIDECAR_PART.pack(
                    number, index.first, index.end, index.records, index.max_timestamp, len(index.offsets)
                )
            )
            parts += [index.offsets.tobytes(), index.positions.tobytes(), index.times.tobytes()]
        start = self.start.build()
        body = start + b"".join(parts)
        head = (self.size, self.records, self.max_timestamp, int(self.is_clean), len(start), len(self.partitions))
        checked = _SIDECAR.pack(_SIDECAR_MAGIC, 0, *head) + body
        return _SIDECAR.pack(_SIDECAR_MAGIC, crc32c(checked), *head) + body

    @classmethod
    def from_index(cls, path: Path, data: bytes, file_size: int) -> Segment | None:
        """None when the index is not one, or not of this file."""
        if len(data) < _SIDECAR.size:
            return None
        magic, crc, *head = _SIDECAR.unpack_from(data)
        if magic != _SIDECAR_MAGIC or crc32c(_SIDECAR.pack(magic, 0, *head) + data[_SIDECAR.size :]) != crc:
            return None
        size, records, max_timestamp, is_clean, start_size, count = head
        if size != file_size:
            return None
        at = _SIDECAR.size
        segment = cls(path, SegmentStart.parse(data[at : at + start_size]), size)
        segment.records, segment.max_timestamp, segment.is_clean = records, max_timestamp, bool(is_clean)
        at += start_size
        for _ in range(count):
            number, first, end, part_records, newest, entries = _SIDECAR_PART.unpack_from(data, at)
            at += _SIDECAR_PART.size
            index = segment.partitions[number] = PartitionIndex(first)
            index.end, index.records, index.max_timestamp = end, part_records, newest
            for column in (index.offsets, index.positions, index.times):
                column.frombytes(data[at : at + 8 * entries])
                at += 8 * entries
        return segment

    @property
    def index_path(self) -> Path:
        return self.path.with_suffix(INDEX)
