"""The settings of the Kafka provider, with the names and defaults of the seeds, and what librdkafka makes of them.

Properties that are not here go through `producer`, `consumer` and `admin` as librdkafka spells them. Names that only
the Java client has are translated where librdkafka can do the same; otherwise they are refused, with what to write
instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct

from penstock.core.errors import SettingsError
from penstock.logs.base import parse_properties

MIB = 1024 * 1024
Positive = Annotated[int, Meta(ge=1, le=2_147_483_647)]
Natural = Annotated[int, Meta(ge=0, le=2_147_483_647)]
Property = str | int | float | bool

DEFAULT_TOPIC_PROPERTIES = (
    "retention.ms:604800000;segment.bytes:52428800;retention.bytes:1048576000;partitions:1;min.insync.replicas:1"
)
TAKEN_OUT = ("partitions", "replication.factor")

# Names of the Java client for things that librdkafka has under another name.
JAVA_NAMES = {
    "max.request.size": "message.max.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "default.api.timeout.ms": "socket.timeout.ms",
}
ASSIGNORS = {
    "org.apache.kafka.clients.consumer.CooperativeStickyAssignor": "cooperative-sticky",
    "org.apache.kafka.clients.consumer.RangeAssignor": "range",
    "org.apache.kafka.clients.consumer.RoundRobinAssignor": "roundrobin",
}
# Names of the Java client that mean nothing here, with what to do instead.
JAVA_ONLY = {
    "buffer.memory": "set log.kafka.buffer_memory",
    "max.poll.records": "set log.kafka.max_poll_records",
    "max.block.ms": "nothing blocks here: appends beyond log.kafka.buffer_memory fail at once",
    "key.serializer": "records are bytes",
    "value.serializer": "records are bytes",
    "key.deserializer": "records are bytes",
    "value.deserializer": "records are bytes",
    "partitioner.class": "Penstock chooses the partition itself (queue.partitions.hash_function_name)",
    "partitioner": "Penstock chooses the partition itself (queue.partitions.hash_function_name)",
    "interceptor.classes": "there are no interceptors",
    "metric.reporters": "metrics are at /metrics",
    "sasl.jaas.config": "set sasl.username and sasl.password",
    "ssl.truststore.location": "set ssl.ca.location to a PEM file",
    "ssl.truststore.password": "set ssl.ca.location to a PEM file, which needs no password",
    "ssl.truststore.type": "set ssl.ca.location to a PEM file",
    "ssl.keystore.type": "set ssl.keystore.location (PKCS#12), or ssl.certificate.location and ssl.key.location",
    "enable.auto.commit": "offsets are committed by who processed the records",
    "enable.auto.offset.store": "offsets are committed by who processed the records",
    "delivery.report.only.error": "an append is reported when it is written",
    "transactional.id": "the log does not use transactions",
}


def _about(text: str, unit: Literal["", "bytes", "seconds"] = "") -> Meta:
    return Meta(description=text, extra={"unit": unit, "live": False})


class KafkaSettings(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Kafka as the log (`log.provider = "kafka"`)."""

    bootstrap_servers: Annotated[str, Meta(min_length=1), _about("host:port of some brokers, separated by commas")] = (
        "localhost:9092"
    )
    acks: Annotated[
        Literal["all", "-1", "0", "1"],
        _about("who must have a record before it counts as written; 0 and 1 can lose it"),
    ] = "all"
    idempotence: Annotated[bool, _about("retries neither duplicate nor reorder; needs acks = all")] = True
    retries: Annotated[
        Natural, _about("attempts after the first; with idempotence they go on until delivery_timeout_ms")
    ] = 1
    batch_size: Annotated[Positive, _about("bytes of a batch sent to a partition", "bytes")] = 16_384
    linger_ms: Annotated[float, Meta(ge=0, le=900_000), _about("how long a batch waits for more, in ms")] = 1
    buffer_memory: Annotated[
        Positive, _about("bytes appended and not yet written; beyond it appends fail at once", "bytes")
    ] = 33_554_432
    buffer_records: Annotated[Positive, _about("the same in records")] = 500_000
    compression_type: Annotated[
        Literal["none", "gzip", "snappy", "lz4", "zstd"], _about("how batches are compressed")
    ] = "none"
    max_request_size: Annotated[int, Meta(ge=1000, le=1_000_000_000), _about("largest record and request", "bytes")] = (
        1_048_576
    )
    max_in_flight: Annotated[
        int, Meta(ge=1, le=1_000_000), _about("requests under way per connection; at most 5 with idempotence")
    ] = 5
    request_timeout_ms: Annotated[Positive, _about("how long a broker may take to answer, in ms")] = 30_000
    delivery_timeout_ms: Annotated[
        Positive, _about("how long an append waits for Kafka before it fails as unavailable, in ms")
    ] = 30_000
    timestamp_tolerance_ms: Annotated[
        Natural,
        _about("records this much older than now at most are written with the time of writing, which is far cheaper"),
    ] = 100
    auto_offset_reset: Annotated[
        Literal["earliest", "latest", "none"], _about("where a group without a committed offset starts")
    ] = "earliest"
    session_timeout_ms: Annotated[Positive, _about("a member silent for so long is taken for dead, in ms")] = 10_000
    heartbeat_interval_ms: Annotated[Positive, _about("time between signs of life, in ms")] = 3_000
    max_poll_records: Annotated[Positive, _about("most records of one poll")] = 8_192
    max_poll_interval_ms: Annotated[
        Positive, _about("a member that does not poll for so long loses its partitions, in ms")
    ] = 300_000
    max_partition_fetch_bytes: Annotated[Positive, _about("most bytes fetched of a partition at once", "bytes")] = (
        16 * MIB
    )
    fetch_max_bytes: Annotated[Positive, _about("most bytes of one fetch", "bytes")] = 128 * MIB
    replication_factor: Annotated[int, Meta(ge=1, le=32_767), _about("copies of a topic made by Penstock")] = 1
    topic_properties: Annotated[str, _about("of topics without properties of their own, name:value;name:value")] = (
        DEFAULT_TOPIC_PROPERTIES
    )
    topics: Annotated[
        dict[str, str],
        _about("properties by the name of a topic, or by the beginning of names with a * at the end"),
    ] = {}
    create_topics: Annotated[bool, _about("create topics on first use")] = True
    statistics_interval_ms: Annotated[Natural, _about("time between librdkafka's statistics, 0 = none, in ms")] = 5_000
    common: Annotated[
        dict[str, Property], _about("any librdkafka property, for all clients (security, addresses)")
    ] = {}
    producer: Annotated[dict[str, Property], _about("any librdkafka property, for the producer")] = {}
    consumer: Annotated[dict[str, Property], _about("any librdkafka property, for consumers")] = {}
    admin: Annotated[dict[str, Property], _about("any librdkafka property, for the administrative client")] = {}

    def properties_of(self, topic: str) -> dict[str, str]:
        """The configured properties of a topic: its own, else the longest beginning that fits, else the common ones."""
        text = self.topics.get(topic)
        if text is None:
            fitting = [name for name in self.topics if name.endswith("*") and topic.startswith(name[:-1])]
            text = self.topics[max(fitting, key=len)] if fitting else self.topic_properties
        return parse_properties(text)


