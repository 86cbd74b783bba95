"""Clients that leave a queue which another node serves: that node removes the clients' own groups.

The link of a relayed consumer also ends when the client disconnects or moves to another node, and its group has to stay
then. So the client's node reports, over a link of its own, that the client has unsubscribed or its session has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.access.base import Identity
from penstock.core.logging import get_logger
from penstock.mqtt.nodes.link import Link, LinkError
from penstock.subscribers.queue.abandoned import client_left
from penstock.subscribers.queue.names import group_id, parse_subscription

if TYPE_CHECKING:
    from penstock.services.node import ClusterNode
    from penstock.subscribers.queue.manager import QueueManager
    from penstock.subscribers.queue.memberships import Membership

log = get_logger("penstock.queues")

LEFT_PROPERTY = "x-group-left"  # between nodes: the client has left its own group
ASSIGNED = "assigned"  # its value if the broker has assigned the client id
ATTEMPTS = 6
FIRST_PAUSE = 0.2
LINK_SECONDS = 5.0
LOOK_SECONDS = 0.05


def must_report(membership: Membership) -> bool:
    """Return whether the group of the subscription may end with it. The node that serves the queue knows its lifetime:
    a DISCONNECT may have changed that of the session."""
    return not membership.is_relayed and not membership.terms.group


async def report_left(manager: QueueManager, node: ClusterNode, membership: Membership) -> None:
    """Report to each node that serves queues of the subscription that the client has left its group."""
    queues = [queue for queue in manager.queues_for(membership) if queue.definition.durable]
    for owner in {node.owner_of(queue.name) for queue in queues} - {"", node.service_id}:
        pause = FIRST_PAUSE
        for _ in range(ATTEMPTS):
            current = manager.memberships()
            asked = (membership.client.client_id, membership.name)
            if any((each.client.client_id, each.name) == asked for each in current):
                return  # the client has subscribed again
            try:
                await _report(node, owner, membership)
                break
            except LinkError as error:
                log.info("cannot report that a client left its group", node=owner, error=str(error))
                await asyncio.sleep(pause)
                pause *= 2


async def _report(node: ClusterNode, owner: str, membership: Membership) -> None:
    door = node.door_of(owner)
    if door is None:
        raise LinkError("its address is not known")
    client = membership.client
    link = Link(door, node.service_id, client.client_id, identity=Identity(client.username))
    try:
        await link.open()
        properties = [
            ("consumer-group", membership.group_name),
            (LEFT_PROPERTY, ASSIGNED if client.is_assigned else ""),
        ]
        await link.subscribe(membership.name, 1, properties)
    finally:
        link.close()


def has_left(properties: Iterable[tuple[str, str]]) -> bool:
    """Return whether a SUBSCRIBE of another node reports that its client has left."""
    return any(name == LEFT_PROPERTY for name, _ in properties)


async def end_groups(manager: QueueManager, topic_filter: str, properties: Iterable[tuple[str, str]]) -> None:
    """Remove the groups of a client of another node as soon as its link is closed."""
    address = parse_subscription(topic_filter)
    given = dict(properties)
    identity = group_id(given.get("consumer-group", ""), address.filter)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + LINK_SECONDS
    for queue in list(manager.queues.values()):
        if not manager.serves(queue) or not (address.spans_queues or address.queue == queue.name):
            continue
        group = queue.groups.get(identity)
        while group is not None and group.members and loop.time() < deadline:  # noqa: ASYNC110 - a group has no event
            await asyncio.sleep(LOOK_SECONDS)
        if group is not None and queue.groups.get(identity) is group:
            client_left(group, is_assigned=given.get(LEFT_PROPERTY) == ASSIGNED)
