"""Every setting of the broker: its name, type, default, bounds and meaning. The reference in docs/ is made from this.

Two facts about a setting travel with its description: the unit a person may write it in (`bytes`: "1280KiB",
`seconds`: "10s") and whether it can change while the broker runs (`live`, see reload.py). Names of files that a
listener uses are not live, but the files are read again on every reload.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from penstock.settings.application import ApplicationSettings
from penstock.settings.cluster import ClusterSettings
from penstock.settings.datasub import DataSubscriptionSettings
from penstock.settings.kafka import KafkaSettings
from penstock.settings.listening import AnonymousHere, CertificateUsername, ClientCa, TlsMinimum
from penstock.settings.queues import DurableQueueSettings, QueueSettings
from penstock.settings.rates import RateSettings
from penstock.settings.redis import DeviceSettings, RedisSettings
from penstock.settings.section import Section, about
from penstock.settings.services import ServiceSettings

KIB = 1024
MIB = 1024 * KIB
DAY = 86_400
FOREVER = 0xFFFFFFFF

# The compiled half keeps counts and sizes of one connection in 32 bits.
Positive = Annotated[int, Meta(ge=1, le=0xFFFFFFFF)]
Natural = Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
Seconds = Annotated[float, Meta(ge=0, le=365 * DAY)]
U16 = Annotated[int, Meta(ge=1, le=65_535)]
ClientType = Literal["device", "application"]


class ServerSettings(Section, frozen=True):
    """The process as a whole."""

    data_dir: Annotated[str, Meta(min_length=1), about("directory for all persistent data")] = "data"
    drain_seconds: Annotated[
        Seconds, about("how long SIGTERM waits for work in flight before it closes", unit="seconds", live=True)
    ] = 5.0
    close_seconds: Annotated[
        Seconds,
        about("how long SIGTERM then waits, in all, for an unreachable Kafka or Redis", unit="seconds", live=True),
    ] = 8.0
    node_id: Annotated[
        str,
        Meta(min_length=1, max_length=64),
        about("name of this node in logs, $SYS and metrics; unique among the brokers of a cluster"),
    ] = "penstock"


class ListenerSettings(Section, frozen=True):
    """One address where clients connect. Write `[[listeners]]` once for each."""

    name: Annotated[
        str,
        Meta(min_length=1, max_length=64),
        about("shown in logs and metrics; listeners without one are called mqtt, mqtt-2, mqtt-3 …"),
    ] = "mqtt"
    transport: Annotated[
        Literal["tcp", "tls", "ws", "wss", "unix"], about("transport under MQTT; unix takes a path as address")
    ] = "tcp"
    address: Annotated[
        str, Meta(min_length=1), about("host:port, [ipv6]:port, *:port for all interfaces, or a path for unix")
    ] = "127.0.0.1:1883"
    path: Annotated[str, Meta(pattern="^/"), about("path of a WebSocket listener")] = "/mqtt"
    allowed_origins: Annotated[
        str,
        about("origins of the web pages that may connect by WebSocket, separated by commas; empty = all of them"),
    ] = ""
    proxy_protocol: Annotated[bool, about("expect a PROXY protocol v1 or v2 header on each connection")] = False
    certificate: Annotated[str, about("PEM file with the certificate chain (tls, wss)")] = ""
    key: Annotated[str, about("PEM file with the private key (tls, wss)")] = ""
    client_ca: ClientCa = ""
    client_certificate: Annotated[
        Literal["none", "optional", "required"], about("whether clients show a certificate")
    ] = "none"
    certificate_username: CertificateUsername = "none"
    tls_minimum: TlsMinimum = "1.2"
    max_connections: Annotated[Natural, about("connections of this listener, 0 = only the limit of all")] = 0
    anonymous: AnonymousHere = "inherit"


AUTHENTICATORS = ("enhanced", "certificate", "password_file", "anonymous")
AUTHORISERS = ("acl_file",)


class AccessSettings(Section, frozen=True):
    """Who may connect and what they may do."""

    anonymous: Annotated[
        Literal["loopback", "allow", "deny"],
        about("who may connect without a user name: clients of loopback and unix socket listeners, all, none"),
    ] = "loopback"
    password_file: Annotated[str, about("users and their argon2id hashes, written by `penstock passwd`", live=True)] = (
        ""
    )
    acl_file: Annotated[str, about("allow and deny rules per client id, user name and topic", live=True)] = ""
    authenticators: Annotated[
        tuple[str, ...],
        about("asked in this order who a client is, until one says yes or no; `module:factory` for one of your own"),
    ] = AUTHENTICATORS
    authorisers: Annotated[
        tuple[str, ...],
        about("asked in this order what a client may do, the first rule decides; `module:factory` for one of your own"),
    ] = AUTHORISERS
    foreign_takeover: Annotated[
        Literal["deny", "allow"],
        about(
            "answer to a CONNECT with the client id of another user's persistent session: refuse it (0x85), or accept "
            "it and end the other session",
            live=True,
        ),
    ] = "deny"
    disconnect_removed_users: Annotated[
        bool, about("disconnect the clients of users who are no longer in the password file after a reload", live=True)
    ] = True
    enhanced: Annotated[dict[str, str], about("enhanced authentication (MQTT 5): method to `module:factory`")] = field(
        default_factory=dict
    )
    anonymous_type: Annotated[
        ClientType, about("type of clients without a user name, where no rule of the ACL file gives one", live=True)
    ] = "device"
    default_type: Annotated[
        ClientType,
        about("type of all others, where neither the ACL file nor the password file gives one", live=True),
    ] = "device"


class MqttSettings(Section, frozen=True):
    """Features of MQTT that are offered."""

    maximum_qos: Annotated[int, Meta(ge=0, le=2), about("highest QoS accepted and granted")] = 2
    retain_available: Annotated[bool, about("accept retained messages")] = True
    wildcard_subscriptions: Annotated[bool, about("accept + and # in filters")] = True
    shared_subscriptions: Annotated[bool, about("accept $share/<group>/<filter>")] = True
    subscription_identifiers: Annotated[bool, about("accept subscription identifiers")] = True
    shared_strategy: Annotated[
        Literal["round-robin", "random", "sticky", "hash-client", "hash-topic"],
        about("which member of a shared subscription gets a message"),
    ] = "round-robin"
    response_information: Annotated[
        str, about("given to clients that ask for it; %c is the escaped client id; empty = not given", live=True)
    ] = "response/%c"
    allow_zero_length_client_id: Annotated[bool, about("assign an id to clients that send none", live=True)] = True


class LimitSettings(Section, frozen=True):
    """Bounds of everything that could grow. What changes live holds for clients that connect afterwards."""

    max_connections: Annotated[Positive, about("connections at once, all listeners together", live=True)] = 100_000
    max_sessions: Annotated[
        Positive,
        about("sessions of connected and absent clients; over it, clients without one are refused", live=True),
    ] = 1_000_000
    connect_rate: Annotated[Natural, about("new connections accepted per second, 0 = no limit", live=True)] = 0
    connect_timeout: Annotated[
        Seconds, about("time a new connection has to send CONNECT", unit="seconds", live=True)
    ] = 10.0
    connect_packet_size: Annotated[
        int, Meta(ge=128, le=268_435_461), about("largest CONNECT", unit="bytes", live=True)
    ] = 64 * KIB
    max_packet_size: Annotated[
        int, Meta(ge=128, le=268_435_461), about("largest packet after CONNECT", unit="bytes", live=True)
    ] = MIB
    max_subscriptions: Annotated[Positive, about("subscriptions per client", live=True)] = 1_000
    max_subscription_bytes: Annotated[
        Positive,
        about("total size of a client's filters; each level counts 64 bytes more", unit="bytes", live=True),
    ] = MIB
    max_total_subscription_bytes: Annotated[
        int,
        Meta(ge=1, le=1 << 44),
        about("total size of the filters of all clients, counted in the same way", unit="bytes", live=True),
    ] = 1024 * MIB
    max_topic_levels: Annotated[U16, about("levels of a topic or filter", live=True)] = 32
    max_topic_length: Annotated[U16, about("bytes of a topic or filter", live=True)] = 65_535
    max_user_properties: Annotated[Positive, about("user properties per packet", live=True)] = 64
    receive_maximum: Annotated[
        U16, about("unacknowledged QoS 1 and 2 publishes accepted from an MQTT 5 client", live=True)
    ] = 100
    max_inflight: Annotated[U16, about("unacknowledged QoS 1 and 2 messages sent to a client", live=True)] = 1_000
    max_queued_messages: Annotated[Natural, about("messages waiting per client", live=True)] = 1_000
    max_queued_bytes: Annotated[Natural, about("bytes waiting per client", unit="bytes", live=True)] = 8 * MIB
    queue_overflow: Annotated[
        Literal["drop-newest", "drop-oldest"], about("what gives way when a client's queue is full", live=True)
    ] = "drop-newest"
    topic_alias_maximum: Annotated[
        int, Meta(ge=0, le=65_535), about("topic aliases per connection, each way; 0 = none", live=True)
    ] = 16
    max_keep_alive: Annotated[
        int,
        Meta(ge=0, le=65_535),
        about("longest keep-alive granted to MQTT 5 clients, 0 = any", unit="seconds", live=True),
    ] = 600
    max_session_expiry: Annotated[
        int,
        Meta(ge=0, le=FOREVER),
        about("longest session expiry, 4294967295 = sessions may live for ever", unit="seconds", live=True),
    ] = 7 * DAY
    max_retained_messages: Annotated[Natural, about("retained messages held, including $SYS", live=True)] = 100_000
    max_retained_bytes: Annotated[
        int, Meta(ge=0, le=1 << 44), about("bytes of retained messages held", unit="bytes", live=True)
    ] = 1024 * MIB
    max_retained_share: Annotated[
        int,
        Meta(ge=1, le=100),
        about(
            "percent of max_retained_messages and max_retained_bytes for one user; with a password file, all clients "
            "without a user name count as one user",
            live=True,
        ),
    ] = 50
    write_high_watermark: Annotated[
        Positive, about("bytes waiting for a client's socket above which it is not writable", unit="bytes", live=True)
    ] = 1280 * KIB
    write_low_watermark: Annotated[
        Positive, about("bytes below which it is writable again", unit="bytes", live=True)
    ] = 640 * KIB
    backpressure_seconds: Annotated[
        Seconds,
        about(
            "how long a subscriber that cannot keep up may slow its publishers before it loses messages",
            unit="seconds",
            live=True,
        ),
    ] = 1.0
    match_cache: Annotated[Natural, about("topics whose subscribers are remembered")] = 100_000
    match_steps: Annotated[
        int,
        Meta(ge=1_000, le=1 << 32),
        about("filter nodes that one client's publishes may visit before other clients get their turn", live=True),
    ] = 10_000


class LogSettings(Section, frozen=True):
    """Where logs are kept: the log of all messages, and those of APPLICATION clients, queues, retained messages."""

    provider: Annotated[
        str,
        Meta(pattern=r"^(embedded|kafka|memory|[A-Za-z_][\w.]*:[A-Za-z_]\w*)$"),
        about(
            "embedded: segment files in server.data_dir; kafka: see [kafka]; memory: gone with the process; "
            "module:factory: a log of your own",
            allowed='"embedded", "kafka", "memory" or "module:factory"',
        ),
    ] = "embedded"
    fsync: Annotated[
        Literal["always", "interval"],
        about("embedded: what is acknowledged is on the disk; or is written every fsync_interval and may be lost"),
    ] = "always"
    fsync_interval: Annotated[
        Seconds, about("time between writes to the disk with fsync = interval", unit="seconds")
    ] = 0.05
    linger_ms: Annotated[
        int,
        Meta(ge=0, le=1_000),
        about(
            "embedded: how long QoS 0 messages and events are collected before a commit writes them; 64 KiB of "
            "messages are written at once, and every other commit takes them along",
            unit="ms",
        ),
    ] = 5
    ack_linger_ms: Annotated[
        int,
        Meta(ge=0, le=1_000),
        about(
            "embedded: minimum time between two commits that only acknowledgements wait for; publishers that send the "
            "next message right after an acknowledgement, and messages for persistent subscribers, never wait for it",
            unit="ms",
        ),
    ] = 4
    max_pending_bytes: Annotated[
        Positive, about("bytes on their way into the log above which publishers wait", unit="bytes")
    ] = 64 * MIB
    maintenance_interval: Annotated[
        float,
        Meta(ge=0.1, le=86_400),
        about("embedded: how often retention and compaction look for what may go", unit="seconds"),
    ] = 30.0


class IngestSettings(Section, frozen=True):
    """The log of the messages that come in."""

    log: Annotated[
        Literal["all", "persistent", "none"],
        about("which publishes are logged: all, those with QoS 1 and 2, or none (nothing is kept)"),
    ] = "all"
    topic: Annotated[str, Meta(min_length=1, max_length=249), about("the topic they are logged in")] = "tbmq.msg.all"
    partitions: Annotated[int, Meta(ge=1, le=10_000), about("its partitions, when it is made")] = 16
    properties: Annotated[
        str,
        about(
            "its properties when it is made, name:value;name:value; limits are per partition in Kafka, and times the "
            "partitions for the topic as a whole in the embedded log"
        ),
    ] = "retention.ms:604800000;segment.bytes:26214400;retention.bytes:134217728"
    events: Annotated[
        bool, about("log who connects, subscribes and leaves, and what is dropped, in the topic tbmq.events")
    ] = True
    hash_function: Annotated[
        Literal["murmur3_128", "murmur3_32", "sha256", "murmur2"],
        about("how a message's topic chooses its partition; messages of one topic stay in order"),
    ] = "murmur3_128"


class LoggingSettings(Section, frozen=True):
    """Log lines of the broker, on standard error."""

    level: Annotated[Literal["debug", "info", "warning", "error"], about("minimum level", live=True)] = "info"
    format: Annotated[Literal["auto", "text", "json"], about("auto: key=value on a terminal, JSON otherwise")] = "auto"


class AdminSettings(Section, frozen=True):
    """HTTP for machines: metrics, health, and the commands of `penstock app`."""

    address: Annotated[str, about("host:port of /metrics, /healthz, /readyz and the commands; empty = off")] = (
        "127.0.0.1:9883"
    )
    token: Annotated[
        str,
        about(
            "what the commands must send, at least 16 characters; empty = a random one, kept in admin.token of "
            "server.data_dir",
            secret=True,
        ),
    ] = ""
    hosts: Annotated[
        tuple[str, ...],
        about(
            "host names accepted in the Host header of admin requests, besides IP addresses, names without a dot and "
            "the machine's own name"
        ),
    ] = ()
    per_client_metrics: Annotated[
        int,
        Meta(ge=0, le=10_000),
        about("APPLICATION clients and shares with metrics of their own: those with the largest lag; 0 = none"),
    ] = 100
    per_queue_metrics: Annotated[
        int, Meta(ge=0, le=10_000), about("durable queues with metrics of their own: the deepest; 0 = none")
    ] = 100


class SysSettings(Section, frozen=True):
    """The $SYS topics."""

    interval: Annotated[
        Natural, about("time between updates of the $SYS topics, 0 = none", unit="seconds", live=True)
    ] = 10


class Settings(Section, frozen=True):
    server: ServerSettings = ServerSettings()
    listeners: Annotated[list[ListenerSettings], Meta(min_length=1)] = field(
        default_factory=lambda: [ListenerSettings()]
    )
    access: AccessSettings = AccessSettings()
    mqtt: MqttSettings = MqttSettings()
    limits: LimitSettings = LimitSettings()
    rate_limits: RateSettings = RateSettings()
    log: LogSettings = LogSettings()
    ingest: IngestSettings = IngestSettings()
    application: ApplicationSettings = ApplicationSettings()
    device: DeviceSettings = DeviceSettings()
    redis: RedisSettings = RedisSettings()
    kafka: KafkaSettings = KafkaSettings()
    cluster: ClusterSettings = ClusterSettings()
    services: ServiceSettings = ServiceSettings()
    durable_queues: DurableQueueSettings = DurableQueueSettings()
    queues: list[QueueSettings] = field(default_factory=list)
    data_subscription: DataSubscriptionSettings = DataSubscriptionSettings()
    logging: LoggingSettings = LoggingSettings()
    admin: AdminSettings = AdminSettings()
    sys: SysSettings = SysSettings()
