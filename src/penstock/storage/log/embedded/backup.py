"""A copy of the log's files while the broker writes them, as they were at one moment.

The broker says how far every topic was written at that moment (a cut, taken between two commits, so that no topic is
ahead of another). The segments are given second names in a hidden directory at once, because retention and compaction
may remove them while they are copied; a segment is only ever added to, so what lies before the cut stays as it is.

A broker that does not run has no cut: its files are taken as they are, with the journal, and the next start does with
the copy what it would do with them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock._ext.record.segment import encode_tail
from penstock.storage.log.base import LogError, TopicCut
from penstock.storage.log.embedded import files, journal
from penstock.storage.log.embedded.recovery import remove_directory
from penstock.storage.log.embedded.verify import OrderCheck, verify_segment

HIDDEN = ".backup-"
ATTEMPTS = 10


class CutTooOld(LogError):
    """A segment of the cut was compacted or removed before it could be kept: a new cut is needed."""


@dataclass(slots=True)
class StagedSegment:
    name: str  # in the log's directory
    path: Path  # where its second name is
    size: int


@dataclass(slots=True)
class StagedTopic:
    topic: str
    description: bytes
    tail: bytes | None
    segments: list[StagedSegment] = field(default_factory=list)
    durable: int | None = None  # with a cut everything is; else so many bytes of the last segment
    records: int = 0

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    def verify(self) -> None:
        """Compares all checksums. Raise LogDamaged, which names the file that was copied."""
        order = OrderCheck(self.topic)
        last = len(self.segments) - 1
        for number, staged in enumerate(self.segments):
            durable = self.durable if number == last else None
            segment = verify_segment(self.topic, staged.path, staged.size, durable)
            if order.add(segment):
                self.records += segment.records


class Staging:
    """Second names of all files that are to be copied, until it is closed."""

    def __init__(self, data_dir: Path | str) -> None:
        """Raises OSError, as who may not write into the directory gets it."""
        self.root = files.log_directory(data_dir)
        self.topics: dict[str, StagedTopic] = {}
        self.journals: dict[str, bytes] = {}
        _remove_abandoned(self.root)
        self._directory = Path(tempfile.mkdtemp(prefix=HIDDEN, dir=self.root))
        self._lock = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.clear()
        with contextlib.suppress(OSError):
            self._directory.rmdir()
        os.close(self._lock)

    def clear(self) -> None:
        for path in self._directory.iterdir():
            path.unlink()
        self.topics.clear()

    def stage(self, cuts: Sequence[TopicCut]) -> None:
        """Raises CutTooOld."""
        for cut in cuts:
            directory = self.root / cut.directory
            try:
                staged = self._stage(directory, cut.sequence)
            except FileNotFoundError:
                if not directory.exists():
                    continue  # the topic was deleted since
                raise CutTooOld(f"{directory} changes faster than it can be copied") from None
            if cut.sequence == 0:
                staged.segments.clear()  # nothing was ever written to it
                self.topics[cut.directory] = staged
                continue
            if [segment.name for segment in staged.segments[-1:]] != [f"{cut.directory}/{_name(cut.sequence)}"]:
                raise CutTooOld(f"segment {cut.sequence} of {staged.topic!r} was replaced")
            staged.segments[-1].size = cut.position
            staged.tail = encode_tail(cut.sequence, cut.position)
            self.topics[cut.directory] = staged

    def stage_all(self) -> None:
        """The files of a log that nobody writes."""
        for name in journal.NAMES:
            with contextlib.suppress(FileNotFoundError):
                self.journals[name] = (self.root / name).read_bytes()
        for directory in sorted(self.root.iterdir()):
            if directory.name.startswith(".") or not directory.is_dir():
                continue
            with contextlib.suppress(FileNotFoundError):  # not a topic's: it was being made
                staged = self._stage(directory, None)
                with contextlib.suppress(FileNotFoundError):
                    staged.tail = (directory / files.TAIL_FILE).read_bytes()
                tail = files.read_tail(directory) or (0, 0)
                is_last = bool(staged.segments) and staged.segments[-1].name.endswith(_name(tail[0]))
                staged.durable = tail[1] if is_last and not self.journals else 0
                self.topics[directory.name] = staged

    def _stage(self, directory: Path, last: int | None) -> StagedTopic:
        topic, _ = files.read_topic(directory)
        for _ in range(ATTEMPTS):
            staged = StagedTopic(topic, (directory / files.TOPIC_FILE).read_bytes(), None)
            with contextlib.suppress(FileNotFoundError):
                staged.segments = [self._link(path) for path in _segments(directory, last)]
                is_whole = [os.stat(one.path).st_ino for one in staged.segments] == [
                    path.stat().st_ino for path in _segments(directory, last)
                ]
                if is_whole:
                    return staged
        raise FileNotFoundError(directory)

    def _link(self, path: Path) -> StagedSegment:
        self._number += 1
        second = self._directory / f"{self._number}{files.SEGMENT}"
        os.link(path, second)
        return StagedSegment(f"{path.parent.name}/{path.name}", second, second.stat().st_size)


def _name(sequence: int) -> str:
    return files.segment_path(Path(), sequence).name


def _segments(directory: Path, last: int | None) -> Iterator[Path]:
    for sequence in files.list_segments(directory):
        if last is None or sequence <= last:
            yield files.segment_path(directory, sequence)


def _remove_abandoned(root: Path) -> None:
    """What a backup that was killed left behind; one that is at work holds a lock."""
    for directory in root.glob(f"{HIDDEN}*"):
        with contextlib.suppress(OSError):
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_directory(directory)
            finally:
                os.close(fd)
