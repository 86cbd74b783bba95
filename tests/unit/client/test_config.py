"""The keys of a consumer: defaults, ranges, older names, and what an error says."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_client.config import ConfigError, read_connection, read_consumer


def read(**keys: Any) -> Any:
    return read_consumer({"group.id": "g", **{key.replace("_", "."): value for key, value in keys.items()}})


def test_defaults_are_those_of_the_reference() -> None:
    config = read()
    assert (config.auto_commit, config.auto_commit_interval_ms, config.auto_offset_reset) == (True, 5_000, "latest")
    assert (config.session_timeout_ms, config.heartbeat_interval_ms) == (12_000, 3_000)
    assert (config.max_poll_interval_ms, config.fetch_max_wait_ms, config.min_poll_rows) == (300_000, 1_000, 4_096)
    assert not config.replay
    assert config.addresses() == [("127.0.0.1", 6030)]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("session.timeout.ms", 5_999, "session.timeout.ms = 5999: from 6000 to 1800000"),
        ("session.timeout.ms", 1_800_001, "session.timeout.ms = 1800001: from 6000 to 1800000"),
        ("session.timeout.ms", "soon", "session.timeout.ms = 'soon': a whole number, from 6000 to 1800000"),
        ("session.timeout.ms", 6000.5, "session.timeout.ms = 6000.5: a whole number, from 6000 to 1800000"),
        ("heartbeat.interval.ms", 999, "heartbeat.interval.ms = 999: at least 1000"),
        (
            "heartbeat.interval.ms",
            12_000,
            "heartbeat.interval.ms = 12000: from 1000 to 11999, less than session.timeout.ms",
        ),
        ("max.poll.interval.ms", 999, "max.poll.interval.ms = 999: at least 1000"),
        ("auto.commit.interval.ms", -1, "auto.commit.interval.ms = -1: at least 0"),
        ("auto.offset.reset", "newest", "auto.offset.reset = 'newest': one of earliest, latest, none"),
        ("enable.auto.commit", "maybe", "enable.auto.commit = 'maybe': true or false"),
        ("group.id", "a:b", "group.id = 'a:b': from 1 to 192 characters, none of them ':'"),
        ("group.id", "x" * 193, f"group.id = '{'x' * 193}': from 1 to 192 characters, none of them ':'"),
        ("client.id", "x" * 256, "client.id: 256 characters, 255 at most"),
        ("client.id", 7, "client.id = 7: a text"),
        ("server", "host:port", "server = 'host:port': host:port"),
        ("auto.offset.rest", "latest", "unknown key 'auto.offset.rest': did you mean auto.offset.reset?"),
        ("nonsense.and.more", 1, "unknown key 'nonsense.and.more'"),
    ],
)
def test_what_is_not_allowed(key: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_consumer({"group.id": "g", key: value})
    assert str(refused.value) == message
    assert isinstance(refused.value, ValueError)


def test_a_group_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"group\.id is missing"):
        read_consumer({})


@pytest.mark.parametrize(("value", "truth"), [(True, True), ("true", True), ("0", False), (0, False), ("False", False)])
def test_truth(value: Any, truth: bool) -> None:
    assert read(enable_auto_commit=value).auto_commit is truth


def test_numbers_may_be_text() -> None:
    assert read(session_timeout_ms="6000").session_timeout_ms == 6_000


def test_a_short_session_has_heartbeats_in_time() -> None:
    assert read(session_timeout_ms=6_000).heartbeat_interval_ms == 2_000


def test_replay_commits_nothing() -> None:
    """[reference] enable.auto.commit is forced false with replay."""
    assert not read(enable_replay=True, enable_auto_commit=True).auto_commit


def test_names_of_the_original() -> None:
    config = read(
        td_connect_ip="broker", td_connect_port="7030", td_connect_user="u", td_connect_pass="p", td_connect_db="x"
    )
    assert (config.addresses(), config.user, config.password) == ([("broker", 7030)], "u", "p")
    with pytest.raises(ConfigError, match="say the same thing"):
        read(server="a:1", td_connect_ip="b")
    with pytest.raises(ConfigError, match=r"user and td\.connect\.user say different things"):
        read(user="a", td_connect_user="b")


def test_keys_without_effect_are_still_checked() -> None:
    read(msg_with_table_name=True, msg_consume_excluded=1, enable_wal_marker="false", experimental_snapshot_enable=True)
    with pytest.raises(ConfigError):
        read(msg_consume_excluded=2)


def test_several_servers() -> None:
    config = read_connection({"server": "a:1, [::1]:2,c"})
    assert config.addresses() == [("a", 1), ("::1", 2), ("c", 6030)]


def test_secrets_are_not_shown() -> None:
    config = read(user="alice", password="secret", td_connect_token="secret")
    assert "secret" not in repr(config)
    assert "secret" not in str(config.parameters)


def test_heartbeats_tell_of_polls_in_time() -> None:
    """The broker hears of polls by heartbeats only."""
    assert read(max_poll_interval_ms=3_000).heartbeat_interval_ms == 1_000
    assert read(max_poll_interval_ms=1_000).heartbeat_interval_ms == 333
    assert read(max_poll_interval_ms=3_000, heartbeat_interval_ms=3_000).heartbeat_interval_ms == 1_000
    assert read(max_poll_interval_ms=9_000).heartbeat_interval_ms == 3_000
    assert read(heartbeat_interval_ms=5_000).heartbeat_interval_ms == 5_000
