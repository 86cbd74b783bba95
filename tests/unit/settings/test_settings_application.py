"""The settings around APPLICATION clients: defaults and names of TBMQ, properties checked, the secret kept."""

import pytest

from penstock.broker.check import check
from penstock.core.errors import SettingsError
from penstock.settings import load_settings
from penstock.settings.document import render

SEED = "retention.ms:604800000;segment.bytes:26214400;retention.bytes:1048576000"


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_defaults_are_those_of_the_seed():
    settings = load_settings(None, {}).settings
    application = settings.application
    assert (application.client_id_validation, application.shared_topic_validation) == (True, True)
    assert (application.topic_properties, application.shared_topic_properties) == (SEED, SEED)
    assert (application.max_poll_records, application.shared_max_poll_records) == (200, 500)
    assert (application.pack_timeout, application.ack_strategy, application.retries) == (20.0, "retry-all", 3)
    assert (application.write_and_flush, application.buffered_messages) == (False, 10)
    assert (application.packs_in_flight, application.shared_partitions) == (4, 16)
    assert (application.remove_topics, application.max_clients) == ("session-end", 0)
    assert (settings.access.anonymous_type, settings.access.default_type) == ("device", "device")


def test_names_of_the_seed_are_aliases():
    environ = {
        "TB_APP_PERSISTED_MSG_PACK_PROCESSING_TIMEOUT": "1500",
        "TB_APP_PERSISTED_MSG_ACK_STRATEGY_TYPE": "SKIP_ALL",
        "TB_APP_PERSISTED_MSG_ACK_STRATEGY_RETRIES": "0",
        "TB_APP_PERSISTED_MSG_CLIENT_ID_VALIDATION": "false",
        "TB_APP_PERSISTED_MSG_SHARED_TOPIC_VALIDATION": "false",
        "TB_KAFKA_APP_PERSISTED_MSG_TOPIC_PROPERTIES": "retention.ms:1000",
        "TB_KAFKA_APP_PERSISTED_MSG_SHARED_TOPIC_PROPERTIES": "retention.ms:2000",
        "TB_KAFKA_APP_PERSISTED_MSG_ADDITIONAL_CONSUMER_CONFIG": "max.poll.records:100",
        "TB_KAFKA_APP_PERSISTED_MSG_SHARED_ADDITIONAL_CONSUMER_CONFIG": " max.poll.records : 300 ;",
        "MQTT_APP_MSG_WRITE_AND_FLUSH": "true",
        "MQTT_APP_BUFFERED_MSG_COUNT": "7",
    }
    loaded = load_settings(None, environ)
    application = loaded.settings.application
    assert (application.pack_timeout, application.ack_strategy, application.retries) == (1.5, "skip-all", 0)
    assert (application.client_id_validation, application.shared_topic_validation) == (False, False)
    assert (application.topic_properties, application.shared_topic_properties) == (
        "retention.ms:1000",
        "retention.ms:2000",
    )
    assert (application.max_poll_records, application.shared_max_poll_records) == (100, 300)
    assert (application.write_and_flush, application.buffered_messages) == (True, 7)
    name = "TB_KAFKA_APP_PERSISTED_MSG_ADDITIONAL_CONSUMER_CONFIG"
    assert loaded.origins["application.max_poll_records"] == f"environment {name}"
    ours = load_settings(None, {**environ, "PENSTOCK_APPLICATION__MAX_POLL_RECORDS": "5"})
    assert ours.settings.application.max_poll_records == 5
    page = render()
    assert all(f"`{name}`" in page for name in environ)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {"TB_KAFKA_APP_PERSISTED_MSG_ADDITIONAL_CONSUMER_CONFIG": "max.poll.records:5;fetch.max.bytes:1"},
            r"CONSUMER_CONFIG \(setting application.max_poll_records\) = .*fetch.max.bytes cannot be set .*kafka.consu",
        ),
        (
            {"TB_KAFKA_APP_PERSISTED_MSG_SHARED_ADDITIONAL_CONSUMER_CONFIG": ""},
            r"= '' is not allowed: use max.poll.records:NUMBER",
        ),
        (
            {"TB_KAFKA_APP_PERSISTED_MSG_ADDITIONAL_CONSUMER_CONFIG": "max.poll.records:many"},
            r"= 'many' is not allowed: use a whole number",
        ),
        (
            {"TB_APP_PERSISTED_MSG_ACK_STRATEGY_TYPE": "RETRY_SOME"},
            r'is not allowed: use one of "retry-all", "skip-all"',
        ),
    ],
)
def test_a_bad_text_under_a_name_of_the_seed_is_named(environ, message):
    with pytest.raises(SettingsError, match=message):
        load_settings(None, environ)


