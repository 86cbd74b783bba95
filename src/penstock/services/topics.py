"""Every topic of the queue architecture as data: how many partitions, how long it is kept, who has one of its own.

A partition is a topic of its own with one partition of the log (`tb_core.3`), except where a kind is `internal`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, NamedTuple
from uuid import UUID

from penstock.core.errors import SettingsError
from penstock.services.model import CALCULATED_FIELDS, EDGE, HOUSEKEEPER, MAIN, Queue, QueueKey, ServiceType
from penstock.services.names import topic_name
from penstock.settings.services import ServiceSettings
from penstock.storage.log.base import Admin, LogError, parse_properties
from penstock.storage.log.topics import TopicConfig

MINUTE = 60_000
DAY = 86_400_000
FOREVER = -1
PROPERTIES = "retention.bytes:1048576000;min.insync.replicas:1"
SEGMENT_BYTES = 52_428_800
# Calls between brokers: what nobody read within their deadlines is of no use, and small segments let it go soon.
CALL_RETENTION_MS = 10 * MINUTE
CALL_SEGMENT_BYTES = 10_485_760
INSTANCE_CHANNELS = {"sessions": "tbmq.client.session", "data-subscription": "tbmq.datasub"}
"""By what brokers call each other for: the base of the topics that each of them has."""
EDGE_EVENTS = "tb_edge_event"
CORE, RULE_ENGINE, TRANSPORT = ServiceType.TB_CORE, ServiceType.TB_RULE_ENGINE, ServiceType.TB_TRANSPORT

Kind = Literal["partitioned", "internal", "per-service"]


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A row of the table. `services` are the kinds of service that have a topic of their own each."""

    base: str
    partitions: int
    kind: Kind = "partitioned"
    retention_ms: int = 7 * DAY
    is_compacted: bool = False
    services: frozenset[ServiceType] = frozenset()
    segment_bytes: int = SEGMENT_BYTES

    def properties(self, overrides: Mapping[str, str] | None = None) -> dict[str, str]:
        found = {
            "retention.ms": str(self.retention_ms),
            "segment.bytes": str(self.segment_bytes),
            **parse_properties(PROPERTIES),
        }
        if self.is_compacted:
            found |= {"cleanup.policy": "compact", "retention.bytes": str(FOREVER)}
        return {**found, **(overrides or {})}


class Topic(NamedTuple):
    """One topic to create."""

    name: str
    partitions: int
    properties: dict[str, str]


def topic_table(settings: ServiceSettings) -> list[TopicSpec]:
    core, js, edqs, tasks = settings.core, settings.js, settings.edqs, settings.tasks
    api, fields = settings.transport_api, settings.calculated_fields
    rule_engine = [
        TopicSpec(f"{settings.rule_engine.topic}.{queue.topic}", queue.partitions)
        for queue in settings.rule_engine.queues
    ]
    return [
        TopicSpec(core.topic, core.partitions),
        TopicSpec(f"{core.topic}.notifications", 1, "per-service", services=frozenset([CORE])),
        *rule_engine,
        TopicSpec(f"{settings.rule_engine.topic}.notifications", 1, "per-service", services=frozenset([RULE_ENGINE])),
        TopicSpec(f"{settings.transport.topic}.notifications", 1, "per-service", services=frozenset([TRANSPORT])),
        TopicSpec(f"{api.topic}.requests", api.partitions, "internal"),
        TopicSpec(f"{api.topic}.responses", api.partitions, "internal"),
        TopicSpec(f"{api.topic}.responses", 1, "per-service", services=frozenset([TRANSPORT])),
        TopicSpec(settings.edge.topic, settings.edge.partitions),
        TopicSpec(f"{settings.edge.topic}.notifications", 1, "per-service", services=frozenset([CORE])),
        TopicSpec(f"{EDGE_EVENTS}.notifications", 1, "per-service"),  # of each edge of a tenant, made on use
        TopicSpec(core.usage_stats_topic, 1, "internal"),
        TopicSpec(core.ota.topic, core.partitions),
        TopicSpec(core.housekeeper.topic, core.partitions),
        TopicSpec(f"{core.housekeeper.topic}.reprocessing", 1, "internal", 90 * DAY),
        TopicSpec(settings.vc.topic, settings.vc.partitions),
        TopicSpec(fields.event_topic, fields.partitions),
        TopicSpec(fields.state_topic, fields.partitions, "partitioned", FOREVER, is_compacted=True),
        TopicSpec(f"{js.topic}.requests", js.partitions, "internal", DAY),
        TopicSpec(f"{js.topic}.responses", 1, "per-service", DAY, services=frozenset([CORE, RULE_ENGINE])),
        TopicSpec(f"{edqs.topic}.events", edqs.partitions, "internal", DAY),
        TopicSpec(f"{edqs.topic}.state", edqs.partitions, "internal", FOREVER, is_compacted=True),
        TopicSpec(f"{edqs.topic}.requests", edqs.partitions, "internal", 3 * MINUTE),
        TopicSpec(f"{edqs.topic}.responses", edqs.partitions, "internal", 3 * MINUTE),
        TopicSpec(f"{edqs.topic}.responses", 1, "per-service", 3 * MINUTE, services=frozenset([CORE])),
        TopicSpec(tasks.stats_topic, 1, "internal"),
        *(TopicSpec(job_type, tasks.partitions, "internal") for job_type in tasks.types),
        *(
            TopicSpec(
                f"{base}.{kind}",
                1,
                "per-service",
                CALL_RETENTION_MS,
                services=frozenset([CORE]),
                segment_bytes=CALL_SEGMENT_BYTES,
            )
            for base in INSTANCE_CHANNELS.values()
            for kind in ("notifications", "responses")
        ),
    ]


