"""The listener of data subscription obeys the rules of all listeners, and never keeps an MQTT broker from starting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import SettingsError
from penstock.settings import load_settings
from penstock.settings.checks import data_listener, is_anonymous_allowed
from penstock.settings.loader import Loaded

OPEN = "0.0.0.0:6030"


def load(environ: dict[str, str] | None = None, **given: Any) -> Loaded:
    return load_settings(None, environ or {}, {f"data_subscription.{key}": value for key, value in given.items()})


def test_it_is_there_by_default_and_local() -> None:
    settings = load().settings
    assert settings.data_subscription.enabled
    assert data_listener(settings.data_subscription).address == "127.0.0.1:6030"
    assert is_anonymous_allowed(data_listener(settings.data_subscription), settings.access)


def test_open_to_the_network_it_needs_a_way_to_authenticate() -> None:
    with pytest.raises(SettingsError, match=r"listener data on 0\.0\.0\.0:6030 is open to the network"):
        load(address=OPEN)
    assert load(address=OPEN, anonymous="allow").settings.data_subscription.anonymous == "allow"
    assert load(address=OPEN, enabled=False).settings.data_subscription.address == OPEN


def test_enhanced_authentication_is_no_way_in() -> None:
    given = {"data_subscription.address": OPEN, "access.enhanced": {"x": "module:factory"}}
    with pytest.raises(SettingsError, match="without authentication"):
        load_settings(None, {}, given)


def test_insecure_opens_it_with_a_warning() -> None:
    loaded = load({"PENSTOCK_INSECURE": "1"}, address=OPEN)
    assert loaded.settings.data_subscription.anonymous == "allow"
    assert any("data listener on 0.0.0.0:6030" in warning for warning in loaded.warnings)


def test_one_that_is_local_and_shut_keeps_nobody_from_starting() -> None:
    load(anonymous="deny")


@pytest.mark.parametrize("address", ["6030", "127.0.0.1:x", "127.0.0.1:70000"])
def test_a_bad_address_is_named(address: str) -> None:
    with pytest.raises(SettingsError, match=r"data_subscription\.address"):
        load(address=address)


def test_no_two_parts_have_one_address() -> None:
    with pytest.raises(SettingsError, match="listener mqtt too"):
        load(address="127.0.0.1:1883")
    with pytest.raises(SettingsError, match="the data listener too"):
        load(address="127.0.0.1:9883")


def test_tls_needs_its_files(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"data_subscription\.certificate is missing"):
        load(transport="tls")
    with pytest.raises(SettingsError, match=r"data_subscription\.certificate"):
        load(certificate=str(tmp_path / "cert.pem"))
