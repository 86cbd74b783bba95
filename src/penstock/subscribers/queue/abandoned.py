"""Groups without consumers: how long they stay, and which of them holds a queue back.

- A group with a name (`consumer-group`) stays until it is deleted, or until it had no consumer for
  `named_group_expires_after`. Messages it has not read are kept for it.
- A group without a name, of a client with a session, stays until the session ends or the client was absent for
  `group_expires_after`.
- A group without a name, of a client without a session, ends with the connection: at once if the broker has assigned
  the client id, because that client cannot come back; otherwise after ABANDONED_SECONDS, so that a worker that
  reconnects finds its place and its delivery counts, or sooner if publishers are refused because of the group.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from penstock.core.logging import get_logger

if TYPE_CHECKING:
    from penstock.subscribers.queue.group import Group
    from penstock.subscribers.queue.manager import QueueManager
    from penstock.subscribers.queue.queue import Queue

log = get_logger("penstock.queues")

Life = Literal["connection", "session", "named"]
LIVES: tuple[Life, ...] = ("connection", "session", "named")  # the longest last
ABANDONED_SECONDS = 60.0
LONGEST_WORDS = 120  # of a reason string, in bytes
LONGEST_NAME = 32


def longer(one: Life, other: Life) -> Life:
    return max(one, other, key=LIVES.index)


def lifetime(group: Group) -> float:
    """Return the seconds a group stays without a connected consumer; 0: without a limit."""
    definition = group.queue.definition
    if group.life == "named":
        return definition.named_group_expires_after
    if group.life == "connection" and not group.members:
        return ABANDONED_SECONDS
    return definition.group_expires_after


def time_left(group: Group, now: float) -> float:
    """Return the seconds until the group expires; infinity if it never does or is in use."""
    stays = lifetime(group)
    return stays - (now - group.unused_since) if stays and not group.is_used else float("inf")


def client_left(group: Group, *, is_assigned: bool) -> None:
    """Remove a client's own group after it has unsubscribed or its session has ended; `is_assigned`: the broker has
    assigned the client id."""
    if group.members or group.life == "named":
        return
    if group.life == "session" or is_assigned:
        end_group(group)


def expire_groups(manager: QueueManager, queue: Queue) -> None:
    """Remove the groups of a queue that have been idle for longer than their lifetime."""
    now = time.time()
    for group in list(queue.groups.values()):
        if time_left(group, now) > 0:
            continue
        log.warning("idle group removed", queue=queue.name, group=group.id, unsettled=group.unsettled, idle=group.life)
        for membership in manager.memberships() if group.members else ():
            mine = [pair for pair in membership.members if pair[0] is group]
            membership.members = [pair for pair in membership.members if pair[0] is not group]
            membership.has_lost = membership.has_lost or bool(mine)
            for _, member in mine:
                group.leave(member)
        end_group(group)


def end_group(group: Group) -> None:
    """Remove a group. A later group does not get messages that the last group of a classic queue has settled."""
    queue = group.queue
    if len(queue.groups) == 1 and group.id in queue.groups and not group.is_stream and not group.filter:
        queue.mark_removed(_settled_by(group))
    queue.remove_group(group)


def _settled_by(group: Group) -> list[tuple[int, int]]:
    """Return the spans of offsets that the group has settled."""
    spans: list[tuple[int, int]] = []
    start = group.queue.head
    for entry in group.core.pending.entries(group.pending):
        if start < entry[0]:
            spans.append((start, entry[0]))
        start = entry[0] + 1
    return [*spans, (start, group.cursor)] if start < group.cursor else spans


# ---- which group holds a queue back ----


def holder_of(queue: Queue) -> Group | None:
    """Return the group with the most unsettled messages, if it has any and none of its consumers is connected."""
    if queue.core.is_stream or not queue.groups:
        return None
    slowest = max(queue.groups.values(), key=lambda group: group.unsettled)
    return None if slowest.is_used or slowest.unsettled <= 0 else slowest


def held_back_words(group: Group) -> str:
    since = datetime.fromtimestamp(group.unused_since, UTC).strftime("%Y-%m-%dT%H:%MZ")
    name = group.id if len(group.id) <= LONGEST_NAME else f"{group.id[: LONGEST_NAME - 1]}…"
    return f"held back by group {name}, no consumer since {since}"


def why_full(queue: Queue) -> bytes:
    """Return the reason string for a publisher that a full queue refuses; empty if no group holds it back. A full queue
    also loses its abandoned group here."""
    group = holder_of(queue)
    if group is None:
        return b""
    words = f"limits.max_depth reached: {held_back_words(group)}".encode()
    if group.life == "connection" and not group.members:
        log.warning("abandoned group removed from a full queue", queue=queue.name, group=group.id)
        end_group(group)
    return (
        words if len(words) <= LONGEST_WORDS else b"limits.max_depth reached: held back by a group without a consumer"
    )