def producer_config(settings: KafkaSettings) -> dict[str, Property]:
    if settings.idempotence and settings.acks not in ("all", "-1"):
        raise SettingsError(
            f"log.kafka.acks = {settings.acks} does not go with log.kafka.idempotence",
            "Set log.kafka.idempotence = false as well, or leave acks at all.",
        )
    config = _base(settings) | {
        "acks": settings.acks,
        "enable.idempotence": settings.idempotence,
        "batch.size": settings.batch_size,
        "linger.ms": settings.linger_ms,
        "compression.type": settings.compression_type,
        "message.max.bytes": settings.max_request_size,
        "max.in.flight": settings.max_in_flight,
        "request.timeout.ms": settings.request_timeout_ms,
        "message.timeout.ms": settings.delivery_timeout_ms,
        # Our own bounds come first; these only must not.
        "queue.buffering.max.kbytes": min(2 * settings.buffer_memory // 1024 + 1, 2_147_483_647),
        "queue.buffering.max.messages": min(2 * settings.buffer_records, 2_147_483_647),
        "statistics.interval.ms": settings.statistics_interval_ms,
    }
    if not settings.idempotence:
        config["retries"] = settings.retries
    return config | translated("producer", settings.common) | translated("producer", settings.producer)


def consumer_config(
    settings: KafkaSettings, group: str, instance_id: str | None, auto_offset_reset: str
) -> dict[str, Property]:
    config = _base(settings) | {
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": auto_offset_reset,
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": settings.session_timeout_ms,
        "heartbeat.interval.ms": settings.heartbeat_interval_ms,
        "max.poll.interval.ms": settings.max_poll_interval_ms,
        "max.partition.fetch.bytes": settings.max_partition_fetch_bytes,
        "fetch.max.bytes": settings.fetch_max_bytes,
        "fetch.wait.max.ms": 100,
        # An idle partition is asked again at once instead of after librdkafka's half second.
        "fetch.queue.backoff.ms": 10,
    }
    if instance_id is not None:
        config["group.instance.id"] = instance_id
    config |= translated("consumer", settings.common) | translated("consumer", settings.consumer)
    if config["auto.offset.reset"] == "none":
        config["auto.offset.reset"] = "error"
    return config


def admin_config(settings: KafkaSettings) -> dict[str, Property]:
    # Nobody polls this client for its log lines, and the producer's say the same.
    quiet: dict[str, Property] = {"log_level": 0}
    return _base(settings) | quiet | translated("admin", settings.common) | translated("admin", settings.admin)


def _base(settings: KafkaSettings) -> dict[str, Property]:
    return {
        "bootstrap.servers": settings.bootstrap_servers,
        "client.id": "penstock",
        # A broker that comes back is noticed within a second, not within ten.
        "reconnect.backoff.max.ms": 1_000,
        "socket.keepalive.enable": True,
        "log.connection.close": False,
    }


def translated(section: str, properties: Mapping[str, Property]) -> dict[str, Property]:
    """Pass-through properties with the Java client's names in librdkafka's; what cannot be had is an error."""
    known: dict[str, Property] = {}
    for name, value in properties.items():
        if name in JAVA_ONLY:
            raise SettingsError(
                f"log.kafka.{section}: {name} is not a property of librdkafka", JAVA_ONLY[name].capitalize()
            )
        known[JAVA_NAMES.get(name, name)] = ASSIGNORS.get(str(value), value)
    return known


# The environment names of the seeds, for whoever reads the environment: name -> setting.
ENVIRONMENT_ALIASES = {
    "TB_KAFKA_SERVERS": "bootstrap_servers",
    "TB_KAFKA_ACKS": "acks",
    "TB_KAFKA_RETRIES": "retries",
    "TB_KAFKA_BATCH_SIZE": "batch_size",
    "TB_KAFKA_LINGER_MS": "linger_ms",
    "TB_BUFFER_MEMORY": "buffer_memory",
    "TB_KAFKA_COMPRESSION_TYPE": "compression_type",
    "TB_KAFKA_MAX_REQUEST_SIZE": "max_request_size",
    "TB_KAFKA_MAX_IN_FLIGHT_REQUESTS_PER_CONNECTION": "max_in_flight",
    "TB_KAFKA_REQUEST_TIMEOUT_MS": "request_timeout_ms",
    "TB_QUEUE_KAFKA_AUTO_OFFSET_RESET": "auto_offset_reset",
    "TB_KAFKA_SESSION_TIMEOUT_MS": "session_timeout_ms",
    "TB_QUEUE_KAFKA_SESSION_TIMEOUT_MS": "session_timeout_ms",
    "TB_QUEUE_KAFKA_MAX_POLL_RECORDS": "max_poll_records",
    "TB_KAFKA_MAX_POLL_RECORDS": "max_poll_records",
    "TB_QUEUE_KAFKA_MAX_POLL_INTERVAL_MS": "max_poll_interval_ms",
    "TB_KAFKA_MAX_POLL_INTERVAL_MS": "max_poll_interval_ms",
    "TB_QUEUE_KAFKA_MAX_PARTITION_FETCH_BYTES": "max_partition_fetch_bytes",
    "TB_KAFKA_MAX_PARTITION_FETCH_BYTES": "max_partition_fetch_bytes",
    "TB_QUEUE_KAFKA_FETCH_MAX_BYTES": "fetch_max_bytes",
    "TB_KAFKA_FETCH_MAX_BYTES": "fetch_max_bytes",
    "TB_QUEUE_KAFKA_REPLICATION_FACTOR": "replication_factor",
}
