"""Methods of enhanced authentication that the scenarios plug into the broker (access.enhanced)."""

from __future__ import annotations

import asyncio

from penstock.access.base import AuthStep


class Challenge:
    """Asks one question; `right` is the answer, `wrong` anything else."""

    def __init__(self, client_id: str, username: str | None) -> None:
        self._asked = False

    def step(self, data: bytes | None) -> AuthStep:
        if not self._asked:
            self._asked = True
            return AuthStep.proceed(b"question")
        if data == b"right":
            return AuthStep.success("challenged", b"welcome")
        return AuthStep.failure()


class SlowChallenge(Challenge):
    """The same with answers that take time, as from a remote service."""

    async def step(self, data: bytes | None) -> AuthStep:  # type: ignore[override]  # both forms are allowed by the port
        await asyncio.sleep(0.05)
        return super().step(data)