def default_queues(settings: ServiceSettings) -> list[Queue]:
    """The system's queues that the partition service shares out."""

    def queue(service_type: ServiceType, name: str, topic: str, partitions: int, **options: bool) -> Queue:
        return Queue(QueueKey(service_type, name), topic_name(topic, prefix=settings.prefix), partitions, **options)

    core, edge, edqs = settings.core, settings.edge, settings.edqs
    return [
        queue(CORE, MAIN, core.topic, core.partitions),
        queue(CORE, EDGE, edge.topic, edge.partitions),
        queue(CORE, HOUSEKEEPER, core.housekeeper.topic, core.partitions),
        queue(ServiceType.TB_VC_EXECUTOR, MAIN, settings.vc.topic, settings.vc.partitions),
        queue(ServiceType.EDQS, MAIN, f"{edqs.topic}.events", edqs.partitions, use_internal_partition=True),
        *(
            queue(
                ServiceType.TASK_PROCESSOR, job_type, job_type, settings.tasks.partitions, use_internal_partition=True
            )
            for job_type in settings.tasks.types
        ),
        *(
            queue(
                RULE_ENGINE,
                one.name,
                f"{settings.rule_engine.topic}.{one.topic}",
                one.partitions,
                duplicate_to_all=one.duplicate_to_all,
            )
            for one in settings.rule_engine.queues
        ),
        queue(
            RULE_ENGINE,
            CALCULATED_FIELDS,
            settings.calculated_fields.event_topic,
            settings.calculated_fields.partitions,
        ),
    ]


def notification_bases(settings: ServiceSettings) -> dict[ServiceType, str]:
    return {CORE: settings.core.topic, RULE_ENGINE: settings.rule_engine.topic, TRANSPORT: settings.transport.topic}


def find_spec(settings: ServiceSettings, topic: str) -> TopicSpec | None:
    """The row of a topic (with the prefix, without tenant and partition), or of a service's own topic."""
    for spec in topic_table(settings):
        base = topic_name(spec.base, prefix=settings.prefix)
        if topic.startswith(f"{base}.") if spec.kind == "per-service" else topic == base:
            return spec
    return None


def check_services(settings: ServiceSettings) -> None:
    """Raises SettingsError for a queue with the name of another one, and for properties of an unknown topic or of a
    topic that cannot be made."""
    for queue in settings.rule_engine.queues:
        if queue.name.lower() == CALCULATED_FIELDS.lower():
            raise SettingsError(
                f"services.rule_engine.queues: {queue.name} is the queue of services.calculated_fields",
                "Give the queue another name.",
            )
    specs = {spec.base: spec for spec in topic_table(settings)}
    for base in settings.topic_properties:
        spec = specs.get(base)
        if spec is None:
            near = get_close_matches(base, specs, n=1)
            raise SettingsError(
                f"services.topic_properties: there is no base topic {base!r}",
                f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(sorted(specs))}.",
            )
        count, properties = partitions_and_properties(settings, spec)
        try:
            TopicConfig.of(base, count, properties)
        except LogError as error:
            raise SettingsError(f"services.topic_properties: {error}") from None


