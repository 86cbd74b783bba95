"""Writes one topic's segment files. Only the turn that is under way touches it, see commit_thread.py."""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass, field
from pathlib import Path

from penstock._ext.record.segment import (
    PackAppend,
    SegmentEnd,
    build_control,
    encode_packs,
    encode_tail,
    seal_packs,
    write_packs,
)
from penstock.core.clock import now_ms
from penstock.storage.log.base import Appended, LogUnavailable, OnAppended, Packs, TopicCut
from penstock.storage.log.embedded import files
from penstock.storage.log.embedded.journal import Entry
from penstock.storage.log.embedded.recovery import RecoveredTopic
from penstock.storage.log.embedded.segments import NO_PARTITION, PROBE, TRUNCATE, Segment, SegmentStart
from penstock.storage.log.embedded.topic import TopicView


class Append(PackAppend):
    __slots__ = ()

    @classmethod
    def of(cls, view: TopicView, pairs: Packs, on_done: OnAppended | None = None) -> Append:
        return cls(view, *seal_packs(pairs), on_done)

    def tell(self) -> None:
        """Call back with the outcome."""
        if self.on_all_done is not None:
            self.on_all_done(None if self.error is None else [self.error] * len(self.packs))
        elif self.on_done is not None:
            pack = self.packs[0]
            self.on_done(self.error or Appended(self.view.name, self.partitions[0], pack.base_offset, pack.count))


@dataclass(slots=True)
class Outcome:
    """What the loop learns of one topic after a commit, in this order: packs, a new segment, packs …"""

    view: TopicView | None
    steps: list[Append | Segment] = field(default_factory=list)


