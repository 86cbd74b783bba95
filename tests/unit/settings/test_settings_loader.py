"""One TOML file, overridden by the environment, overridden by flags; every mistake is named."""

import re

import pytest

from penstock.core.errors import SettingsError
from penstock.settings import flatten, load_settings
from penstock.settings.aliases import ALIASES, MEANINGLESS
from penstock.settings.schema import find_key, sections, without_secrets


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write_file(text):
        path = tmp_path / "some.toml"
        path.write_text(text)
        return path

    return write_file


def test_defaults_without_any_source(write):
    loaded = load_settings(None, {})
    assert loaded.path is None
    assert loaded.warnings == []
    assert set(loaded.origins.values()) == {"default"}
    assert [listener.address for listener in loaded.settings.listeners] == ["127.0.0.1:1883"]
    assert loaded.settings.limits.write_high_watermark == 1280 * 1024
    assert loaded.settings.limits.write_low_watermark == 640 * 1024
    assert loaded.settings.limits.max_packet_size == 1 << 20


def test_every_key_has_a_description_and_an_origin():
    loaded = load_settings(None, {})
    assert list(loaded.origins) == [key for key, _ in flatten(loaded.settings)]
    for keys in sections().values():
        for key in keys.values():
            assert key.description, key.name


def test_flags_win_over_environment_over_file(write):
    path = write("[limits]\nmax_packet_size = 1000\nmax_inflight = 7\nmax_subscriptions = 5\n")
    environ = {"PENSTOCK_LIMITS__MAX_PACKET_SIZE": "2000", "PENSTOCK_LIMITS__MAX_INFLIGHT": "8"}
    loaded = load_settings(path, environ, {"limits.max_packet_size": "3KB"}, flags={"limits.max_packet_size": "--x"})
    limits = loaded.settings.limits
    assert (limits.max_packet_size, limits.max_inflight, limits.max_subscriptions) == (3072, 8, 5)
    assert loaded.origins["limits.max_packet_size"] == "flag --x"
    assert loaded.origins["limits.max_inflight"] == "environment PENSTOCK_LIMITS__MAX_INFLIGHT"
    assert loaded.origins["limits.max_subscriptions"] == f"file {path}"
    assert loaded.origins["limits.receive_maximum"] == "default"


def test_where_the_file_is_looked_for(write, tmp_path):
    assert load_settings(None, {}).path is None
    named = write("[server]\nnode_id = 'named'\n")
    (tmp_path / "penstock.toml").write_text("[server]\nnode_id = 'here'\n")
    assert load_settings(None, {}).settings.server.node_id == "here"
    assert load_settings(None, {"PENSTOCK_CONFIG": str(named)}).settings.server.node_id == "named"
    assert load_settings(tmp_path / "penstock.toml", {"PENSTOCK_CONFIG": "/nowhere"}).settings.server.node_id == "here"
    with pytest.raises(SettingsError, match=r"cannot read the settings file /nowhere"):
        load_settings(None, {"PENSTOCK_CONFIG": "/nowhere"})


def test_units_in_the_file_and_the_environment(write):
    path = write("[limits]\nmax_packet_size = '2MiB'\nconnect_timeout = '1500ms'\nmax_session_expiry = '7d'\n")
    loaded = load_settings(path, {"PENSTOCK_SYS__INTERVAL": "1m", "PENSTOCK_MQTT__RETAIN_AVAILABLE": "no"})
    assert loaded.settings.limits.max_packet_size == 2 << 20
    assert loaded.settings.limits.connect_timeout == 1.5
    assert loaded.settings.limits.max_session_expiry == 7 * 86400
    assert loaded.settings.sys.interval == 60
    assert loaded.settings.mqtt.retain_available is False


def test_listeners_from_the_environment():
    environ = {f"PENSTOCK_LISTENERS__{n}__ADDRESS": f"127.0.0.1:{2000 + n}" for n in range(11)}
    listeners = load_settings(None, {**environ, "PENSTOCK_LISTENERS__1__TRANSPORT": "ws"}).settings.listeners
    assert [listener.address for listener in listeners] == [f"127.0.0.1:{2000 + n}" for n in range(11)]
    assert listeners[1].transport == "ws"
    assert [listener.name for listener in listeners[:3]] == ["mqtt", "mqtt-2", "mqtt-3"]