def partitions_and_properties(settings: ServiceSettings, spec: TopicSpec) -> tuple[int, dict[str, str]]:
    """Of each of the topics of a row in the log."""
    try:
        overrides = parse_properties(settings.topic_properties.get(spec.base, ""))
    except ValueError as error:
        raise SettingsError(f"services.topic_properties: {spec.base}: {error}") from None
    count = _checked_count(spec, overrides.pop("partitions", None))
    return count, spec.properties(overrides)


def topics_of(
    settings: ServiceSettings,
    service_ids: Mapping[ServiceType, Iterable[str]] | None = None,
    tenant: UUID | None = None,
) -> list[tuple[TopicSpec, list[Topic]]]:
    """The table with the topics of each row: the shared ones and those of the given services; or, for an isolated
    tenant, its own rule-engine queues. Raises SettingsError."""
    check_services(settings)
    rows: list[tuple[TopicSpec, list[Topic]]] = []
    rule_engine_bases = {f"{settings.rule_engine.topic}.{queue.topic}" for queue in settings.rule_engine.queues}
    for spec in topic_table(settings):
        if tenant is not None and spec.base not in rule_engine_bases:
            continue
        partitions, properties = partitions_and_properties(settings, spec)
        names = _names(spec, settings.prefix, service_ids or {}, tenant)
        rows.append((spec, [Topic(name, partitions, properties) for name in names]))
    return rows


def _checked_count(spec: TopicSpec, override: str | None) -> int:
    """Partitions of the topic in the log. A number that would have no effect is refused, not ignored."""
    count = spec.partitions if spec.kind == "internal" else 1
    if override is None:
        return count
    has_setting_of_its_own = spec.kind != "internal" or spec.partitions > 1
    if has_setting_of_its_own and override != str(count):
        raise SettingsError(
            f"services.topic_properties: partitions:{override} of {spec.base} would have no effect",
            "Set the queue's own `partitions` instead; each of them may be a topic of its own.",
        )
    if not override.isascii() or not override.isdecimal() or int(override) < 1:
        raise SettingsError(f"services.topic_properties: partitions:{override} of {spec.base} is not 1 or more")
    return int(override)


def _names(
    spec: TopicSpec, prefix: str, service_ids: Mapping[ServiceType, Iterable[str]], tenant: UUID | None
) -> list[str]:
    if spec.kind == "internal":
        return [topic_name(spec.base, prefix=prefix)]
    if spec.kind == "partitioned":
        return [topic_name(spec.base, prefix=prefix, tenant=tenant, partition=i) for i in range(spec.partitions)]
    owners = sorted({service_id for kind in spec.services for service_id in service_ids.get(kind, ())})
    return [topic_name(f"{spec.base}.{service_id}", prefix=prefix) for service_id in owners]


async def create_topics(
    admin: Admin,
    settings: ServiceSettings,
    service_ids: Mapping[ServiceType, Iterable[str]] | None = None,
    tenant: UUID | None = None,
) -> list[str]:
    """Creates what is missing; returns the names of all. One that exists already stays as it is."""
    existing = set(await admin.list())
    topics = [topic for _, topics in topics_of(settings, service_ids, tenant) for topic in topics]
    for topic in topics:
        if topic.name not in existing:
            await admin.create(topic.name, topic.partitions, topic.properties, exist_ok=True)
    return [topic.name for topic in topics]


async def delete_service_topics(
    admin: Admin, settings: ServiceSettings, service_id: str, service_types: Iterable[ServiceType] = ServiceType
) -> list[str]:
    """Deletes the topics of a service that is gone for good; ThingsBoard leaves them."""
    ids = {service_type: [service_id] for service_type in service_types}
    own = {
        name
        for spec in topic_table(settings)
        if spec.kind == "per-service"
        for name in _names(spec, settings.prefix, ids, None)
    }
    gone = sorted(own & set(await admin.list()))
    for name in gone:
        await admin.delete(name)
    return gone
