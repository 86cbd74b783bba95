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

from penstock._ext.kafka import PackConsumer, PackProducer
from penstock.core.logging import RateLimited, get_logger
from penstock.core.settings.kafka import KafkaSettings
from penstock.logs.base import LogError
from penstock.logs.kafka.admin import SAFE_COPIES, KafkaAdmin
from penstock.logs.kafka.clients import settings_error
from penstock.logs.kafka.consumer import KafkaConsumer
from penstock.logs.kafka.health import Health
from penstock.logs.kafka.producer import KafkaProducer
from penstock.logs.kafka.settings import Property, admin_config, consumer_config, producer_config
from penstock.logs.kafka.statistics import ClientStatistics, StatisticsByKind

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

    def __init__(self, settings: KafkaSettings | None = None, *, copied_topic: str = "") -> None:
        """`copied_topic`: the one whose records are copied to others, with a little behind them. Raises SettingsError
        for properties that librdkafka does not know or take."""
        self._settings = settings = settings or KafkaSettings()
        self._health = Health()
        self._statistics = StatisticsByKind()
        self._producer_statistics = self._statistics.add(ClientStatistics("producer"))
        self._executor = ThreadPoolExecutor(4, "kafka-admin")
        self._check_consumer_settings()
        try:
            admin_statistics = self._statistics.add(ClientStatistics("admin"))
            config: dict[str, Any] = {**admin_config(settings)}
            if (listener := self._listener(admin_statistics)) is not None:
                config["stats_cb"] = listener
            self._admin = KafkaAdmin(settings, AdminClient(config), self._executor)
            self._producer = KafkaProducer(settings, self._new_producer, self._admin.open, self._health, self._executor)
        except KafkaException as error:
            raise settings_error(error) from None
        self._producer.copied_topic = copied_topic
        self._admin.on_changed = self._producer.forget_topic
        self._consumers: set[KafkaConsumer] = set()
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Waits a little for Kafka; without it everything starts all the same, and `check` says why it is not ready."""
        self._producer.start()
        try:
            await self._admin.metadata(seconds=START_SECONDS)
            self._health.mark_up()
        except LogError as error:
            self._health.reason = f"Kafka at {self._settings.bootstrap_servers} cannot be reached"
            log.warning(
                "kafka is unavailable",
                servers=self._settings.bootstrap_servers,
                reason=error.message,
                advice="`penstock doctor` with the same settings says what answers there",
            )
        self._watch = asyncio.get_running_loop().create_task(self._keep_watch())

    async def close(self) -> None:
        for consumer in list(self._consumers):
            await consumer.close()
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
            await self._producer.close()
        self._executor.shutdown(wait=False)
        await self._admin.close()

    @property
    def producer(self) -> KafkaProducer:
        return self._producer

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
            is_cooperative="cooperative" in str(config["partition.assignment.strategy"]),
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
            "appended_records": self._producer.appended_records,
            "appended_bytes": self._producer.appended_bytes,
            "failed_records": self._producer.failed_records,
            "pending_records": self._producer.pending_records,
            "pending_bytes": self._producer.pending_bytes,
            "consumers": len(self._consumers),
            "kafka_client_errors": self._health.errors,
            **self._statistics.counters(),
        }

    async def _keep_watch(self) -> None:
        """Notices when Kafka comes back, and tells once what in it is not safe. Reports of clients that nobody polls
        would pile up in them."""
        has_looked = False
        while True:
            self._admin.serve_callbacks()
            for consumer in self._consumers:
                consumer.serve_callbacks()
            if self._health.reason is not None:
                await self._probe()
            if self._health.reason is None and not has_looked:
                has_looked = await self._warn_of_weak_topics()
            await asyncio.sleep(PROBE_SECONDS)

    async def _probe(self) -> None:
        started = time.monotonic()
        try:
            await self._admin.metadata(seconds=START_SECONDS)
        except LogError as error:
            self._health.mark_down(f"Kafka at {self._settings.bootstrap_servers} cannot be reached: {error.message}")
        else:
            log.debug("kafka answers", seconds=round(time.monotonic() - started, 3))
            self._health.mark_up()

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
