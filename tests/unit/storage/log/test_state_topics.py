"""Compacted topics of state: what they are made with, and what becomes of those that are there."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from penstock.storage.log.base import LogError, TopicPartition, read_state
from penstock.storage.log.memory import MemoryLog
from penstock.storage.log.state_topics import STATE_PROPERTIES, make_state_topic
from penstock.storage.state.topic import StateLog
from penstock.storage.state.topic_tail import StateTail
from tests.support.worlds.memory_log import with_memory_log


def test_a_topic_that_is_there_gets_what_it_does_not_state() -> None:
    async def scenario(log: MemoryLog) -> None:
        await log.admin.create("old", 1, {"cleanup.policy": "compact", "segment.ms": "3600000"})
        await make_state_topic(log, "old")
        assert (await log.admin.describe("old")).properties == {**STATE_PROPERTIES, "segment.ms": "3600000"}

    with_memory_log(scenario)


@pytest.mark.parametrize("is_tail", [False, True])
def test_tables_of_state_have_small_segments(is_tail: bool) -> None:
    async def scenario(log: MemoryLog) -> None:
        if is_tail:
            tail = StateTail(log, ["tbmq.app.context"], "reader")
            await tail.start()
            await tail.stop()
        else:
            await StateLog(log).load("tbmq.app.context", lambda key, value: None)
        assert (await log.admin.describe("tbmq.app.context")).properties == STATE_PROPERTIES

    with_memory_log(scenario)


def test_who_may_not_change_topics_starts_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(log: MemoryLog) -> None:
        async def refuse(topic: str, properties: Mapping[str, str]) -> None:
            raise LogError("not authorised")

        await log.admin.create("old", 1, {"cleanup.policy": "compact"})
        monkeypatch.setattr(log.admin, "alter", refuse)
        await make_state_topic(log, "old")
        assert await read_state(log, "old", lambda key, value: None) == 0
        assert log.watermarks(TopicPartition("old", 0)).end == 0

    with_memory_log(scenario)