def test_the_environment_changes_one_listener_of_the_file(write):
    path = write("[[listeners]]\naddress = '127.0.0.1:1'\n[[listeners]]\nname = 'web'\naddress = '127.0.0.1:2'\n")
    loaded = load_settings(path, {"PENSTOCK_LISTENERS__1__TRANSPORT": "ws"})
    assert [(x.name, x.transport, x.address) for x in loaded.settings.listeners] == [
        ("mqtt", "tcp", "127.0.0.1:1"),
        ("web", "ws", "127.0.0.1:2"),
    ]
    assert loaded.origins["listeners.1.transport"] == "environment PENSTOCK_LISTENERS__1__TRANSPORT"
    assert loaded.origins["listeners.1.address"] == f"file {path}"


def test_a_list_of_addresses_replaces_the_listeners(write, tmp_path):
    path = write("[[listeners]]\naddress = '127.0.0.1:1'\nproxy_protocol = true\n")
    given = {
        "listeners.0.max_connections": "5",
        "listeners": f"127.0.0.1:7,ws://127.0.0.1:8/x,unix:{tmp_path}/s",
    }
    loaded = load_settings(path, {}, given, flags={"listeners": "--listen"})
    listeners = loaded.settings.listeners
    assert [(x.transport, x.address) for x in listeners] == [
        ("tcp", "127.0.0.1:7"),
        ("ws", "127.0.0.1:8"),
        ("unix", f"{tmp_path}/s"),
    ]
    assert listeners[1].path == "/x"
    assert (listeners[0].proxy_protocol, listeners[0].max_connections) == (False, 5)
    assert loaded.origins["listeners.0.address"] == "flag --listen"
    assert loaded.origins["listeners.0.proxy_protocol"] == "default"


