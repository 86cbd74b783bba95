"""What librdkafka has to say to the settings, before anybody is asked: a wrong property, a file that it cannot read."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from penstock._ext.kafka.client import PackConsumer, PackProducer
from penstock.core.errors import SettingsError
from penstock.settings.kafka import KafkaSettings
from penstock.storage.log.kafka.settings import Property, admin_config, consumer_config, producer_config


def check_clients(settings: KafkaSettings) -> None:
    """Makes one client of each kind, and connects to nobody. Raises SettingsError."""
    consumer, producer = consumer_config(settings, "penstock-check", None, "earliest"), producer_config(settings)
    try:
        PackConsumer(_alone(consumer)).close()
        PackProducer(_alone(producer)).close()
        AdminClient(_alone(admin_config(settings)))
    except KafkaException as error:
        raise settings_error(error) from None


def _alone(config: Mapping[str, Property]) -> dict[str, Property]:
    """Without servers, which is a remark in the log of librdkafka."""
    return {name: value for name, value in config.items() if name != "bootstrap.servers"} | {"log_level": 0}


def settings_error(error: KafkaException) -> SettingsError:
    return SettingsError(
        f"kafka: {error.args[0].str()}",
        "The properties of kafka.common, producer, consumer and admin are librdkafka's: "
        "https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md",
    )
