"""Settings of APPLICATION clients, with TBMQ's names and defaults."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from penstock.settings.section import Section, about

DAY = 86_400
TOPIC_PROPERTIES = "retention.ms:604800000;segment.bytes:26214400;retention.bytes:1048576000"

Records = Annotated[int, Meta(ge=1, le=65_535)]
Natural = Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]


class ApplicationSettings(Section, frozen=True):
    """Persistent clients of the type APPLICATION: each has a topic of its own in the log.

    Properties of topics hold when a topic is made. Limits of retention are per partition in Kafka; in the embedded log
    a topic as a whole has the limit times its partitions. Which client is an APPLICATION says
    [access control](access-control.md).
    """

    client_id_validation: Annotated[
        bool,
        about(
            "a client id with other characters than letters and digits is hashed for the name of its topic; "
            "false: such a client gets no topic and is served as a DEVICE"
        ),
    ] = True
    shared_topic_validation: Annotated[
        bool,
        about(
            "the same for filters of shared subscriptions and other characters than letters, digits, /, + and #; "
            "false: such a subscription is shared as those of a DEVICE"
        ),
    ] = True
    topic_properties: Annotated[str, about("of a client's topic, name:value;name:value")] = TOPIC_PROPERTIES
    shared_topic_properties: Annotated[str, about("of the topic of a shared subscription, name:value;name:value")] = (
        TOPIC_PROPERTIES
    )
    shared_partitions: Annotated[
        int,
        Meta(ge=1, le=10_000),
        about("partitions of the topic of a shared subscription: the most members that work at the same time"),
    ] = 16
    max_shares: Annotated[
        Natural,
        about(
            "shared subscriptions, share name and filter, at once: on Kafka each is a consumer with threads and "
            "connections of its own; over it, new ones are refused; 0 = no limit"
        ),
    ] = 100
    max_poll_records: Annotated[Records, about("messages of a pack of a client's own topic")] = 200
    shared_max_poll_records: Annotated[Records, about("messages of a pack of a shared subscription")] = 500
    pack_timeout: Annotated[
        float,
        Meta(ge=0.01, le=DAY),
        about("how long a pack waits for its acknowledgements before ack_strategy decides", unit="seconds"),
    ] = 20.0
    packs_in_flight: Annotated[
        int, Meta(ge=1, le=1_000), about("packs of a client under way at once; 1 = the next waits for the last")
    ] = 4
    ack_strategy: Annotated[
        Literal["retry-all", "skip-all"],
        about("what happens to messages not acknowledged in time: sent again with DUP (MQTT 3.x), or given up"),
    ] = "retry-all"
    retries: Annotated[Natural, about("with retry-all: times before they are given up, 0 = never")] = 3
    retry_pause: Annotated[
        float, Meta(ge=0, le=DAY), about("time between two retries, after the time of the pack", unit="seconds")
    ] = 1.0
    write_and_flush: Annotated[
        bool, about("write each message to the socket at once: lowest latency; false: several together")
    ] = False
    buffered_messages: Annotated[Records, about("messages written together with write_and_flush = false")] = 10
    remove_topics: Annotated[
        Literal["session-end", "never"],
        about("when a client's topic is removed; never: only by `penstock app delete`"),
    ] = "session-end"
    max_clients: Annotated[
        Natural, about("persistent APPLICATION clients; over it, new ones are refused; 0 = no limit")
    ] = 0
