"""Settings of the queues of DEVICE clients, and of Redis as their store, with TBMQ's names and defaults."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from penstock.settings.section import Section, about

MIB = 1024 * 1024
DAY = 86_400
Seconds = Annotated[float, Meta(ge=0.01, le=3_600)]
Name = Annotated[str, Meta(max_length=1_024)]


class DeviceSettings(Section, frozen=True):
    """Messages that wait for persistent DEVICE clients."""

    store: Annotated[
        Literal["embedded", "redis"], about("where they wait: embedded in server.data_dir, or see [redis]")
    ] = "embedded"
    persist_after: Annotated[
        float,
        Meta(ge=0, le=3_600),
        about(
            "time after which a message that a connected client has not acknowledged is stored; 0 = before it is sent",
            unit="seconds",
        ),
    ] = 0.1
    messages_limit: Annotated[int, Meta(ge=1, le=65_535), about("messages stored per client; the oldest give way")] = (
        10_000
    )
    bytes_limit: Annotated[
        int,
        Meta(ge=0, le=1 << 44),
        about("bytes stored per client; the oldest messages give way; 0 = no limit", unit="bytes"),
    ] = 64 * MIB
    total_bytes_limit: Annotated[
        int,
        Meta(ge=0, le=1 << 50),
        about(
            "bytes stored for all clients; at the limit, the oldest messages of the client that gets a new one "
            "give way; 0 = no limit; without effect in a Redis Cluster",
            unit="bytes",
        ),
    ] = 16 * 1024 * MIB
    messages_ttl: Annotated[
        int,
        Meta(ge=1, le=0x7FFFFFFF),
        about("how long a message without an expiry of its own is stored", unit="seconds"),
    ] = 7 * DAY
    page_size: Annotated[int, Meta(ge=1, le=1_000), about("stored messages read at once when a client comes back")] = (
        200
    )


class RedisSettings(Section, frozen=True):
    """Redis 6.2 or later, or Valkey (`device.store = "redis"`)."""

    mode: Annotated[
        Literal["standalone", "sentinel", "cluster"], about("what redis.addresses names: servers, sentinels or nodes")
    ] = "standalone"
    addresses: Annotated[
        str,
        Meta(min_length=1),
        about("host:port, separated by commas; of a cluster or of the sentinels some are enough"),
    ] = "localhost:6379"
    port: Annotated[int, Meta(ge=1, le=65_535), about("port of addresses that name none")] = 6_379
    master: Annotated[Name, about("the name of the master, as the sentinels know it")] = "mymaster"
    database: Annotated[int, Meta(ge=0, le=65_535), about("number of the database; a cluster has only 0")] = 0
    username: Annotated[Name, about("ACL user")] = ""
    password: Annotated[Name, about("its password, or that of the default user", secret=True)] = ""
    sentinel_username: Annotated[Name, about("ACL user of the sentinels")] = ""
    sentinel_password: Annotated[Name, about("password of the sentinels", secret=True)] = ""
    tls: Annotated[bool, about("speak TLS, to the sentinels too")] = False
    tls_ca: Annotated[str, about("PEM file of the authorities; empty = those of the system")] = ""
    tls_certificate: Annotated[str, about("PEM file with our certificate, when Redis asks for one")] = ""
    tls_key: Annotated[str, about("PEM file with its key")] = ""
    tls_verify: Annotated[bool, about("check the server's certificate and name")] = True
    # A brace in front would become the hash tag of every key, and the whole cluster one slot.
    prefix: Annotated[str, Meta(pattern="^[^{}]*$", max_length=128), about("put before every key")] = ""
    connect_timeout: Annotated[Seconds, about("time to connect and to log in", unit="seconds")] = 5.0
    response_timeout: Annotated[
        Seconds, about("time without an answer after which the broker reconnects and asks again", unit="seconds")
    ] = 10.0
    command_timeout: Annotated[
        Seconds, about("time without an answer after which a command has failed", unit="seconds")
    ] = 30.0
    reconnect_delay: Annotated[Seconds, about("pause after a failed attempt; it doubles", unit="seconds")] = 0.05
    reconnect_delay_max: Annotated[Seconds, about("longest pause between attempts", unit="seconds")] = 2.0
    backlog_bytes: Annotated[
        int,
        Meta(ge=65_536, le=1 << 40),
        about("bytes of commands without an answer; beyond it calls fail at once", unit="bytes"),
    ] = 64 * MIB
