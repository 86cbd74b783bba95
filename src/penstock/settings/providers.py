"""Capabilities of the providers that the settings name, for code that has settings but no open log or store.

Code asks for a capability, never for the name of a provider; only the factory (broker/providers.py) knows names. An
open log and an open device store answer the same questions themselves (`log.is_shared`), and the contract tests compare
both answers. A plug-in (`log.provider = "module:factory"`) has a `LogCapabilities` as the attribute `capabilities` of
its factory.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.errors import SettingsError
from penstock.core.plugins import load_plugin
from penstock.settings.model import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCapabilities:
    is_shared: bool = False  # several nodes use the same topics, so each needs a name and knows the others
    has_files: bool = False  # in segment files of server.data_dir: for backup, verify, repair and reading alongside
    is_durable: bool = True  # keeps records across a restart
    is_remote: bool = False  # a service that can be unreachable while the broker runs
    uses_kafka: bool = False  # reached with the settings of [kafka], and Kafka decides which topic properties it knows


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStoreCapabilities:
    is_shared: bool = False  # all nodes use the same store
    is_remote: bool = False  # a service that can be unreachable while the broker runs
    uses_redis: bool = False  # reached with the settings of [redis]


LOGS = {
    "embedded": LogCapabilities(has_files=True),
    "kafka": LogCapabilities(is_shared=True, is_remote=True, uses_kafka=True),
    "memory": LogCapabilities(is_durable=False),
}
DEVICE_STORES = {
    "embedded": DeviceStoreCapabilities(),
    "redis": DeviceStoreCapabilities(is_shared=True, is_remote=True, uses_redis=True),
}


def log_capabilities(settings: Settings) -> LogCapabilities:
    """Return the capabilities of the log that the settings name. Raises SettingsError for a plug-in without any."""
    name = settings.log.provider
    if name in LOGS:
        return LOGS[name]
    capabilities = getattr(load_plugin("log.provider", name), "capabilities", None)
    if not isinstance(capabilities, LogCapabilities):
        raise SettingsError(
            f"log.provider: {name!r} does not state its capabilities",
            "Give the factory an attribute `capabilities`, a penstock.settings.providers.LogCapabilities.",
        )
    return capabilities


def device_capabilities(settings: Settings) -> DeviceStoreCapabilities:
    """Return the capabilities of the store in which messages wait for DEVICE clients."""
    return DEVICE_STORES[settings.device.store]
