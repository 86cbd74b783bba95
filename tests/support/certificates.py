"""Certificates for tests: an authority with a server and clients, and those that must not be trusted."""

from __future__ import annotations

import datetime
import functools
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Identity:
    """A certificate and its key in PEM files."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates and writes them into `directory`."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = x509.KeyUsage(False, False, False, False, False, key_cert_sign=True, crl_sign=True,
                              encipher_only=False, decipher_only=False)  # fmt: skip
        certificate = (
            _builder(self._name, self._name, self._key, expired=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = directory / f"{name}.pem"
        self.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, file_name: str, common_name: str, *, expired: bool = False) -> Identity:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Penstock, tests"),
                x509.NameAttribute(NameOID.COMMON_NAME, common_name),
            ]
        )
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            _builder(subject, self._name, key, expired=expired)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(issuer_key, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        identity = Identity(self._directory / f"{file_name}.pem", self._directory / f"{file_name}.key")
        identity.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        identity.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return identity


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, expired: bool
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - 30 * DAY)
        .not_valid_after(NOW - DAY if expired else NOW + 30 * DAY)
    )


class TestCertificates:
    """Everything a TLS test needs, made when it is first asked for."""

    __test__ = False

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @functools.cached_property
    def ca(self) -> Authority:
        return Authority(self._directory, "ca")

    @functools.cached_property
    def other_ca(self) -> Authority:
        return Authority(self._directory, "other-ca")

    @functools.cached_property
    def server(self) -> Identity:
        return self.ca.issue("server", "localhost")

    @functools.cached_property
    def new_server(self) -> Identity:
        return self.ca.issue("new-server", "renewed.localhost")

    @functools.cached_property
    def client(self) -> Identity:
        return self.ca.issue("client", "pump-7")

    @functools.cached_property
    def expired_client(self) -> Identity:
        return self.ca.issue("expired-client", "pump-6", expired=True)

    @functools.cached_property
    def stranger(self) -> Identity:
        """A client of an authority the broker does not know."""
        return self.other_ca.issue("stranger", "pump-7")

    def client_context(self, identity: Identity | None = None) -> ssl.SSLContext:
        """What a client uses that trusts the authority, and shows `identity` if it has one."""
        context = ssl.create_default_context(cafile=str(self.ca.certificate))
        if identity is not None:
            context.load_cert_chain(identity.certificate, identity.key)
        return context
