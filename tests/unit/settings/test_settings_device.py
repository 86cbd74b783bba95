"""The settings of DEVICE queues and of Redis: defaults and names of TBMQ, bounds, secrets."""

from __future__ import annotations

import msgspec
import pytest

from penstock.core.errors import SettingsError
from penstock.settings import load_settings
from penstock.settings.redis import DeviceSettings, RedisSettings
from penstock.settings.schema import is_secret


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_defaults_are_those_of_the_seed():
    settings = load_settings(None, {}).settings
    device = settings.device
    assert (device.persist_after, device.messages_limit, device.messages_ttl) == (0.1, 10_000, 604_800)
    assert (device.store, settings.redis.mode, settings.redis.prefix) == ("embedded", "standalone", "")
    assert (device, settings.redis) == (DeviceSettings(), RedisSettings())


def test_names_of_the_seed_are_aliases():
    environ = {
        "MQTT_PERSISTENT_SESSION_DEVICE_PERSISTED_MESSAGES_LIMIT": "500",
        "MQTT_PERSISTENT_SESSION_DEVICE_PERSISTED_MESSAGES_TTL": "60",
        "REDIS_CONNECTION_TYPE": "cluster",
        "REDIS_NODES": "a:1,b:2",
        "REDIS_PASSWORD": "secret",
        "REDIS_SSL_ENABLED": "true",
        "CACHE_PREFIX": "tb:",
        "REDIS_LETTUCE_FLUSH_INTERVAL_MS": "5",
    }
    loaded = load_settings(None, environ)
    settings = loaded.settings
    assert (settings.device.messages_limit, settings.device.messages_ttl) == (500, 60)
    redis = settings.redis
    assert (redis.mode, redis.addresses, redis.password, redis.tls, redis.prefix) == (
        "cluster",
        "a:1,b:2",
        "secret",
        True,
        "tb:",
    )
    assert any("REDIS_LETTUCE_FLUSH_INTERVAL_MS" in warning for warning in loaded.warnings)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PENSTOCK_DEVICE__MESSAGES_LIMIT", "65536"),
        ("PENSTOCK_DEVICE__MESSAGES_LIMIT", "0"),
        ("PENSTOCK_DEVICE__MESSAGES_TTL", "2147483648"),
        ("PENSTOCK_REDIS__MODE", "ring"),
        ("PENSTOCK_REDIS__PREFIX", "{all}"),
    ],
)
def test_what_is_out_of_bounds_stops_the_start(name, value):
    with pytest.raises(SettingsError, match=name):
        load_settings(None, {name: value})


def test_the_largest_limit():
    assert load_settings(None, {"PENSTOCK_DEVICE__MESSAGES_LIMIT": "65535"}).settings.device.messages_limit == 65_535


def test_passwords_are_secrets():
    assert is_secret("redis.password")
    assert is_secret("redis.sentinel_password")
    assert not is_secret("redis.username")


def test_the_model_checks_what_the_file_says():
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"messages_limit": 70_000}, DeviceSettings)
