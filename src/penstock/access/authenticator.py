"""Passwords checked beside the loop: a small pool of threads, a bounded line before it, a memory of what was right."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b

from penstock.access.passwords import LONGEST_PASSWORD, PasswordFile

SERVER_BUSY = 0x89


class AuthenticatorBusy(Exception):
    """Too many clients are waiting to be checked: this one is told to come back later (Server busy)."""

    reason_code = SERVER_BUSY


class Authenticator:
    """Checks user names and passwords. Everything but the verification itself runs on the loop's thread.

    A verified pair is remembered by a keyed digest of name, password and stored hash: a changed password or a reloaded
    file misses the memory by itself, and the memory holds nothing that helps to guess a password elsewhere.
    """

    def __init__(
        self, passwords: PasswordFile, *, threads: int = 2, max_pending: int = 256, max_remembered: int = 10_000
    ) -> None:
        self._passwords = passwords
        self._max_pending = max_pending
        self._max_remembered = max_remembered
        self._secret = secrets.token_bytes(32)
        self._remembered: OrderedDict[bytes, None] = OrderedDict()
        # Clients that share one user name often come all at once: they wait for one verification.
        self._running: dict[bytes, asyncio.Future[bool]] = {}
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="penstock-password")

    def replace(self, passwords: PasswordFile) -> None:
        """Use another file from now on (reload)."""
        self._passwords = passwords
        self._remembered.clear()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def try_remembered(self, username: str, password: bytes) -> bool:
        """Whether this pair was verified before and still holds; costs a microsecond, never blocks."""
        return self._recall(self._digest(username, password))

    async def authenticate(self, username: str, password: bytes) -> bool:
        """Whether the password is right; raises AuthenticatorBusy when too many are waiting."""
        if len(password) > LONGEST_PASSWORD:
            return False
        digest = self._digest(username, password)
        if self._recall(digest):
            return True
        running = self._running.get(digest)
        if running is None:
            if len(self._running) >= self._max_pending:
                raise AuthenticatorBusy
            loop = asyncio.get_running_loop()
            running = loop.run_in_executor(self._pool, self._passwords.verify, username, password)
            self._running[digest] = running
            running.add_done_callback(lambda done: self._on_verified(digest, done))
        # A client that goes away while it waits must not take the verification from the others.
        return await asyncio.shield(running)

    def _on_verified(self, digest: bytes, done: asyncio.Future[bool]) -> None:
        self._running.pop(digest, None)
        if done.cancelled() or done.exception() is not None or not done.result():
            return
        self._remembered[digest] = None
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
