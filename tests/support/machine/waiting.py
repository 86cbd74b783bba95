"""Waiting for something to become true."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Looks again and again; what is looked at belongs to others and tells nobody when it changes."""
    deadline = asyncio.get_running_loop().time() + seconds
    for _ in iter(condition, True):
        assert asyncio.get_running_loop().time() < deadline, f"not true after {seconds} s"
        await asyncio.sleep(0.005)
