"""Errors a person is meant to read: what is wrong, what to do about it, and the exit code that says so to a script."""

from __future__ import annotations

from penstock.core import exit_codes


class PenstockError(Exception):
    """Printed as one line without a traceback; `hint` follows on lines of its own."""

    exit_code = exit_codes.FAILURE

    def __init__(self, message: str, hint: str = "", *, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if exit_code is not None:
            self.exit_code = exit_code

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class UsageError(PenstockError):
    """The command line makes no sense."""

    exit_code = exit_codes.USAGE


class SettingsError(PenstockError):
    """A setting is unknown, has a bad value, or does not fit another one."""

    exit_code = exit_codes.CONFIGURATION


class AccessFileError(SettingsError):
    """A password or ACL file cannot be read."""


class NotFoundError(PenstockError):
    """What a command is about does not exist."""


class ConflictError(PenstockError):
    """A command cannot be done in the state its subject is in; the hint says what to do first."""
