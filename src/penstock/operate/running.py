"""Finds the broker that runs on a data directory."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from penstock.core.errors import PenstockError
from penstock.operate.client import admin_of
from penstock.operate.http.token import ADDRESS_FILE
from penstock.settings import Settings
from penstock.storage.log.embedded import files


def is_log_open(data_dir: Path) -> bool:
    """Whether a process writes the log, without disturbing it."""
    path = files.log_directory(data_dir) / files.LOCK_FILE
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise PenstockError(
            f"cannot open {path}: {error.strerror}", "Run the command as the user the broker runs as."
        ) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def find_broker(settings: Settings, timeout: float) -> int | None:
    """Return the process id of the broker with these settings, None if none runs or this user may not know."""
    return _writer_of_log(Path(settings.server.data_dir)) or _ask_broker(settings, timeout)


def _writer_of_log(data_dir: Path) -> int | None:
    """Return the process that writes the log there."""
    try:
        if not data_dir.is_dir() or not is_log_open(data_dir):
            return None
        return int((files.log_directory(data_dir) / files.LOCK_FILE).read_text(encoding="ascii"))
    except (PenstockError, OSError, ValueError):
        return None


def _ask_broker(settings: Settings, timeout: float) -> int | None:
    """Ask for the process id: a broker on Kafka writes no log, but answers at its admin address, to its token only."""
    try:
        if (Path(settings.server.data_dir) / ADDRESS_FILE).is_file():
            return int(admin_of(settings).get("/overview", timeout)["process"]["pid"])
    except (PenstockError, OSError, LookupError, TypeError, ValueError):
        pass  # a killed broker left an old address; or this user may not read the token
    return None
