"""Topics and groups through librdkafka's administrative client. The list of topics is remembered for a while."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource, ConfigSource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._metadata import ClusterMetadata, TopicMetadata
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.admin._topic import TopicDescription as TopicInformation
from confluent_kafka.cimpl import NewTopic

from penstock.core.logging import get_logger
from penstock.settings.kafka import KafkaSettings
from penstock.storage.log.base import (
    LATEST,
    Committed,
    Consumer,
    Limits,
    LogError,
    OffsetOutOfRange,
    TopicDescription,
    TopicNotFound,
    TopicPartition,
    Watermarks,
)
from penstock.storage.log.kafka.errors import to_log_error
from penstock.storage.log.kafka.group_requests import GroupRequests
from penstock.storage.log.kafka.settings import properties_of
from penstock.storage.log.kafka.topic_changes import TopicChanges, TopicExists

log = get_logger("penstock.logs.kafka")

Answer = TypeVar("Answer")
CACHE_SECONDS = 300.0
REQUEST_SECONDS = 10.0
TOPIC_SECONDS = 2.0
NEW_SECONDS = 5.0
PLACES_AT_ONCE = 10_000
SAFE_COPIES = 3
SAFE_IN_SYNC = 2
RETENTION = ("retention.ms", "retention.bytes")
SET, DELETE = AlterConfigOpType.SET, AlterConfigOpType.DELETE


class KafkaAdmin:
    """See Admin in base.py."""

    def __init__(
        self,
        settings: KafkaSettings,
        client: AdminClient,
        groups: GroupRequests,
        new_consumer: Callable[[str], Consumer],
        executor: Executor,
        *,
        on_changed: Callable[[str], None] = lambda topic: None,
    ) -> None:
        """`new_consumer` opens a consumer of a group; `on_changed` is called for each topic that this process
        changes."""
        self._settings = settings
        self._client = client
        self._groups = groups
        self._new_consumer = new_consumer
        self._executor = executor
        self._names: set[str] | None = None
        self._names_until = 0.0
        self._new_until: dict[str, float] = {}  # topics that this process made a moment ago
        self._changes = TopicChanges(client, executor, self.metadata)
        self._on_changed = on_changed

    async def close(self) -> None:
        """Ends the client here. Left to the collector of garbage, which runs in any thread, it might be ended by a
        thread of its own, and librdkafka aborts the process then."""
        if not hasattr(self, "_client"):
            return
        last = [self._client]
        del self._client
        self._changes.forget_client()
        await asyncio.to_thread(last.clear)  # waits for librdkafka's threads
        await self._groups.close()

    def serve_callbacks(self) -> None:
        """Nothing else polls these clients."""
        self._client.poll(0)
        self._groups.serve_callbacks()

    async def create(
        self, topic: str, partitions: int = 1, properties: Mapping[str, str] | None = None, *, exist_ok: bool = True
    ) -> None:
        stated = dict(properties or {})
        in_properties = stated.pop("partitions", None)
        try:
            copies = int(stated.pop("replication.factor", self._settings.replication_factor))
            if in_properties is not None and partitions == 1:
                partitions = int(in_properties)
            if partitions < 1 or copies < 1:
                raise ValueError("there must be at least one partition and one copy")
            asked = NewTopic(topic, num_partitions=partitions, replication_factor=copies, config=stated)
        except ValueError as error:
            raise LogError(f"topic {topic!r} cannot be created: {error}") from None
        try:
            await self._changes.create(asked)
            self._note_new(topic)
        except TopicExists:
            if not exist_ok:
                raise
        finally:
            self._forget(topic)

    async def open(self, topic: str) -> int:
        """The number of partitions of a topic, which is created with the configured properties if there is none."""
        try:
            return len((await self._describe(topic)).partitions)
        except TopicNotFound:
            if not self._settings.create_topics:
                raise
        await self.create(topic, properties=properties_of(self._settings, topic))
        log.info("topic created", topic=topic)
        return len((await self._describe(topic)).partitions)

    async def describe(self, topic: str) -> TopicDescription:
        partitions = len((await self._describe(topic)).partitions)
        entries = await self._entries(topic)
        own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        properties = {name: entry.value for name, entry in entries.items() if entry.source == own}
        return TopicDescription(topic, partitions, properties)

    async def alter(self, topic: str, properties: Mapping[str, str]) -> None:
        stated = dict(properties)
        stated.pop("partitions", None)
        copies = stated.pop("replication.factor", None)
        if copies is not None:
            found = await self._describe(topic)
            actual = min((len(each.replicas) for each in found.partitions.values()), default=0)
            if actual != int(copies):
                raise LogError(
                    f"topic {topic!r} has replication.factor {actual}, not {copies}",
                    "Kafka's own tool changes that: kafka-reassign-partitions.sh.",
                )
        known = (await self.describe(topic)).properties
        entries = [_entry(name, value, AlterConfigOpType.SET) for name, value in stated.items()]
        entries += [_entry(name, "", AlterConfigOpType.DELETE) for name in known if name not in stated]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        await self._ask(
            f"change topic {topic!r}",
            lambda: self._client.incremental_alter_configs([resource], request_timeout=REQUEST_SECONDS)[resource],
        )

    async def delete(self, topic: str) -> None:
        self._new_until.pop(topic, None)
        await self._changes.delete(topic)
        self._forget(topic)

    async def list(self) -> list[str]:
        if self._names is None or time.monotonic() > self._names_until:
            metadata = await self.metadata()
            self._names = {name for name in metadata.topics if not name.startswith("__")}
            self._names_until = time.monotonic() + CACHE_SECONDS
        return sorted(self._names)

    async def truncate(self, partition: TopicPartition, before_offset: int) -> None:
        if before_offset < 0 and before_offset != LATEST:
            raise ValueError(f"{before_offset} is not an offset")
        asked = confluent_kafka.TopicPartition(partition.topic, partition.partition, before_offset)
        doing = f"truncate {partition.topic}[{partition.partition}]"
        try:
            await self._ask(doing, lambda: self._client.delete_records([asked], request_timeout=REQUEST_SECONDS)[asked])
        except LogError as error:
            cause = error.__cause__
            if isinstance(cause, KafkaException) and cause.args[0].code() == KafkaError.OFFSET_OUT_OF_RANGE:
                marks = await self.watermarks(partition)
                message = f"{doing}: {before_offset} is behind the last record"
                raise OffsetOutOfRange(message, marks.first, marks.end) from None
            raise

    def size(self, topic: str) -> int | None:
        return None  # the client library has no question for it

    async def hold(self, partition: TopicPartition, offset: int | None) -> bool:
        """Kafka removes segments by the settings of the topic, and asks nobody."""
        return False

    async def limits(self, topic: str) -> Limits | None:
        entries = await self._entries(topic)
        inherited = tuple(name for name in RETENTION if entries[name].source != ConfigSource.DYNAMIC_TOPIC_CONFIG.value)
        ms, size = (int(entries[name].value or -1) for name in RETENTION)
        return Limits(ms, size, inherited)

    async def set_limits(self, topic: str, limits: Limits) -> None:
        changes = [
            ConfigEntry(name, str(value), incremental_operation=DELETE if name in limits.inherited else SET)
            for name, value in zip(RETENTION, (limits.ms, limits.bytes), strict=True)
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)
        await self._ask(
            f"change the retention of topic {topic!r}",
            lambda: self._client.incremental_alter_configs([resource], request_timeout=REQUEST_SECONDS)[resource],
        )

    async def watermarks(self, partition: TopicPartition) -> Watermarks:
        """What Consumer.watermarks says, without a consumer."""
        earliest = OffsetSpec.earliest()  # type: ignore[no-untyped-call] # confluent-kafka has no types for these two
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call] # as above
        return Watermarks(await self._find(partition, earliest), await self._find(partition, latest))

    async def _find(self, partition: TopicPartition, which: OffsetSpec) -> int:
        place = confluent_kafka.TopicPartition(partition.topic, partition.partition)
        found = await self._ask(
            f"read the ends of {partition.topic}[{partition.partition}]",
            lambda: self._client.list_offsets({place: which}, request_timeout=REQUEST_SECONDS)[place],
        )
        return int(found.offset)

    async def topic_ids(self, names: Collection[str]) -> dict[str, str]:
        """A topic that was made again has another one. Of those that are there."""

        def start() -> Mapping[str, Future[TopicInformation]]:
            return self._client.describe_topics(TopicCollection(list(names)), request_timeout=REQUEST_SECONDS)

        try:
            pending = await asyncio.get_running_loop().run_in_executor(self._executor, start)
            answers = await asyncio.gather(*map(asyncio.wrap_future, pending.values()), return_exceptions=True)
        except KafkaException as error:
            raise to_log_error(error, "ask which topics there are") from error
        found = zip(pending, answers, strict=True)
        return {name: str(answer.topic_id) for name, answer in found if not isinstance(answer, BaseException)}

    async def groups(self) -> builtins.list[str]:
        found = await self._ask(
            "list groups", lambda: self._client.list_consumer_groups(request_timeout=REQUEST_SECONDS)
        )
        return sorted(group.group_id for group in found.valid)

    async def group_offsets(self, group: str, topics: Collection[str] = ()) -> dict[TopicPartition, Committed]:
        """Read the offsets with a consumer of the group, which never joins it. The administrative client has a request
        for that, too, but librdkafka aborts the process if it times out (see GroupRequests), and dereferences NULL if
        the coordinator has moved (its issue 5040)."""
        places = await self._partitions_of(topics)
        found: dict[TopicPartition, Committed] = {}
        consumer = self._new_consumer(group)
        try:
            for first in range(0, len(places), PLACES_AT_ONCE):
                answer = await consumer.committed(places[first : first + PLACES_AT_ONCE])
                found |= {place: committed for place, committed in answer.items() if committed is not None}
        finally:
            await consumer.close()
        return found

    async def _partitions_of(self, topics: Collection[str]) -> builtins.list[TopicPartition]:
        """List the partitions of these topics, or of all if none are given; unknown topics have none."""
        counts: dict[str, int] = {}
        if topics:
            for topic in topics:
                with contextlib.suppress(TopicNotFound):
                    counts[topic] = len((await self._describe(topic)).partitions)
        else:
            known = (await self.metadata()).topics
            counts = {name: len(known[name].partitions) for name in known if not name.startswith("__")}
        return [TopicPartition(topic, number) for topic in sorted(counts) for number in range(counts[topic])]

    async def delete_group(self, group: str) -> None:
        try:
            await self._groups.delete(group)
        except LogError as error:
            cause = error.__cause__
            if not (isinstance(cause, KafkaException) and cause.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND):
                raise

    async def metadata(self, topic: str | None = None, seconds: float = REQUEST_SECONDS) -> ClusterMetadata:
        def ask() -> ClusterMetadata:
            if topic is None:
                return self._client.list_topics(timeout=seconds)
            return self._client.list_topics(topic, timeout=seconds)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, ask)
        except KafkaException as error:
            raise to_log_error(error, "ask Kafka for its topics") from error

    async def find_weak_topics(self, names: builtins.list[str] | None = None) -> builtins.list[str]:
        """What a broker's death could cost, topic by topic; nothing to say with fewer than three brokers."""
        metadata = await self.metadata()
        if len(metadata.brokers) < SAFE_COPIES:
            return []
        chosen = names if names is not None else [name for name in metadata.topics if not name.startswith("__")]
        weak = []
        for name in sorted(set(chosen) & set(metadata.topics)):
            copies = min((len(each.replicas) for each in metadata.topics[name].partitions.values()), default=0)
            in_sync = await self._min_in_sync(name)
            if copies < SAFE_COPIES or in_sync < SAFE_IN_SYNC:
                weak.append(f"{name} (replication.factor {copies}, min.insync.replicas {in_sync})")
        return weak

    async def _min_in_sync(self, topic: str) -> int:
        return int((await self._entries(topic))["min.insync.replicas"].value or 1)

    async def _entries(self, topic: str) -> Mapping[str, Any]:
        """Of type ConfigEntry, whose types are not what is in them."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        return await self._ask(
            f"describe topic {topic!r}",
            lambda: self._client.describe_configs([resource], request_timeout=REQUEST_SECONDS)[resource],
        )

    async def _describe(self, topic: str) -> TopicMetadata:
        """A new topic is there, but the broker that is asked this time may not have heard of it yet."""
        while True:
            try:
                return await self._look_at(topic)
            except TopicNotFound:
                if time.monotonic() > self._new_until.get(topic, 0.0):
                    raise
            await asyncio.sleep(0.02)

    async def _look_at(self, topic: str) -> TopicMetadata:
        found = (await self.metadata(topic, TOPIC_SECONDS)).topics.get(topic)
        if found is None:
            raise TopicNotFound(f"there is no topic {topic!r}")
        if found.error is not None:
            raise to_log_error(found.error, f"look at topic {topic!r}")
        return found

    def _note_new(self, topic: str) -> None:
        """Remembered for as long as Kafka may take to tell all of its brokers."""
        now = time.monotonic()
        self._new_until.pop(topic, None)
        self._new_until[topic] = now + NEW_SECONDS
        while self._new_until[oldest := next(iter(self._new_until))] < now:
            del self._new_until[oldest]

    def _forget(self, topic: str) -> None:
        self._names = None
        self._on_changed(topic)

    async def _ask(self, doing: str, start: Callable[[], Future[Answer]]) -> Answer:
        """Sends a request; the answer comes from librdkafka's thread. The client may wait a little when it sends."""

        def send() -> Future[Any]:
            return start()

        try:
            pending = await asyncio.get_running_loop().run_in_executor(self._executor, send)
            return await asyncio.wrap_future(pending)
        except KafkaException as error:
            raise to_log_error(error, doing) from error
        except (TypeError, ValueError) as error:
            raise LogError(f"{doing}: {error}") from error


def _entry(name: str, value: str, operation: AlterConfigOpType) -> ConfigEntry:
    return ConfigEntry(name, value, incremental_operation=operation)
