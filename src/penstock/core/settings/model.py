"""Every setting of the broker: its name, type, default, bounds and meaning. The reference in docs/ is made from this."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

KIB = 1024
MIB = 1024 * KIB
DAY = 86_400
FOREVER = 0xFFFFFFFF

Positive = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]
U16 = Annotated[int, Meta(ge=1, le=65_535)]


def _about(text: str) -> Meta:
    return Meta(description=text)


class Section(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A table of the settings file."""


class ServerSettings(Section):
    data_dir: Annotated[str, _about("where everything kept across restarts lies")] = "data"
    drain_seconds: Annotated[Seconds, _about("how long SIGTERM waits for work in flight before it closes")] = 5.0
    node_id: Annotated[str, _about("name of this node in logs, $SYS and metrics")] = "penstock"


class ListenerSettings(Section):
    name: Annotated[str, _about("shown in logs and metrics")] = "mqtt"
    transport: Annotated[
        Literal["tcp", "tls", "ws", "wss", "unix"], _about("what is spoken under MQTT; unix takes a path as address")
    ] = "tcp"
    address: Annotated[str, _about("host:port, [ipv6]:port, or a path for unix")] = "127.0.0.1:1883"
    path: Annotated[str, _about("path of a WebSocket listener")] = "/mqtt"
    proxy_protocol: Annotated[bool, _about("expect a PROXY protocol v1 or v2 header on each connection")] = False
    certificate: Annotated[str, _about("PEM file with the certificate chain (tls, wss)")] = ""
    key: Annotated[str, _about("PEM file with the private key (tls, wss)")] = ""
    client_ca: Annotated[str, _about("PEM file with the authorities whose client certificates are accepted")] = ""
    client_certificate: Annotated[
        Literal["none", "optional", "required"], _about("whether clients show a certificate")
    ] = "none"
    certificate_username: Annotated[
        Literal["none", "cn", "dn"], _about("take the user name from the client certificate: common or whole name")
    ] = "none"
    tls_minimum: Annotated[Literal["1.2", "1.3"], _about("oldest TLS version accepted")] = "1.2"
    max_connections: Annotated[Natural, _about("connections of this listener, 0 = only the limit of all")] = 0
    anonymous: Annotated[
        Literal["inherit", "loopback", "allow", "deny"], _about("overrides access.anonymous for this listener")
    ] = "inherit"


class AccessSettings(Section):
    anonymous: Annotated[
        Literal["loopback", "allow", "deny"],
        _about("who may connect without a user name: clients of listeners on a loopback address or unix socket, all, none"),
    ] = "loopback"
    password_file: Annotated[str, _about("users and their argon2id hashes, written by `penstock passwd`")] = ""
    acl_file: Annotated[str, _about("allow and deny rules per client id, user name and topic")] = ""
    enhanced: Annotated[
        dict[str, str], _about("MQTT 5 enhanced authentication: method name to `module:factory`")
    ] = {}


class MqttSettings(Section):
    maximum_qos: Annotated[int, Meta(ge=0, le=2), _about("highest QoS accepted and granted")] = 2
    retain_available: Annotated[bool, _about("accept retained messages")] = True
    wildcard_subscriptions: Annotated[bool, _about("accept + and # in filters")] = True
    shared_subscriptions: Annotated[bool, _about("accept $share/<group>/<filter>")] = True
    subscription_identifiers: Annotated[bool, _about("accept subscription identifiers")] = True
    shared_strategy: Annotated[
        Literal["round-robin", "random", "sticky", "hash-client", "hash-topic"],
        _about("which member of a shared subscription gets a message"),
    ] = "round-robin"
    response_information: Annotated[
        str, _about("given to clients that ask for it; %c is the escaped client id; empty = not given")
    ] = "response/%c"
    allow_zero_length_client_id: Annotated[bool, _about("assign an id to clients that send none")] = True


