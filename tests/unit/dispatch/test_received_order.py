"""QoS 2 packet ids reach the store in the order of their batches, whenever the log has the messages."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec

from penstock._ext.segment import RecordPack
from penstock.dispatch.ingest import Ingest
from penstock.logs.base import Appended
from penstock.persistence.received import MARK, TABLE, ReceivedIds
from penstock.stores.memory_state import MemoryStateStore


class World:
    """A log whose appends are durable when a test says so, and a store that is done at once."""

    def __init__(self) -> None:
        self.appends: list[tuple[int, Any]] = []
        self.stored: list[tuple[str, bytes]] = []
        self.committed: list[int] = []
        log = SimpleNamespace(
            producer=SimpleNamespace(append=lambda _, part, __, done: self.appends.append((part, done)))
        )
        hub = SimpleNamespace(log_committed=lambda ticket, *_: self.committed.append(ticket), is_spread=False, ticket=0)
        self.ingest = Ingest(hub, log, "t", 4, {}, received=self)  # type: ignore[arg-type]  # the parts it uses

    def store(self, changes: list[tuple[Any, bytes]], on_done: Any) -> None:
        self.stored += [(session.client_id, ids) for session, ids in changes]
        on_done(None)

    def mark(self, ends: dict[int, int]) -> None:
        pass

    def submit(self, ticket: int, ids: bytes, *partitions: int) -> None:
        packs = [(partition, RecordPack()) for partition in partitions]
        self.ingest.submit(ticket, packs, 0, (None, [(SimpleNamespace(client_id="c"), ids)], [], []))  # type: ignore[arg-type,list-item]  # as above

    def finish(self, partition: int) -> None:
        (done,) = [done for part, done in self.appends if part == partition]
        done(Appended("t", partition, 0, 1))


def test_what_was_released_stays_released() -> None:
    """A batch that only releases has nothing to wait for in the log, and yet it waits for those before it: else what
    they say of the session is stored over it, the id counts as held after a crash, and the next message with it is
    taken for one that the broker has."""
    world = World()
    world.submit(1, b"1 2", 0)
    world.submit(2, b"2")
    world.submit(3, b"2 3", 1)
    world.finish(1)
    assert (world.stored, world.committed) == ([], [])
    world.finish(0)
    assert world.stored == [("c", b"1 2"), ("c", b"2"), ("c", b"2 3")]
    assert world.committed == [1, 2, 3]
    assert world.ingest.batches_open == 0


def test_a_mark_forgets_no_partition() -> None:
    """After a start nothing was written to most of them: they are still known to be stored up to where they were."""

    async def main() -> None:
        store = MemoryStateStore()
        received = ReceivedIds(store)
        received.mark({0: 5, 1: 7})
        received.mark({})
        received.mark({1: 9})
        await asyncio.sleep(0)
        found: dict[bytes, bytes | None] = {}
        await store.load(TABLE, found.__setitem__)
        assert msgspec.json.decode(found[MARK] or b"", type=dict[int, int]) == {0: 5, 1: 9}

    asyncio.run(main())
