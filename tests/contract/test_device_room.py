"""Every store of DEVICE queues takes what is larger than all the room for calls that wait, if nothing else waits."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from penstock.settings.redis import DeviceSettings, RedisSettings
from penstock.subscribers.device.store.base import Added, Addition, DeviceStore, result_of
from penstock.subscribers.device.store.lmdb import LmdbDeviceStore
from penstock.subscribers.device.store.redis import RedisDeviceStore
from tests.contract.device_providers import CLIENT, Caller, opened, run
from tests.support.servers.redis_server import shared_redis

ROOM = 65_536


def make_store(provider: str, directory: Path) -> DeviceStore:
    if provider == "lmdb":
        return LmdbDeviceStore(directory / "device", DeviceSettings(), backlog_bytes=ROOM)
    prefix = f"{uuid.uuid4().hex[:8]}:"
    return RedisDeviceStore(
        RedisSettings(addresses=shared_redis().address, prefix=prefix, backlog_bytes=ROOM), DeviceSettings()
    )


@pytest.mark.parametrize("provider", ["lmdb", "redis"])
@pytest.mark.parametrize(("count", "size"), [(1, 2 * ROOM), (2_000, 100)])
def test_larger_than_all_the_room(provider: str, count: int, size: int, tmp_path: Path) -> None:
    """One message, or many that come together: tried again and again, it would fail for ever."""

    async def test() -> None:
        async with opened(make_store(provider, tmp_path)) as store:
            caller = Caller(store)
            (result,) = await result_of(store.add, [Addition(CLIENT, caller.pack([bytes(size)] * count))])
            assert result == Added(list(range(1, count + 1)), 0)
            assert len(await caller.all(CLIENT)) == count

    run(test())
