"""What a topic's properties say, for the providers that keep the records themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from penstock.storage.log.base import LogError

UNLIMITED = -1
LONGEST_NAME = 1_000
MOST_PARTITIONS = 10_000
WEEK_MS = 604_800_000


# What the providers that keep records themselves understand, and what they let pass because Kafka's topics have it.
KNOWN_PROPERTIES = (
    "retention.ms",
    "retention.bytes",
    "retention.messages",
    "segment.bytes",
    "segment.ms",
    "delete.retention.ms",
    "min.cleanable.dirty.ratio",
    "cleanup.policy",
    "partitions",
    "replication.factor",
    "min.insync.replicas",
    "max.message.bytes",
    "compression.type",
    "flush.ms",
)


def check_properties(properties: Mapping[str, str]) -> None:
    """Raises ValueError for a name that means nothing: most often a slip of the pen."""
    for name in properties:
        if name not in KNOWN_PROPERTIES:
            near = get_close_matches(name, KNOWN_PROPERTIES, n=1)
            known = f"did you mean {near[0]}?" if near else f"there are {', '.join(KNOWN_PROPERTIES)}"
            raise ValueError(f"{name} is not a property of a topic: {known}")


def _number(properties: Mapping[str, str], name: str, default: float, kind: Callable[[str], float] = int) -> float:
    try:
        return kind(properties[name]) if name in properties else default
    except ValueError:
        raise ValueError(f"{name} {properties[name]!r} is not a number") from None


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """Kafka's names and defaults. Limits of retention are stated per partition, and -1 is none. The embedded log keeps
    all partitions of a topic in the same segments: there the topic as a whole has the limit times its partitions, and
    the oldest segment goes, whichever partition its records are of."""

    partitions: int
    properties: Mapping[str, str] = field(default_factory=dict)
    retention_ms: int = WEEK_MS
    retention_bytes: int = UNLIMITED
    retention_messages: int = UNLIMITED
    segment_bytes: int = 26_214_400
    segment_ms: int = WEEK_MS
    delete_retention_ms: int = 86_400_000
    dirty_ratio: float = 0.5
    is_compacted: bool = False
    is_deleted: bool = True
    is_lazy: bool = False  # flush.ms: appends do not wait for the disk, only for the system

    @classmethod
    def of(cls, topic: str, partitions: int, properties: Mapping[str, str] | None) -> TopicConfig:
        """Raises LogError when a value makes no sense. Properties of Kafka that mean nothing here are kept as text."""
        kept = dict(properties or {})
        # ThingsBoard's settings carry the number of partitions among the properties
        stated = kept.pop("partitions", None)
        try:
            if stated is not None and partitions == 1:
                partitions = int(_number({"partitions": stated}, "partitions", 1))
            if not topic or len(topic) > LONGEST_NAME or "\0" in topic:
                raise ValueError(f"a topic's name has 1 to {LONGEST_NAME} characters")
            topic.encode()  # it stands in files and in packets, where lone surrogates cannot
            if not 1 <= partitions <= MOST_PARTITIONS:
                raise ValueError(f"{partitions} partitions: 1 to {MOST_PARTITIONS} are possible")
            policies = {policy.strip() for policy in kept.get("cleanup.policy", "delete").split(",")}
            if not policies <= {"compact", "delete"}:
                raise ValueError(f"cleanup.policy {kept['cleanup.policy']!r} is not compact, delete or both")
            return cls(
                partitions,
                kept,
                int(_number(kept, "retention.ms", WEEK_MS)),
                int(_number(kept, "retention.bytes", UNLIMITED)),
                int(_number(kept, "retention.messages", UNLIMITED)),
                max(1_024, int(_number(kept, "segment.bytes", 26_214_400))),
                max(1, int(_number(kept, "segment.ms", WEEK_MS))),
                int(_number(kept, "delete.retention.ms", 86_400_000)),
                _number(kept, "min.cleanable.dirty.ratio", 0.5, float),
                "compact" in policies,
                "delete" in policies,
                "flush.ms" in kept,
            )
        except ValueError as error:
            raise LogError(f"topic {topic!r} cannot be created: {error}") from None

    @property
    def total_bytes(self) -> int:
        """What all partitions together may take, or UNLIMITED."""
        return self.retention_bytes * self.partitions if self.retention_bytes >= 0 else UNLIMITED

    @property
    def total_messages(self) -> int:
        return self.retention_messages * self.partitions if self.retention_messages >= 0 else UNLIMITED
