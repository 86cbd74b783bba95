"""A disk that loses what was not synced: the files as they may look after a power cut."""

from __future__ import annotations

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
    """Notes what each file held when it was synced last."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._synced: dict[int, bytes] = {}
        self._kept: list[BinaryIO] = []
        self._lock = threading.Lock()  # nothing is synced while the power goes
        patch.setattr(os, "fsync", self._sync)
        patch.setattr(os, "fdatasync", self._sync)
        write_packs = topic_writer.write_packs

        def write_and_sync(fd: int, *arguments: Any) -> tuple[int, int]:
            # the compiled function calls fdatasync where nobody can watch it
            *others, sync = arguments
            written, failure = write_packs(fd, *others, False)
            if sync and not failure:
                os.fdatasync(fd)
            return written, failure

        patch.setattr(topic_writer, "write_packs", write_and_sync)
        patch.setattr(commit_thread, "DiskThread", _WatchedThread)

    def _sync(self, fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}")
        with self._lock:
            if path.is_dir():
                return
            number = os.fstat(fd).st_ino
            if number not in self._synced:
                self._kept.append(path.open("rb"))  # as long as it is open no other file gets its number
            self._synced[number] = path.read_bytes()

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
