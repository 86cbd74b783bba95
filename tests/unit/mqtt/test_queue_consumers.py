"""User properties of a SUBSCRIBE to a queue, and the terms they become."""

from __future__ import annotations

import pytest

from penstock.mqtt.queue_consumers import read_life, read_terms
from penstock.subscribers.queue.consumer import MOST_CREDIT, ConsumerTerms


def read(*pairs: tuple[str, str], version: int = 5, qos: int = 1) -> ConsumerTerms:
    return read_terms(dict(pairs), version=version, qos=qos, receive_maximum=20)


def test_what_a_subscription_asks_for() -> None:
    assert read(("prefetch", "7"), ("x-stream-offset", "first")) == ConsumerTerms(credit=7, position="first")
    assert read(("prefetch", "99999999")).credit == MOST_CREDIT
    assert read(("consumer-group", "g"), ("x-auto-commit", "False")) == ConsumerTerms("g", 20, auto_commit=False)
    assert read(qos=0) == ConsumerTerms(credit=20, settles=False)
    for pair in (("prefetch", "0"), ("prefetch", "many"), ("x-auto-commit", "perhaps"), ("settle-on-ack", "1")):
        with pytest.raises(ValueError, match=pair[0]):
            read(pair)


def test_a_client_of_mqtt_3_has_a_group_of_its_own() -> None:
    assert read(("consumer-group", "g"), version=4) == ConsumerTerms(credit=20)


def test_the_lifetime_that_another_node_sends() -> None:
    assert [read_life({"x-group-life": life}) for life in ("session", "connection", "else")] == [
        "session",
        "connection",
        "named",
    ]
    assert read_life({}) == "named"
