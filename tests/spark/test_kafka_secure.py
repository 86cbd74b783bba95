"""Spark reads a Kafka with TLS and passwords, with nothing but the settings of the broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from penstock.cli.spark.kafka import java_options
from penstock.cli.spark.options import Chosen
from penstock.core.errors import PenstockError
from penstock.settings.kafka import KafkaSettings
from tests.spark.support.records import telemetry, write_kafka
from tests.support.servers.kafka_secure import PASSWORD, SecureKafka

TOPIC = "test-secure"


@pytest.fixture(scope="module")
def secure() -> Iterator[SecureKafka]:
    kafka = SecureKafka().start()
    write_kafka(kafka.bootstrap, TOPIC, telemetry(3))
    yield kafka
    kafka.stop()


@pytest.mark.parametrize("way", ["sasl", "ssl"])
def test_messages_are_read_with_the_settings_of_the_broker(spark: SparkSession, secure: SecureKafka, way: str) -> None:
    settings = secure.sasl() if way == "sasl" else secure.ssl()
    given = [f"{name}={value}" for name, value in settings.items()]
    frame = Chosen(assignments=given, topics=TOPIC).source().read(spark, stream=False)
    assert frame.count() == 3


def test_the_settings_in_the_words_of_java() -> None:
    common = {"sasl.mechanism": "PLAIN", "sasl.username": 'a"b', "sasl.password": "back\\slash", "linger.ms": "1"}
    options = java_options(KafkaSettings(common={**common, "security.protocol": "sasl_ssl"}))
    assert options["kafka.security.protocol"] == "SASL_SSL"
    assert options["kafka.sasl.jaas.config"] == (
        'org.apache.kafka.common.security.plain.PlainLoginModule required username="a\\"b" password="back\\\\slash";'
    )
    assert "kafka.linger.ms" not in options
    assert java_options(KafkaSettings()) == {}


def test_what_java_has_no_word_for_is_named_without_secrets() -> None:
    for common in ({"sasl.mechanism": "GSSAPI", "sasl.username": "u"}, {"ssl.engine.location": "x"}):
        with pytest.raises(PenstockError, match="cannot be translated") as refused:
            java_options(KafkaSettings(common={**common, "sasl.password": PASSWORD}))
        assert PASSWORD not in str(refused.value)