def test_a_name_without_meaning_here_is_a_warning():
    loaded = load_settings(None, {"TB_APP_PERSISTED_MSG_POLL_INTERVAL": "100"})
    assert loaded.warnings == [
        "environment TB_APP_PERSISTED_MSG_POLL_INTERVAL has no effect: consumers are woken by new records, "
        "they do not poll at intervals"
    ]


@pytest.mark.parametrize("name", ["topic_properties", "shared_topic_properties"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("retention.ms", "is not name:value"),
        ("retention.sm:1", r"did you mean retention\.ms\?"),
        ("retention.ms:soon", "cannot be created"),
        ("partitions:2", "has one partition"),
        ("cleanup.policy:compact", "compaction removes messages"),
    ],
)
def test_properties_are_checked_at_the_start(name, text, message):
    loaded = load_settings(None, {}, {f"application.{name}": text})
    with pytest.raises(SettingsError, match=rf"application\.{name} = .* is not allowed: .*{message}"):
        check(loaded.settings)


def test_kafka_knows_more_properties_and_has_the_same_rule_about_partitions():
    kafka = {"log.provider": "kafka"}
    check(load_settings(None, {}, {**kafka, "application.topic_properties": "flush.ms:1000"}).settings)
    with pytest.raises(SettingsError, match="one partition"):
        check(load_settings(None, {}, {**kafka, "application.topic_properties": "partitions:2"}).settings)


@pytest.mark.parametrize("provider", ["embedded", "kafka"])
@pytest.mark.parametrize(
    ("base", "text", "message"),
    [
        ("tb_core", "retention.ms", "is not name:value"),
        ("tb_core", "retention.ms:soon", "retention.ms .soon. is not a number"),
        ("tb_core", "partitions:5", "no effect"),
        ("nosuch", "retention.ms:1000", "no base topic 'nosuch'"),
    ],
)
def test_properties_of_queues_are_checked_at_the_start(provider, base, text, message):
    flags = {"log.provider": provider, f"queue.topic-properties.{base}": text}
    with pytest.raises(SettingsError, match=message):
        check(load_settings(None, {}, flags).settings)


def test_a_name_that_only_kafka_knows_is_refused_elsewhere():
    flags = {"queue.topic-properties.tb_core": "retention.sm:1"}
    check(load_settings(None, {}, {**flags, "log.provider": "kafka"}).settings)
    with pytest.raises(SettingsError, match=r"did you mean retention\.ms\?"):
        check(load_settings(None, {}, flags).settings)


def test_a_topic_takes_whatever_was_acknowledged():
    kafka = {"log.provider": "kafka"}
    check(load_settings(None, {}, {**kafka, "application.topic_properties": "max.message.bytes:1048576"}).settings)
    with pytest.raises(SettingsError, match="would be lost"):
        check(load_settings(None, {}, {**kafka, "application.topic_properties": "max.message.bytes:1000"}).settings)


def test_a_short_token_is_refused_and_never_shown(tmp_path):
    for token in ("short-secret", "has a space in the middle", "ümlaut-is-no-header-text"):
        with pytest.raises(SettingsError, match=r"PENSTOCK_ADMIN__TOKEN is not allowed: use 16 to 512") as caught:
            load_settings(None, {"PENSTOCK_ADMIN__TOKEN": token})
        assert token not in str(caught.value)
    (tmp_path / "penstock.toml").write_text("[admin]\ntoken = 1234567890123456\n")
    with pytest.raises(SettingsError, match=r"admin\.token = '\*\*\*' is not allowed"):
        load_settings(None, {})


def test_a_token_can_come_from_a_file(tmp_path):
    (tmp_path / "secret").write_text("a-token-of-enough-letters\n")
    loaded = load_settings(None, {"PENSTOCK_ADMIN__TOKEN_FILE": str(tmp_path / "secret")})
    assert loaded.settings.admin.token == "a-token-of-enough-letters"
