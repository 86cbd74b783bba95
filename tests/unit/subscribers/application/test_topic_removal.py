"""The topic of a client that has left, and comes back at another broker while it is being removed here."""

from __future__ import annotations

import asyncio

import pytest

from penstock._ext.application.context import read_context
from penstock.services.housekeeper import CLIENT, Task, Undecided, Use
from penstock.subscribers.application.contexts import TABLE
from tests.support.brokers.app_node import Node, run

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
        node.others.ask = use_elsewhere
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


def test_a_topic_that_was_left_there_is_not_read_from_its_beginning_after_a_crash() -> None:
    """It may hold another user's messages: where the new session begins is stored before the session is there."""

    async def scenario(node: Node) -> None:
        client = await node.connect("a")
        await node.subscribe(client, b"s")
        node.end(client.session)
        await node.log.admin.create(TOPIC)
        await node.fill(TOPIC, range(5))
        await node.delivery.prepare("a", is_new=True)
        (key,) = node.delivery.contexts_of("a")
        stored = node.state.tables[TABLE][key]
        assert read_context(stored)["committed"] == 5
        node.delivery.given_up("a")
        await node.until(lambda: key not in node.state.tables[TABLE])

    run(scenario, remove_topics="never")
