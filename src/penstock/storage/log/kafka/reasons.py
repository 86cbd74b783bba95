"""Why Kafka cannot be reached: the last thing that a client heard of it, with what to do about it.

librdkafka answers every question with "Broker transport failure" when it has no connection, whatever keeps it from
having one. What it is comes by the callback for errors alone.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from confluent_kafka import KafkaError

START = "is it running, and kafka.bootstrap_servers right?"
SILENT = "does it run, does something on the way drop packets, or does another service listen there?"
PROTOCOL = "does Kafka listen there? If it wants TLS or a login, set security.protocol and sasl.* in kafka.common"
CREDENTIALS = "set sasl.username, sasl.password and sasl.mechanism in kafka.common to what Kafka knows"
AUTHORITY = (
    "set ssl.ca.location in kafka.common to the certificate of who signed Kafka's, and name Kafka in "
    "kafka.bootstrap_servers as its certificate does"
)
IDENTITY = "set ssl.certificate.location and ssl.key.location in kafka.common to a certificate that Kafka trusts"

STRANGER = (
    "kafka.bootstrap_servers names another service, or another one of its ports: write where Kafka listens (9092); "
    "where that is TLS, set security.protocol in kafka.common"
)

# The words in librdkafka's text, since its codes do not tell these from each other.
_BY_WORDS = (
    ("certificate verify failed", AUTHORITY),
    ("tls alert", IDENTITY),
    ("broker listener?", PROTOCOL),
    ("security.protocol", PROTOCOL),
    ("SSL connection closed by peer", PROTOCOL),
    ("Failed to resolve", START),
    ("Connection refused", START),
)
# librdkafka takes the first four bytes of anything for the length of an answer.
_LENGTH = re.compile(r"Invalid response size (-?\d+)")
_AFTER = re.compile(r" \(after \d+ms in state \w+\)|, \d+ identical error\(s\) suppressed")
_BEFORE = re.compile(r"^\w*(?:://)?\S+/(?:bootstrap|\d+): ")


class Reason(NamedTuple):
    what: str
    advice: str

    def __str__(self) -> str:
        return f"{self.what}; {self.advice}"


class Reasons:
    """Of one Kafka, from what all its clients hear. `servers` is where it was looked for."""

    def __init__(self, servers: str = "") -> None:
        self.at = f"Kafka at {servers}" if servers else "Kafka"
        self._last: Reason | None = None
        self._has_closed = False

    def note(self, error: KafkaError) -> None:
        code, text = error.code(), _BEFORE.sub("", _AFTER.sub("", error.str() or ""))
        advice = next((advice for words, advice in _BY_WORDS if words in text), "")
        if code == KafkaError._AUTHENTICATION:
            self._last = Reason(f"{self.at} refuses this client: {text}", CREDENTIALS)
        elif code == KafkaError._SSL or advice in (AUTHORITY, IDENTITY):
            # The second time it is told with fewer words.
            if self._last is None or self._last.advice != (advice or AUTHORITY):
                self._last = Reason(f"{self.at}: {text}", advice or AUTHORITY)
        elif sent := _LENGTH.search(text):
            beginning = int(sent[1]).to_bytes(4, "big", signed=True)
            self._last = Reason(f"{self.at} is not Kafka: it sent {beginning!r}", STRANGER)
        elif advice:
            self._last = Reason(f"{self.at} cannot be reached: {text}", advice)
        elif code == KafkaError._ALL_BROKERS_DOWN:
            self._has_closed = True

    def forget(self) -> None:
        """It can be reached."""
        self._last, self._has_closed = None, False

    def explain(self) -> Reason:
        if self._last is not None:
            return self._last
        if self._has_closed:
            # Nobody refused the connection: a listener that expects something else ends it without a word.
            return Reason(
                f"{self.at} cannot be reached: it closes connections without an answer, or is silent", PROTOCOL
            )
        return Reason(f"{self.at} cannot be reached: no answer", SILENT)
