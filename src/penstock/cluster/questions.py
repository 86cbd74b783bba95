"""Questions between the nodes of a cluster, and which nodes do not answer them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

from penstock.services.channels import InstanceChannel
from penstock.services.rpc.errors import TooManyPending
from penstock.services.rpc.instances import InstanceCalls
from penstock.services.rpc.wire import Request
from penstock.storage.log.base import Log

ASK_SECONDS = 2.0
ROOM_SECONDS = 0.05

Answerer = Callable[[Request], Awaitable[bytes]]


class Questions:
    """`others`: the nodes alive, without this one; `heard_at`: when one of them was heard last, on the monotonic
    clock."""

    def __init__(
        self,
        log_provider: Log,
        channel: InstanceChannel,
        others: Callable[[], Iterable[str]],
        heard_at: Callable[[str], float],
    ) -> None:
        self._calls = InstanceCalls(log_provider, channel, self._answer)
        self._answerer: Answerer = _refuse
        self._others = others
        self._heard_at = heard_at
        self._silent: dict[str, float] = {}  # nodes that did not answer, since when

    async def start(self, answerer: Answerer) -> None:
        """`answerer` answers what other nodes ask. Raises LogError; may then be called again."""
        self._answerer = answerer
        await self._calls.start()

    async def stop(self) -> None:
        await self._calls.stop()

    async def _answer(self, request: Request) -> bytes:
        return await self._answerer(request)

    def others(self) -> list[str]:
        return list(self._others())

    def is_silent(self, name: str) -> bool:
        """Return whether a node has not been heard of since it did not answer."""
        return self._silent.get(name, 0.0) > self._heard_at(name)

    def did_not_answer(self, name: str) -> None:
        self._silent[name] = time.monotonic()

    def did_answer(self, name: str) -> None:
        self._silent.pop(name, None)

    async def ask(self, name: str, data: bytes) -> bytes:
        """Raises RpcError and LogError."""
        return await self._calls.ask(name, data, ASK_SECONDS)

    async def ask_patiently(self, name: str, data: bytes) -> bytes:
        """As `ask`, and wait where there is not enough room for the question: that says nothing of the other node."""
        give_up_at = time.monotonic() + ASK_SECONDS
        while True:
            try:
                return await self.ask(name, data)
            except TooManyPending:
                if time.monotonic() > give_up_at:
                    raise
            await asyncio.sleep(ROOM_SECONDS)

    def counters(self) -> dict[str, int | float]:
        return self._calls.counters("sessions")


async def _refuse(_: Request) -> bytes:
    raise RuntimeError("no question is answered before the start")
