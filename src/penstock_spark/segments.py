"""The files of an embedded log, read in plain Python as docs/log-format.md describes them.

Headers of batches, the index of a closed segment, the tail: what is needed to plan a read. Nothing is locked or
written, so the broker does not notice. Where bytes are read in bulk, the compiled decoder does it (embedded.py).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from penstock_spark.checksum import crc32c
from penstock_spark.errors import LogDamaged, TopicMissing

HEADER = struct.Struct("<3sBIIIqIIqqIII")
MAGIC, VERSION = b"PSB", 1
CONTROL = 1
START, TRUNCATE = 1, 2
CHUNK = 4_194_304
LONGEST_DIRECTORY = 200
_TAIL = struct.Struct("<qqI")
_START = struct.Struct("<qqqI")
_INDEX = struct.Struct("<4sIqqqqqI")
_INDEX_PART = struct.Struct("<IqqqqI")
_PLAIN = re.compile(r"[A-Za-z0-9_.-]")


class Header(NamedTuple):
    """A batch's header, and where the batch lies in its file."""

    position: int
    size: int
    partition: int
    first: int
    records: int
    last: int
    newest: int
    kind: int  # 0 = records

    @property
    def end(self) -> int:
        return self.last + 1


def directory_of(data_dir: Path | str, topic: str) -> Path:
    """Where a topic's files are: plain ASCII, never hidden, never too long."""
    escaped = "".join(c if _PLAIN.match(c) else "".join(f"%{byte:02X}" for byte in c.encode()) for c in topic)
    if escaped.startswith("."):
        escaped = f"%2E{escaped[1:]}"
    if len(escaped) > LONGEST_DIRECTORY:
        escaped = f"{escaped[: LONGEST_DIRECTORY - 33]}~{hashlib.sha256(topic.encode()).hexdigest()[:32]}"
    return Path(data_dir) / "log" / escaped


def list_topics(data_dir: Path | str) -> list[str]:
    """Names of the topics there are."""
    root = Path(data_dir) / "log"
    try:
        directories = [entry for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith(".")]
    except FileNotFoundError:
        raise TopicMissing(
            f"there is no log in {data_dir}",
            "The path is the data directory of a broker with log.provider = embedded (setting server.data_dir)",
        ) from None
    found = []
    for entry in directories:
        try:
            found.append(str(json.loads((Path(entry.path) / "topic.json").read_bytes())["name"]))
        except (FileNotFoundError, ValueError, KeyError):
            continue  # just being made or deleted
    return sorted(found)


def read_partitions(data_dir: Path | str, topic: str) -> int:
    try:
        described = json.loads((directory_of(data_dir, topic) / "topic.json").read_bytes())
        return int(described["partitions"])
    except FileNotFoundError:
        there = ", ".join(list_topics(data_dir)) or "none at all"
        raise TopicMissing(f"there is no topic {topic!r} in {data_dir}", f"Topics there: {there}") from None


def read_tail(directory: Path) -> tuple[int, int] | None:
    """Sequence and size of the newest segment as far as it is on the disk; None when nothing is known."""
    for _ in range(100):
        try:
            data = (directory / "tail").read_bytes()
        except FileNotFoundError:
            return None
        if len(data) == _TAIL.size:
            sequence, position, crc = _TAIL.unpack(data)
            if crc32c(data[:16], 0) == crc:
                return sequence, position
        time.sleep(0.0005)  # caught while it was written
    return None


def parse_header(data: bytes | memoryview, at: int, position: int) -> Header | None:
    """None when no batch begins there."""
    if len(data) - at < HEADER.size:
        return None
    magic, version, size, _, partition, first, records, span, _, newest, flags, _, crc = HEADER.unpack_from(data, at)
    if magic != MAGIC or size < HEADER.size:
        return None
    if version != VERSION:
        raise LogDamaged(f"a batch of format version {version} at byte {position}", "It needs a newer penstock_spark")
    if crc32c(bytes(data[at + 12 : at + 56]), crc32c(bytes(data[at : at + 8]), 0)) != crc:
        return None
    kind = flags >> 8 & 0xFF if flags & CONTROL else 0
    return Header(position, size, partition, first, records, first + span, newest, kind)


def iterate_headers(fd: int, position: int, limit: int) -> Iterator[Header]:
    """The batches that lie in the file from the position to the limit, as far as they are whole."""
    data, base = b"", position
    while position < limit:
        at = position - base
        if len(data) - at < HEADER.size:
            data, base, at = os.pread(fd, min(CHUNK, limit - position), position), position, 0
        header = parse_header(data, at, position)
        if header is None or position + header.size > limit:
            return
        yield header
        position += header.size


class SegmentStart(NamedTuple):
    """What a segment begins with."""

    size: int
    sequence: int
    covers_to: int
    ends: tuple[int, ...]
    firsts: tuple[int, ...]


def read_start(fd: int) -> SegmentStart | None:
    """None while the segment is being made."""
    data = os.pread(fd, 65_536, 0)
    header = parse_header(data, 0, 0)
    if header is None or header.kind != START:
        return None
    if header.size > len(data):
        data = os.pread(fd, header.size, 0)
        if len(data) < header.size:
            return None
    sequence, covers_to, _, count = _START.unpack_from(data, HEADER.size)
    numbers = struct.unpack_from(f"<{2 * count}q", data, HEADER.size + _START.size)
    return SegmentStart(header.size, sequence, covers_to, numbers[:count], numbers[count:])


@dataclass(frozen=True, slots=True)
class PartitionIndex:
    """Of one partition in one segment: a place about every 32 KiB."""

    newest: int
    offsets: tuple[int, ...]
    positions: tuple[int, ...]
    times: tuple[int, ...]  # the newest before the place

    def find_offset(self, offset: int) -> int:
        return self.positions[max(0, bisect_right(self.offsets, offset) - 1)]

    def find_time(self, timestamp: int) -> int:
        return self.positions[max(0, bisect_left(self.times, timestamp) - 1)]


def read_index(path: Path, file_size: int) -> dict[int, PartitionIndex] | None:
    """The index beside a closed segment; None when there is none, or it is not of this file."""
    try:
        data = path.with_suffix(".idx").read_bytes()
    except FileNotFoundError:
        return None
    if len(data) < _INDEX.size:
        return None
    magic, crc, *head = _INDEX.unpack_from(data)
    size, _, _, _, start_size, count = head
    if magic != b"PSI1" or size != file_size or crc32c(_INDEX.pack(magic, 0, *head) + data[_INDEX.size :], 0) != crc:
        return None
    at = _INDEX.size + start_size
    found = {}
    for _ in range(count):
        number, _, _, _, newest, entries = _INDEX_PART.unpack_from(data, at)
        columns = struct.unpack_from(f"<{3 * entries}q", data, at + _INDEX_PART.size)
        found[number] = PartitionIndex(
            newest, columns[:entries], columns[entries : 2 * entries], columns[2 * entries :]
        )
        at += _INDEX_PART.size + 24 * entries
    return found


def list_segments(directory: Path) -> list[int]:
    """Sequence numbers of the segment files, rising."""
    names = (name for name in os.listdir(directory) if name.endswith(".seg"))
    return sorted(int(name[:-4]) for name in names if name[:-4].isdecimal())


def segment_path(directory: Path, sequence: int) -> Path:
    return directory / f"{sequence:020}.seg"