def test_a_value_can_come_from_a_file_that_the_environment_names(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("from-a-file\n")
    name = "PENSTOCK_SERVER__NODE_ID"
    loaded = load_settings(None, {f"{name}_FILE": str(secret)})
    assert loaded.settings.server.node_id == "from-a-file"
    assert loaded.origins["server.node_id"] == f"environment {name}_FILE"
    with pytest.raises(SettingsError, match="both set"):
        load_settings(None, {f"{name}_FILE": str(secret), name: "x"})
    with pytest.raises(SettingsError, match=rf"{name}_FILE: cannot read '/nowhere'"):
        load_settings(None, {f"{name}_FILE": "/nowhere"})


def test_names_of_the_seeds_are_aliases():
    environ = {
        "NETTY_WRITE_BUFFER_HIGH_WATER_MARK": "2000",
        "NETTY_WRITE_BUFFER_LOW_WATER_MARK": "1000",
        "MQTT_MAX_IN_FLIGHT_MSGS": "17",
        "MQTT_KEEP_ALIVE_MAX_KEEP_ALIVE_SEC": "300",
        "MQTT_TOPIC_ALIAS_MAX": "10",
        "MQTT_CLIENT_SESSION_EXPIRY_MAX_EXPIRY_INTERVAL": "604800",
        "MQTT_SHARED_SUBSCRIPTIONS_PROCESSING_TYPE": "ROUND_ROBIN",
    }
    loaded = load_settings(None, environ)
    limits = loaded.settings.limits
    assert (limits.write_high_watermark, limits.write_low_watermark) == (2000 * 1024, 1000 * 1024)
    assert (limits.receive_maximum, limits.max_keep_alive, limits.topic_alias_maximum) == (17, 300, 10)
    assert limits.max_session_expiry == 604800
    assert loaded.settings.mqtt.shared_strategy == "round-robin"
    assert loaded.origins["limits.receive_maximum"] == "environment MQTT_MAX_IN_FLIGHT_MSGS"
    ours = load_settings(None, {**environ, "PENSTOCK_LIMITS__RECEIVE_MAXIMUM": "18"})
    assert ours.settings.limits.receive_maximum == 18
    with pytest.raises(SettingsError, match=r"MQTT_TOPIC_ALIAS_MAX \(setting limits.topic_alias_maximum\) = 'x'"):
        load_settings(None, {"MQTT_TOPIC_ALIAS_MAX": "x"})


# Every environment name of the original that its description (section 5 of the reference) says to keep.
NAMES_OF_THE_ORIGINAL = [
    "TB_APP_PERSISTED_MSG_PACK_PROCESSING_TIMEOUT",
    "TB_APP_PERSISTED_MSG_ACK_STRATEGY_TYPE",
    "TB_APP_PERSISTED_MSG_ACK_STRATEGY_RETRIES",
    "TB_APP_PERSISTED_MSG_CLIENT_ID_VALIDATION",
    "TB_APP_PERSISTED_MSG_SHARED_TOPIC_VALIDATION",
    "TB_APP_PERSISTED_MSG_POLL_INTERVAL",
    "TB_KAFKA_APP_PERSISTED_MSG_TOPIC_PROPERTIES",
    "TB_KAFKA_APP_PERSISTED_MSG_ADDITIONAL_CONSUMER_CONFIG",
    "TB_KAFKA_APP_PERSISTED_MSG_SHARED_TOPIC_PROPERTIES",
    "TB_KAFKA_APP_PERSISTED_MSG_SHARED_ADDITIONAL_CONSUMER_CONFIG",
    "MQTT_APP_MSG_WRITE_AND_FLUSH",
    "MQTT_APP_BUFFERED_MSG_COUNT",
    "NETTY_WRITE_BUFFER_HIGH_WATER_MARK",
    "NETTY_WRITE_BUFFER_LOW_WATER_MARK",
    "MQTT_PERSISTENT_SESSION_DEVICE_PERSISTED_MESSAGES_LIMIT",
    "MQTT_PERSISTENT_SESSION_DEVICE_PERSISTED_MESSAGES_TTL",
    "MQTT_PERSISTENT_MSG_WRITE_AND_FLUSH",
    "MQTT_PERSISTENT_BUFFERED_MSG_COUNT",
    "TB_KAFKA_DEVICE_PERSISTED_MSG_TOPIC",
    "TB_KAFKA_DEVICE_PERSISTED_MSG_TOPIC_PROPERTIES",
    "TB_DEVICE_PERSISTED_MSG_CONSUMERS_COUNT",
    "TB_DEVICE_PERSISTED_MSG_THREADS_COUNT",
    "TB_DEVICE_PERSISTED_MSG_POLL_INTERVAL",
    "TB_DEVICE_PERSISTED_MSG_PACK_PROCESSING_TIMEOUT",
    "TB_DEVICE_PERSISTED_MSG_ACK_STRATEGY_TYPE",
    "TB_DEVICE_PERSISTED_MSG_ACK_STRATEGY_RETRIES",
    "TB_DEVICE_PERSISTED_MSG_ACK_STRATEGY_PAUSE_BETWEEN_RETRIES",
    "TB_KAFKA_MSG_ALL_TOPIC",
    "TB_KAFKA_MSG_ALL_TOPIC_PROPERTIES",
    "TB_MSG_ALL_CONSUMERS_COUNT",
    "TB_MSG_ALL_PACK_PROCESSING_TIMEOUT",
    "TB_MSG_ALL_ACK_STRATEGY_TYPE",
    "TB_MSG_ALL_ACK_STRATEGY_RETRIES",
    "TB_KAFKA_PERSISTED_DOWNLINK_MSG_TOPIC_PREFIX",
    "MQTT_MAX_IN_FLIGHT_MSGS",
    "MQTT_PRE_CONNECT_QUEUE_MAX_SIZE",
    "MQTT_FLOW_CONTROL_ENABLED",
    "MQTT_FLOW_CONTROL_TIMEOUT",
    "MQTT_FLOW_CONTROL_TTL",
    "MQTT_FLOW_CONTROL_DELAYED_QUEUE_MAX_SIZE",
    "MQTT_FLOW_CONTROL_MQTT_3X_RECEIVE_MAX",
    "MQTT_CLIENT_SESSION_EXPIRY_CRON",
    "MQTT_CLIENT_SESSION_EXPIRY_MAX_EXPIRY_INTERVAL",
    "MQTT_CLIENT_SESSION_EXPIRY_TTL",
    "MQTT_SHARED_SUBSCRIPTIONS_PROCESSING_TYPE",
    "REDIS_LETTUCE_CMDS_AUTO_FLUSH_ENABLED",
    "REDIS_LETTUCE_BUFFERED_CMDS_COUNT",
    "REDIS_LETTUCE_FLUSH_INTERVAL_MS",
    "MQTT_KEEP_ALIVE_MAX_KEEP_ALIVE_SEC",
    "MQTT_TOPIC_ALIAS_MAX",
    "MQTT_TOPIC_MIN_LENGTH_FOR_ALIAS_REPLACEMENT",
]


@pytest.mark.parametrize("name", NAMES_OF_THE_ORIGINAL)
def test_every_name_of_the_original_is_an_alias_or_said_to_have_no_effect(name):
    assert (name in ALIASES) != (name in MEANINGLESS)
    if name in ALIASES:
        assert find_key(ALIASES[name].key) is not None
        return
    loaded = load_settings(None, {name: "1"})
    assert loaded.warnings == [f"environment {name} has no effect: {MEANINGLESS[name]}"]
    for key in re.findall(r"[a-z]+\.[a-z_]+", MEANINGLESS[name]):
        assert find_key(key) is not None, "the reason names a setting that exists"


def test_messages_that_wait_for_room_have_the_bound_of_the_original():
    loaded = load_settings(None, {"MQTT_FLOW_CONTROL_DELAYED_QUEUE_MAX_SIZE": "17"})
    assert loaded.settings.limits.max_queued_messages == 17


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[limits]\n\nmax_packet_siz = 1\n",
            r":3: limits.max_packet_siz is not a setting: did you mean limits.max_packet_s",
        ),
        ("[limit]\nx = 1\n", r":1: limit is not a section of the settings: did you mean limits\?"),
        ("[zzz]\n", r":1: zzz is not a section of the settings: there are access, admin"),
        ("[zzz]\n", r":1: zzz is not a section of the settings: there are .*, mqtt, queues, rate_limits"),
        (
            "[limits]\nmax_packet_size = 1\n",
            r":2: limits.max_packet_size = 1 is not allowed: .*from 128 to 268,435,461",
        ),
        ("[limits]\nmax_packet_size = '1 banana'\n", r":2: limits.max_packet_size = '1 banana' is not allowed"),
        ("[limits]\nmax_inflight = true\n", r":2: limits.max_inflight = True is not allowed: use a whole number"),
        ("[limits]\nmax_inflight = 1.5\n", r":2: limits.max_inflight = 1.5 is not allowed"),
        ("[limits]\nconnect_timeout = nan\n", r":2: limits.connect_timeout = nan is not allowed"),
        ("[sys]\ninterval = '1500ms'\n", r":2: sys.interval = '1500ms' is not allowed"),
        ("[logging]\nlevel = 'loud'\n", r':2: logging.level = \'loud\' is not allowed: use one of "debug", "info"'),
        ("[mqtt]\nretain_available = 1\n", r":2: mqtt.retain_available = 1 is not allowed: use true or false"),
        ("[server]\nnode_id = ''\n", r":2: server.node_id = '' is not allowed"),
        ("server = 3\n", r":1: server must be a table"),
        ("[listeners]\naddress = 'x'\n", r":1: listeners must be written as \[\[listeners\]\]"),
        ("listeners = []\n", r":1: listeners is empty"),
        (
            "[[listeners]]\n[[listeners]]\nport = 3\n",
            r":3: listeners.1.port is not a setting: did you mean listeners.1.",
        ),
        ("[access]\nenhanced = 3\n", r":2: access.enhanced = 3 is not allowed: use a table of strings"),
        ("[access.enhanced]\nSCRAM = 3\n", r":1: access.enhanced = .* is not allowed: use a table of strings"),
        ("[server\n", r"is not valid TOML: .*line 1"),
    ],
)
def test_mistakes_in_the_file(write, text, message):
    path = write(text)
    with pytest.raises(SettingsError, match=message) as caught:
        load_settings(path, {})
    assert str(path) in caught.value.message
    assert caught.value.exit_code == 78


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"PENSTOCK_FOO": "1"}, r"environment PENSTOCK_FOO is not a setting: there are access"),
        ({"PENSTOCK_LIMITS": "1"}, r"environment PENSTOCK_LIMITS is not a setting"),
        ({"PENSTOCK_LIMITS__MAX_INFLIGT": "1"}, r"did you mean PENSTOCK_LIMITS__MAX_INFLIGHT\?"),
        ({"PENSTOCK_LIMIT__MAX_INFLIGHT": "1"}, r"did you mean PENSTOCK_LIMITS__MAX_INFLIGHT\?"),
        (
            {"PENSTOCK_LIMITS__MAX_INFLIGHT": "0"},
            r"PENSTOCK_LIMITS__MAX_INFLIGHT = '0' is not allowed: .*from 1 to 65,535",
        ),
        ({"PENSTOCK_LISTENERS__1__ADDRESS": "127.0.0.1:1"}, r"listener 0 before it is missing"),
        ({"PENSTOCK_LISTENERS__ADDRESS": "127.0.0.1:1"}, r"name the listener by its number"),
        ({"PENSTOCK_LISTENERS": "ftp://127.0.0.1:1"}, r"is not allowed: use host:port, or a URL with tcp://"),
        ({"PENSTOCK_LISTENERS": ","}, r"is not allowed: use at least one host:port"),
        ({"PENSTOCK_INSECURE": "yes"}, r"PENSTOCK_INSECURE = 'yes' is not allowed: use 1 or 0"),
    ],
)
def test_mistakes_in_the_environment(environ, message):
    with pytest.raises(SettingsError, match=message):
        load_settings(None, environ)


