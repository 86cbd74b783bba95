"""How a queue is processed, as data; the same structures are tables of the settings."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum

from msgspec import field

from penstock.settings.section import Section


class SubmitStrategy(StrEnum):
    """Which messages of a pack may be in flight at the same time."""

    BURST = "BURST"
    BATCH = "BATCH"
    SEQUENTIAL = "SEQUENTIAL"
    SEQUENTIAL_BY_ORIGINATOR = "SEQUENTIAL_BY_ORIGINATOR"
    SEQUENTIAL_BY_TENANT = "SEQUENTIAL_BY_TENANT"


class AckStrategy(StrEnum):
    """Which messages are sent again."""

    SKIP_ALL_FAILURES = "SKIP_ALL_FAILURES"
    SKIP_ALL_FAILURES_AND_TIMED_OUT = "SKIP_ALL_FAILURES_AND_TIMED_OUT"
    RETRY_ALL = "RETRY_ALL"
    RETRY_FAILED = "RETRY_FAILED"
    RETRY_TIMED_OUT = "RETRY_TIMED_OUT"
    RETRY_FAILED_AND_TIMED_OUT = "RETRY_FAILED_AND_TIMED_OUT"

    @property
    def retries_failed(self) -> bool:
        return self in {self.RETRY_ALL, self.RETRY_FAILED, self.RETRY_FAILED_AND_TIMED_OUT}

    @property
    def retries_timed_out(self) -> bool:
        return self in {self.RETRY_ALL, self.RETRY_TIMED_OUT, self.RETRY_FAILED_AND_TIMED_OUT}


class SubmitSettings(Section, frozen=True):
    """The table `submit-strategy` of a queue."""

    strategy: SubmitStrategy = field(default=SubmitStrategy.BURST, name="type")
    batch_size: int = field(default=1_000, name="batch-size")

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batches of {self.batch_size} messages: use 1 or more")


class AckSettings(Section, frozen=True):
    """The table `processing-strategy` of a queue."""

    strategy: AckStrategy = field(default=AckStrategy.SKIP_ALL_FAILURES, name="type")
    retries: int = 3
    """How often one message is sent again; 0 = for ever."""
    failure_percentage: float = field(default=0.0, name="failure-percentage")
    """Of the pack's messages. When more have failed or timed out, nothing of the pack is sent again; 0 = off."""
    pause: float = field(default=3.0, name="pause-between-retries")
    """Seconds before the first retry; doubles with each, up to max_pause."""
    max_pause: float = field(default=3.0, name="max-pause-between-retries")

    def __post_init__(self) -> None:
        if self.retries < 0 or self.pause < 0 or self.max_pause < 0:
            raise ValueError("retries and pauses cannot be negative")
        if not 0 <= self.failure_percentage <= 100:
            raise ValueError(f"a failure percentage of {self.failure_percentage}: use 0 to 100")


class OrderedSubmit(SubmitSettings, frozen=True):
    """Where order within a key matters, and keys are many."""

    strategy: SubmitStrategy = field(default=SubmitStrategy.SEQUENTIAL_BY_ORIGINATOR, name="type")


class PatientAck(AckSettings, frozen=True):
    """Where a failure is most likely one of the log or of the network, which passes: about a minute of retries."""

    strategy: AckStrategy = field(default=AckStrategy.RETRY_FAILED_AND_TIMED_OUT, name="type")
    retries: int = 10
    pause: float = field(default=0.5, name="pause-between-retries")
    max_pause: float = field(default=10.0, name="max-pause-between-retries")


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
