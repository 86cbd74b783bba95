"""`penstock log queues`: the queues of the settings as topics of the log, and making them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from penstock.cli.log.access import is_there, open_log
from penstock.cli.progress import Progress
from penstock.cli.tables import print_entries
from penstock.core import exit_codes
from penstock.core.errors import UsageError
from penstock.core.text import counted
from penstock.operate.inspect.records import to_json
from penstock.services.model import ServiceType
from penstock.services.names import notifications_topic
from penstock.services.processing import notification_queue, pack_queues
from penstock.services.topics import (
    DAY,
    FOREVER,
    MINUTE,
    Topic,
    TopicSpec,
    notification_bases,
    partitions_and_properties,
    topics_of,
)
from penstock.settings import Settings
from penstock.settings.services import ServiceSettings
from penstock.storage.log.base import Log

_COLUMNS = ("topic", "kind", "partitions", "kept", "submit", "acknowledge", "topics", "there")
ServiceIds = dict[ServiceType, list[str]]


def parse_services(texts: Iterable[str], node_id: str) -> ServiceIds:
    """KIND=ID each; without any, this broker, which is a core and a transport."""
    ids: ServiceIds = {}
    for text in texts:
        kind, equals, service_id = text.partition("=")
        if not equals or kind.upper() not in set(ServiceType):
            raise UsageError(f"--service {text!r}: write KIND=ID, with one of {', '.join(ServiceType)}")
        try:
            notifications_topic(kind, service_id)
        except ValueError as error:
            raise UsageError(f"--service {text!r}: {error}") from None
        ids.setdefault(ServiceType(kind.upper()), []).append(service_id)
    return ids or {ServiceType.TB_CORE: [node_id], ServiceType.TB_TRANSPORT: [node_id]}


def parse_tenant(text: str | None) -> UUID | None:
    try:
        return None if text is None else UUID(text)
    except ValueError:
        raise UsageError(f"--tenant {text!r} is not a UUID") from None


async def show_queues(
    settings: Settings, services: ServiceIds, tenant: UUID | None, *, create: bool, as_json: bool
) -> int:
    queues = settings.services
    try:
        table = topics_of(queues, services, tenant)
    except ValueError as error:
        raise UsageError(f"the queues cannot have topics: {error}") from None
    existing: set[str] = set()
    made = 0
    if create or is_there(settings):
        async with open_log(settings, to_write=create) as log:
            existing = set(await log.admin.list())
            if create:
                missing = [topic for _, topics in table for topic in topics if topic.name not in existing]
                made = await _create(log, missing)
                existing |= {topic.name for topic in missing}
    entries = [_describe(queues, spec, topics, existing) for spec, topics in table]
    if as_json:
        print(to_json(entries))
    else:
        print_entries(_COLUMNS, [{**entry, "topics": len(entry["topics"])} for entry in entries])
        if create:
            print(f"{counted(made, 'topic')} made")
    return exit_codes.OK


async def _create(log: Log, topics: list[Topic]) -> int:
    with Progress("making topics", len(topics), unit="topics") as progress:
        for topic in topics:
            await log.admin.create(topic.name, topic.partitions, topic.properties)
            progress.step()
    return len(topics)


def _describe(queues: ServiceSettings, spec: TopicSpec, topics: list[Topic], existing: set[str]) -> dict[str, Any]:
    prefix = f"{queues.prefix}." if queues.prefix else ""
    topic = prefix + spec.base
    processed = next((queue for queue in pack_queues(queues).values() if queue.topic == topic), None)
    if spec.base in {f"{base}.notifications" for base in notification_bases(queues).values()}:
        processed = notification_queue(queues, topic)
    properties = partitions_and_properties(queues, spec)[1]
    return {
        "topic": topic,
        "kind": spec.kind,
        "partitions": spec.partitions,
        "kept": _describe_time(int(properties["retention.ms"])) + (", compacted" if spec.is_compacted else ""),
        "submit": None if processed is None else str(processed.submit.strategy),
        "acknowledge": None if processed is None else str(processed.ack.strategy),
        "topics": [each.name for each in topics],
        "there": sum(each.name in existing for each in topics),
    }


def _describe_time(milliseconds: int) -> str:
    if milliseconds == FOREVER:
        return "for ever"
    for unit, name in ((DAY, "day"), (MINUTE, "minute")):
        if milliseconds % unit == 0:
            return counted(milliseconds // unit, name)
    return f"{milliseconds} ms"
