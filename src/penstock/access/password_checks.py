"""Passwords are checked on a small pool of threads, with a bounded line before it and a memory of what was right."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Protocol

from penstock.access.fair_line import FairLine
from penstock.access.passwords import LONGEST_PASSWORD
from penstock.core.refusal import Refusal, Refused


class TooManyChecks(Refused):
    """Too many clients are waiting to be checked: this one may try again later."""

    def __init__(self) -> None:
        super().__init__(Refusal.BUSY, "too many are being authenticated; try again")


class Passwords(Protocol):
    """Users and the hashes of their passwords, which never change."""

    def stored_hash(self, username: str) -> str | None: ...
    def verify(self, username: str, password: bytes) -> bool: ...


@dataclass(slots=True, eq=False)
class _Check:
    """A verification that waits or runs, and the future that its clients wait for."""

    digest: bytes
    username: str
    password: bytes
    done: asyncio.Future[bool]


class PasswordChecks:
    """Checks user names and passwords. Everything but the verification itself runs on the loop's thread.

    A verified pair is remembered by a keyed digest of name, password and stored hash: a changed password or a reloaded
    file misses the memory by itself, and the memory holds nothing that helps to guess a password elsewhere.
    """

    def __init__(
        self, passwords: Passwords, *, threads: int = 2, max_pending: int = 256, max_remembered: int = 10_000
    ) -> None:
        self._passwords = passwords
        self._threads = threads
        self._line: FairLine[_Check] = FairLine(max(1, max_pending - threads))
        self._max_remembered = max_remembered
        self._secret = secrets.token_bytes(32)
        self._remembered: OrderedDict[bytes, None] = OrderedDict()
        # Clients that share one user name often come all at once: they wait for one verification.
        self._checks: dict[bytes, _Check] = {}
        self._running = 0
        self._is_closed = False
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="penstock-password")

    def replace(self, passwords: Passwords) -> None:
        """Use another file from now on (reload)."""
        self._passwords = passwords
        self._remembered.clear()

    def close(self) -> None:
        """Refuse everything that waits in the line, and start nothing more."""
        self._is_closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        while (check := self._line.take()) is not None:
            del self._checks[check.digest]
            check.done.set_exception(TooManyChecks())

    def try_remembered(self, username: str, password: bytes) -> bool:
        """Whether this pair was verified before and still holds; costs a microsecond, never blocks."""
        return self._recall(self._digest(username, password))

    async def check(self, username: str, password: bytes, address: str = "") -> bool:
        """Whether the password is right; raises TooManyChecks when too many are waiting.

        Addresses, and user names of one address, are checked in turn.
        """
        if len(password) > LONGEST_PASSWORD:
            return False
        digest = self._digest(username, password)
        if self._recall(digest):
            return True
        check = self._checks.get(digest)
        if check is None:
            check = _Check(digest, username, password, asyncio.get_running_loop().create_future())
            left = self._line.put(address, username, check)
            if left is check:
                raise TooManyChecks
            self._checks[digest] = check
            if left is not None:
                del self._checks[left.digest]
                left.done.set_exception(TooManyChecks())
            self._start_next()
        # A client that goes away while it waits must not take the verification from the others.
        is_right = await asyncio.shield(check.done)
        # A reload meanwhile may have removed the user, or changed the password.
        return is_right and self._digest(username, password) == digest

    def _start_next(self) -> None:
        while not self._is_closed and self._running < self._threads and (check := self._line.take()) is not None:
            self._running += 1
            loop = asyncio.get_running_loop()
            verified = loop.run_in_executor(self._pool, self._passwords.verify, check.username, check.password)
            verified.add_done_callback(partial(self._on_verified, check))

    def _on_verified(self, check: _Check, verified: asyncio.Future[bool]) -> None:
        self._running -= 1
        self._checks.pop(check.digest, None)
        self._start_next()
        if verified.cancelled():
            check.done.set_exception(TooManyChecks())  # `close` has cancelled it before it began
        elif (error := verified.exception()) is not None:
            check.done.set_exception(error)
        else:
            check.done.set_result(verified.result())
            if verified.result():
                self._remembered[check.digest] = None
        if len(self._remembered) > self._max_remembered:
            self._remembered.popitem(last=False)

    def _recall(self, digest: bytes) -> bool:
        if digest not in self._remembered:
            return False
        self._remembered.move_to_end(digest)
        return True

    def _digest(self, username: str, password: bytes) -> bytes:
        name = username.encode("utf-8", "surrogatepass")
        stored = (self._passwords.stored_hash(username) or "").encode()
        digest = blake2b(key=self._secret, digest_size=16)
        # Lengths in front, so that no two different pairs are the same bytes.
        digest.update(len(name).to_bytes(4) + name + len(password).to_bytes(4) + password + stored)
        return digest.digest()
