"""Kafka as the log: the clients, made and closed together, and what is known about the brokers' state."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from penstock._ext.kafka.client import PackConsumer, PackProducer
from penstock.core.logging import RateLimited, get_logger
from penstock.settings.kafka import KafkaSettings
from penstock.storage.log.base import LogError
from penstock.storage.log.kafka.admin import SAFE_COPIES, KafkaAdmin
from penstock.storage.log.kafka.clients import settings_error
from penstock.storage.log.kafka.consumer import KafkaConsumer
from penstock.storage.log.kafka.group_requests import GroupRequests
from penstock.storage.log.kafka.health import Health
from penstock.storage.log.kafka.producer import KafkaProducer
from penstock.storage.log.kafka.recreation import LOOK_SECONDS, Recreations
from penstock.storage.log.kafka.settings import (
    Property,
    admin_config,
    consumer_config,
    is_cooperative,
    patient_config,
    producer_config,
)
from penstock.storage.log.kafka.statistics import ClientStatistics, StatisticsByKind

log = get_logger("penstock.logs.kafka")
CLIENT_LOGGER = logging.getLogger("penstock.logs.kafka.client")


class _OnceInAWhile(logging.Filter):
    """librdkafka says the same of every attempt to connect, several times a second: one of a kind is enough."""

    def __init__(self) -> None:
        super().__init__()
        self._limited = RateLimited(interval=30.0)

    def filter(self, record: logging.LogRecord) -> bool:
        return self._limited.try_pass(record.getMessage()[:24]) is not None


CLIENT_LOGGER.addFilter(_OnceInAWhile())

START_SECONDS = 3.0
PROBE_SECONDS = 1.0
MOST_NAMED = 10


class KafkaLog:
    """See Log in base.py."""

    is_shared = True
    has_files = False
    is_durable = True
    is_remote = True

    def __init__(self, settings: KafkaSettings | None = None, *, copied_topic: str = "") -> None:
        """`copied_topic`: the one whose records are copied to others, with a little behind them. Raises SettingsError
        for properties that librdkafka does not know or take."""
        self._settings = settings = settings or KafkaSettings()
        self._health = Health(settings.bootstrap_servers)
        self._statistics = StatisticsByKind()
        self._producer_statistics = self._statistics.add(ClientStatistics("producer"))
        self._patient_statistics = self._statistics.add(ClientStatistics("producer"))
        self._executor = ThreadPoolExecutor(4, "kafka-admin")
        self._check_consumer_settings()
        try:
            admin_statistics = self._statistics.add(ClientStatistics("admin"))
            config: dict[str, Any] = {**admin_config(settings), "error_cb": self._health.on_error}
            # There may be one of these after the other, and the statistics are those of a single client.
            quiet = {**config, "statistics.interval.ms": 0}
            groups = GroupRequests(lambda: AdminClient(quiet), self._executor)
            if (listener := self._listener(admin_statistics)) is not None:
                config["stats_cb"] = listener
            self._admin = KafkaAdmin(
                settings, AdminClient(config), groups, self.consumer, self._executor, on_changed=self._forget_topic
            )
            self._producer = KafkaProducer(settings, self._new_producer, self._admin.open, self._health, self._executor)
        except KafkaException as error:
            raise settings_error(error) from None
        self._producer.copied_topic = copied_topic
        self._patient: KafkaProducer | None = None  # made when it is asked for
        self._consumers: set[KafkaConsumer] = set()
        self._recreations = Recreations(self._admin, copied_topic)
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Waits a little for Kafka; without it everything starts all the same, and `check` says why it is not ready."""
        self._producer.start()
        try:
            await self._admin.metadata(seconds=START_SECONDS)
            self._health.mark_up()
        except LogError as error:
            log.debug("kafka does not answer", reason=error.message)
            self._admin.serve_callbacks()  # they say why
            self._health.mark_unreachable()
        self._watch = asyncio.get_running_loop().create_task(self._keep_watch())

    async def close(self) -> None:
        for consumer in list(self._consumers):
            await consumer.close()
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
            await asyncio.gather(*(producer.close() for producer in self._producers()))
        self._executor.shutdown(wait=False)
        await self._admin.close()

    @property
    def producer(self) -> KafkaProducer:
        return self._producer

    @property
    def patient_producer(self) -> KafkaProducer:
        if self._patient is None:
            self._patient = KafkaProducer(
                self._settings, self._new_patient, self._admin.open, self._health, self._executor, is_patient=True
            )
            self._patient.copied_topic = self._producer.copied_topic
            self._patient.start()
        return self._patient

    def _producers(self) -> list[KafkaProducer]:
        return [self._producer] if self._patient is None else [self._producer, self._patient]

    def _forget_topic(self, topic: str) -> None:
        for producer in self._producers():
            producer.forget_topic(topic)

    @property
    def admin(self) -> KafkaAdmin:
        return self._admin

    def consumer(
        self, group: str, *, instance_id: str | None = None, auto_offset_reset: str | None = None
    ) -> KafkaConsumer:
        reset = auto_offset_reset or self._settings.auto_offset_reset
        if reset not in {"earliest", "latest", "none"}:
            raise ValueError(f"auto.offset.reset {reset!r} is not earliest, latest or none")
        # librdkafka wants a group's name even from who has none.
        name = group or f"penstock-reader-{uuid.uuid4()}"
        config = consumer_config(self._settings, name, instance_id, reset)
        statistics = ClientStatistics("consumer")

        def forget(consumer: KafkaConsumer) -> None:
            self._consumers.discard(consumer)
            self._statistics.remove(statistics)

        consumer = KafkaConsumer(
            lambda: self._new_consumer(config, statistics),
            group,
            auto_offset_reset=reset,
            max_poll_records=self._settings.max_poll_records,
            on_close=forget,
            health=self._health,
            is_cooperative=is_cooperative(config),
        )
        self._consumers.add(consumer)
        self._statistics.add(statistics)
        return consumer

    def check(self) -> bool | str:
        return self._health.reason or True

    def check_readers(self) -> bool | str:
        return True

    def counters(self) -> dict[str, int | float]:
        return {
            "appended_records": sum(producer.appended_records for producer in self._producers()),
            "appended_bytes": sum(producer.appended_bytes for producer in self._producers()),
            "failed_records": sum(producer.failed_records for producer in self._producers()),
            "pending_records": sum(producer.pending_records for producer in self._producers()),
            "pending_bytes": sum(producer.pending_bytes for producer in self._producers()),
            "consumers": len(self._consumers),
            "kafka_client_errors": self._health.errors,
            "kafka_topics_recreated": self._recreations.count,
            **self._statistics.counters(),
        }

    async def _keep_watch(self) -> None:
        """Notices when Kafka comes back, and tells once what in it is not safe. Reports of clients that nobody polls
        would pile up in them."""
        has_looked = False
        next_look = time.monotonic()
        while True:
            self._admin.serve_callbacks()
            for consumer in self._consumers:
                consumer.serve_callbacks()
            if self._health.reason is not None:
                await self._probe()
            if self._health.reason is None and not has_looked:
                has_looked = await self._warn_of_weak_topics()
            if self._health.reason is None:
                is_due = time.monotonic() >= next_look
                await self._recreations.look(list(self._consumers), is_due=is_due)
                next_look = time.monotonic() + LOOK_SECONDS if is_due else next_look
            await asyncio.sleep(PROBE_SECONDS)

    async def _probe(self) -> None:
        started = time.monotonic()
        try:
            await self._admin.metadata(seconds=START_SECONDS)
        except LogError:
            self._admin.serve_callbacks()
            self._health.mark_unreachable()
        else:
            log.debug("kafka answers", seconds=round(time.monotonic() - started, 3))
            self._health.mark_answering()

    async def _warn_of_weak_topics(self) -> bool:
        try:
            brokers = len((await self._admin.metadata()).brokers)
            weak = await self._admin.find_weak_topics()
        except LogError as error:
            log.debug("kafka topics not checked", reason=error.message)
            return False
        advice = "three brokers, kafka.replication_factor = 3 and min.insync.replicas:2 in the properties of topics"
        if brokers < SAFE_COPIES:
            log.warning("this Kafka can lose acknowledged records when a broker dies", brokers=brokers, advice=advice)
        elif self._settings.replication_factor < SAFE_COPIES:
            log.warning(
                "topics this broker makes can lose acknowledged records when a Kafka broker dies",
                replication_factor=self._settings.replication_factor,
                advice=advice,
            )
        for topic in weak[:MOST_NAMED]:
            log.warning(
                "a topic can lose acknowledged records when a Kafka broker dies",
                topic=topic,
                others=max(0, len(weak) - MOST_NAMED),
                advice="replication.factor 3 and min.insync.replicas 2",
            )
        return True

    def _new_producer(self) -> PackProducer:
        listener = self._listener(self._producer_statistics)
        return PackProducer(producer_config(self._settings), self._on_producer_error, listener, CLIENT_LOGGER.log)

    def _new_patient(self) -> PackProducer:
        listener = self._listener(self._patient_statistics)
        return PackProducer(patient_config(self._settings), self._on_patient_error, listener, CLIENT_LOGGER.log)

    def _new_consumer(self, config: Mapping[str, Property], statistics: ClientStatistics) -> PackConsumer:
        try:
            return PackConsumer(config, self._health.on_error, self._listener(statistics), CLIENT_LOGGER.log)
        except KafkaException as error:
            raise settings_error(error) from None

    def _listener(self, statistics: ClientStatistics) -> Callable[[str], None] | None:
        """For a new client."""
        return statistics.begin() if self._settings.statistics_interval_ms else None

    def _check_consumer_settings(self) -> None:
        """A wrong property is an error at the start, not at the first consumer."""
        config = consumer_config(self._settings, "penstock-check", None, "earliest")
        self._new_consumer(config, ClientStatistics("consumer")).close()

    def _on_producer_error(self, error: confluent_kafka.KafkaError) -> None:
        self._producer.on_client_error(error)

    def _on_patient_error(self, error: confluent_kafka.KafkaError) -> None:
        self.patient_producer.on_client_error(error)
