"""Settings of the queues between services, under the keys the seed document gives them: `queue.core.topic` …"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from penstock.core.errors import SettingsError
from penstock.services.model import CALCULATED_FIELDS
from penstock.services.packs.queues import (
    AckSettings,
    AckStrategy,
    OrderedSubmit,
    PatientAck,
    SubmitSettings,
    SubmitStrategy,
)
from penstock.settings.address import parse_address
from penstock.settings.model import MIB
from penstock.settings.section import Section

OFF = "off"
Partitions = Annotated[int, Meta(ge=1, le=10_000)]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$", max_length=200)]
PackSeconds = Annotated[float, Meta(gt=0, le=600, description="seconds the messages that were submitted have")]


class TopicOnly(Section, frozen=True):
    topic: Name


class HousekeeperSettings(Section, frozen=True):
    """What is to be removed, and how often that is tried."""

    topic: Annotated[Name, Meta(description="base topic")] = "tb_housekeeper"
    submit_strategy: OrderedSubmit = field(default=OrderedSubmit(), name="submit-strategy")
    processing_strategy: PatientAck = field(default=PatientAck(), name="processing-strategy")
    pack_seconds: PackSeconds = field(default=30.0, name="pack-processing-timeout")


class CoreQueueSettings(Section, frozen=True):
    """Core services."""

    topic: Annotated[Name, Meta(description="base topic")] = "tb_core"
    partitions: Annotated[Partitions, Meta(description="partitions; each is a topic of its own")] = 10
    ota: TopicOnly = TopicOnly(topic="tb_ota_package")
    usage_stats_topic: Annotated[Name, Meta(description="usage statistics")] = field(
        default="tb_usage_stats", name="usage-stats-topic"
    )
    housekeeper: HousekeeperSettings = HousekeeperSettings()


class RuleEngineQueue(Section, frozen=True):
    """One queue of the rule engines. Its topic is the rule engines' base and this one."""

    name: Name
    topic: Name
    partitions: Partitions = 10
    duplicate_to_all: bool = False
    submit_strategy: SubmitSettings = field(default=SubmitSettings(), name="submit-strategy")
    processing_strategy: AckSettings = field(default=AckSettings(), name="processing-strategy")
    pack_seconds: PackSeconds = field(default=2.0, name="pack-processing-timeout")


DEFAULT_RULE_ENGINE_QUEUES = (
    RuleEngineQueue(name="Main", topic="main"),
    RuleEngineQueue(
        name="HighPriority",
        topic="hp",
        processing_strategy=AckSettings(
            strategy=AckStrategy.RETRY_FAILED_AND_TIMED_OUT, retries=0, pause=5.0, max_pause=5.0
        ),
    ),
    RuleEngineQueue(
        name="SequentialByOriginator",
        topic="sq",
        submit_strategy=SubmitSettings(strategy=SubmitStrategy.SEQUENTIAL_BY_ORIGINATOR, batch_size=100),
        processing_strategy=AckSettings(
            strategy=AckStrategy.RETRY_FAILED_AND_TIMED_OUT, retries=3, pause=5.0, max_pause=5.0
        ),
    ),
)


class RuleEngineQueueSettings(Section, frozen=True):
    topic: Annotated[Name, Meta(description="base topic")] = "tb_rule_engine"
    queues: tuple[RuleEngineQueue, ...] = DEFAULT_RULE_ENGINE_QUEUES


class EdgeQueueSettings(Section, frozen=True):
    topic: Name = "tb_edge"
    partitions: Partitions = 10


class VersionControlQueueSettings(Section, frozen=True):
    topic: Name = "tb_version_control"
    partitions: Partitions = 10


class TransportQueueSettings(Section, frozen=True):
    topic: Annotated[Name, Meta(description="base of the notifications of transports")] = "tb_transport"


class TransportApiQueueSettings(Section, frozen=True):
    topic: Annotated[Name, Meta(description="base of requests and responses")] = "tb_transport.api"
    partitions: Partitions = 10