def test_what_kubernetes_puts_into_the_environment_is_no_mistake():
    load_settings(
        None,
        {
            "PENSTOCK_PORT": "tcp://10.0.0.1:1883",
            "PENSTOCK_SERVICE_HOST": "10.0.0.1",
            "PENSTOCK_SERVICE_PORT_MQTT": "1883",
            "PENSTOCK_PORT_1883_TCP_ADDR": "10.0.0.1",
            "PENSTOCK_ADMIN_SERVICE_PORT": "1883",
        },
    )


def test_enhanced_authentication_is_a_table_of_texts(write):
    path = write("[access.enhanced]\nSCRAM = 'a:b'\n")
    loaded = load_settings(path, {"PENSTOCK_ACCESS__ENHANCED__Kerberos": "c:d"}, {"access.enhanced.X": "e:f"})
    assert loaded.settings.access.enhanced == {"SCRAM": "a:b", "Kerberos": "c:d", "X": "e:f"}


def test_reload_reads_the_same_sources_again(write):
    path = write("[limits]\nmax_inflight = 5\n")
    loaded = load_settings(path, {}, {"sys.interval": "3"})
    write("[limits]\nmax_inflight = 6\n")
    again = loaded.reload()
    assert (again.settings.limits.max_inflight, again.settings.sys.interval) == (6, 3)
    write("[limits]\nmax_inflight = 0\n")
    with pytest.raises(SettingsError):
        loaded.reload()


