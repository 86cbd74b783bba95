"""The settings of the Kafka provider, with the names and defaults of ThingsBoard, and what librdkafka makes of them.

Properties that are not here go through `producer`, `consumer` and `admin` as librdkafka spells them. Names that only
the Java client has are translated where librdkafka can do the same; otherwise they are refused, with what to write
instead.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.core.errors import SettingsError
from penstock.settings.kafka import KafkaSettings
from penstock.storage.log.base import parse_properties

Property = str | int | float | bool

# Between two reports of a client that is no producer.
LEAST_INTERVAL_MS = 1_000
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
    "buffer.memory": "set kafka.buffer_memory",
    "max.poll.records": "set kafka.max_poll_records",
    "max.block.ms": "nothing blocks here: appends beyond kafka.buffer_memory fail at once",
    "key.serializer": "records are bytes",
    "value.serializer": "records are bytes",
    "key.deserializer": "records are bytes",
    "value.deserializer": "records are bytes",
    "partitioner.class": "Penstock chooses the partition itself (services.partitions.hash_function_name)",
    "partitioner": "Penstock chooses the partition itself (services.partitions.hash_function_name)",
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
# librdkafka's older name; who gives both gets the later one, which is a property's.
OTHER_ACKS = "request.required.acks"
# Of the protocol of groups that was there before Kafka 4 had its own.
CLASSIC_ONLY = {"partition.assignment.strategy", "session.timeout.ms", "heartbeat.interval.ms"}
# What confluent-kafka, which administers, takes besides librdkafka's properties: no text is one of them.
PYTHON_ONLY = ("logger", "default.topic.config", "on_commit", "on_delivery")


def properties_of(settings: KafkaSettings, topic: str) -> dict[str, str]:
    """The configured properties of a topic: its own, else the longest beginning that fits, else the common ones."""
    text = settings.topics.get(topic)
    if text is None:
        fitting = [name for name in settings.topics if name.endswith("*") and topic.startswith(name[:-1])]
        text = settings.topics[max(fitting, key=len)] if fitting else settings.topic_properties
    return parse_properties(text)


def is_cooperative(config: Mapping[str, Property]) -> bool:
    """Whether a group hands partitions over one by one; else everybody gives everything back first."""
    is_new = config.get("group.protocol") == "consumer"
    return is_new or "cooperative" in str(config["partition.assignment.strategy"])


def producer_config(settings: KafkaSettings) -> dict[str, Property]:
    config = _producer_config(settings)
    if str(config.get(OTHER_ACKS, config["acks"])) == "0":
        raise SettingsError(
            "kafka.acks = 0 is not allowed: Kafka would not say whether it has a record, nor where",
            "A message would be acknowledged that nobody has, and limits of queues would count wrong. "
            "all loses nothing; 1 is faster, and loses what only a broker that dies had.",
        )
    return config


def patient_config(settings: KafkaSettings) -> dict[str, Property]:
    """Return the properties of a producer whose records do not time out. Its requests do, so that records can be given
    up. The callers bound what is under way."""
    config = producer_config(settings)
    config.pop("delivery.timeout.ms", None)  # another name of the first
    return config | {
        "message.timeout.ms": 0,
        "request.timeout.ms": min(settings.request_timeout_ms, settings.delivery_timeout_ms),
        "queue.buffering.max.kbytes": 2_147_483_647,
        "queue.buffering.max.messages": 2_147_483_647,
    }


def _producer_config(settings: KafkaSettings) -> dict[str, Property]:
    if settings.idempotence and settings.acks not in ("all", "-1"):
        raise SettingsError(
            f"kafka.acks = {settings.acks} does not go with kafka.idempotence",
            "Set kafka.idempotence = false as well, or leave acks at all.",
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
        # What is read ahead; librdkafka's default is four times as much for each consumer.
        "queued.max.messages.kbytes": 16_384,
        "statistics.interval.ms": _rare_statistics(settings),
    }
    if instance_id is not None:
        config["group.instance.id"] = instance_id
    chosen = translated("consumer", settings.common) | translated("consumer", settings.consumer)
    config |= chosen
    if config.get("group.protocol") == "consumer":
        # Kafka's brokers decide about these there, and librdkafka refuses them.
        for name in CLASSIC_ONLY - chosen.keys():
            del config[name]
    if config["auto.offset.reset"] == "none":
        config["auto.offset.reset"] = "error"
    return config


def admin_config(settings: KafkaSettings) -> dict[str, Property]:
    # Nobody polls this client for its log lines, and the producer's say the same.
    quiet: dict[str, Property] = {"log_level": 0}
    quiet["statistics.interval.ms"] = _rare_statistics(settings)
    return _base(settings) | quiet | translated("admin", settings.common) | translated("admin", settings.admin)


def _rare_statistics(settings: KafkaSettings) -> int:
    """There are many consumers, and a report is as long as a consumer has partitions."""
    interval = settings.statistics_interval_ms
    return max(interval, LEAST_INTERVAL_MS) if interval else 0


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
                f"kafka.{section}: {name} is not a property of librdkafka", JAVA_ONLY[name].capitalize()
            )
        if name in PYTHON_ONLY or name.endswith("_cb"):
            raise SettingsError(f"kafka.{section}: {name} is not a property of librdkafka", "Leave it out.")
        known[JAVA_NAMES.get(name, name)] = ASSIGNORS.get(str(value), value)
    return known
