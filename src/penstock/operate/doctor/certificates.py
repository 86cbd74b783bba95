"""TLS files of listeners, and those the broker shows Redis and Kafka: readable, belonging together, a whole chain, and
for how long still good.

Only the few fields that are asked about are read from a certificate: who issued it to whom, and its time.
"""

from __future__ import annotations

import os
import re
import ssl
import stat
from binascii import a2b_base64
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from penstock.operate.doctor.finding import Finding, ok, problem, warning
from penstock.operate.doctor.network import all_listeners
from penstock.settings import ListenerSettings, Settings
from penstock.settings.address import TLS_TRANSPORTS
from penstock.settings.kafka import KafkaSettings
from penstock.settings.providers import device_capabilities, log_capabilities

SOON = timedelta(days=21)
PEM = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.S)
SEQUENCE, CONTEXT_0, UTC_TIME = 0x30, 0xA0, 0x17
COMMON_NAME = bytes.fromhex("0603550403")
READABLE = "the broker's user must be able to read it"
UNEXPLAINED = "one of them is not a PEM file, or the key has a pass phrase"  # OpenSSL: [SSL] PEM lib (_ssl.c:3926)
KAFKA_TLS = ("ssl", "sasl_ssl")
RENEW = "renew it; SIGHUP loads the new one without a restart"
RENEW_OWN = "renew it and restart the broker, which reads what it shows Kafka and Redis at its start only"


class Certificate(NamedTuple):
    issuer: bytes
    subject: bytes
    not_before: datetime
    not_after: datetime

    @property
    def name(self) -> str:
        """Its common name, if it has one that can be shown."""
        at = self.subject.find(COMMON_NAME)
        if at < 0:
            return "without a common name"
        start = at + len(COMMON_NAME)
        text = self.subject[start + 2 : start + 2 + self.subject[start + 1]].decode("utf-8", "replace")
        return text if text.isprintable() else "with an unreadable name"


def _read_element(data: bytes, at: int) -> tuple[int, bytes, int]:
    """Tag, contents and the place behind it."""
    tag, length, start = data[at], data[at + 1], at + 2
    if length & 0x80:
        count = length & 0x7F
        length = int.from_bytes(data[start : start + count], "big")
        start += count
    if start + length > len(data):
        raise ValueError("it is cut off")
    return tag, data[start : start + length], start + length


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        tag, contents, at = _read_element(data, at)
        yield tag, contents


def _parse_time(tag: int, contents: bytes) -> datetime:
    text = contents.decode("ascii")
    if tag == UTC_TIME:  # two digits of the year: 50 to 99 are of the last century
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def parse_certificates(pem: bytes) -> list[Certificate]:
    """All of a file, in their order. Raises ValueError."""
    found = []
    for encoded in PEM.findall(pem):
        try:
            whole = _read_element(a2b_base64(encoded), 0)[1]
            fields = list(_elements(_read_element(whole, 0)[1]))
            if fields[0][0] == CONTEXT_0:
                fields = fields[1:]  # the version, which old ones do not have
            _, _, issuer, validity, subject = fields[:5]
            before, after = (_parse_time(*time) for time in _elements(validity[1]))
            found.append(Certificate(issuer[1], subject[1], before, after))
        except (IndexError, ValueError) as error:
            raise ValueError(f"certificate {len(found) + 1} cannot be read: {error}") from None
    return found


def check_certificates(settings: Settings) -> Iterator[Finding]:
    for listener in all_listeners(settings):
        if listener.transport in TLS_TRANSPORTS:
            yield from _check_listener(f"tls {listener.name}", listener)
    redis = settings.redis
    if device_capabilities(settings).uses_redis and redis.tls:
        yield from _check_client("tls redis", redis.tls_ca, redis.tls_certificate, redis.tls_key)
    if log_capabilities(settings).uses_kafka:
        yield from _check_kafka(settings.kafka)


def _check_listener(area: str, listener: ListenerSettings) -> Iterator[Finding]:
    if (found := _check_pair(area, listener.certificate, listener.key)) is not None:
        yield found
        return
    yield from _check_file(area, Path(listener.certificate), is_chain=True)
    yield from _check_rights(area, listener.key)
    if listener.client_ca:
        yield from _check_file(area, Path(listener.client_ca), is_chain=False)


def _check_client(area: str, authorities: str, certificate: str, key: str, password: str = "") -> Iterator[Finding]:
    """The files of one who connects; each of them may be missing."""
    if authorities:
        yield from _check_file(area, Path(authorities), is_chain=False, renew=RENEW_OWN)
    if not certificate:
        if key:
            yield warning(area, f"{key} is a key without a certificate: nobody is shown it", "name the certificate too")
        return
    if (found := _check_pair(area, certificate, key, password)) is not None:
        yield found
        return
    yield from _check_file(area, Path(certificate), is_chain=False, renew=RENEW_OWN)
    yield from _check_rights(area, key)


