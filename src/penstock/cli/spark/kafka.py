"""The way to a Kafka with TLS and passwords in the words of Spark's connector, which is Java: ours are librdkafka's."""

from __future__ import annotations

from pathlib import Path

from penstock.core.errors import PenstockError
from penstock.settings.kafka import KafkaSettings

MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
MECHANISMS = ("sasl.mechanism", "sasl.mechanisms")
USER = ("sasl.username", "sasl.password")
PEM = {"ssl.certificate.location": "ssl.keystore.certificate.chain", "ssl.key.location": "ssl.keystore.key"}
ALIKE = ("ssl.key.password", "ssl.keystore.password")
CHECKED_NAMES = "ssl.endpoint.identification.algorithm"
SECURITY = ("security.", "sasl.", "ssl.")


def java_options(settings: KafkaSettings) -> dict[str, str]:
    """Options of the source, `kafka.…`, if there is any need. Raises PenstockError for what Java has no word for."""
    given = {**settings.common, **settings.consumer}
    given = {name: value for name, value in given.items() if name.startswith(SECURITY)}
    options = {}
    for name, value in given.items():
        if name == "security.protocol":
            options[name] = value.upper()
        elif name in MECHANISMS:
            options["sasl.mechanism"] = value
        elif name == "ssl.ca.location":
            options |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(Path(value).resolve())}
        elif name in PEM:
            options |= {"ssl.keystore.type": "PEM", PEM[name]: _read(name, value)}
        elif name == "ssl.keystore.location":
            options |= {"ssl.keystore.type": "PKCS12", name: str(Path(value).resolve())}
        elif name == CHECKED_NAMES:
            options[name] = "" if value == "none" else value
        elif name in ALIKE:
            options[name] = value
        elif name not in USER:
            raise PenstockError(
                f"kafka.common: {name} cannot be translated for Spark, whose Kafka client is Java",
                "Leave it out here, as in --set kafka.common.… of what is needed, or read with a program of your own: "
                "docs/kafka-security.md.",
            )
    if "sasl.username" in given:
        options["sasl.jaas.config"] = _jaas(given)
    return {f"kafka.{name}": value for name, value in options.items()}


def _jaas(given: dict[str, str]) -> str:
    mechanism = next((given[name] for name in MECHANISMS if name in given), "")
    if mechanism not in MODULES:
        raise PenstockError(
            f"sasl.mechanism {mechanism!r} cannot be translated for Spark", f"There are {', '.join(MODULES)}."
        )
    user, password = (_quoted(given.get(name, "")) for name in USER)
    return f"{MODULES[mechanism]} required username={user} password={password};"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _read(name: str, path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise PenstockError(f"kafka.common: {name}: cannot read {path!r}: {error}") from None
