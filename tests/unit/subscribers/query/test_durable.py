"""What was answered is on the disk: the store of the embedded provider, opened again."""

from __future__ import annotations

import asyncio
from pathlib import Path

from penstock.storage.state.lmdb import LmdbStateStore
from penstock.subscribers.query.ports import Identity
from tests.support.worlds.datasub_world import ALICE, DataWorld


def test_topics_grants_and_commits_are_read_back(tmp_path: Path) -> None:
    async def write() -> None:
        world = DataWorld()
        world.store = LmdbStateStore(tmp_path / "clients", asyncio.get_running_loop())  # type: ignore[assignment]  # the real one
        await world.restart()
        await world.make_topics("hot")
        await world.service.execute("GRANT SUBSCRIBE, DROP ON hot TO bob", ALICE)
        world.source.write(10)
        joined = await world.join("hot")
        async with asyncio.timeout(30):
            ready = await world.ready(joined.consumer)
            await world.commit(ready, ("hot", 0, 7), ("hot", 3, 9))
        await world.service.stop()
        await world.store.close()

    async def read() -> None:
        world = DataWorld()
        world.store = LmdbStateStore(tmp_path / "clients", asyncio.get_running_loop())  # type: ignore[assignment]  # the real one
        await world.restart()
        assert world.service.topic("hot").owner == "alice"
        assert await world.committed(("hot", 0), ("hot", 1), ("hot", 3)) == [7, None, 9]
        assert len(await world.table("SHOW GRANTS", Identity())) == 2
        await world.service.stop()
        await world.store.close()

    asyncio.run(write())
    asyncio.run(read())
