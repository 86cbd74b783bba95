"""Kafka and Redis, where the settings use them: reachable, and as safe as what is acknowledged must be."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.core.errors import PenstockError
from penstock.core.text import counted
from penstock.operate.doctor.finding import Finding, ok, problem, size, warning
from penstock.services.log_names import LogNames
from penstock.settings import Settings
from penstock.settings.redis import RedisSettings

if TYPE_CHECKING:
    from penstock.storage.log.kafka.inspect import KafkaReport
    from penstock.subscribers.device.store.redis.safety import ServerReport

SAFE = 3
NAMED = 5
# What of its answers means that the settings are of another Redis, and which.
SAID_BY_REDIS = {
    "cluster support disabled": 'it is one server: redis.mode = "standalone"',
    "unknown command 'SENTINEL'": 'it is not a Sentinel: name those (port 26379), or set redis.mode = "standalone"',
    "without any password configured": "it has no password: remove redis.password, or set requirepass there",
}


def check_kafka(settings: Settings) -> Iterator[Finding]:
    # Imported here: who has no Kafka does not wait for its library.
    inspect = import_module("penstock.storage.log.kafka.inspect").inspect
    try:
        report: KafkaReport = inspect(settings.kafka, LogNames(settings).of("tbmq."))
    except PenstockError as error:
        yield problem("kafka", error.message, error.hint or "is it running, and kafka.bootstrap_servers right?")
        return
    advice = "three brokers, kafka.replication_factor = 3 and min.insync.replicas:2 in the properties of topics"
    if report.brokers < SAFE:
        yield problem(
            "kafka", f"{counted(report.brokers, 'broker')}: acknowledged messages are lost with a disk", advice
        )
    else:
        yield ok("kafka", f"{report.brokers} brokers answer")
        if settings.kafka.replication_factor < SAFE:
            copies = settings.kafka.replication_factor
            yield problem("kafka", f"kafka.replication_factor = {copies}: new topics are lost with a broker", advice)
    if settings.kafka.acks not in ("all", "-1"):
        yield problem("kafka", f"kafka.acks = {settings.kafka.acks}: what is acknowledged can be lost", "set it to all")
    yield from check_topics(report)


def check_topics(report: KafkaReport) -> Iterator[Finding]:
    if not report.topics:
        yield ok("kafka", "no topics of this broker yet: they are made at its first start")
        return
    behind = [topic.name for topic in report.topics if topic.in_sync < topic.copies]
    if behind:
        yield problem("kafka", f"copies are missing or behind: {_some(behind)}", "look at the Kafka brokers that lag")
    weak = [
        f"{topic.name} (replication.factor {topic.copies}, min.insync.replicas {topic.min_in_sync})"
        for topic in report.topics
        if not topic.is_safe
    ]
    if weak:
        yield problem(
            "kafka",
            f"{len(weak)} of {len(report.topics)} topics can lose acknowledged messages: {_some(weak)}",
            "kafka-reassign-partitions.sh for replication.factor 3, kafka-configs.sh --alter --add-config "
            "min.insync.replicas=2",
        )
    else:
        yield ok("kafka", f"{len(report.topics)} topics with three copies or more, two of which must have a record")
    forever = [topic.name for topic in report.topics if topic.retention_ms < 0 and not topic.is_compacted]
    if forever:
        yield warning(
            "kafka",
            f"retention.ms is for ever, and nothing compacts: {_some(forever)}",
            "set retention.ms, or watch the disks of Kafka",
        )
    if report.left_out:
        yield ok("kafka", f"{report.left_out:,} more topics were not looked at")


def _some(names: list[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def check_redis(settings: Settings) -> Iterator[Finding]:
    safety = import_module("penstock.subscribers.device.store.redis.safety")
    errors = import_module("penstock.subscribers.device.store.redis.errors")
    try:
        reports: list[ServerReport] = asyncio.run(safety.inspect(settings.redis))
    except PenstockError as error:
        yield problem("redis", error.message, error.hint or "see docs/settings.md, redis")
        return
    except safety.FAILURES as error:
        where = f"{settings.redis.addresses} ({settings.redis.mode})"
        yield problem("redis", f"{where}: {errors.describe(error)}", _advise_on_redis(error, settings.redis))
        return
    for report in reports:
        yield from _check_server(report, safety)


def _advise_on_redis(error: Exception, settings: RedisSettings) -> str:
    connection = import_module("penstock.subscribers.device.store.redis.connection")
    for said, advice in SAID_BY_REDIS.items():
        if said in str(error):
            return advice
    if isinstance(error, connection.NotRedis):
        return "redis.addresses names another service, or another one of its ports: write where Redis listens (6379)"
    if settings.tls and isinstance(error, ssl.SSLError | TimeoutError | ConnectionResetError):
        return "redis.tls is for a Redis with tls-port: does that port speak TLS, and did redis.tls_ca sign for it?"
    if isinstance(error, TimeoutError):
        return "does it hang, does something on the way drop packets, or does another service listen there?"
    if isinstance(error, ConnectionResetError):
        return "does Redis listen there? If it wants TLS, set redis.tls = true; its log says why it closes"
    return "is it running, and redis.addresses, redis.mode and redis.password right?"


def _check_server(report: ServerReport, safety: Any) -> Iterator[Finding]:
    information, area = report.information, f"redis {report.endpoint}"
    used = int(information.get("used_memory", "0") or 0)
    limit = int(information.get("maxmemory", "0") or 0)
    described = f"version {information.get('redis_version', 'unknown')}, {size(used)} used"
    described += f" of {size(limit)}" if limit else ", no limit of memory"
    if "redis_version" not in information:
        yield warning(area, "it does not tell its version", "is it a Redis? Its answer to INFO has no redis_version")
    elif safety.version_of(information) < safety.OLDEST_VERSION:
        yield problem(area, f"{described}: too old", "6.2 or later is needed")
    elif safety.is_nearly_full(information):
        yield warning(
            area, f"{described}: nearly full", "raise maxmemory, or lower device.messages_limit or messages_ttl"
        )
    else:
        yield ok(area, described)
    if information.get("role", "master") != "master":
        yield problem(area, "it is a replica: it takes no writes", "name the master, or use redis.mode = sentinel")
    weaknesses = safety.find_weaknesses(information)
    for weakness in weaknesses:
        yield problem(area, weakness.what, weakness.advice)
    if information.get("aof_enabled") == "1" and report.fsync not in ("", "always"):
        yield warning(
            area,
            f"appendfsync is {report.fsync}: a power cut loses the messages of about a second",
            "CONFIG SET appendfsync always, if that is not allowed",
        )
    elif not weaknesses:
        yield ok(area, "append-only file on, nothing is evicted")
