"""One fdatasync for a commit of many topics, instead of one for each.

A message for five hundred clients is a small pack for each of five hundred topics. Their packs are written to their
segments as always, but the disk is only waited for once: for the journal, which gets the same bytes a second time. The
segments are brought to the disk later, beside everything else. There are two journal files: while the segments of a
full one are brought to the disk, the other one is written.

After a crash `replay` puts the bytes back into the segments that lost them, before anybody looks at the segments.

A round that the disk refused does not count, and its entries may have been rolled back. Its head is overwritten. If
that does not reach the disk either, `replay` recognises such entries: a later entry or a batch in the segment has
taken their place. A disk that has refused a segment once may have dropped earlier bytes of it without saying so again:
a file that holds such bytes stays until the next start.

    file   "PSJ1", generation (8), CRC32C of both
    round  "PSJR", generation (8), entries (4), size of what follows (4), CRC32C of all but itself
    entry  size of the name (2), segment's sequence (8), its time of creation (8), position in it (8), size (4), name,
           bytes
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from penstock._ext.record.segment import crc32c, scan_batches
from penstock.core.logging import get_logger
from penstock.storage.log.embedded import files
from penstock.storage.log.embedded.recovery import parse_start
from penstock.storage.log.embedded.segments import SegmentStart

log = get_logger("penstock.logs")

NAMES = (".journal-0", ".journal-1")
SIZE = 8 * 1_048_576
_FILE = struct.Struct("<4sQI")
_ROUND = struct.Struct("<4sQIII")
_ENTRY = struct.Struct("<HqqqI")
_FILE_MAGIC, _ROUND_MAGIC = b"PSJ1", b"PSJR"
_START_READ = 1_048_576


@dataclass(frozen=True, slots=True)
class Entry:
    """Bytes of a segment."""

    topic: str  # the name of its directory
    sequence: int
    created_ms: int
    position: int
    data: bytes | memoryview


class Half:
    """One of the two files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = -1
        self.position = 0
        self.generation = 0
        self.is_broken = False
        self.must_stay = False  # it may hold the only good copy, whatever the disk says from now on
        # segments that were not waited for since the file was begun
        self.unsynced: dict[tuple[str, int], None] = {}
        self.settling: Future[bool] | None = None

    def open(self) -> None:
        """Filled, so that writing it never changes the file's size or place: then fdatasync has less to do."""
        self.fd = os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        zeros = bytes(1_048_576)
        for position in range(0, SIZE, len(zeros)):
            if os.pwrite(self.fd, zeros, position) < len(zeros):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(self.fd)
        files.sync_directory(self.path.parent)

    def begin(self, generation: int) -> None:
        if self.fd < 0:
            self.open()
        head = _FILE.pack(_FILE_MAGIC, generation, 0)[:-4]
        os.pwrite(self.fd, head + crc32c(head).to_bytes(4, "little"), 0)
        self.position = _FILE.size
        self.generation = generation
        self.unsynced = {}

    def void_round(self) -> None:
        """Without its head, the round at the position and what follows it are never put back."""
        with contextlib.suppress(OSError):
            os.pwrite(self.fd, bytes(_ROUND.size), self.position)
            os.fdatasync(self.fd)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Journal:
    """Only the commit thread touches it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._halves = [Half(root / name) for name in NAMES]
        self._current = 0
        self._settler: ThreadPoolExecutor | None = None
        self.rounds = 0

    def write(self, entries: Sequence[Entry]) -> bool:
        """Whether the entries are on the disk. If not, the segments have to be waited for."""
        round_size = sum(_ENTRY.size + len(entry.topic) + len(entry.data) for entry in entries) + _ROUND.size
        if _FILE.size + round_size > SIZE:
            return False
        try:
            half = self._find_room(round_size)
            if half is None:
                return False
            if os.pwrite(half.fd, _encode(half.generation, entries), half.position) < round_size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fdatasync(half.fd)
        except OSError as error:
            self._give_up(error)
            return False
        half.position += round_size
        half.unsynced.update(((entry.topic, entry.sequence), None) for entry in entries)
        self.rounds += 1
        return True

    def _find_room(self, size: int) -> Half | None:
        half = self._halves[self._current]
        if half.generation and not half.is_broken and half.position + size <= SIZE:
            return half
        target = 1 - self._current if half.generation or half.is_broken else self._current
        if not self._is_free(self._halves[target]):
            return None
        if target != self._current and half.generation and not half.is_broken:
            if self._settler is None:
                self._settler = ThreadPoolExecutor(1, "penstock-log-settle")
            half.settling = self._settler.submit(_settle, self._root, list(half.unsynced))
        self._current = target
        generation = max(time.time_ns(), 1 + max(each.generation for each in self._halves))
        self._halves[target].begin(generation)
        return self._halves[target]

    def _is_free(self, half: Half) -> bool:
        """Whether its segments are on the disk: then it may be overwritten."""
        if half.is_broken or (half.settling is not None and not half.settling.done()):
            return False
        if half.settling is not None and not half.settling.result():
            self._keep_all()
        if half.must_stay:
            half.is_broken = True  # the next start puts back what it holds
            return False
        half.settling = None
        return True

    def keep(self, topic: str) -> None:
        """The disk has refused the topic's segment: what was not on it yet is only known to be here."""
        for half in self._halves:
            half.must_stay |= any(name == topic for name, _ in half.unsynced)

    def _keep_all(self) -> None:
        for half in self._halves:
            half.must_stay |= bool(half.unsynced)

    def _give_up(self, error: OSError) -> None:
        """Make the last round void, and do without the file as soon as its segments are on the disk by themselves."""
        half = self._halves[self._current]
        log.warning("the journal of the log cannot be written", file=str(half.path), why=os.strerror(error.errno or 0))
        half.void_round()
        if not half.must_stay and not _settle(self._root, list(half.unsynced)):
            self._keep_all()
        half.close()
        half.generation = half.position = 0
        half.is_broken = half.must_stay
        half.unsynced = {}
        if not half.is_broken:
            _remove(half.path)

    def close(self) -> None:
        """Nothing is left to be put back, if the disk takes everything now."""
        if self._settler is not None:
            self._settler.shutdown()
        for half in self._halves:
            is_free = self._is_free(half) and _settle(self._root, list(half.unsynced))
            half.close()
            if is_free:
                _remove(half.path)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
        files.sync_directory(path.parent)