class LimitSettings(Section):
    max_connections: Annotated[Positive, _about("connections at once, all listeners together")] = 100_000
    connect_rate: Annotated[Natural, _about("new connections accepted per second, 0 = no limit")] = 0
    connect_timeout: Annotated[Seconds, _about("seconds a new connection has to send CONNECT")] = 10.0
    connect_packet_size: Annotated[Positive, _about("largest CONNECT in bytes")] = 64 * KIB
    max_packet_size: Annotated[int, Meta(ge=128, le=268_435_461), _about("largest packet in bytes after CONNECT")] = MIB
    max_subscriptions: Annotated[Positive, _about("subscriptions per client")] = 1_000
    max_topic_levels: Annotated[Positive, _about("levels of a topic or filter")] = 128
    max_topic_length: Annotated[U16, _about("bytes of a topic or filter")] = 65_535
    max_user_properties: Annotated[Positive, _about("user properties per packet")] = 64
    receive_maximum: Annotated[U16, _about("unacknowledged QoS 1 and 2 publishes accepted from an MQTT 5 client")] = 100
    max_inflight: Annotated[U16, _about("unacknowledged QoS 1 and 2 messages sent to a client")] = 1_000
    max_queued_messages: Annotated[Natural, _about("messages waiting per client")] = 1_000
    max_queued_bytes: Annotated[Natural, _about("bytes waiting per client")] = 8 * MIB
    queue_overflow: Annotated[
        Literal["drop-newest", "drop-oldest"], _about("what gives way when a client's queue is full")
    ] = "drop-newest"
    topic_alias_maximum: Annotated[
        int, Meta(ge=0, le=65_535), _about("topic aliases per connection, each way; 0 = none")
    ] = 16
    max_keep_alive: Annotated[
        int, Meta(ge=0, le=65_535), _about("longest keep-alive granted to MQTT 5 clients in seconds, 0 = any")
    ] = 600
    max_session_expiry: Annotated[
        int, Meta(ge=0, le=FOREVER), _about("longest session expiry in seconds, 4294967295 = sessions may live for ever")
    ] = 7 * DAY
    max_retained_messages: Annotated[Natural, _about("retained messages held")] = 100_000
    max_retained_bytes: Annotated[Natural, _about("bytes of retained messages held")] = 1024 * MIB
    write_high_watermark: Annotated[
        Positive, _about("bytes waiting for a client's socket above which it is not writable")
    ] = 1280 * KIB
    write_low_watermark: Annotated[Positive, _about("bytes below which it is writable again")] = 640 * KIB
    backpressure_seconds: Annotated[
        Seconds, _about("how long a subscriber that cannot keep up may slow its publishers before it loses messages")
    ] = 1.0
    match_cache: Annotated[Natural, _about("topics whose subscribers are remembered")] = 100_000


class IngestSettings(Section):
    log: Annotated[Literal["none"], _about("which publishes are logged")] = "none"


class LoggingSettings(Section):
    level: Annotated[Literal["debug", "info", "warning", "error"], _about("least level shown")] = "info"
    format: Annotated[Literal["auto", "text", "json"], _about("auto: key=value on a terminal, JSON otherwise")] = "auto"


class AdminSettings(Section):
    address: Annotated[str, _about("host:port of /metrics, /healthz and /readyz; empty = off")] = "127.0.0.1:9883"


class SysSettings(Section):
    interval: Annotated[Natural, _about("seconds between updates of the $SYS topics, 0 = none")] = 10


class Settings(Section):
    server: ServerSettings = ServerSettings()
    listeners: Annotated[list[ListenerSettings], Meta(min_length=1)] = field(default_factory=lambda: [ListenerSettings()])
    access: AccessSettings = AccessSettings()
    mqtt: MqttSettings = MqttSettings()
    limits: LimitSettings = LimitSettings()
    ingest: IngestSettings = IngestSettings()
    logging: LoggingSettings = LoggingSettings()
    admin: AdminSettings = AdminSettings()
    sys: SysSettings = SysSettings()
