"""Typed settings: one TOML file, overridden by the environment, overridden by flags."""

from penstock.settings.address import Address, is_loopback, parse_address
from penstock.settings.application import ApplicationSettings
from penstock.settings.checks import is_anonymous_allowed
from penstock.settings.loader import Loaded, flatten, load_settings
from penstock.settings.model import (
    AccessSettings,
    AdminSettings,
    IngestSettings,
    LimitSettings,
    ListenerSettings,
    LoggingSettings,
    MqttSettings,
    ServerSettings,
    Settings,
    SysSettings,
)
from penstock.settings.reload import diff, is_live

__all__ = [
    "AccessSettings",
    "Address",
    "AdminSettings",
    "ApplicationSettings",
    "IngestSettings",
    "LimitSettings",
    "ListenerSettings",
    "Loaded",
    "LoggingSettings",
    "MqttSettings",
    "ServerSettings",
    "Settings",
    "SysSettings",
    "diff",
    "flatten",
    "is_anonymous_allowed",
    "is_live",
    "is_loopback",
    "load_settings",
    "parse_address",
]