def test_kafka_keys_of_the_queues_are_those_of_the_log(write):
    """`queue.kafka.*` of seed 002: in nested tables, quoted, in the environment; [kafka] has the last word."""
    path = write(
        """
        [kafka]
        linger_ms = 7

        [queue]
        prefix = "p"
        kafka.bootstrap.servers = "127.0.0.1:9"
        kafka.linger.ms = 5
        kafka.batch.size = 16384
        kafka.ssl.enabled = true
        kafka."max.poll.records" = 100
        "kafka.socket.keepalive.enable" = true
        """
    )
    loaded = load_settings(path, {"PENSTOCK_QUEUE__KAFKA__REPLICATION_FACTOR": "3"})
    kafka = loaded.settings.kafka
    assert (kafka.bootstrap_servers, kafka.linger_ms, kafka.batch_size) == ("127.0.0.1:9", 7, 16384)
    assert (kafka.max_poll_records, kafka.replication_factor) == (100, 3)
    assert kafka.common == {"security.protocol": "ssl", "socket.keepalive.enable": "true"}
    assert loaded.settings.services.prefix == "p"
    assert loaded.origins["kafka.batch_size"] == f"file {path}"
    with pytest.raises(SettingsError, match=r"queue\.kafka\.acks"):
        load_settings(write('[queue.kafka]\nacks = "some"\n'), {})


