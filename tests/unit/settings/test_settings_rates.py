"""Rate limits: defaults and names of TBMQ, what they may say, and that all of them are off."""

from __future__ import annotations

import pytest

from penstock.core.errors import SettingsError
from penstock.settings import load_settings


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_defaults_are_those_of_the_seed():
    rates = load_settings(None, {}).settings.rate_limits
    assert (rates.incoming, rates.outgoing) == ("10:1,300:60", "10:1,300:60")
    assert (rates.total, rates.device) == ("1000:1,50000:60", "100:1,1000:60")
    assert rates.in_force() == {}


def test_names_of_the_seed_are_aliases():
    environ = {
        "MQTT_INCOMING_RATE_LIMITS_ENABLED": "true",
        "MQTT_INCOMING_RATE_LIMITS_CLIENT_CONFIG": "5:1",
        "MQTT_OUTGOING_RATE_LIMITS_ENABLED": "true",
        "MQTT_TOTAL_RATE_LIMITS_ENABLED": "true",
        "MQTT_DEVICE_PERSISTED_MSGS_RATE_LIMITS_ENABLED": "true",
        "MQTT_DEVICE_PERSISTED_MSGS_RATE_LIMITS_CONFIG": "7:2,8:9",
    }
    rates = load_settings(None, environ).settings.rate_limits
    assert rates.in_force() == {
        "incoming": [(5, 1)],
        "outgoing": [(10, 1), (300, 60)],
        "total": [(1_000, 1), (50_000, 60)],
        "device": [(7, 2), (8, 9)],
    }


@pytest.mark.parametrize("text", [",", "10", "0:1", "1:0", "10:1,", "a:b", "1:1,1:2,1:3,1:4,1:5"])
def test_what_is_no_rate(text):
    with pytest.raises(SettingsError, match="INCOMING"):
        load_settings(None, {"PENSTOCK_RATE_LIMITS__INCOMING": text})
