"""Settings of durable queues and streams (`$queue/…`), with FluxMQ's names and defaults.

A table of `[[queues]]` is also what a queue made at run time is defined by, so the structures are small and a queue
that says nothing shares its parts with all the others.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from penstock.settings.section import Section, about

MIB = 1024 * 1024
HOUR = 3_600
DAY = 24 * HOUR
LARGEST = 1 << 50

Natural = Annotated[int, Meta(ge=0, le=LARGEST)]
Seconds = Annotated[float, Meta(ge=0, le=10 * 365 * DAY)]
Interval = Annotated[float, Meta(ge=0.01, le=365 * DAY)]


class DurableQueueSettings(Section, frozen=True):
    """All durable queues together. [Durable queues](queues.md) explains them."""

    auto_commit_interval: Annotated[
        float,
        Meta(ge=0, le=HOUR),
        about("how often the place of a stream's group is committed; 0 = after each batch", unit="seconds", live=True),
    ] = 5.0
    default_queue: Annotated[
        bool,
        about("without any [[queues]], a queue `mqtt` for publishes under `$queue/` that no other queue takes"),
    ] = True
    auto_create: Annotated[
        Literal["durable", "ephemeral", "off"],
        about(
            "queue to create when a client publishes or subscribes to an unknown name; off: refuse the client",
            live=True,
        ),
    ] = "durable"
    max_auto_queues: Annotated[
        int,
        Meta(ge=1, le=1_000_000),
        about("queues that auto_create may have created at once; over it clients are refused (0x97)", live=True),
    ] = 1_000
    max_queues: Annotated[
        int, Meta(ge=1, le=1_000_000), about("queues at once, dead letters included; over it none is made", live=True)
    ] = 100_000
    ephemeral_bytes: Annotated[
        int,
        Meta(ge=65_536, le=1 << 44),
        about("memory of one ephemeral queue; over it, as over max_depth", unit="bytes"),
    ] = 64 * MIB
    retention_interval: Annotated[
        Interval, about("how often retention and expired queues are looked at", unit="seconds", live=True)
    ] = 300.0


class QueueLimits(Section, frozen=True):
    """Limits of a queue."""

    max_message_size: Annotated[
        int,
        Meta(ge=1, le=268_435_455),
        about("largest payload; MQTT has limits.max_packet_size too", unit="bytes", live=True),
    ] = 10 * MIB
    max_depth: Annotated[
        Natural,
        about(
            "messages the slowest group has yet to settle, 0 = no limit; streams are bound by retention instead",
            live=True,
        ),
    ] = 100_000
    message_ttl: Annotated[
        Seconds, about("messages older than this are not delivered any more, 0 = never", unit="seconds", live=True)
    ] = 7.0 * DAY


class QueueRetry(Section, frozen=True):
    """How often a classic queue delivers again, and when."""

    max_retries: Annotated[int, Meta(ge=0, le=65_534), about("deliveries after the first", live=True)] = 10
    initial_backoff: Annotated[Seconds, about("pause after the first nack", unit="seconds", live=True)] = 5.0
    max_backoff: Annotated[Seconds, about("longest pause", unit="seconds", live=True)] = 300.0
    multiplier: Annotated[float, Meta(ge=1, le=1_000), about("by which each further pause is longer", live=True)] = 2.0

    def delay(self, nacks: int) -> float:
        """Return the seconds until a message may be delivered again after this number of nacks."""
        try:
            return min(self.max_backoff, self.initial_backoff * self.multiplier ** max(0, nacks - 1))
        except OverflowError:
            return self.max_backoff


class QueueDeadLetters(Section, frozen=True):
    """Where rejected messages and those delivered too often go."""

    enabled: Annotated[bool, about("false: they are discarded, and counted", live=True)] = True
    topic: Annotated[
        str, about("another address for them, `$queue/OTHER[/KEY]`; empty = `$queue/$dlq/NAME`", live=True)
    ] = ""


class QueueRetention(Section, frozen=True):
    """Limits above which messages are removed: of a classic queue only those that every group has settled."""

    max_age: Annotated[Seconds, about("age of the oldest message, 0 = any", unit="seconds", live=True)] = 0.0
    max_length_bytes: Annotated[Natural, about("size of the log, 0 = any", unit="bytes", live=True)] = 0
    max_length_messages: Annotated[Natural, about("messages in the log, 0 = any", live=True)] = 0


class QueueReplication(Section, frozen=True):
    """Copies of a queue in a cluster; only `log.provider = "kafka"` has any. They hold when its topic is made."""

    enabled: Annotated[bool, about("false: as `[services]` and `[kafka]` say for all topics")] = False
    group: Annotated[
        str,
        Meta(max_length=255),
        about("accepted for compatibility, without effect: Kafka spreads topics by itself"),
    ] = ""
    mode: Annotated[
        Literal["sync", "async"], about("accepted, without effect: a publish always waits for min_in_sync_replicas")
    ] = "sync"
    ack_timeout: Annotated[
        Interval, about("accepted, without effect: kafka.delivery_timeout_ms holds for all", unit="seconds")
    ] = 5.0
    replication_factor: Annotated[int, Meta(ge=1, le=32_767), about("copies of the topic")] = 3
    min_in_sync_replicas: Annotated[int, Meta(ge=1, le=32_767), about("copies a publish must be in")] = 2


class QueueSettings(Section, frozen=True):
    """One durable queue. Write `[[queues]]` once for each, its tables as `[queues.limits]`, `[queues.retry]` and so on.

    A SIGHUP makes new queues and changes those that are there, except `type` and `durable`: for these a queue is
    deleted first. A queue that is no longer in the file stays until `penstock queue delete`.
    """

    name: Annotated[str, about("the NAME of `$queue/NAME/…`", live=True)] = ""
    type: Annotated[
        Literal["classic", "stream"], about("classic: each message is work for one consumer of a group; stream: a log")
    ] = "classic"
    durable: Annotated[bool, about("false: kept in memory only, and gone expires_after its last consumer left")] = True
    topics: Annotated[
        tuple[str, ...],
        about("filters of what enters besides `$queue/NAME/#`, such as `$queue/orders/+`", live=True),
    ] = ()
    capture: Annotated[
        bool, about("ordinary topics may be among `topics`: what is published there enters as well", live=True)
    ] = False
    primary_group: Annotated[
        str, Meta(max_length=65_535), about("of a stream: the group whose progress deliveries tell", live=True)
    ] = ""
    limits: QueueLimits = QueueLimits()
    retry: QueueRetry = QueueRetry()
    dlq: QueueDeadLetters = QueueDeadLetters()
    retention: QueueRetention = QueueRetention()
    replication: QueueReplication = QueueReplication()
    visibility_timeout: Annotated[
        Interval, about("a delivery not settled in this time is given to any consumer again", unit="seconds", live=True)
    ] = 30.0
    max_delay: Annotated[
        Interval, about("longest `delay` of a `$nack` and `timeout` of an `$extend`", unit="seconds", live=True)
    ] = 12.0 * HOUR
    max_pending: Annotated[
        int, Meta(ge=1, le=10_000_000), about("unsettled deliveries of a group; over it none is made", live=True)
    ] = 100_000
    expires_after: Annotated[
        Interval,
        about(
            "time after its last consumer left, or after its creation, when an ephemeral queue is deleted",
            unit="seconds",
            live=True,
        ),
    ] = 300.0
    group_expires_after: Annotated[
        Seconds,
        about(
            "time after which a group without a `consumer-group` name is removed, counted from when its client left; "
            "0 = only with the client's session",
            unit="seconds",
            live=True,
        ),
    ] = 7.0 * DAY
    named_group_expires_after: Annotated[
        Seconds,
        about(
            "time without a consumer after which a group with a `consumer-group` name is removed, even with unread "
            "messages; 0 = never",
            unit="seconds",
            live=True,
        ),
    ] = 0.0
    ack_durability: Annotated[
        Literal["fsync", "buffered"],
        about("what a publisher's acknowledgement waits for: the disk, or the write to the system", live=True),
    ] = "fsync"
    overflow: Annotated[
        Literal["reject", "drop-oldest"],
        about(
            "over max_depth: publishers are refused (0x97), or the oldest messages that no consumer has are dropped "
            "and counted",
            live=True,
        ),
    ] = "reject"
