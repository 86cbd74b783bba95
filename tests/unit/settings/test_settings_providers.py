"""Capabilities by a provider's name, for code that has settings only, and those that the provider itself states."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import msgspec
import pytest

from penstock.core.errors import SettingsError
from penstock.settings import Settings
from penstock.settings.model import LogSettings
from penstock.settings.providers import DEVICE_STORES, LOGS, LogCapabilities, device_capabilities, log_capabilities
from penstock.storage.log.base import FileLog
from penstock.storage.log.embedded import EmbeddedLog
from penstock.storage.log.kafka import KafkaLog
from penstock.storage.log.memory import MemoryLog
from penstock.subscribers.device.store.lmdb import LmdbDeviceStore
from penstock.subscribers.device.store.redis.store import RedisDeviceStore

OF_A_LOG = ("is_shared", "has_files", "is_durable", "is_remote")
OF_A_DEVICE_STORE = ("is_shared", "is_remote")


@pytest.mark.parametrize(("name", "log"), [("embedded", EmbeddedLog), ("kafka", KafkaLog), ("memory", MemoryLog)])
def test_a_log_says_what_the_table_says(name: str, log: type) -> None:
    assert {key: getattr(log, key) for key in OF_A_LOG} == {key: getattr(LOGS[name], key) for key in OF_A_LOG}
    assert hasattr(log, "cut") == LOGS[name].has_files


@pytest.mark.parametrize(("name", "store"), [("embedded", LmdbDeviceStore), ("redis", RedisDeviceStore)])
def test_a_device_store_says_what_the_table_says(name: str, store: type) -> None:
    table = DEVICE_STORES[name]
    assert {key: getattr(store, key) for key in OF_A_DEVICE_STORE} == {
        key: getattr(table, key) for key in OF_A_DEVICE_STORE
    }


def test_only_a_log_with_files_can_be_cut() -> None:
    assert not isinstance(MemoryLog(), FileLog)


def test_capabilities_of_settings() -> None:
    settings = Settings()
    assert log_capabilities(settings) == LogCapabilities(has_files=True)
    assert not device_capabilities(settings).is_shared


def settings_with(provider: str) -> Settings:
    return Settings(log=msgspec.structs.replace(LogSettings(), provider=provider))


def test_a_plug_in_states_its_capabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    stated = LogCapabilities(is_shared=True)
    module = ModuleType("toy_log")
    monkeypatch.setattr(module, "make", SimpleNamespace(capabilities=stated), raising=False)
    monkeypatch.setitem(sys.modules, "toy_log", module)
    assert log_capabilities(settings_with("toy_log:make")) is stated


@pytest.mark.parametrize(
    ("provider", "message"),
    [("no_such_module:make", "cannot be loaded"), ("pathlib:nothing", "cannot be loaded"), ("pathlib:Path", "state")],
)
def test_a_plug_in_that_cannot_be_used_is_refused(provider: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        log_capabilities(settings_with(provider))
