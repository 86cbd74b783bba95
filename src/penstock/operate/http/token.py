"""Where commands find a running broker: its address and the token it takes, as two small files in its data directory.

<data_dir>/admin.address    host:port that really got bound; anybody who may look into the directory may know it
<data_dir>/admin.token      the token, when the settings give none; for the owner only, and a new one at every start
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from pathlib import Path

TOKEN_FILE = "admin.token"
ADDRESS_FILE = "admin.address"
TOKEN_BYTES = 32


def publish_access(data_dir: Path | str, address: str, token: str) -> str:
    """Writes both files and gives the token that holds: the one of the settings, else a random one. Raises OSError.

    With a token of the settings there is no file of it: an old one would only mislead.
    """
    directory = Path(data_dir)
    if token:
        (directory / TOKEN_FILE).unlink(missing_ok=True)
    else:
        token = secrets.token_urlsafe(TOKEN_BYTES)
        _replace(directory / TOKEN_FILE, token)
    _replace(directory / ADDRESS_FILE, address)
    return token


def withdraw_access(data_dir: Path | str) -> None:
    """The broker does not answer any more."""
    for name in (TOKEN_FILE, ADDRESS_FILE):
        with contextlib.suppress(OSError):
            (Path(data_dir) / name).unlink(missing_ok=True)


def _replace(path: Path, text: str) -> None:
    """In one step: a reader sees the old text or the new one, and never a file that others may read."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # made with mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f"{text}\n")
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
