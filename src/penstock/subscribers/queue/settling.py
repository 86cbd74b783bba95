"""How a consumer settles what was delivered to it."""

from __future__ import annotations

import enum

from penstock._ext.hub.connection import QueueConsumer
from penstock.core.refusal import Refusal, Refused

NOT_PENDING = "the message is not pending: settled before, or never delivered"
NOT_YOURS = "the message is with another consumer"


class Outcome(enum.IntEnum):
    """The numbers are those of QueueVerb in the compiled half."""

    ACCEPTED = 1
    NACKED = 2  # failed: it is delivered again after a delay, and that delivery counts
    REJECTED = 3  # never to be delivered again: it becomes a dead letter
    EXTENDED = 5  # still worked on: not settled, and the visibility timeout begins again
    RELEASED = 7  # not worked on: any consumer may have it at once


def settle(
    consumer: QueueConsumer, offset: int, outcome: Outcome, *, delay: float | None = None, reason: str | None = None
) -> None:
    """Settle a delivery; raises Refused. `delay` in seconds holds for NACKED and EXTENDED, `reason` for REJECTED. The
    settlement is durable when `QueueDesk.when_durable` says so."""
    milliseconds = -1 if delay is None else int(delay * 1000)
    if delay is not None and not 0 <= milliseconds <= consumer.group.max_delay:
        most = consumer.group.max_delay / 1000
        raise Refused(Refusal.INVALID_ARGUMENT, f"delay must be from 0 to {most:g} seconds (got {delay:g})")
    result = consumer.settle(offset, outcome, milliseconds, reason)
    if result:
        raise Refused(Refusal.NOT_FOUND, NOT_PENDING) if result == 1 else Refused(Refusal.IN_USE, NOT_YOURS)
