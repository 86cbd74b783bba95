"""Settings of data subscription: topics that are queries, and the listener where their consumers connect."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from penstock.settings.listening import AnonymousHere, CertificateUsername, ClientCa, TlsMinimum
from penstock.settings.section import Section, about

KIB = 1024
MIB = 1024 * KIB
DAY = 86_400

Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Size = Annotated[int, Meta(ge=64 * KIB, le=1 << 44)]
Interval = Annotated[float, Meta(ge=0.1, le=DAY)]


class DataSubscriptionSettings(Section, frozen=True):
    """Topics defined by queries, and where their consumers connect. [The data listener](data-listener.md) explains
    them."""

    enabled: Annotated[
        bool, about("offer query topics; they need the log: with ingest.log = none there are none anyway")
    ] = True
    address: Annotated[
        str, Meta(min_length=1), about("host:port, [ipv6]:port or *:port where consumers connect; port 0 = a free one")
    ] = "127.0.0.1:6030"
    transport: Annotated[Literal["tcp", "tls"], about("what is spoken under the protocol of the consumers")] = "tcp"
    certificate: Annotated[str, about("PEM file with the certificate chain (tls)")] = ""
    key: Annotated[str, about("PEM file with the private key (tls)")] = ""
    client_ca: ClientCa = ""
    client_certificate: Annotated[
        Literal["none", "optional", "required"], about("whether consumers show a certificate")
    ] = "none"
    certificate_username: CertificateUsername = "none"
    tls_minimum: TlsMinimum = "1.2"
    anonymous: AnonymousHere = "inherit"
    max_connections: Annotated[Count, about("connections of consumers at once")] = 10_000
    max_consumers: Annotated[Count, about("consumers in all groups of this node; over it, none can join")] = 10_000
    max_groups: Annotated[Count, about("groups, including those without consumers whose offsets are kept")] = 10_000
    max_members: Annotated[Count, about("consumers of one group")] = 1_000
    max_consumer_topics: Annotated[Count, about("topics of one consumer")] = 1_000
    rebalance_delay: Annotated[
        float,
        Meta(ge=0, le=2),
        about("consumers that come together are given their partitions together", unit="seconds"),
    ] = 0.1
    offsets_retention: Annotated[
        float,
        Meta(ge=60, le=3_650 * DAY),
        about(
            "how long the offsets of a group without consumers are kept, and the log retains records for it",
            unit="seconds",
        ),
    ] = 7.0 * DAY
    max_in_flight: Annotated[
        int, Meta(ge=1, le=100_000), about("requests of a connection under way; over it, it is not read")
    ] = 4_096
    max_request_bytes: Annotated[
        int, Meta(ge=1 * KIB, le=64 * MIB), about("largest request; a larger one ends the connection", unit="bytes")
    ] = MIB
    max_fetch_bytes: Annotated[
        int, Meta(ge=1 * KIB, le=256 * MIB), about("largest answer to a fetch, whatever it asks for", unit="bytes")
    ] = 16 * MIB
    hello_timeout: Annotated[Interval, about("time a new connection has to say who it is", unit="seconds")] = 10.0
    write_timeout: Annotated[
        Interval, about("how long a consumer may leave its answers unread before it is cut off", unit="seconds")
    ] = 30.0
    max_parked: Annotated[Count, about("fetches that wait for rows at once; over it they are refused for now")] = (
        100_000
    )
    feed_bytes: Annotated[
        Size, about("rows of one query kept in memory; consumers that lag further read the log", unit="bytes")
    ] = MIB
    feeds_bytes: Annotated[Size, about("rows of all queries kept in memory", unit="bytes")] = 256 * MIB
    feed_idle: Annotated[Interval, about("how long a query is evaluated after its last fetch", unit="seconds")] = 60.0
    max_readers: Annotated[
        int, Meta(ge=1, le=1_000), about("lagging consumers that read the log at the same time; others wait")
    ] = 8
    retention: Annotated[
        Literal["hold", "log"],
        about(
            "hold: retention of the log, Kafka's too, keeps records that a group has not read; log: it does not, and a "
            "consumer that lost records gets an error"
        ),
    ] = "hold"
    retention_interval: Annotated[
        Interval, about("time between updates of what the groups still need of the log", unit="seconds")
    ] = 1.0
    error_properties: Annotated[
        str, about("properties of the topic tbmq.datasub.errors when it is made (rows of ON ERROR dead-letter)")
    ] = "retention.ms:604800000;retention.bytes:67108864;segment.bytes:16777216"
    group_metrics: Annotated[
        int,
        Meta(ge=0, le=10_000),
        about("groups of a topic with a lag of their own in the metrics: those with the largest; 0 = none"),
    ] = 100
