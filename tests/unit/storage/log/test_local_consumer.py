"""What a member of a group of the embedded and the memory log may still do when others have its place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
import uvloop

from penstock.storage.log.base import Committed, LogError, TopicPartition
from penstock.storage.log.memory import MemoryLog
from tests.support.worlds.embedded import numbered

SECOND = TopicPartition("t", 1)


def run(scenario: Callable[[MemoryLog], Awaitable[None]], max_poll_interval: float = 300.0) -> None:
    async def main() -> None:
        log = MemoryLog(max_poll_interval=max_poll_interval)
        await log.start()
        await log.admin.create("t", 2)
        for number in range(2):
            await log.producer.send("t", number, numbered(0, 100))
        await scenario(log)
        await log.close()

    uvloop.run(main())


def test_who_did_not_poll_in_time_cannot_commit_what_went_to_another() -> None:
    """Before, the offset of the new owner went back: its records came again after the next start."""

    async def scenario(log: MemoryLog) -> None:
        stuck = log.consumer("g")
        stuck.subscribe(["t"])
        await stuck.poll(20)
        eager = log.consumer("g")
        eager.subscribe(["t"])
        async with asyncio.timeout(60):
            while eager.assignment() != [SECOND]:
                await eager.poll(50, 0.02)
        await eager.commit({SECOND: Committed(50)})
        with pytest.raises(LogError, match=r"t\[1\] went to another consumer"):
            await stuck.commit({SECOND: Committed(10)})
        with pytest.raises(LogError, match=r"t\[1\] went to another consumer"):
            await stuck.commit()
        await stuck.commit({TopicPartition("t", 0): Committed(10)})
        assert await eager.committed([SECOND]) == {SECOND: Committed(50)}
        await stuck.poll(1, 0.0)
        await stuck.commit()
        assert await eager.committed([SECOND]) == {SECOND: Committed(50)}

    run(scenario, max_poll_interval=0.05)


def test_an_instance_whose_place_was_taken_cannot_commit() -> None:
    async def scenario(log: MemoryLog) -> None:
        old = log.consumer("g", instance_id="one")
        old.subscribe(["t"])
        await old.poll(20)
        new = log.consumer("g", instance_id="one")
        new.subscribe(["t"])
        await new.poll(200)
        await new.commit()
        with pytest.raises(LogError, match="taken the place of instance 'one'"):
            await old.commit()
        assert await new.committed([SECOND]) == {SECOND: Committed(100)}

    run(scenario)


def test_who_subscribes_anew_hears_of_the_end_of_the_old_where_it_asked_for_it() -> None:
    async def scenario(log: MemoryLog) -> None:
        heard: list[tuple[str, int]] = []

        def note(event: str) -> Callable[[Sequence[TopicPartition]], None]:
            return lambda partitions: heard.append((event, len(partitions)))

        consumer = log.consumer("g")
        consumer.subscribe(["t"], note("+1"), note("-1"))
        await consumer.poll(1)
        consumer.subscribe(["t"], note("+2"), note("-2"))
        await consumer.poll(1)
        assert heard == [("+1", 2), ("-1", 2), ("+2", 2)]

    run(scenario)
