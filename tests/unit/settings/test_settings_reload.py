"""What SIGHUP may change."""

from penstock.settings import diff, is_live, load_settings


def settings(**given):
    overrides = {"listeners": "127.0.0.1:1,127.0.0.1:2", **given}
    return load_settings(None, {}, overrides).settings


def test_nothing_changed():
    assert diff(settings(), settings()) == ({}, [])


def test_live_and_restart():
    live, restart = diff(
        settings(),
        settings(
            **{"limits.max_inflight": "5", "logging.level": "debug", "mqtt.maximum_qos": "1", "sys.interval": "0"}
        ),
    )
    assert live == {"limits.max_inflight": 5, "logging.level": "debug", "sys.interval": 0}
    assert restart == ["mqtt.maximum_qos"]


def test_one_listener_changed():
    live, restart = diff(
        settings(), settings(**{"listeners.1.max_connections": "5", "listeners.1.proxy_protocol": "true"})
    )
    assert live == {}
    assert restart == ["listeners.1.proxy_protocol", "listeners.1.max_connections"]


def test_another_number_of_listeners_needs_a_restart():
    live, restart = diff(settings(), settings(**{"listeners": "127.0.0.1:9", "sys.interval": "1"}))
    assert live == {"sys.interval": 1}
    assert restart == ["listeners"]


def test_files_and_levels_are_live_addresses_are_not():
    assert all(map(is_live, ("access.password_file", "access.acl_file", "logging.level", "limits.max_inflight")))
    assert not any(map(is_live, ("listeners.0.address", "admin.address", "server.data_dir", "mqtt.shared_strategy")))
