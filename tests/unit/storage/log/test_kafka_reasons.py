"""What librdkafka says of a connection that fails, in words that say what to do."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka import KafkaError

from penstock.storage.log.kafka.health import REFUSED_SECONDS, Health
from penstock.storage.log.kafka.reasons import (
    AUTHORITY,
    CREDENTIALS,
    IDENTITY,
    PROTOCOL,
    SILENT,
    START,
    STRANGER,
    Reasons,
)

AT = "sasl_ssl://kafka-1:9093/bootstrap: "
VERIFY = "SSL handshake failed: error:0A000086:SSL routines::certificate verify failed: broker certificate …"
ALERT = "Receive failed: error:0A000412:SSL routines::ssl/tls alert bad certificate: SSL alert number 42"


@pytest.mark.parametrize(
    ("code", "text", "advice"),
    [
        (KafkaError._AUTHENTICATION, f"{AT}SASL authentication error: no (after 23ms in state AUTH_REQ)", CREDENTIALS),
        (KafkaError._SSL, f"{AT}{VERIFY} (after 5ms in state SSL_HANDSHAKE)", AUTHORITY),
        (KafkaError._TRANSPORT, f"{AT}{ALERT} (after 1ms in state APIVERSION_QUERY)", IDENTITY),
        (KafkaError._TRANSPORT, f"{AT}SSL handshake failed: connecting to a PLAINTEXT broker listener?", PROTOCOL),
        (KafkaError._TRANSPORT, "127.0.0.1:9/bootstrap: Connect to ipv4#127.0.0.1:9 failed: Connection refused", START),
        (KafkaError._BAD_MSG, f"{AT}Receive failed: Invalid response size 1213486160 (0..100000000)", STRANGER),
        (KafkaError._RESOLVE, "nowhere:9/bootstrap: Failed to resolve 'nowhere:9': unknown", START),
        (KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down", PROTOCOL),
    ],
)
def test_each_has_its_advice(code: int, text: str, advice: str) -> None:
    reasons = Reasons("kafka-1:9093")
    reasons.note(KafkaError(code, text))
    # All brokers are down, too, which says nothing new.
    reasons.note(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    found = reasons.explain()
    assert found.advice == advice
    assert found.what.startswith("Kafka at kafka-1:9093")
    assert "(after" not in found.what
    assert "bootstrap:" not in found.what
    reasons.forget()
    assert reasons.explain().advice == SILENT


def test_who_is_let_in_does_not_speak_for_who_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The producer has a password of its own, which is wrong: the others are answered all the while."""
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    health = Health()
    health.mark_answering()
    assert health.reason is None
    health.on_error(KafkaError(KafkaError._AUTHENTICATION, f"{AT}SASL authentication error: no"))
    health.mark_answering()
    assert health.reason is not None
    now += 2 * REFUSED_SECONDS
    health.mark_answering()
    assert health.reason is None


def test_the_log_hears_of_it_once_until_it_is_something_else(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A test before this one may have configured the logs of the program, which then stay with it.
    monkeypatch.setattr(logging.getLogger("penstock"), "propagate", True)
    caplog.set_level(logging.WARNING, logger="penstock")
    health = Health("kafka-1:9093")
    refused = KafkaError(KafkaError._AUTHENTICATION, f"{AT}SASL authentication error: no")
    for _ in range(5):
        health.on_error(refused)
    assert caplog.text.count("kafka is unavailable") == 1
    health.on_error(KafkaError(KafkaError._SSL, f"{AT}{VERIFY}"))
    assert caplog.text.count("kafka is unavailable") == 2
    assert health.reason is not None
    assert AUTHORITY in health.reason
    health.mark_up()
    assert health.reason is None
    health.on_error(refused)
    assert caplog.text.count("kafka is unavailable") == 3
