"""Topics come about when they are used first, with the partitions and properties of the table."""

from __future__ import annotations

import asyncio
from typing import Protocol

from penstock.services.model import TopicPartitionInfo
from penstock.services.topics import find_spec, partitions_and_properties
from penstock.settings.services import ServiceSettings
from penstock.storage.log.base import Log


class EnsureTopic(Protocol):
    def __call__(self, info: TopicPartitionInfo) -> asyncio.Future[None] | None:
        """None if the topic is there; else what ends when it has been created (or raises)."""
        ...

    def forget(self, topic: str) -> None:
        """It is not there after all."""
        ...


class TopicsExist:
    """For who has created all topics before."""

    def __call__(self, info: TopicPartitionInfo) -> asyncio.Future[None] | None:
        return None

    def forget(self, topic: str) -> None:
        pass


class TopicCreator:
    """Asks the log once for each topic and remembers it."""

    def __init__(self, log: Log, settings: ServiceSettings) -> None:
        self._log = log
        self._settings = settings
        self._known: set[str] = set()
        self._creating: dict[str, asyncio.Task[None]] = {}

    def __call__(self, info: TopicPartitionInfo) -> asyncio.Future[None] | None:
        name = info.full_topic_name
        if name in self._known:
            return None
        if name not in self._creating:
            self._creating[name] = asyncio.create_task(self._create(name, info))
        return self._creating[name]

    def forget(self, topic: str) -> None:
        self._known.discard(topic)

    async def _create(self, name: str, info: TopicPartitionInfo) -> None:
        spec = find_spec(self._settings, info.topic)
        count, properties = partitions_and_properties(self._settings, spec) if spec is not None else (1, {})
        try:
            await self._log.admin.create(name, count, properties, exist_ok=True)
            self._known.add(name)
        finally:
            del self._creating[name]
