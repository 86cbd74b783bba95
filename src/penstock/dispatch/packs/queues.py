"""How a queue is processed, and the three queues that exist from the start, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


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


@dataclass(frozen=True, slots=True)
class SubmitSettings:
    strategy: SubmitStrategy = SubmitStrategy.BURST
    batch_size: int = 1_000

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batches of {self.batch_size} messages: use 1 or more")


@dataclass(frozen=True, slots=True)
class AckSettings:
    strategy: AckStrategy = AckStrategy.SKIP_ALL_FAILURES
    retries: int = 3
    """How often one message is sent again; 0 = for ever."""
    failure_percentage: float = 0.0
    """Of the pack's messages. When more have failed or timed out, nothing of the pack is sent again; 0 = off."""
    pause: float = 3.0
    """Seconds before the first retry; doubles with each, up to max_pause."""
    max_pause: float = 3.0

    def __post_init__(self) -> None:
        if self.retries < 0 or self.pause < 0 or self.max_pause < 0:
            raise ValueError("retries and pauses cannot be negative")
        if not 0 <= self.failure_percentage <= 100:
            raise ValueError(f"a failure percentage of {self.failure_percentage}: use 0 to 100")


@dataclass(frozen=True, slots=True)
class PackQueue:
    name: str
    topic: str
    partitions: int = 10
    poll_seconds: float = 0.025
    """Only where the provider has no long poll; see PackProcessor."""
    pack_seconds: float = 2.0
    """How long the messages that were submitted have to be handled; then they have timed out."""
    max_records: int = 1_000
    submit: SubmitSettings = field(default_factory=SubmitSettings)
    ack: AckSettings = field(default_factory=AckSettings)


MAIN = PackQueue("Main", "tb_rule_engine.main")
HIGH_PRIORITY = PackQueue(
    "HighPriority",
    "tb_rule_engine.hp",
    ack=AckSettings(AckStrategy.RETRY_FAILED_AND_TIMED_OUT, retries=0, pause=5.0, max_pause=5.0),
)
SEQUENTIAL_BY_ORIGINATOR = PackQueue(
    "SequentialByOriginator",
    "tb_rule_engine.sq",
    submit=SubmitSettings(SubmitStrategy.SEQUENTIAL_BY_ORIGINATOR, batch_size=100),
    ack=AckSettings(AckStrategy.RETRY_FAILED_AND_TIMED_OUT, retries=3, pause=5.0, max_pause=5.0),
)
DEFAULT_QUEUES = {queue.name: queue for queue in (MAIN, HIGH_PRIORITY, SEQUENTIAL_BY_ORIGINATOR)}

CORE_PACK_SECONDS = 2.0
EDGE_PACK_SECONDS = 10.0
VERSION_CONTROL_PACK_SECONDS = 180.0
CALCULATED_FIELD_PACK_SECONDS = 60.0
