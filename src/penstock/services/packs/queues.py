"""How a queue is processed, as data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from penstock.settings.services import AckSettings, SubmitSettings


@dataclass(frozen=True, slots=True)
class PackQueue:
    name: str
    topic: str
    partitions: int = 10
    pack_seconds: float = 2.0
    """How long the messages that were submitted have to be handled; then they have timed out."""
    max_records: int = 1_000
    submit: SubmitSettings = dataclasses.field(default_factory=SubmitSettings)
    ack: AckSettings = dataclasses.field(default_factory=AckSettings)
