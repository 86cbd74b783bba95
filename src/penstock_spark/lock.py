"""One run at a time on an output: two would write the same batch, and each would clear the other's files away."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from penstock_spark.errors import Busy, PenstockSparkError
from penstock_spark.hadoop import Files

NAME = "_penstock/lock"


@contextmanager
def only_run(files: Files) -> Iterator[None]:
    """Holds the directory; Busy when another run has it. The lock goes with its process, however that ends.

    Only directories of this machine can be locked. Elsewhere (HDFS, S3) it is up to who starts the runs.
    """
    root = files.local
    if root is None:
        yield
        return
    path = root / NAME
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise PenstockSparkError(f"{root} cannot be written: {error.strerror}") from None
    try:
        _take(file, files.root)
        yield
    finally:
        os.close(file)


def _take(file: int, where: str) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(file, 200, 0).decode(errors="replace").strip() or "unknown"
        raise Busy(
            f"another run is at work on {where} ({holder})", "Wait until it has ended, or write to another directory"
        ) from None
    except OSError:
        return  # a file system without locks
    with suppress(OSError):  # who it is stands there for people; a full disk is noticed soon enough
        os.ftruncate(file, 0)
        os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
