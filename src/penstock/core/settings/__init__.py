"""Typed settings: one TOML file, overridden by the environment, overridden by flags."""

from penstock.core.settings.model import (
    AccessSettings,
    AdminSettings,
    LimitSettings,
    ListenerSettings,
    LoggingSettings,
    MqttSettings,
    ServerSettings,
    Settings,
    SysSettings,
)

__all__ = [
    "AccessSettings",
    "AdminSettings",
    "LimitSettings",
    "ListenerSettings",
    "LoggingSettings",
    "MqttSettings",
    "ServerSettings",
    "Settings",
    "SysSettings",
]
