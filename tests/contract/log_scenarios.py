"""What the contract tests of the logs share: the provider under test, names that nobody else uses, small packs."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from penstock._ext.record.segment import Record, RecordPack
from penstock.storage.log.base import Consumer, Log, TopicPartition
from tests.contract.providers import PROVIDERS, Provider


@pytest.fixture(params=PROVIDERS)
def provider(request: pytest.FixtureRequest, tmp_path: Path) -> Provider:
    return PROVIDERS[request.param](request, tmp_path)


@pytest.fixture
def topic() -> str:
    return f"contract.{uuid.uuid4().hex}"


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex}"


Scenario = Callable[[Log], Coroutine[Any, Any, None]]


def run(provider: Provider, *scenarios: Scenario) -> None:
    """Runs the scenarios, each with the log opened again."""

    async def run_all() -> None:
        for scenario in scenarios:
            async with provider.open() as log:
                await asyncio.wait_for(scenario(log), 60)

    uvloop.run(run_all())


def pack_of(*values: bytes | None, key: bytes | None = None, timestamp: int | None = None) -> RecordPack:
    pack = RecordPack()
    for value in values:
        pack.append(value, key, timestamp=timestamp)
    return pack


def numbered(first: int, count: int) -> RecordPack:
    return pack_of(*(b"%d" % number for number in range(first, first + count)))


async def read_from(consumer: Consumer, count: int, patience: float = 10.0, max_records: int = 500) -> list[Record]:
    """Polls until `count` records came."""
    records: list[Record] = []
    deadline = time.monotonic() + patience
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count} records came"
        for fetched in await consumer.poll(max_records, 0.5):
            records += fetched.pack
    return records


async def read_partition(log: Log, partition: TopicPartition, count: int) -> list[Record]:
    consumer = log.consumer("")
    consumer.assign([partition])
    try:
        return await read_from(consumer, count)
    finally:
        await consumer.close()


async def until(is_done: Callable[[], bool], *polls: Callable[[], Awaitable[object]], patience: float) -> None:
    """Polls the members of a group in turns until they have agreed."""
    deadline = time.monotonic() + patience
    while not is_done():
        assert time.monotonic() < deadline, "the group does not come to an agreement"
        for poll in polls:
            await poll()
