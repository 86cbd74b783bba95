"""A task set keeps tasks alive, waits for them, cancels them and logs failures that no caller handles."""

from __future__ import annotations

import asyncio
import gc

import pytest

from penstock.core.tasks import TaskSet


async def fail() -> None:
    raise RuntimeError("broken")


def test_tasks_are_kept_until_they_end() -> None:
    async def scenario() -> None:
        tasks = TaskSet()
        ended: list[int] = []

        async def work(number: int) -> None:
            await asyncio.sleep(0.01)
            ended.append(number)

        for number in range(3):
            tasks.spawn(work(number))
        gc.collect()
        assert len(tasks) == 3
        await tasks.wait()
        assert ended == [0, 1, 2]
        assert not tasks
        await tasks.wait()

    asyncio.run(scenario())


def test_waiting_for_one_returns_with_the_first() -> None:
    async def scenario() -> None:
        tasks = TaskSet()
        await tasks.wait_for_one()
        tasks.spawn(asyncio.sleep(0))
        tasks.spawn(asyncio.sleep(3600))
        await tasks.wait_for_one()
        assert len(tasks) == 1
        await tasks.close()
        assert not tasks

    asyncio.run(scenario())


def test_closing_cancels_and_gives_up_after_the_timeout() -> None:
    async def scenario() -> None:
        tasks = TaskSet()
        released = asyncio.Event()

        async def stubborn() -> None:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                await released.wait()

        tasks.spawn(stubborn())
        await asyncio.sleep(0)
        await tasks.close(timeout=0.01)
        assert len(tasks) == 1
        released.set()
        await tasks.wait()
        assert not tasks

    asyncio.run(scenario())


def test_a_failure_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        tasks = TaskSet("a connection failed")
        tasks.spawn(fail())
        tasks.spawn(asyncio.sleep(3600))
        await tasks.wait_for_one()
        await tasks.close()

    asyncio.run(scenario())
    (record,) = caplog.records
    assert record.getMessage() == "a connection failed"
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "broken"


def test_the_failure_of_an_awaited_task_is_the_callers(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        tasks = TaskSet()
        with pytest.raises(RuntimeError, match="broken"):
            await asyncio.shield(tasks.spawn(fail(), is_awaited=True))
        tasks.spawn(fail(), is_awaited=True)
        await tasks.wait()
        gc.collect()

    asyncio.run(scenario())
    assert not caplog.records
