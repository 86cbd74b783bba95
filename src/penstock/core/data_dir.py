"""Where the broker keeps its files."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.core.errors import SettingsError

# While `penstock restore` is at work, and when it was killed: then some of what lies there may be old, some new.
RESTORING = ".restoring"


def check_restored(path: str | Path) -> None:
    """Raises SettingsError."""
    if os.path.lexists(Path(path) / RESTORING):
        raise SettingsError(
            f"a restore into {Path(path).absolute()} has not ended",
            "Wait for it; if it was killed, run it again with --force. What was there before is there still, or in "
            f".before-restore-…:\nwho wants that instead moves it back and deletes {RESTORING}.",
        )


def prepare_data_dir(path: str) -> None:
    """Raises SettingsError."""
    check_restored(path)
    try:
        Path(path).mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(
            f"server.data_dir {path} cannot be made: {error.strerror}",
            "Set server.data_dir (or --data-dir) to a directory the broker may write.",
        ) from error