class TopicWriter(SegmentEnd):
    def __init__(self, view: TopicView, recovered: RecoveredTopic) -> None:
        self.view = view
        self.directory: Path = recovered.directory
        self.config = recovered.config
        self._ends = list(recovered.next_offsets)
        self._firsts = list(recovered.firsts)
        last = recovered.segments[-1] if recovered.segments else None
        self._sequence = last.sequence if last else 0
        self._created_ms = last.start.created_ms if last else 0
        self._position = self._synced = last.size if last else 0
        self._is_empty = last is None or not last.records
        self._fd = self._tail_fd = -1
        self._staged = []
        # since the segment was begun: then only the journal is known to be on the disk
        self._has_been_journaled = False
        # a failed fdatasync may have dropped bytes that are only in the journal, and the next one does not say so
        self.has_lost_journaled = False

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    @property
    def has_staged(self) -> bool:
        return bool(self._staged)

    def stage(self, appends: list[Append], outcome: Outcome, sync: bool, entries: list[Entry] | None = None) -> None:
        """Writes the packs; with `sync` they are on the disk and settled, else `settle` must follow. With `entries`,
        which get what was written, `settle` may follow when these are in the journal."""
        start = 0
        while start < len(appends):
            try:
                self._make_room(appends[start].file_size, outcome)
            except OSError as error:
                self._fail(appends[start:], outcome, error.errno or 0)
                return
            count, size = 0, 0
            limit = self.config.segment_bytes - self._position
            while start + count < len(appends) and (count == 0 or size <= limit):
                size += appends[start + count].file_size
                if count and size > limit:
                    break
                count += 1
            if not self._write(appends[start : start + count], outcome, sync, entries):
                self._fail(appends[start + count :], outcome, 0)
                return
            start += count

    def _write(self, appends: list[Append], outcome: Outcome, sync: bool, entries: list[Entry] | None) -> bool:
        position, numbers, packs = self._place(appends)
        if entries is None:
            _, failure = write_packs(self._fd, self._position, self._synced, numbers, packs, sync)
        else:
            encoded = encode_packs(self._position, self._synced, numbers, packs)
            failure = self._write_bytes(encoded)
            entries.append(Entry(self.directory.name, self._sequence, self._created_ms, self._position, encoded))
        self._position = position
        if failure:
            self.roll_back(outcome, failure)
            return False
        if sync:
            self.settle(outcome, is_synced=True)
        return True

    def _write_bytes(self, encoded: bytes) -> int:
        """0, or the number of the error."""
        try:
            return 0 if os.pwrite(self._fd, encoded, self._position) == len(encoded) else errno.ENOSPC
        except OSError as error:
            return error.errno or errno.EIO

    def cut(self) -> TopicCut:
        """Between two commits: everything before it counts."""
        return TopicCut(self.directory.name, self._sequence, self._position)

    def sync(self) -> int:
        """0, or the number of the error; on any thread, while the commit thread waits."""
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            return error.errno or -1
        return 0

    def settle(self, outcome: Outcome, *, is_synced: bool, is_journaled: bool = False) -> None:
        """Make staged records visible to readers and report them to the appenders."""
        self.problem = None
        self._has_been_journaled |= is_journaled
        outcome.steps += self._staged
        self._staged = []
        if is_synced and not self._is_doubtful:
            self._synced = self._position
            self._write_tail()

    def doubt(self) -> None:
        """The disk refused to take what counts already: nothing more of this segment is known to be on it."""
        self._is_doubtful = self._synced < self._position

    def _doubt_journaled(self, end: int) -> None:
        """Writing up to `end`, or the fdatasync after it, has failed. If the file is as long, it was the fdatasync."""
        if self._has_been_journaled:
            with contextlib.suppress(OSError):
                if os.fstat(self._fd).st_size < end:
                    return
            self.has_lost_journaled = True

    def roll_back(self, outcome: Outcome, failure: int) -> None:
        """What was staged does not count: cut it off, so that it cannot come back either."""
        self._doubt_journaled(self._position)
        failed, self._staged = self._staged, []
        for append in reversed(failed):
            for number, pack in zip(reversed(append.partitions), reversed(append.packs), strict=True):
                self._ends[number] = pack.base_offset
        if failed:
            self._position = failed[0].position
        self.doubt()
        self._has_surplus = True
        self._try_cut()
        self._fail(failed, outcome, failure)

    def _try_cut(self) -> None:
        try:
            os.ftruncate(self._fd, self._position)
            self._has_surplus = False
        except OSError as error:
            self.problem = f"{self.directory}: {files.describe_errno(error.errno or 0)}"

    def _fail(self, appends: list[Append], outcome: Outcome, failure: int) -> None:
        if failure:
            self.problem = f"topic {self.view.name!r}: {files.describe_errno(failure)}"
        for append in appends:
            append.error = LogUnavailable(self.problem or f"topic {self.view.name!r} cannot be written")
        outcome.steps += appends

    def _make_room(self, size: int, outcome: Outcome) -> None:
        """Open the segment, or start a new one if `size` bytes do not fit. Raises OSError."""
        if self._sequence == 0:
            self._create_segment(outcome)
        elif self._fd < 0:
            self._open(files.segment_path(self.directory, self._sequence), os.O_RDWR)
        if self._has_surplus:
            os.ftruncate(self._fd, self._position)
            self._has_surplus = False
        is_full = self._position + size > self.config.segment_bytes
        if (is_full or self._is_doubtful) and not self._is_empty:
            self.roll(outcome)

    def roll(self, outcome: Outcome) -> None:
        """Closes the segment and starts the next. Raises OSError."""
        if self._sequence == 0:
            return
        if self._fd < 0:
            self._open(files.segment_path(self.directory, self._sequence), os.O_RDWR)
        if self._staged or self._synced < self._position or self._has_been_journaled:
            failure = self.sync()
            if failure:
                self.roll_back(outcome, failure)
                raise OSError(failure, os.strerror(failure))
            self.settle(outcome, is_synced=True)
        self._create_segment(outcome)

    def _create_segment(self, outcome: Outcome) -> None:
        start = SegmentStart(self._sequence + 1, 0, now_ms(), list(self._ends), list(self._firsts))
        path = files.segment_path(self.directory, start.sequence)
        encoded = start.build()
        fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        try:
            if os.pwrite(fd, encoded, 0) < len(encoded):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fdatasync(fd)
            files.sync_directory(self.directory)
            self._open_tail()
        except OSError:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = fd
        self._sequence = start.sequence
        self._created_ms = start.created_ms
        self._has_been_journaled = False
        self._position = self._synced = len(encoded)
        self._is_empty = True
        self._is_doubtful = False
        self._write_tail()
        outcome.steps.append(Segment(path, start, len(encoded)))

    def _open(self, path: Path, flags: int) -> None:
        self._fd = os.open(path, flags | os.O_CLOEXEC)
        self._open_tail()

    def _open_tail(self) -> None:
        if self._tail_fd < 0:
            flags = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC
            self._tail_fd = os.open(self.directory / files.TAIL_FILE, flags, 0o640)

    def _write_tail(self) -> None:
        """Always after the fdatasync: a start refuses a segment that has less than this."""
        # other processes see the records a little later if this fails
        with contextlib.suppress(OSError):
            os.pwrite(self._tail_fd, encode_tail(self._sequence, self._synced), 0)

    def truncate(self, partition: int, offset: int, outcome: Outcome) -> None:
        """Tells readers of the files, and the next start, where the partition begins now. Raises OSError."""
        self._firsts[partition] = max(self._firsts[partition], offset)
        self._write_control(build_control(partition, TRUNCATE, offset, now_ms()), outcome)

    def probe(self, outcome: Outcome) -> None:
        """Writes something, to know whether that is possible again. Raises OSError."""
        if self._sequence == 0 and self.problem is None:
            return
        self._write_control(build_control(NO_PARTITION, PROBE, 0, now_ms()), outcome)
        self.problem = None

    def _write_control(self, encoded: bytes, outcome: Outcome) -> None:
        self._make_room(len(encoded), outcome)
        try:
            if os.pwrite(self._fd, encoded, self._position) < len(encoded):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fdatasync(self._fd)
        except OSError:
            self._doubt_journaled(self._position + len(encoded))
            self.doubt()
            self._has_surplus = True
            self._try_cut()
            raise
        self._position += len(encoded)
        self._synced = self._position
        self._write_tail()

    def close(self) -> None:
        for fd in (self._fd, self._tail_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._tail_fd = -1
