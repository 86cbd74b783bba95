"""Do clients that are connected to other nodes keep to the access rules of this moment?"""

from __future__ import annotations

import asyncio
from typing import Any

import uvloop

from penstock._ext.hub.connection import Hub
from penstock._ext.match.acl import AclProgram
from penstock.access.base import Identity, Subject
from penstock.broker.logged import node_listener_part
from penstock.mqtt.nodes.link import Link
from penstock.mqtt.nodes.listener import NodeListener
from penstock.services.membership import Door
from penstock.settings import Settings
from penstock.settings.cluster import ClusterSettings


class Node:
    """The part of a node, and of its queues, that is needed here."""

    def __init__(self) -> None:
        self.doors: list[Door] = []

    async def open_door(self, door: Door) -> None:
        self.doors.append(door)

    def ended(self, session: object) -> None:
        pass


def test_changed_rules_reach_relayed_clients() -> None:
    """A provider may change its rules without a reload of the settings."""
    programs = {"ada": AclProgram([])}

    def program_for(subject: Subject) -> AclProgram | None:
        return programs.get(subject.identity.user or "")

    async def scenario() -> None:
        node: Any = Node()
        settings = ClusterSettings(relay_address="127.0.0.1:0")
        listener = NodeListener(
            Hub(asyncio.get_running_loop()),
            node,
            node,
            settings,
            kafka="",
            receive_maximum=5,
            program_for=program_for,
        )
        part = node_listener_part(listener)
        await part.start()
        link = Link(node.doors[0], "there", "client", identity=Identity("ada"))
        await link.open()
        [session] = listener._clients
        assert session.acl is programs["ada"]
        programs["ada"] = AclProgram([])
        part.rules_changed(Settings())
        assert session.acl is programs["ada"]
        link.close()
        await part.stop()

    uvloop.run(asyncio.wait_for(scenario(), 60))
