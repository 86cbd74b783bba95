"""A method of enhanced authentication as one would write it: an HMAC over a nonce, at once or after a while."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets

from penstock.access.base import AuthStep

SECRETS = {"carol": b"carol's key", "dave": b"dave's key"}
METHOD, SLOW_METHOD = "HMAC-SHA-256", "HMAC-SHA-256-SLOW"
TARGETS = {
    METHOD: "tests.support.clients.hmac_auth:HmacExchange",
    SLOW_METHOD: "tests.support.clients.hmac_auth:SlowHmacExchange",
}
SLOW_SECONDS = 0.1


def prove(user: str, nonce: bytes) -> bytes:
    return hmac.digest(SECRETS.get(user, b""), nonce, hashlib.sha256)


class HmacExchange:
    """The first data is the user's name, the answer a nonce, the second data the proof."""

    def __init__(self, client_id: str, username: str | None) -> None:
        self._user = ""
        self._nonce = secrets.token_bytes(16)

    def step(self, data: bytes | None) -> AuthStep:
        if not self._user:
            self._user = (data or b"").decode(errors="replace")
            return AuthStep.proceed(self._nonce) if self._user else AuthStep.failure()
        if self._user in SECRETS and hmac.compare_digest(data or b"", prove(self._user, self._nonce)):
            return AuthStep.success(self._user, prove(self._user, self._nonce[::-1]))
        return AuthStep.failure()


class SlowHmacExchange:
    """The same, asked of a service that takes its time."""

    def __init__(self, client_id: str, username: str | None) -> None:
        self._exchange = HmacExchange(client_id, username)

    async def step(self, data: bytes | None) -> AuthStep:
        await asyncio.sleep(SLOW_SECONDS)
        return self._exchange.step(data)
