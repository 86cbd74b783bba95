"""`overflow = "drop-oldest"`: a queue over `limits.max_depth` loses its oldest messages instead of refusing new ones.

Each group is checked separately: only a group over the limit loses messages. A message that a
consumer is working on is never dropped, nor is one on its way to the dead letters, nor the newest message of the queue.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.subscribers.queue.removed import RemovedOffsets

if TYPE_CHECKING:
    from penstock.subscribers.queue.group import Group
    from penstock.subscribers.queue.queue import Queue

Span = tuple[int, int]


def drop_oldest(queue: Queue) -> int:
    """Drop messages over the limit if this node serves the queue; return their number."""
    core = queue.core
    if not core.drops_oldest or not core.max_depth or core.is_elsewhere or core.depth <= core.max_depth:
        return 0
    first = first_of_last(core.removed, queue.end, core.max_depth)
    if not queue.groups:
        dropped = count(without(core.removed, queue.head, first))
        queue.head = max(queue.head, first)
    else:
        spans = [span for group in queue.groups.values() for span in _drop_from(group, core.max_depth)]
        dropped = count(spans)
        queue.update_floor()
        queue.head = max(queue.head, min(first, core.floor))
    queue.update_floor()
    return dropped


def start_of_new_group(queue: Queue) -> int:
    """Return the offset at which a new group begins: the first message that is kept and not over the limit."""
    core = queue.core
    if not core.drops_oldest or not core.max_depth:
        return queue.head if core.removed is None else core.removed.first_kept(queue.head)
    return max(queue.head, first_of_last(core.removed, queue.end, core.max_depth))


def _drop_from(group: Group, limit: int) -> list[Span]:
    """Drop messages from a group; return the spans of their offsets."""
    core, removed, end = group.core, group.queue.core.removed, group.queue.end
    cursor = group.cursor
    unread = max(end - cursor - (0 if removed is None else removed.count_from(cursor)), 0)
    over = unread + group.pending - limit
    if over <= 0:
        return []
    waiting = core.pending.unclaimed(over)
    for offset in waiting:
        core.settle(offset)
    spans = [(offset, offset + 1) for offset in waiting]
    passed_over = min(over - len(waiting), unread - 1)
    if passed_over > 0:
        first = first_of_last(removed, end, unread - passed_over)
        spans += without(removed, cursor, first)
        core.skip_to(first)
    return spans


def first_of_last(removed: RemovedOffsets | None, end: int, wanted: int) -> int:
    """Return the offset at which the last `wanted` messages before the end begin; removed ones do not count."""
    first = end - wanted
    while removed is not None and (earlier := end - wanted - removed.count_from(first)) < first:
        first = earlier
    return max(first, 0)


def without(removed: RemovedOffsets | None, start: int, end: int) -> list[Span]:
    """Return the spans of [start, end) that are not removed."""
    spans: list[Span] = []
    for gone_from, gone_to in () if removed is None else removed.spans():
        if start < min(gone_from, end):
            spans.append((start, min(gone_from, end)))
        start = max(start, gone_to)
    return [*spans, (start, end)] if start < end else spans


def count(spans: Iterable[Span]) -> int:
    """Count the offsets that are in any of the spans."""
    total, reached = 0, 0
    for start, end in sorted(spans):
        total += max(end - max(start, reached), 0)
        reached = max(reached, end)
    return total


def unsettled_before(queue: Queue, before: int) -> int:
    """Count the messages before the offset that the slowest group has yet to settle; without a group, all of them."""
    removed = queue.core.removed
    if queue.core.is_stream or not queue.groups:
        start = queue.head if queue.core.is_stream else queue.core.floor
        return count(without(removed, start, before))
    return max(
        count(without(removed, group.cursor, before))
        + sum(entry[0] < before for entry in group.core.pending.entries(group.pending))
        for group in queue.groups.values()
    )
