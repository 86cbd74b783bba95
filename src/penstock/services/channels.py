"""What calls over queues need to know, as data: topics, groups, properties and limits. See services/rpc."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.services.names import notifications_group, notifications_topic, responses_group, responses_topic
from penstock.services.topics import INSTANCE_CHANNELS, find_spec, partitions_and_properties
from penstock.settings.services import ServiceSettings


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """`timeout` is that of a call which names none."""

    max_pending: int = 10_000
    timeout: float = 60.0


REQUEST_LIMITS = {
    "js": RequestLimits(timeout=10.0),
    "transport-api": RequestLimits(timeout=10.0),
    "edqs": RequestLimits(timeout=20.0),
    **dict.fromkeys(INSTANCE_CHANNELS, RequestLimits()),
}
"""By channel; whoever makes a caller or a responder takes them from here."""


@dataclass(frozen=True, slots=True)
class RequestChannel:
    """To whichever instance of a service answers: where requests go, where this instance's answers come."""

    request_topic: str
    request_partitions: int
    request_group: str
    response_topic: str
    response_group: str
    response_properties: dict[str, str]
    service_id: str
    limits: RequestLimits


@dataclass(frozen=True, slots=True)
class InstanceChannel:
    """To one instance that is meant: each has a topic for the questions to it, and one for the answers to its own."""

    base: str
    prefix: str
    service_id: str
    properties: dict[str, str]
    response_properties: dict[str, str]
    limits: RequestLimits

    def topic_of(self, service_id: str) -> str:
        return notifications_topic(self.base, service_id, prefix=self.prefix)

    @property
    def topic(self) -> str:
        """Of the questions to this instance."""
        return self.topic_of(self.service_id)

    @property
    def group(self) -> str:
        return notifications_group(self.base, self.service_id, prefix=self.prefix)

    @property
    def response_topic(self) -> str:
        return responses_topic(self.base, self.service_id, prefix=self.prefix)

    @property
    def response_group(self) -> str:
        return responses_group(self.base, self.service_id, prefix=self.prefix)


def instance_channel(settings: ServiceSettings, channel: str, service_id: str) -> InstanceChannel:
    """With the properties the table gives its topics."""
    base = INSTANCE_CHANNELS[channel]
    questions = notifications_topic(base, service_id, prefix=settings.prefix)
    answers = responses_topic(base, service_id, prefix=settings.prefix)
    return InstanceChannel(
        base,
        settings.prefix,
        service_id,
        topic_properties(settings, questions),
        topic_properties(settings, answers),
        REQUEST_LIMITS[channel],
    )


def topic_properties(settings: ServiceSettings, topic: str) -> dict[str, str]:
    """Of a topic as the table has it; none of one that is not in it."""
    spec = find_spec(settings, topic)
    return {} if spec is None else partitions_and_properties(settings, spec)[1]