def _encode(generation: int, entries: Sequence[Entry]) -> bytes:
    parts: list[bytes | memoryview] = []
    for entry in entries:
        name = entry.topic.encode("ascii")
        parts.append(_ENTRY.pack(len(name), entry.sequence, entry.created_ms, entry.position, len(entry.data)) + name)
        parts.append(entry.data)
    body = b"".join(parts)
    head = _ROUND.pack(_ROUND_MAGIC, generation, len(entries), len(body), 0)[:-4]
    return head + crc32c(body, crc32c(head)).to_bytes(4, "little") + body


def _settle(root: Path, segments: Sequence[tuple[str, int]]) -> bool:
    """Brings the segments to the disk; whether all of them are. Blocks."""
    for topic, sequence in segments:
        try:
            fd = os.open(files.segment_path(root / topic, sequence), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # deleted, or compacted, which needed it on the disk before
        except OSError:
            return False
        try:
            os.fdatasync(fd)
        except OSError as error:
            log.warning("a segment does not reach the disk", topic=topic, why=os.strerror(error.errno or 0))
            return False
        finally:
            os.close(fd)
    return True


def _parse(data: memoryview) -> tuple[int, list[Entry]]:
    """Generation and entries of a journal file, as far as it is sound. Generation 0: it was never begun."""
    entries: list[Entry] = []
    if len(data) < _FILE.size:
        return 0, entries
    magic, generation, crc = _FILE.unpack_from(data)
    if magic != _FILE_MAGIC or crc32c(data[: _FILE.size - 4]) != crc:
        return 0, entries
    at = _FILE.size
    while at + _ROUND.size <= len(data):
        magic, its_generation, count, size, crc = _ROUND.unpack_from(data, at)
        body = data[at + _ROUND.size : at + _ROUND.size + size]
        if magic != _ROUND_MAGIC or its_generation != generation or len(body) < size:
            break
        if crc32c(body, crc32c(data[at : at + _ROUND.size - 4])) != crc:
            break
        entries += _parse_round(body, count)
        at += _ROUND.size + size
    return generation, entries


def _parse_round(body: memoryview, count: int) -> Iterator[Entry]:
    at = 0
    for _ in range(count):
        name_size, sequence, created_ms, position, size = _ENTRY.unpack_from(body, at)
        at += _ENTRY.size
        name = bytes(body[at : at + name_size]).decode("ascii")
        at += name_size
        yield Entry(name, sequence, created_ms, position, body[at : at + size])
        at += size


def has_bytes(root: Path, topic: str, sequence: int, position: int) -> bool:
    """Whether `replay` would look at this byte of a segment, in the directory of that name. Raises OSError."""
    for name in NAMES:
        with contextlib.suppress(FileNotFoundError):
            for entry in _parse(memoryview((root / name).read_bytes()))[1]:
                is_segment = (entry.topic, entry.sequence) == (topic, sequence)
                if is_segment and entry.position <= position < entry.position + len(entry.data):
                    return True
    return False


def replay(root: Path) -> int:
    """Puts back what the segments lost; how many of them did. Nobody else may use the log. Raises OSError."""
    found = []
    for name in NAMES:
        with contextlib.suppress(FileNotFoundError):
            found.append(_parse(memoryview((root / name).read_bytes())))
    by_segment: dict[tuple[str, int, int], list[Entry]] = {}
    for _, entries in sorted(found, key=lambda pair: pair[0]):
        for entry in entries:
            earlier = by_segment.setdefault((entry.topic, entry.sequence, entry.created_ms), [])
            while earlier and earlier[-1].position + len(earlier[-1].data) > entry.position:
                earlier.pop()  # it was rolled back, and this one took its place
            earlier.append(entry)
    completed = 0
    for (topic, sequence, created_ms), entries in by_segment.items():
        completed += _put_back(root / topic, sequence, created_ms, entries)
    for name in NAMES:
        (root / name).unlink(missing_ok=True)
    if found:
        files.sync_directory(root)
    if completed:
        log.warning("segments were completed from the journal", segments=completed)
    return completed


def _put_back(directory: Path, sequence: int, created_ms: int, entries: list[Entry]) -> bool:
    """Whether the segment had lost anything."""
    try:
        following = [number for number in files.list_segments(directory) if number > sequence]
        next_start = _read_start(files.segment_path(directory, following[0])) if following else None
        fd = os.open(files.segment_path(directory, sequence), os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False  # the topic was deleted
    try:
        start = _parse_start(fd)
        if start is None or start.created_ms != created_ms or start.covers_to:
            return False  # damaged, another topic of the same name, or compacted, which needed it on the disk before
        if following and next_start is None:
            return False
        ends = next_start.ends if next_start is not None else None
        lost = sum(_put_back_entry(fd, entry, ends) for entry in entries)
        os.fsync(fd)
        return lost > 0
    finally:
        os.close(fd)


def _read_start(path: Path) -> SegmentStart | None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _parse_start(fd)
    finally:
        os.close(fd)


def _parse_start(fd: int) -> SegmentStart | None:
    parsed = parse_start(memoryview(os.pread(fd, _START_READ, 0)))
    return parsed[0] if parsed is not None else None


def _put_back_entry(fd: int, entry: Entry, ends: Sequence[int] | None) -> bool:
    """`ends`: the offsets with which the next segment begins, if there is one."""
    there = os.pread(fd, len(entry.data), entry.position)
    has_lost = False
    for batch in scan_batches(entry.data, 0, False)[0]:
        piece = entry.data[batch.position : batch.position + batch.size]
        if there[batch.position : batch.position + batch.size] == piece:
            continue
        is_rolled_back = ends is not None and batch.next_offset > ends[batch.partition]
        if is_rolled_back or _has_batch(fd, entry.position + batch.position):
            break  # something else was stored since
        has_lost = True
        if os.pwrite(fd, piece, entry.position + batch.position) < len(piece):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return has_lost


def _has_batch(fd: int, position: int) -> bool:
    """Whether a sound batch of any size starts here."""
    size = int.from_bytes(os.pread(fd, 8, position)[4:], "little")
    left = os.fstat(fd).st_size - position
    return 0 < size <= left and bool(scan_batches(os.pread(fd, size, position), 0, True)[0])
