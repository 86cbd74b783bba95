"""What librdkafka is told, and how wrong settings are refused."""

from __future__ import annotations

import msgspec
import pytest

from penstock.core.errors import SettingsError
from penstock.settings.aliases import KAFKA_NAMES, current
from penstock.storage.log.kafka import KafkaLog, KafkaSettings
from penstock.storage.log.kafka.clients import check_clients
from penstock.storage.log.kafka.inspect import inspect
from penstock.storage.log.kafka.settings import (
    admin_config,
    consumer_config,
    is_cooperative,
    producer_config,
    properties_of,
)


def test_the_seeds_defaults() -> None:
    """All but one, and one that counts only without idempotence: docs/adr/0015."""
    producer = producer_config(KafkaSettings())
    consumer = consumer_config(KafkaSettings(), "group", None, KafkaSettings().auto_offset_reset)
    assert producer["acks"] == "all"
    assert producer["enable.idempotence"] is True
    assert producer["batch.size"] == 1_000_000  # ThingsBoard: 16384
    assert producer["linger.ms"] == 1
    assert producer["compression.type"] == "none"
    assert producer["message.max.bytes"] == 1_048_576
    assert producer["max.in.flight"] == 5
    assert producer["request.timeout.ms"] == 30_000
    assert KafkaSettings().buffer_memory == 33_554_432
    assert KafkaSettings().retries == 1
    assert KafkaSettings().replication_factor == 1
    assert KafkaSettings().max_poll_records == 8_192
    assert consumer["auto.offset.reset"] == "earliest"
    assert consumer["session.timeout.ms"] == 10_000
    assert consumer["max.poll.interval.ms"] == 300_000
    assert consumer["max.partition.fetch.bytes"] == 16_777_216
    assert consumer["fetch.max.bytes"] == 134_217_728
    assert consumer["partition.assignment.strategy"] == "cooperative-sticky"
    assert consumer["enable.auto.commit"] is False


def test_the_seeds_size_of_a_batch_can_be_had() -> None:
    assert producer_config(KafkaSettings(batch_size=16_384))["batch.size"] == 16_384
    assert current("queue.kafka.batch.size", 16_384) == ("kafka.batch_size", 16_384)


def test_retries_bound_only_the_producer_that_is_not_idempotent() -> None:
    """One retry would let an acknowledged order break off at the first change of a leader."""
    assert "retries" not in producer_config(KafkaSettings())
    assert producer_config(KafkaSettings(idempotence=False, acks="1"))["retries"] == 1


def test_static_membership_and_reset() -> None:
    config = consumer_config(KafkaSettings(), "group", "node-1", "none")
    assert config["group.instance.id"] == "node-1"
    assert config["auto.offset.reset"] == "error"  # librdkafka's word for none


def test_properties_pass_through() -> None:
    settings = KafkaSettings(
        common={"security.protocol": "plaintext"},
        producer={"linger.ms": 7, "queue.buffering.backpressure.threshold": 2},
        consumer={"fetch.min.bytes": 5},
        admin={"socket.timeout.ms": 4_000},
    )
    assert producer_config(settings)["linger.ms"] == 7
    assert producer_config(settings)["security.protocol"] == "plaintext"
    assert consumer_config(settings, "group", None, "earliest")["fetch.min.bytes"] == 5
    assert "fetch.min.bytes" not in producer_config(settings)
    assert admin_config(settings)["socket.timeout.ms"] == 4_000


def test_the_protocol_of_groups_that_kafka_4_has() -> None:
    """librdkafka refuses with it what the brokers decide then; who states it all the same is told."""
    new = {"group.protocol": "consumer"}
    config = consumer_config(KafkaSettings(consumer=new), "g", None, "earliest")
    assert config.keys().isdisjoint({"partition.assignment.strategy", "session.timeout.ms", "heartbeat.interval.ms"})
    assert is_cooperative(config)
    KafkaLog(KafkaSettings(consumer=new))
    assert not is_cooperative(
        consumer_config(KafkaSettings(consumer={"partition.assignment.strategy": "range"}), "g", None, "earliest")
    )
    with pytest.raises(SettingsError, match=r"session\.timeout\.ms"):
        KafkaLog(KafkaSettings(consumer={**new, "session.timeout.ms": "6000"}))


