"""The keys a consumer is configured by: their ranges, defaults and older names."""

from __future__ import annotations

import difflib
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock_client.errors import DataError
from penstock_client.wire import DEFAULT_PORT

_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
_FOREVER = 2**31 - 1
LONGEST_GROUP = 192
LONGEST_CLIENT = 255


class ConfigError(DataError, ValueError):
    """A key that is unknown, or a value that it cannot have."""

    code = "configuration"


def _truth(key: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text not in _TRUE + _FALSE:
        raise ConfigError(f"{key} = {value!r}: true or false")
    return text in _TRUE


def _number(low: int, high: int = _FOREVER) -> Callable[[str, Any], int]:
    def convert(key: str, value: Any) -> int:
        limits = f"at least {low}" if high == _FOREVER else f"from {low} to {high}"
        text = str(value).strip()
        if isinstance(value, bool | float) or not text.removeprefix("-").isdecimal():
            raise ConfigError(f"{key} = {value!r}: a whole number, {limits}")
        if not low <= int(text) <= high:
            raise ConfigError(f"{key} = {int(text)}: {limits}")
        return int(text)

    return convert


def _one_of(*choices: str) -> Callable[[str, Any], str]:
    def convert(key: str, value: Any) -> str:
        if value not in choices:
            raise ConfigError(f"{key} = {value!r}: one of {', '.join(choices)}")
        return str(value)

    return convert


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{key} = {value!r}: a text")
    return value


def _group(key: str, value: Any) -> str:
    name = _text(key, value)
    if not name or len(name) > LONGEST_GROUP or ":" in name:
        raise ConfigError(f"{key} = {value!r}: from 1 to {LONGEST_GROUP} characters, none of them ':'")
    return name


def _client(key: str, value: Any) -> str:
    name = _text(key, value)
    if len(name) > LONGEST_CLIENT:
        raise ConfigError(f"{key}: {len(name)} characters, {LONGEST_CLIENT} at most")
    return name


@dataclass(frozen=True, slots=True)
class Key:
    """How the value of a key is read, and the field of the configuration that it fills; "" has no effect here."""

    read: Callable[[str, Any], Any]
    field: str = ""


CONNECTION_KEYS: dict[str, Key] = {
    "server": Key(_text, "server"),
    "bootstrap.servers": Key(_text, "server"),
    "user": Key(_text, "user"),
    "password": Key(_text, "password"),
    "tls": Key(_truth, "tls"),
    "tls.ca.file": Key(_text, "tls_ca_file"),
    "tls.cert.file": Key(_text, "tls_cert_file"),
    "tls.key.file": Key(_text, "tls_key_file"),
    "tls.check.hostname": Key(_truth, "tls_check_hostname"),
    "connect.timeout.ms": Key(_number(1), "connect_timeout_ms"),
    "reconnect.backoff.ms": Key(_number(1), "reconnect_backoff_ms"),
    "reconnect.backoff.max.ms": Key(_number(1), "reconnect_backoff_max_ms"),
    "td.connect.user": Key(_text, "user"),
    "td.connect.pass": Key(_text, "password"),
    "td.connect.token": Key(_text, "password"),
    "td.connect.ip": Key(_text, "host"),
    "td.connect.port": Key(_number(1, 65535), "port"),
    "td.connect.db": Key(_text),
    "client.id": Key(_client, "client_id"),
}
CONSUMER_KEYS: dict[str, Key] = {
    "group.id": Key(_group, "group"),
    "enable.auto.commit": Key(_truth, "auto_commit"),
    "auto.commit.interval.ms": Key(_number(0), "auto_commit_interval_ms"),
    "auto.offset.reset": Key(_one_of("earliest", "latest", "none"), "auto_offset_reset"),
    "session.timeout.ms": Key(_number(6_000, 1_800_000), "session_timeout_ms"),
    "heartbeat.interval.ms": Key(_number(1_000), "heartbeat_interval_ms"),
    "max.poll.interval.ms": Key(_number(1_000), "max_poll_interval_ms"),
    "fetch.max.wait.ms": Key(_number(1), "fetch_max_wait_ms"),
    "fetch.max.bytes": Key(_number(1_024), "fetch_max_bytes"),
    "queued.max.bytes": Key(_number(1_024), "queued_max_bytes"),
    "min.poll.rows": Key(_number(1), "min_poll_rows"),
    "enable.replay": Key(_truth, "replay"),
    "subscribe.timeout.ms": Key(_number(0), "subscribe_timeout_ms"),
    "msg.with.table.name": Key(_truth),
    "msg.consume.excluded": Key(_number(0, 1)),
    "msg.enable.batchmeta": Key(_number(0, 1)),
    "enable.wal.marker": Key(_truth),
    "experimental.snapshot.enable": Key(_truth),
}


@dataclass(slots=True)
class ConnectionConfig:
    """Where the broker is and who asks."""

    server: str = ""
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    user: str = ""
    password: str = field(default="", repr=False)
    client_id: str = ""
    tls: bool = False
    tls_ca_file: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""
    tls_check_hostname: bool = True
    connect_timeout_ms: int = 10_000
    reconnect_backoff_ms: int = 100
    reconnect_backoff_max_ms: int = 5_000

    def addresses(self) -> list[tuple[str, int]]:
        """Several, separated by commas, are tried in turn."""
        if not self.server:
            return [(self.host, self.port)]
        return [_parse_address(part.strip()) for part in self.server.split(",")]

    def tls_context(self) -> ssl.SSLContext | None:
        if not (self.tls or self.tls_ca_file or self.tls_cert_file):
            return None
        if bool(self.tls_cert_file) != bool(self.tls_key_file):
            raise ConfigError("tls.cert.file and tls.key.file go together")
        try:
            context = ssl.create_default_context(cafile=self.tls_ca_file or None)
            if self.tls_cert_file:
                context.load_cert_chain(self.tls_cert_file, self.tls_key_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"the files of tls.* cannot be used: {error}") from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.tls_check_hostname
        return context


@dataclass(slots=True)
class ConsumerConfig(ConnectionConfig):
    group: str = ""
    auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    auto_offset_reset: str = "latest"
    session_timeout_ms: int = 12_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    fetch_max_wait_ms: int = 1_000
    fetch_max_bytes: int = 1 << 20
    queued_max_bytes: int = 64 << 20
    min_poll_rows: int = 4_096
    replay: bool = False
    subscribe_timeout_ms: int = 0  # 0: without a limit
    parameters: dict[str, str] = field(default_factory=dict)  # as given, without secrets: SHOW CONSUMERS has them


def _parse_address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ConfigError(f"server = {text!r}: host:port")
    return host, int(port)


def read_connection(given: Mapping[str, Any]) -> ConnectionConfig:
    config = ConnectionConfig(**_read(given, CONNECTION_KEYS))
    config.addresses()
    return config


def read_consumer(given: Mapping[str, Any]) -> ConsumerConfig:
    """Raises ConfigError: every key has to be known, every value in its range."""
    config = ConsumerConfig(**_read(given, CONNECTION_KEYS | CONSUMER_KEYS))
    if not config.group:
        raise ConfigError("group.id is missing: consumers with the same one share the partitions of their topics")
    config.addresses()
    if "heartbeat.interval.ms" not in given:
        config.heartbeat_interval_ms = min(config.heartbeat_interval_ms, config.session_timeout_ms // 3)
    if config.heartbeat_interval_ms >= config.session_timeout_ms:
        raise ConfigError(
            f"heartbeat.interval.ms = {config.heartbeat_interval_ms}: "
            f"from 1000 to {config.session_timeout_ms - 1}, less than session.timeout.ms"
        )
    # heartbeats tell the broker that the application polls: several must arrive within the limit
    config.heartbeat_interval_ms = min(config.heartbeat_interval_ms, config.max_poll_interval_ms // 3)
    if config.replay:
        config.auto_commit = False
    secret = {"password", "td.connect.pass", "td.connect.token"}
    config.parameters = {key: str(value) for key, value in given.items() if key not in secret}
    return config


def _read(given: Mapping[str, Any], known: Mapping[str, Key]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for name, value in given.items():
        key = known.get(name)
        if key is None:
            near = difflib.get_close_matches(str(name), known, n=3, cutoff=0.7)
            raise ConfigError(f"unknown key {name!r}" + (f": did you mean {' or '.join(near)}?" if near else ""))
        read = key.read(name, value)
        if not key.field:
            continue
        if key.field in values and values[key.field] != read:
            raise ConfigError(f"{origin[key.field]} and {name} say different things")
        values[key.field], origin[key.field] = read, name
    if "server" in values and ("host" in values or "port" in values):
        raise ConfigError("server and td.connect.ip or td.connect.port say the same thing: give one of them")
    return values