def _check_kafka(settings: KafkaSettings) -> Iterator[Finding]:
    """What producer, consumer and administrative client have in common is said once."""
    told: set[Finding] = set()
    for own in (settings.producer, settings.consumer, settings.admin):
        properties = {**settings.common, **own}
        if properties.get("security.protocol", "").lower() not in KAFKA_TLS:
            continue
        for finding in _check_kafka_client(properties):
            if finding not in told:
                told.add(finding)
                yield finding


def _check_kafka_client(properties: Mapping[str, str]) -> Iterator[Finding]:
    area = "tls kafka"
    certificate, key, authorities = (
        properties.get(f"ssl.{name}.location", "") for name in ("certificate", "key", "ca")
    )
    # librdkafka looks for the system's authorities itself, and takes a directory of them as well.
    if authorities == "probe" or os.path.isdir(authorities):
        authorities = ""
    yield from _check_client(area, authorities, certificate, key, properties.get("ssl.key.password", ""))
    store = properties.get("ssl.keystore.location", "")
    if store and not os.access(store, os.R_OK):
        yield problem(area, f"{store} cannot be read", READABLE)


def _check_pair(area: str, certificate: str, key: str, password: str = "") -> Finding | None:
    """What is wrong with a certificate and its key, which may be in one file."""
    if not certificate:
        return problem(area, "no certificate is named", "set certificate and key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key or None, password=password.encode)
    except ssl.SSLError as error:
        return problem(
            area,
            f"{certificate} and {key or 'what else is in it'} are not a certificate with its key: "
            f"{(error.reason or UNEXPLAINED).replace('_', ' ').lower()}",
            "certificate is a PEM chain, the own one first; key its private key, without a pass phrase",
        )
    except (OSError, ValueError) as error:
        named = " or ".join(path for path in dict.fromkeys((certificate, key)) if path and not _is_file(path))
        reason = getattr(error, "strerror", None) or str(error)
        return problem(area, f"{named or f'{certificate} or {key}'}: {reason}", READABLE)
    return None


def _is_file(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.R_OK)


def _check_rights(area: str, key: str) -> Iterator[Finding]:
    if key and stat.S_IMODE(Path(key).stat().st_mode) & 0o004:
        yield warning(area, f"everybody on this machine may read the key {key}", f"chmod o= {key}")


def _check_file(area: str, path: Path, *, is_chain: bool, renew: str = RENEW) -> Iterator[Finding]:
    try:
        certificates = parse_certificates(path.read_bytes())
    except OSError as error:
        yield problem(area, f"{path}: {error.strerror}", READABLE)
        return
    except ValueError as error:
        yield problem(area, f"{path}: {error}", "it is to be a PEM file")
        return
    if not certificates:
        yield problem(area, f"{path} holds no certificate", "it is to be a PEM file")
        return
    now = datetime.now(UTC)
    bad = [finding for one in certificates if (finding := _check_time(area, path, one, now, renew)) is not None]
    yield from bad
    if is_chain:
        yield from _check_chain(area, path, certificates)
    if not bad:
        first = min(certificates, key=lambda one: one.not_after)
        yield ok(area, f"{path}: {certificates[0].name}, good until {first.not_after:%Y-%m-%d}")


def _check_time(area: str, path: Path, one: Certificate, now: datetime, renew: str) -> Finding | None:
    if one.not_after < now:
        return problem(area, f"{path}: {one.name} expired on {one.not_after:%Y-%m-%d}: clients refuse it", renew)
    if one.not_before > now:
        return problem(area, f"{path}: {one.name} is good from {one.not_before:%Y-%m-%d} on", "is the clock right?")
    if one.not_after - now < SOON:
        return warning(area, f"{path}: {one.name} expires in {(one.not_after - now).days} days", renew)
    return None


def _check_chain(area: str, path: Path, certificates: list[Certificate]) -> Iterator[Finding]:
    for lower, upper in pairwise(certificates):
        if lower.issuer != upper.subject:
            yield problem(
                area,
                f"{path}: {upper.name} did not issue {lower.name}, which stands before it",
                "the order is: the server's own certificate, who issued it, who issued that",
            )
            return
    if len(certificates) == 1 and certificates[0].issuer != certificates[0].subject:
        yield warning(
            area,
            f"{path} holds the server's certificate alone: clients that do not know its issuer refuse it",
            "append the intermediate certificates (fullchain.pem), unless the issuer is your own root",
        )
