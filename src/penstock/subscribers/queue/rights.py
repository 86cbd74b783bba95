"""Access rules for queues: which queues a client may consume, and which groups it owns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock._ext.match.acl import AclProgram
from penstock.core.refusal import Refusal, Refused
from penstock.subscribers.queue.names import ROOT, Address, parse_subscription

if TYPE_CHECKING:
    from penstock.subscribers.queue.consumer import Client
    from penstock.subscribers.queue.manager import QueueManager
    from penstock.subscribers.queue.memberships import Membership
    from penstock.subscribers.queue.queue import Queue

NOT_MOVED = "x-stream-offset moves a group of another user, and this client may not receive everything the group reads"
RELAYED_BY = "\0"  # between a client id, which cannot have it, and the node that relays


def identity_of(client: Client) -> str:
    """Return the user of a client, or its client id if it has no user name."""
    if client.username is not None:
        return f"user {client.username}"
    return f"client {client.client_id.partition(RELAYED_BY)[0]}"


def delivered_filter(queue: str, key_filter: str) -> str:
    """Return the filter of the topics under which a group with this key filter receives messages of the queue."""
    return f"{ROOT}/{queue}/{key_filter or '#'}"


def asked_filter(topic_filter: bytes) -> bytes:
    """Return the filter of the topics that a subscription to queues can deliver: `$queue/orders` means all keys."""
    try:
        address = parse_subscription(topic_filter.decode())
    except ValueError:
        return topic_filter
    return delivered_filter(address.queue, address.filter).encode()


def may_consume(acl: AclProgram | None, queue: str, address: Address) -> bool:
    """Return whether the rules can allow deliveries from the queue. Each message is checked as well."""
    return acl is None or acl.may_subscribe(delivered_filter(queue, address.filter).encode())


def may_have_all(acl: AclProgram | None, queue: str, address: Address) -> bool:
    """Return whether the rules allow every message that a group with this filter reads."""
    return acl is None or acl.may_receive_all(delivered_filter(queue, address.filter).encode())


def check_move(membership: Membership, queues: Iterable[Queue]) -> None:
    """Raise Refused if a consumer asks for a place in a stream that it may not move its group to."""
    if membership.position and not all(membership.may_move(queue) for queue in queues if queue.core.is_stream):
        raise Refused(Refusal.NOT_AUTHORISED, NOT_MOVED)


async def apply_rights(manager: QueueManager, memberships: Iterable[Membership]) -> None:
    """Apply changed rules: clients leave queues they may no longer consume and join those they may consume now."""
    for membership in memberships:
        for group, member in list(membership.members):
            if membership.may_consume(group.queue.name):
                group.review()
            else:
                membership.members.remove((group, member))
                group.leave(member)
        if manager.is_there(membership.address):
            await manager.ownership.follow(membership, manager.queues_for(membership))
