"""The topic of a client that has left, and comes back at another broker while it is being removed here."""

from __future__ import annotations

import asyncio

import pytest

from penstock.persistence.housekeeper import CLIENT, Task, Undecided, Use
from tests.support.app_node import Node, run

TOPIC = "tbmq.msg.app.a"
LEFT = Task(CLIENT, "a", TOPIC)


def test_a_client_that_comes_back_elsewhere_while_its_topic_is_looked_at_keeps_it() -> None:
    """That broker may have been asked before it knew of the client. It waits for nobody's answer: it would take this
    one for dead."""

    async def scenario(node: Node) -> None:
        asked, answered = asyncio.Event(), asyncio.Event()

        async def use_elsewhere(_: Task) -> Use:
            asked.set()
            await answered.wait()
            return Use.NONE

        await node.log.admin.create(TOPIC)
        node.delivery.use_elsewhere = use_elsewhere
        tidying = asyncio.ensure_future(node.delivery.tidy(LEFT))
        await asked.wait()
        async with asyncio.timeout(30):
            await node.delivery.called_off("a")
        answered.set()
        with pytest.raises(Undecided):
            await tidying
        assert TOPIC in node.log.topics
        await node.delivery.tidy(LEFT)
        await node.delivery.called_off("a")
        assert TOPIC not in node.log.topics

    run(scenario)
