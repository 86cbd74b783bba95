"""Where the broker keeps its files."""

from __future__ import annotations

from pathlib import Path

from penstock.core.errors import SettingsError


def prepare_data_dir(path: str) -> None:
    try:
        Path(path).mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(
            f"server.data_dir {path} cannot be made: {error.strerror}",
            "Set server.data_dir (or --data-dir) to a directory the broker may write.",
        ) from error
