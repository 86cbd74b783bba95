"""The limits of the settings that the compiled hub knows."""

from __future__ import annotations

from typing import Any

from penstock.settings.checks import is_plugin
from penstock.settings.model import Settings


def hub_limits(settings: Settings) -> dict[str, Any]:
    """The limits the compiled hub knows, by its names."""
    limits, mqtt, access = settings.limits, settings.mqtt, settings.access
    names = (
        "max_packet_size",
        "connect_packet_size",
        "max_topic_levels",
        "max_topic_length",
        "max_user_properties",
        "receive_maximum",
        "max_inflight",
        "max_queued_messages",
        "max_queued_bytes",
        "queue_overflow",
        "topic_alias_maximum",
        "max_retained_messages",
        "max_retained_bytes",
        "max_retained_share",
        "write_high_watermark",
        "write_low_watermark",
        "connect_timeout",
        "backpressure_seconds",
        "match_steps",
    )
    return {
        **{name: getattr(limits, name) for name in names},
        "maximum_qos": mqtt.maximum_qos,
        "retain_available": mqtt.retain_available,
        "shared_strategy": mqtt.shared_strategy,
        # Where no client has a user name, all of them would share one limit.
        "shares_anonymous": bool(access.password_file) or any(map(is_plugin, access.authenticators)),
        "rates": settings.rate_limits.in_force(),
    }
