"""A broker that ends while its store cannot be reached does not wait for it for longer than its drain time says."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker.restoring import Restoring
from penstock.storage.state.base import StoreError


async def _never() -> None:
    await asyncio.Event().wait()


async def _fail() -> None:
    raise StoreError("away")


async def _at_once() -> None:
    pass


@pytest.mark.parametrize("keeper", [_never, _fail, _at_once])
def test_a_store_that_does_not_answer(keeper: Any) -> None:
    restoring: Any = SimpleNamespace(
        _task=None,
        _drain_seconds=0.1,
        _keeper=SimpleNamespace(close=keeper),
        _state=SimpleNamespace(close=_never, check=lambda: "away"),
    )

    async def scenario() -> None:
        async with asyncio.timeout(60):  # it would wait for ever
            await Restoring.stop(restoring)

    asyncio.run(scenario())
