"""A message of a pack, and what became of it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from penstock.core.errors import PenstockError


class State(Enum):
    WAITING = "waiting"  # not submitted in this round
    IN_FLIGHT = "in flight"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    SKIPPED = "skipped"  # failed or timed out for good; nobody sends it again


class NotYet(PenstockError):
    """Raised by a handler for what has to wait a little: tried again as any failure is, but nothing is wrong."""


@dataclass(slots=True, eq=False)
class PackMessage:
    """`value` is what was decoded; the keys say which messages must not overtake each other."""

    value: Any
    originator: Hashable | None = None
    tenant: Hashable | None = None
    topic: str = ""
    partition: int = 0
    offset: int = -1
    attempts: int = 0
    state: State = State.WAITING
    reason: str = ""
    """Why it failed the last time."""
    has_to_wait: bool = False
    """That was no failure, see NotYet."""
