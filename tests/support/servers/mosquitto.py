"""Debian's mosquitto under the settings of Penstock, to try the scenarios themselves on a second broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support.brokers.broker import Listener

# Penstock's defaults where mosquitto's differ
DEFAULTS = {
    "limits.max_packet_size": 1024 * 1024,
    "limits.receive_maximum": 100,
    "limits.max_keep_alive": 600,
    "limits.max_queued_messages": 1000,
}
NAMES = {
    "limits.max_packet_size": "max_packet_size",
    "limits.receive_maximum": "max_inflight_messages",
    "limits.max_inflight": "max_inflight_messages",
    "limits.max_keep_alive": "max_keepalive",
    "limits.max_queued_messages": "max_queued_messages",
    "limits.max_connections": "max_connections",
    "mqtt.retain_available": "retain_available",
    "mqtt.maximum_qos": "max_qos",
    "sys.interval": "sys_interval",
}
OF_LISTENER = {"max_connections", "max_qos"}


def mosquitto_configuration(port: int, settings: Mapping[str, Any], listeners: Sequence[Listener]) -> str:
    # `user root`: it would not read the certificates of the tests as its own user.
    general = ["user root", "allow_anonymous true", "persistence false", "log_dest stdout"]
    of_listener = ["max_topic_alias 16"]
    for name, value in {**DEFAULTS, **settings}.items():
        if name not in NAMES:
            pytest.skip(f"mosquitto has nothing like {name}")
        text = str(value).lower() if isinstance(value, bool) else str(value)
        lines = of_listener if NAMES[name] in OF_LISTENER else general
        lines.append(f"{NAMES[name]} {text}")
    blocks = [*general, f"listener {port} 127.0.0.1", *of_listener]
    for listener in listeners:
        blocks += _listener_lines(listener)
    return "\n".join(blocks) + "\n"


def _listener_lines(listener: Listener) -> list[str]:
    if listener.options.get("proxy_protocol"):
        pytest.skip("mosquitto 2.0 knows no PROXY protocol")
    if listener.transport in {"ws", "wss"}:
        pytest.skip("mosquitto's WebSocket support is not in every build")
    if listener.transport == "unix":
        return [f"listener 0 {listener.address}"]
    host, port = listener.host_and_port
    lines = [f"listener {port} {host}"]
    if listener.transport == "tls":
        lines += [f"certfile {listener.options['certificate']}", f"keyfile {listener.options['key']}"]
        if listener.options.get("client_certificate") == "required":
            lines += [f"cafile {listener.options['client_ca']}", "require_certificate true"]
    return lines
