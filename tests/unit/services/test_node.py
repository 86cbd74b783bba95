"""This process as a member of a cluster."""

from __future__ import annotations

import asyncio

from penstock.services.model import ServiceType
from penstock.services.node import ClusterNode
from penstock.services.topics import create_topics
from penstock.settings.cluster import ClusterSettings
from penstock.storage.log.memory import MemoryLog
from tests.support.machine.waiting import until
from tests.support.worlds.service_settings import services

SETTINGS = services(prefix="p")
CLUSTER = ClusterSettings(heartbeat_interval=0.05, member_timeout=1.0, forget_after=0.2)


def test_the_topics_of_a_member_that_is_gone_for_good_are_deleted() -> None:
    async def run() -> None:
        log = MemoryLog()
        await log.start()
        nodes = [ClusterNode(log, SETTINGS, name, asyncio.get_running_loop(), cluster=CLUSTER) for name in ("a", "b")]
        for node in nodes:
            await node.start()
            await node.joined(30)
        await until(lambda: nodes[0].others() == ["b"])
        await create_topics(log.admin, SETTINGS, {ServiceType.TB_CORE: ["a", "b"], ServiceType.TB_TRANSPORT: ["b"]})
        own = {
            "p.tb_core.notifications",
            "p.tb_transport.notifications",
            "p.tbmq.client.session.notifications",
            "p.tbmq.client.session.responses",
            "p.tbmq.datasub.notifications",
            "p.tbmq.datasub.responses",
        }
        assert {f"{name}.b" for name in own} <= set(log.topics)
        await nodes[1].stop()
        await until(lambda: not any(name.endswith(".b") for name in log.topics))
        assert "p.tb_core.notifications.a" in log.topics
        await nodes[0].stop()
        await log.close()

    asyncio.run(run())


def test_all_topics_are_made_at_the_start_if_wanted() -> None:
    async def run() -> None:
        log = MemoryLog()
        await log.start()
        settings = services({"create_topics": "at-start", "tasks.types": ["export"], "js.partitions": 4})
        node = ClusterNode(log, settings, "a", asyncio.get_running_loop())
        await node.start()
        assert log.topics["export"].config.partitions == 12
        assert log.topics["js_eval.requests"].config.partitions == 4
        assert {"tb_core.9", "tb_transport.notifications.a", "tbmq.datasub.responses.a"} <= set(log.topics)
        await node.stop()
        await log.close()

    asyncio.run(run())