def test_properties_of_kafka_without_quotes_are_names_with_dots(write):
    text = '[kafka.common]\nsasl.username = "me"\n"ssl.ca.location" = "ca.pem"\n[kafka.topics]\ntbmq.msg.all = "a:1"\n'
    kafka = load_settings(write(text), {}).settings.kafka
    assert kafka.common == {"sasl.username": "me", "ssl.ca.location": "ca.pem"}
    assert kafka.topics == {"tbmq.msg.all": "a:1"}


def test_a_property_of_kafka_comes_from_a_file(write, tmp_path):
    (tmp_path / "secret").write_text("opens-it\n")
    environment = {"PENSTOCK_KAFKA__COMMON__SASL__PASSWORD_FILE": str(tmp_path / "secret")}
    assert load_settings(None, environment).settings.kafka.common == {"sasl.password": "opens-it"}
    with pytest.raises(SettingsError, match="are both set"):
        load_settings(None, environment | {"PENSTOCK_KAFKA__COMMON__SASL__PASSWORD": "other"})


@pytest.mark.parametrize(
    "name",
    ["sasl.password", "ssl.key.password", "ssl.keystore.password", "ssl.key.pem", "sasl.oauthbearer.client.secret"],
)
@pytest.mark.parametrize("table", ["common", "producer", "consumer", "admin"])
def test_secrets_of_kafka_are_not_shown(write, name, table):
    """Neither with all settings nor in an error about the table they are in."""
    loaded = load_settings(write(f'[kafka.{table}]\n{name} = "hidden"\nclient.id = "seen"\n'), {})
    shown = without_secrets(f"kafka.{table}", dict(flatten(loaded.settings))[f"kafka.{table}"])
    assert shown == {name: "***", "client.id": "seen"}
    with pytest.raises(SettingsError) as refused:
        load_settings(write(f'[kafka.{table}]\n"{name}" = "hidden"\n"client.id" = 7\n'), {})
    assert "a table of strings" in str(refused.value)
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    "name",
    [
        "PENSTOCK_LIMITS__MAX_PACKET_SIZE",
        "PENSTOCK_SYS__INTERVAL",
        "PENSTOCK_LISTENERS",
        "PENSTOCK_LISTENERS__0__ADDRESS",
        "PENSTOCK_ADMIN__ADDRESS",
        "PENSTOCK_DATA_SUBSCRIPTION__ADDRESS",
        "PENSTOCK_ACCESS__PASSWORD_FILE",
        "PENSTOCK_ACCESS__ENHANCED__METHOD",
    ],
)
def test_what_is_in_a_file_is_never_shown(tmp_path, name):
    """A secret given to the wrong name would stand in the log."""
    secret = tmp_path / "secret"
    secret.write_text("root:hunter2://x\nand more")
    with pytest.raises(SettingsError) as refused:
        load_settings(None, {f"{name}_FILE": str(secret)})
    assert "hunter2" not in str(refused.value)
    assert name in str(refused.value)
