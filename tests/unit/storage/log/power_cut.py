"""A disk that loses what was not synced: the files as they may look after a power cut."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import threading
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from penstock.storage.log.embedded import commit_thread, topic_writer

BLOCK = 512


class _WatchedThread:
    """In place of the compiled DiskThread, which calls fdatasync where nobody can watch it."""

    def __init__(self) -> None:
        self.event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._failure = 0

    def write(self, fd: int, *job: Any) -> None:
        position, synced, partitions, packs, tail_fd, tail, _ = job

        def run() -> None:
            _, self._failure = topic_writer.write_packs(fd, position, synced, partitions, packs, True)
            if not self._failure:
                os.pwrite(tail_fd, tail, 0)
            os.eventfd_write(self.event, 1)

        threading.Thread(target=run).start()

    def reset(self) -> None:
        pass

    def expect(self) -> bool:
        return False  # the event reports every job

    def take(self) -> int | None:
        try:
            os.eventfd_read(self.event)
        except BlockingIOError:
            return None
        return self._failure

    def close(self) -> None:
        os.close(self.event)


class Disk:
    """Notes what each file held when it was synced last, and what the disk refused. Like Linux it does not try that
    again, and reports the failure once to every descriptor that was open then."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._synced: dict[int, bytes] = {}
        self._dropped: dict[int, set[int]] = {}  # positions of blocks that were refused and not written since
        self._to_report: set[tuple[int, int]] = set()  # descriptor, number of its file
        self._kept: list[BinaryIO] = []
        self._lock = threading.Lock()  # nothing is synced while the power goes
        patch.setattr(os, "fsync", self._sync)
        patch.setattr(os, "fdatasync", self._sync)
        write_packs = topic_writer.write_packs

        def write_and_sync(fd: int, *arguments: Any) -> tuple[int, int]:
            # the compiled function calls fdatasync where nobody can watch it
            *others, sync = arguments
            written, failure = write_packs(fd, *others, False)
            self._on_write(fd, others[0], written)
            if sync and not failure:
                try:
                    os.fdatasync(fd)
                except OSError as error:
                    failure = error.errno or -1
            return written, failure

        pwrite = os.pwrite

        def write(fd: int, data: bytes, position: int) -> int:
            written = pwrite(fd, data, position)
            self._on_write(fd, position, written)
            return written

        patch.setattr(os, "pwrite", write)
        patch.setattr(topic_writer, "write_packs", write_and_sync)
        patch.setattr(commit_thread, "DiskThread", _WatchedThread)

    def _sync(self, fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}")
        with self._lock:
            if path.is_dir():
                return
            number = self._watch(fd)
            if (fd, number) in self._to_report:
                self._to_report.remove((fd, number))
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            current, before = path.read_bytes(), self._synced.get(number, b"")
            stored = bytearray(current)
            for start in self._dropped.get(number, ()):
                size = len(current[start : start + BLOCK])
                stored[start : start + size] = before[start : start + size].ljust(size, b"\0")
            self._synced[number] = bytes(stored)

    def _on_write(self, fd: int, position: int, size: int) -> None:
        first = position // BLOCK * BLOCK
        with self._lock:
            self._dropped.get(os.fstat(fd).st_ino, set()).difference_update(range(first, position + size, BLOCK))

    def refuse(self, fd: int) -> None:
        """A sync of the file fails."""
        with self._lock:
            number = self._watch(fd)
            current, before = Path(f"/proc/self/fd/{fd}").read_bytes(), self._synced[number]
            self._dropped.setdefault(number, set()).update(
                start
                for start in range(0, len(current), BLOCK)
                if current[start : start + BLOCK] != before[start : start + BLOCK]
            )
            for name in os.listdir("/proc/self/fd"):
                with contextlib.suppress(OSError):
                    if int(name) != fd and os.fstat(int(name)).st_ino == number:
                        self._to_report.add((int(name), number))

    def _watch(self, fd: int) -> int:
        number = os.fstat(fd).st_ino
        if number not in self._synced:
            path = Path(f"/proc/self/fd/{fd}")
            self._kept.append(path.open("rb"))  # as long as it is open no other file gets its number
            self._synced[number] = b""
        return number

    def close(self) -> None:
        for file in self._kept:
            file.close()

    def after_power_cut(self, root: Path, target: Path, chance: random.Random) -> None:
        """A copy in which every block that was not synced is as it was before, or as it should be."""
        with self._lock:
            shutil.copytree(root, target)
            for path in root.rglob("*"):
                if path.is_file():
                    current, before = path.read_bytes(), self._synced.get(path.stat().st_ino, b"")
                    (target / path.relative_to(root)).write_bytes(_mix(current, before, chance))


def _mix(current: bytes, before: bytes, chance: random.Random) -> bytes:
    size = chance.choice((len(current), len(before)))
    mixed = bytearray(current[:size].ljust(size, b"\0"))
    for start in range(0, size, BLOCK):
        if chance.random() < 0.5:
            mixed[start : start + BLOCK] = before[start : start + BLOCK].ljust(BLOCK, b"\0")[: size - start]
    return bytes(mixed)