class CalculatedFieldQueueSettings(Section, frozen=True):
    event_topic: Name = field(default="tb_cf_event", name="event-topic")
    state_topic: Name = field(default="tb_cf_state", name="state-topic")
    partitions: Partitions = 10


class JsQueueSettings(Section, frozen=True):
    topic: Annotated[Name, Meta(description="base of requests and responses")] = "js_eval"
    partitions: Partitions = 30


class EdqsQueueSettings(Section, frozen=True):
    topic: Annotated[Name, Meta(description="base of events, state, requests and responses")] = "edqs"
    partitions: Partitions = 12


class TaskQueueSettings(Section, frozen=True):
    stats_topic: Name = field(default="jobs.stats", name="stats-topic")
    partitions: Partitions = 12
    types: Annotated[tuple[Name, ...], Meta(description="job types; each is a topic")] = ()


class PartitionSettings(Section, frozen=True):
    hash_function_name: Annotated[
        Literal["murmur3_128", "murmur3_32", "sha256"], Meta(description="what spreads keys over partitions")
    ] = "murmur3_128"
    ownership: Annotated[
        Literal["round-robin", "rendezvous"],
        Meta(description="who owns a partition: the compatible rule, or the one that moves the fewest"),
    ] = "round-robin"
    recalculate_delay: Annotated[
        float, Meta(ge=0, le=3_600, description="seconds a member that left has to return before its partitions move")
    ] = 0.0


class NotificationSettings(Section, frozen=True):
    """How what is told to this instance alone is handled."""

    submit_strategy: OrderedSubmit = field(default=OrderedSubmit(), name="submit-strategy")
    processing_strategy: PatientAck = field(default=PatientAck(), name="processing-strategy")
    pack_seconds: PackSeconds = field(default=10.0, name="pack-processing-timeout")


class ChangeSettings(Section, frozen=True):
    """How what other instances have changed is followed."""

    submit_strategy: OrderedSubmit = field(default=OrderedSubmit(), name="submit-strategy")
    processing_strategy: PatientAck = field(default=PatientAck(), name="processing-strategy")
    pack_seconds: PackSeconds = field(default=30.0, name="pack-processing-timeout")


class ClusterSettings(Section, frozen=True):
    """Membership through the log."""

    topic: Name = "penstock.cluster.members"
    heartbeat_interval: Annotated[float, Meta(gt=0, le=600)] = 2.0
    member_timeout: Annotated[float, Meta(gt=0, le=3_600)] = 10.0
    adopt_after: Annotated[float, Meta(ge=0, le=86_400)] = 30.0
    forget_after: Annotated[
        float,
        Meta(gt=0, le=30 * 86_400, description="seconds after which the topics of a member that left are deleted"),
    ] = 86_400.0
    changes: ChangeSettings = ChangeSettings()
    relay_address: Annotated[
        str,
        Meta(
            description="host:port where other nodes reach this one, for consumers of its queues; port 0 = a free one; "
            "empty = a free port of the address from which Kafka is reached; off = nobody does"
        ),
    ] = ""
    relay_advertised: Annotated[
        str, Meta(description="host:port that other nodes use instead, where there is a translation in between")
    ] = ""


