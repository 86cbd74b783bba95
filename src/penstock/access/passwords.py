"""The password file: one `user:argon2id-hash` a line, as `penstock passwd` writes it.

A third field says which type of client the user is: `user:argon2id-hash:application` or `…:device`.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from argon2 import PasswordHasher, Type, extract_parameters
from argon2.exceptions import InvalidHashError, VerificationError, VerifyMismatchError

from penstock.access.client_types import checked_type
from penstock.core.errors import AccessFileError, UsageError
from penstock.settings.model import ClientType

LARGEST_FILE = 64 * 1024 * 1024
LONGEST_PASSWORD = 65_535  # what a CONNECT can carry
_HASHER = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1, type=Type.ID)
# Checked when a user is unknown, so that the answer takes as long as for a known one. No password is known for it.
_NOBODY = "$argon2id$v=19$m=19456,t=2,p=1$c3RhbmQtaW4gc2FsdCE$BnFOLEyzXcXqNVyYGbYL7XJ6HqYwvlm3IWZqZQBTJxs"


def hash_password(password: bytes) -> str:
    """Takes about 25 ms and 19 MiB; so does every verification."""
    return _HASHER.hash(password)


def is_hashed(password: str) -> bool:
    """Whether a line of a file of plain passwords was hashed before. Raises AccessFileError for half of a hash."""
    if not password.startswith("$argon2id$"):
        return False
    parse_stored(password, "a password that begins with $argon2id$")
    return True


def parse_stored(text: str, what: str) -> tuple[str, ClientType | None]:
    """What stands after a user's name: the hash and the type, if there is one. Raises AccessFileError."""
    stored, colon, client_type = text.strip().partition(":")
    stored = _checked_hash(stored.strip(), what)
    return stored, checked_type(client_type.strip(), f"{what}: the type after it") if colon else None


def check_user_name(name: str) -> None:
    """Raises UsageError for names the file cannot hold."""
    if not name or ":" in name or name.startswith("#") or not name.isprintable() or name != name.strip():
        raise UsageError(
            f"{name!r} cannot be a user name here: it must not be empty, start with #, contain : or controls, "
            "or begin or end with a space"
        )


class PasswordFile:
    """Users and hashes of one file, in memory. Never changes: a reload makes a new one."""

    def __init__(self, users: dict[str, str], types: dict[str, ClientType] | None = None) -> None:
        self._users = users
        self._types = types or {}

    @classmethod
    def load(cls, path: Path | str) -> PasswordFile:
        users: dict[str, str] = {}
        types: dict[str, ClientType] = {}
        for number, line in enumerate(_read_lines(Path(path)), 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            name, colon, stored = line.partition(":")
            if not colon or not name:
                raise AccessFileError(f"{path}:{number}: a line is user:hash, as `penstock passwd` writes it")
            if name in users:
                raise AccessFileError(f"{path}:{number}: user {name!r} is there twice")
            users[name], client_type = parse_stored(stored, f"{path}:{number}: the hash of user {name!r}")
            if client_type is not None:
                types[name] = client_type
        return cls(users, types)

    def __contains__(self, username: str) -> bool:
        return username in self._users

    def __len__(self) -> int:
        return len(self._users)

    def stored_hash(self, username: str) -> str | None:
        return self._users.get(username)

    def client_type(self, username: str) -> ClientType | None:
        """None where the file does not say."""
        return self._types.get(username)

    def verify(self, username: str, password: bytes) -> bool:
        """Blocks for about 25 ms, for unknown users as well."""
        stored = self._users.get(username)
        try:
            return _HASHER.verify(stored or _NOBODY, password) and stored is not None
        except (VerifyMismatchError, VerificationError, InvalidHashError):
            return False

    def with_user(self, username: str, stored_hash: str, client_type: ClientType | None = None) -> PasswordFile:
        """Without a type the user keeps the one it has."""
        types = self._types if client_type is None else {**self._types, username: client_type}
        return PasswordFile({**self._users, username: stored_hash}, types)

    def without_user(self, username: str) -> PasswordFile:
        return PasswordFile(
            {name: stored for name, stored in self._users.items() if name != username},
            {name: client_type for name, client_type in self._types.items() if name != username},
        )

    def _line(self, name: str, stored: str) -> str:
        client_type = self._types.get(name)
        return f"{name}:{stored}" if client_type is None else f"{name}:{stored}:{client_type}"

    def save(self, path: Path | str) -> None:
        """Replaces the file in one step; only its owner can read it."""
        path = Path(path)
        text = "".join(f"{self._line(name, stored)}\n" for name, stored in self._users.items())
        try:
            descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        except OSError as error:
            raise AccessFileError(f"cannot write beside {path}: {error.strerror}") from None
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                os.fchmod(descriptor, 0o600)
                file.write(text)
                file.flush()
                os.fsync(descriptor)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def _read_lines(path: Path) -> list[str]:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise AccessFileError(f"{path} is larger than {LARGEST_FILE} bytes: that is no password file")
        return path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise AccessFileError(f"cannot read the password file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise AccessFileError(f"the password file {path} is not UTF-8 text") from None


def _checked_hash(stored: str, what: str) -> str:
    if stored.startswith(("$6$", "$7$")):
        raise AccessFileError(
            f"{what} is mosquitto's own kind, which cannot be converted",
            "set the password again with `penstock passwd`, or import the plain texts with `penstock passwd -U`",
        )
    try:
        parameters = extract_parameters(stored)
    except InvalidHashError:
        raise AccessFileError(f"{what} is not an argon2id hash", "set it with `penstock passwd`") from None
    if parameters.type is not Type.ID:
        raise AccessFileError(f"{what} is not of the kind argon2id", "set it again with `penstock passwd`")
    return stored
