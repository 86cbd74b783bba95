"""What all durable queues together have done since the start, those that are gone too: a counter never goes back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.subscribers.queue.abandoned import holder_of

if TYPE_CHECKING:
    from penstock.subscribers.queue.group import Group
    from penstock.subscribers.queue.queue import Queue

OF_A_GROUP = ("delivered", "redelivered", "acknowledged", "nacked", "rejected", "expired")


class Figures:
    """`keep_group` and `keep_queue` are told before one goes, a queue's groups before the queue."""

    def __init__(self) -> None:
        self._gone: Counter[str] = Counter()

    def keep_group(self, group: Group) -> None:
        self._gone.update(_of_group(group))

    def keep_queue(self, queue: Queue) -> None:
        self._gone.update(_of_queue(queue))

    def read(self, queues: Mapping[str, Queue]) -> dict[str, int | float]:
        totals = Counter(dict.fromkeys([f"queue_{name}" for name in OF_A_GROUP], 0))
        totals.update(self._gone)
        groups = consumers = pending = held_back = 0
        for queue in queues.values():
            totals.update(_of_queue(queue))
            held_back += holder_of(queue) is not None
            for group in queue.groups.values():
                groups += 1
                consumers += len(group.members)
                pending += group.pending
                totals.update(_of_group(group))
        now = {
            "queues": len(queues),
            "queues_held_back": held_back,
            "queue_groups": groups,
            "queue_consumers": consumers,
            "queue_pending": pending,
        }
        return {"queue_published": 0, "queue_refused": 0, "queue_dropped": 0, "queue_dead_letters": 0, **now, **totals}


def _of_group(group: Group) -> dict[str, int]:
    return {f"queue_{name}": getattr(group.core, name) for name in OF_A_GROUP}


def _of_queue(queue: Queue) -> dict[str, int]:
    return {
        "queue_published": queue.core.published,
        "queue_refused": queue.refused,
        "queue_dropped": queue.dropped,
        "queue_dead_letters": queue.dead,
        "queue_expired": queue.expired_late,
    }