class QueueSettings(Section, frozen=True):
    """The queues between services."""

    type: Annotated[
        Literal["kafka", "in-memory"] | None, Meta(description="where the queues are; unset = where the log is")
    ] = None
    prefix: Annotated[
        str, Meta(pattern=r"^([A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*)?$", description="in front of every topic and group")
    ] = ""
    max_message_size: Annotated[int, Meta(ge=1_024, le=64 * MIB, description="larger messages are refused at send")] = (
        MIB
    )
    create_topics: Annotated[
        Literal["on-use", "at-start"], Meta(description="when the topics of the table are made")
    ] = field(default="on-use", name="create-topics")
    core: CoreQueueSettings = CoreQueueSettings()
    rule_engine: RuleEngineQueueSettings = field(default=RuleEngineQueueSettings(), name="rule-engine")
    edge: EdgeQueueSettings = EdgeQueueSettings()
    vc: VersionControlQueueSettings = VersionControlQueueSettings()
    transport: TransportQueueSettings = TransportQueueSettings()
    transport_api: TransportApiQueueSettings = field(default=TransportApiQueueSettings(), name="transport-api")
    calculated_fields: CalculatedFieldQueueSettings = field(
        default=CalculatedFieldQueueSettings(), name="calculated-fields"
    )
    js: JsQueueSettings = JsQueueSettings()
    edqs: EdqsQueueSettings = EdqsQueueSettings()
    tasks: TaskQueueSettings = TaskQueueSettings()
    partitions: PartitionSettings = PartitionSettings()
    notifications: NotificationSettings = NotificationSettings()
    cluster: ClusterSettings = ClusterSettings()
    topic_properties: Annotated[
        dict[str, str], Meta(description="by base topic, `name:value;name:value` laid over the defaults")
    ] = field(default_factory=dict, name="topic-properties")


_FREE_TABLE = "topic-properties"


def parse_settings(document: Mapping[str, Any]) -> QueueSettings:
    """The contents of the table `queue`: nested tables, or dotted keys such as `core.ota.topic`, or both."""
    nested: dict[str, Any] = {}
    for name, value in document.items():
        table, dot, rest = name.partition(".")
        if table == _FREE_TABLE:  # names with dots of their own
            nested.setdefault(table, {}).update({rest: value} if dot else value)
        else:
            _put(nested, name, value)
    tasks = nested.get("tasks")
    # what comes from the environment and from flags is text
    if isinstance(tasks, dict) and isinstance(tasks.get("types"), str):
        tasks["types"] = [name.strip() for name in tasks["types"].split(",") if name.strip()]
    try:
        settings = msgspec.convert(nested, QueueSettings, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(f"queue: {error}") from None
    _check_heartbeats(settings.cluster)
    _check_addresses(settings.cluster)
    _check_names(settings.rule_engine)
    return settings


def _check_names(rule_engine: RuleEngineQueueSettings) -> None:
    for queue in rule_engine.queues:
        if queue.name.lower() == CALCULATED_FIELDS.lower():
            raise SettingsError(
                f"queue.rule-engine.queues: {queue.name} is the queue of queue.calculated-fields",
                "Give the queue another name.",
            )


def _check_heartbeats(cluster: ClusterSettings) -> None:
    interval, timeout = cluster.heartbeat_interval, cluster.member_timeout
    if timeout < 2 * interval:
        raise SettingsError(
            f"queue.cluster.member_timeout = {timeout:g} is not allowed with heartbeat_interval = {interval:g}",
            f"Use {2 * interval:g} or more, or let members tell more often that they live: every {timeout / 5:g} s.",
        )


def _check_addresses(cluster: ClusterSettings) -> None:
    for name in ("relay_address", "relay_advertised"):
        text: str = getattr(cluster, name)
        try:
            if text not in ("", OFF) and not parse_address(text).port and name == "relay_advertised":
                raise ValueError("it has no port")
        except ValueError as error:
            raise SettingsError(f"queue.cluster.{name} = {text!r} is not allowed: {error}; use host:port") from None


def _put(tree: dict[str, Any], name: str, value: Any) -> None:
    *path, last = name.split(".")
    for part in path:
        tree = tree.setdefault(part, {})
    if isinstance(value, Mapping):
        branch = tree.setdefault(last, {})
        for below, below_value in value.items():
            _put(branch, below, below_value)
    else:
        tree[last] = value


def check_type(settings: QueueSettings, provider: str) -> None:
    """The queues lie where the broker's log is. Raises SettingsError when they are wanted elsewhere."""
    if settings.type is None or (settings.type == "kafka") == (provider == "kafka"):
        return
    raise SettingsError(
        f"queue.type = {settings.type}, but log.provider = {provider}: the queues lie on the broker's log",
        'Set log.provider = "kafka" for queues in Kafka, another provider for queues of this process; or leave '
        "queue.type out.",
    )
