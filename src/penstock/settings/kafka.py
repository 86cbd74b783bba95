"""Settings of Kafka as the log, with the names and defaults of ThingsBoard."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from penstock.settings.section import Section, about

MIB = 1024 * 1024
Positive = Annotated[int, Meta(ge=1, le=2_147_483_647)]
Natural = Annotated[int, Meta(ge=0, le=2_147_483_647)]

DEFAULT_TOPIC_PROPERTIES = (
    "retention.ms:604800000;segment.bytes:52428800;retention.bytes:1048576000;partitions:1;min.insync.replicas:1"
)


class KafkaSettings(Section, frozen=True):
    """Kafka as the log (`log.provider = "kafka"`)."""

    bootstrap_servers: Annotated[str, Meta(min_length=1), about("host:port of some brokers, separated by commas")] = (
        "localhost:9092"
    )
    acks: Annotated[
        Literal["all", "-1", "0", "1"],
        about(
            "replicas that must have a record before it counts as written; 1 can lose it, 0 is refused"
            " because losses would go unnoticed"
        ),
    ] = "all"
    idempotence: Annotated[bool, about("retries neither duplicate nor reorder; needs acks = all")] = True
    retries: Annotated[
        Natural, about("attempts after the first; with idempotence they go on until delivery_timeout_ms")
    ] = 1
    # ThingsBoard's 16 KiB makes a topic of one partition wait for a request per hundred messages: docs/adr/0015.
    batch_size: Annotated[Positive, about("most bytes of a batch sent to a partition", unit="bytes")] = 1_000_000
    linger_ms: Annotated[float, Meta(ge=0, le=900_000), about("how long a batch waits for more, in ms")] = 1
    buffer_memory: Annotated[
        Positive, about("bytes appended and not yet written; beyond it appends fail at once", unit="bytes")
    ] = 33_554_432
    buffer_records: Annotated[Positive, about("the same in records")] = 500_000
    compression_type: Annotated[
        Literal["none", "gzip", "snappy", "lz4", "zstd"], about("how batches are compressed")
    ] = "none"
    max_request_size: Annotated[
        int, Meta(ge=1000, le=1_000_000_000), about("largest record and request", unit="bytes")
    ] = 1_048_576
    max_in_flight: Annotated[
        int, Meta(ge=1, le=1_000_000), about("requests under way per connection; at most 5 with idempotence")
    ] = 5
    request_timeout_ms: Annotated[Positive, about("how long a broker may take to answer, in ms")] = 30_000
    delivery_timeout_ms: Annotated[
        Positive,
        about("how long an append waits for Kafka before it fails as unavailable, in ms; QoS 2 publishes keep waiting"),
    ] = 30_000
    timestamp_tolerance_ms: Annotated[
        Natural,
        about("records this much older than now at most are written with the time of writing, which is far cheaper"),
    ] = 100
    auto_offset_reset: Annotated[
        Literal["earliest", "latest", "none"], about("where a group without a committed offset starts")
    ] = "earliest"
    session_timeout_ms: Annotated[
        Positive, about("time without a heartbeat after which a group member is removed, in ms")
    ] = 10_000
    heartbeat_interval_ms: Annotated[Positive, about("time between heartbeats, in ms")] = 3_000
    max_poll_records: Annotated[Positive, about("most records of one poll")] = 8_192
    max_poll_interval_ms: Annotated[
        Positive, about("time without a poll after which a group member loses its partitions, in ms")
    ] = 300_000
    max_partition_fetch_bytes: Annotated[Positive, about("most bytes fetched of a partition at once", unit="bytes")] = (
        16 * MIB
    )
    fetch_max_bytes: Annotated[Positive, about("most bytes of one fetch", unit="bytes")] = 128 * MIB
    replication_factor: Annotated[int, Meta(ge=1, le=32_767), about("copies of a topic made by Penstock")] = 1
    topic_properties: Annotated[str, about("of topics without properties of their own, name:value;name:value")] = (
        DEFAULT_TOPIC_PROPERTIES
    )
    topics: Annotated[
        dict[str, str],
        about("properties by the name of a topic, or by the beginning of names with a * at the end"),
    ] = field(default_factory=dict)
    create_topics: Annotated[bool, about("create topics on first use")] = True
    statistics_interval_ms: Annotated[
        Natural, about("time between librdkafka's statistics, 0 = none, in ms; at least 1000 for all but the producer")
    ] = 5_000
    common: Annotated[dict[str, str], about("any librdkafka property, for all clients")] = field(default_factory=dict)
    producer: Annotated[dict[str, str], about("the same, for the producer")] = field(default_factory=dict)
    consumer: Annotated[
        dict[str, str],
        about('the same, for consumers; with "group.protocol" = "consumer" their groups are of Kafka 4\'s kind'),
    ] = field(default_factory=dict)
    admin: Annotated[dict[str, str], about("the same, for the administrative client")] = field(default_factory=dict)