def test_names_of_the_java_client() -> None:
    settings = KafkaSettings(
        producer={"max.request.size": 5_000},
        consumer={"partition.assignment.strategy": "org.apache.kafka.clients.consumer.RangeAssignor"},
    )
    assert producer_config(settings)["message.max.bytes"] == 5_000
    assert consumer_config(settings, "group", None, "earliest")["partition.assignment.strategy"] == "range"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("buffer.memory", "buffer_memory"),
        ("sasl.jaas.config", "sasl.username"),
        ("ssl.truststore.location", "ssl.ca.location"),
        ("value.serializer", "bytes"),
        ("partitioner.class", "hash_function_name"),
    ],
)
def test_names_that_only_java_knows_say_what_to_write_instead(name: str, hint: str) -> None:
    with pytest.raises(SettingsError, match=name.replace(".", r"\.")) as refused:
        producer_config(KafkaSettings(producer={name: "1"}))
    assert hint in refused.value.hint


@pytest.mark.parametrize("section", ["common", "producer", "consumer", "admin"])
def test_an_unknown_property_is_named(section: str) -> None:
    settings = msgspec.convert({section: {"linger.parsecs": "1"}}, KafkaSettings)
    with pytest.raises(SettingsError, match=r"linger\.parsecs"):
        KafkaLog(settings)


@pytest.mark.parametrize("name", ["error_cb", "oauth_cb", "logger", "default.topic.config"])
@pytest.mark.parametrize("section", ["common", "admin"])
def test_what_is_no_property_but_an_argument_of_the_python_client_is_refused(section: str, name: str) -> None:
    with pytest.raises(SettingsError, match=f"kafka.admin: {name}"):
        inspect(msgspec.convert({section: {name: "x"}}, KafkaSettings), "tbmq.")


def test_a_bad_value_is_refused() -> None:
    with pytest.raises(SettingsError, match="compression"):
        KafkaLog(KafkaSettings(producer={"compression.codec": "paper"}))


def test_idempotence_needs_all_acknowledgements() -> None:
    with pytest.raises(SettingsError, match="idempotence"):
        producer_config(KafkaSettings(acks="1"))


def test_topic_properties_by_name_and_by_beginning() -> None:
    settings = KafkaSettings(
        topic_properties="partitions:1",
        topics={"tbmq.msg.*": "partitions:2", "tbmq.msg.app.*": "partitions:3", "tbmq.msg.all": "partitions:16"},
    )
    assert properties_of(settings, "tbmq.msg.all") == {"partitions": "16"}
    assert properties_of(settings, "tbmq.msg.app.client") == {"partitions": "3"}
    assert properties_of(settings, "tbmq.msg.retained") == {"partitions": "2"}
    assert properties_of(settings, "other") == {"partitions": "1"}


def test_every_alias_of_the_environment_is_a_setting() -> None:
    assert set(KAFKA_NAMES.values()) <= {f"kafka.{field.name}" for field in msgspec.structs.fields(KafkaSettings)}


@pytest.mark.parametrize(
    "given",
    [
        {"acks": "0", "idempotence": False},
        {"idempotence": False, "producer": {"acks": "0"}},
        {"idempotence": False, "common": {"request.required.acks": "0"}},
    ],
)
def test_records_of_which_nobody_would_know_whether_they_are_there_are_refused(given: dict[str, object]) -> None:
    settings = msgspec.convert(given, KafkaSettings)
    for make in (producer_config, check_clients, KafkaLog):
        with pytest.raises(SettingsError, match="acks = 0 is not allowed") as refused:
            make(settings)
        assert "all loses nothing" in refused.value.hint


def test_one_copy_is_enough_for_who_wants_it() -> None:
    assert producer_config(KafkaSettings(acks="1", idempotence=False))["acks"] == "1"
