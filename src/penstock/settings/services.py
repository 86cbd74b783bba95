"""Settings of the queues between services, with the topics and defaults of the ThingsBoard queue architecture.

These are not the durable queues of clients (settings/queues.py). docs/queue-architecture.md explains both words.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta, field

from penstock.settings.section import Section, about

MIB = 1024 * 1024
LARGEST_COUNT = 0x7FFFFFFF

PARTITIONS = "partitions; each is a topic of its own"
PARTITIONS_OF_TOPIC = "partitions of each of its topics"
BASE_TOPIC = "base topic"
Partitions = Annotated[int, Meta(ge=1, le=10_000), about(PARTITIONS)]
InternalPartitions = Annotated[int, Meta(ge=1, le=10_000), about(PARTITIONS_OF_TOPIC)]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$", max_length=200)]
Pause = Annotated[float, Meta(ge=0, le=86_400)]
PackSeconds = Annotated[
    float, Meta(gt=0, le=600), about("time in which the messages of a pack have to be handled", unit="seconds")
]


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


Submit = Annotated[SubmitStrategy, about("which messages of a pack may be in flight at the same time")]
Acknowledge = Annotated[AckStrategy, about("which messages are sent again")]
Retries = Annotated[
    int, Meta(ge=0, le=LARGEST_COUNT), about("how often one message is sent again; 0 = without a limit")
]
FirstPause = Annotated[Pause, about("pause before the first retry; each further one is twice as long", unit="seconds")]
LongestPause = Annotated[Pause, about("longest pause between retries", unit="seconds")]


class SubmitSettings(Section, frozen=True):
    """The table `submit_strategy` of a queue."""

    strategy: Submit = field(default=SubmitStrategy.BURST, name="type")
    batch_size: Annotated[int, Meta(ge=1, le=LARGEST_COUNT), about("messages of a batch, for BATCH")] = 1_000

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batches of {self.batch_size} messages: use 1 or more")


class AckSettings(Section, frozen=True):
    """The table `processing_strategy` of a queue."""

    strategy: Acknowledge = field(default=AckStrategy.SKIP_ALL_FAILURES, name="type")
    retries: Retries = 3
    failure_percentage: Annotated[
        float,
        Meta(ge=0, le=100),
        about("percent of a pack; if more messages failed or timed out, none of the pack is sent again; 0 = off"),
    ] = 0.0
    pause: FirstPause = field(default=3.0, name="pause_between_retries")
    max_pause: LongestPause = field(default=3.0, name="max_pause_between_retries")

    def __post_init__(self) -> None:
        if self.retries < 0 or self.pause < 0 or self.max_pause < 0:
            raise ValueError("retries and pauses cannot be negative")
        if not 0 <= self.failure_percentage <= 100:
            raise ValueError(f"a failure percentage of {self.failure_percentage}: use 0 to 100")


class OrderedSubmit(SubmitSettings, frozen=True):
    """Where order within a key matters, and keys are many."""

    strategy: Submit = field(default=SubmitStrategy.SEQUENTIAL_BY_ORIGINATOR, name="type")


class PatientAck(AckSettings, frozen=True):
    """Where most failures are those of the log or of the network, which pass: about a minute of retries."""

    strategy: Acknowledge = field(default=AckStrategy.RETRY_FAILED_AND_TIMED_OUT, name="type")
    retries: Retries = 10
    pause: FirstPause = field(default=0.5, name="pause_between_retries")
    max_pause: LongestPause = field(default=10.0, name="max_pause_between_retries")


class OtaSettings(Section, frozen=True):
    topic: Annotated[Name, about("base topic of firmware updates")] = "tb_ota_package"


class HousekeeperSettings(Section, frozen=True):
    """Removal of topics and queues that sessions leave, and how often it is tried."""

    topic: Annotated[Name, about("base topic of removals")] = "tb_housekeeper"
    submit_strategy: OrderedSubmit = OrderedSubmit()
    processing_strategy: PatientAck = PatientAck()
    pack_seconds: PackSeconds = field(default=30.0, name="pack_processing_timeout")


class CoreServiceSettings(Section, frozen=True):
    """Core services."""

    topic: Annotated[Name, about(BASE_TOPIC)] = "tb_core"
    partitions: Partitions = 10
    ota: OtaSettings = OtaSettings()
    usage_stats_topic: Annotated[Name, about("topic of usage statistics")] = "tb_usage_stats"
    housekeeper: HousekeeperSettings = HousekeeperSettings()


class RuleEngineQueue(Section, frozen=True):
    """One queue of the rule engines."""

    name: Annotated[Name, about("name of the queue")]
    topic: Annotated[Name, about("its topic, after `services.rule_engine.topic` and a dot")]
    partitions: Partitions = 10
    duplicate_to_all: Annotated[bool, about("every rule engine gets every message")] = False
    submit_strategy: SubmitSettings = SubmitSettings()
    processing_strategy: AckSettings = AckSettings()
    pack_seconds: PackSeconds = field(default=2.0, name="pack_processing_timeout")


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


class RuleEngineSettings(Section, frozen=True):
    topic: Annotated[Name, about(BASE_TOPIC)] = "tb_rule_engine"
    queues: Annotated[
        tuple[RuleEngineQueue, ...], about("the queues of the rule engines, each a table of the keys below")
    ] = DEFAULT_RULE_ENGINE_QUEUES


class EdgeServiceSettings(Section, frozen=True):
    topic: Annotated[Name, about(BASE_TOPIC)] = "tb_edge"
    partitions: Partitions = 10


class VersionControlSettings(Section, frozen=True):
    topic: Annotated[Name, about(BASE_TOPIC)] = "tb_version_control"
    partitions: Partitions = 10


class TransportSettings(Section, frozen=True):
    topic: Annotated[Name, about("base topic of the notifications of transports")] = "tb_transport"


class TransportApiSettings(Section, frozen=True):
    topic: Annotated[Name, about("base topic of requests and responses")] = "tb_transport.api"
    partitions: InternalPartitions = 10


class CalculatedFieldSettings(Section, frozen=True):
    event_topic: Annotated[Name, about("base topic of events")] = "tb_cf_event"
    state_topic: Annotated[Name, about("base topic of the state")] = "tb_cf_state"
    partitions: Partitions = 10


class JsServiceSettings(Section, frozen=True):
    topic: Annotated[Name, about("base topic of requests and responses")] = "js_eval"
    partitions: InternalPartitions = 30


class EdqsServiceSettings(Section, frozen=True):
    topic: Annotated[Name, about("base topic of events, state, requests and responses")] = "edqs"
    partitions: InternalPartitions = 12


class TaskSettings(Section, frozen=True):
    stats_topic: Annotated[Name, about("topic of statistics")] = "jobs.stats"
    partitions: InternalPartitions = 12
    types: Annotated[tuple[Name, ...], about("job types; each is a topic")] = ()


class PartitionSettings(Section, frozen=True):
    hash_function_name: Annotated[
        Literal["murmur3_128", "murmur3_32", "sha256"], about("function that spreads keys over partitions")
    ] = "murmur3_128"
    ownership: Annotated[
        Literal["round-robin", "rendezvous"],
        about("rule for the owner of a partition: the compatible one, or the one that moves the fewest partitions"),
    ] = "round-robin"
    recalculate_delay: Annotated[
        float,
        Meta(ge=0, le=3_600),
        about("time a member that left has to return before its partitions move", unit="seconds"),
    ] = 0.0


class NotificationSettings(Section, frozen=True):
    """How messages to this instance alone are handled."""

    submit_strategy: OrderedSubmit = OrderedSubmit()
    processing_strategy: PatientAck = PatientAck()
    pack_seconds: PackSeconds = field(default=10.0, name="pack_processing_timeout")


class ChangeSettings(Section, frozen=True):
    """How changes that other instances made are followed."""

    submit_strategy: OrderedSubmit = OrderedSubmit()
    processing_strategy: PatientAck = PatientAck()
    pack_seconds: PackSeconds = field(default=30.0, name="pack_processing_timeout")


class ServiceSettings(Section, frozen=True):
    """Queues between services, compatible with ThingsBoard, and the calls between brokers.

    [Queue architecture](queue-architecture.md) explains them. They are not the durable queues of clients, which are
    `[[queues]]` and `[durable_queues]`.
    """

    type: Annotated[
        Literal["", "kafka", "in-memory"],
        about("where the queues are; empty = where the log is, and nothing else is possible"),
    ] = ""
    prefix: Annotated[
        str,
        Meta(pattern=r"^([A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*)?$"),
        about("prefix of every topic and group of this installation, the broker's own ones included"),
    ] = ""
    max_message_size: Annotated[
        int, Meta(ge=1_024, le=64 * MIB), about("larger messages are refused when they are sent", unit="bytes")
    ] = MIB
    create_topics: Annotated[Literal["on-use", "at-start"], about("when the topics of these queues are created")] = (
        "on-use"
    )
    core: CoreServiceSettings = CoreServiceSettings()
    rule_engine: RuleEngineSettings = RuleEngineSettings()
    edge: EdgeServiceSettings = EdgeServiceSettings()
    vc: VersionControlSettings = VersionControlSettings()
    transport: TransportSettings = TransportSettings()
    transport_api: TransportApiSettings = TransportApiSettings()
    calculated_fields: CalculatedFieldSettings = CalculatedFieldSettings()
    js: JsServiceSettings = JsServiceSettings()
    edqs: EdqsServiceSettings = EdqsServiceSettings()
    tasks: TaskSettings = TaskSettings()
    partitions: PartitionSettings = PartitionSettings()
    notifications: NotificationSettings = NotificationSettings()
    changes: ChangeSettings = ChangeSettings()
    topic_properties: Annotated[
        dict[str, str], about("by base topic, `name:value;name:value`; these win over the defaults of the topic")
    ] = field(default_factory=dict)
