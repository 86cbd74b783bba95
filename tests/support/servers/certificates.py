"""Certificates for the TLS scenarios, made for the occasion."""

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


@dataclass
class Identity:
    """A certificate with its key, in two PEM files."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority in a directory."""

    def __init__(self, directory: Path, name: str = "Test Authority") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._sign(self._name, self._key.public_key(), is_authority=True)
        self.path = directory / f"{name.replace(' ', '-')}.pem"
        self.path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _sign(
        self, subject: x509.Name, public_key: ec.EllipticCurvePublicKey, *, is_authority: bool, expired: bool = False
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))]
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=2))
            .not_valid_after(now + datetime.timedelta(days=-1 if expired else 1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def issue(self, common_name: str, *, file_name: str = "", expired: bool = False) -> Identity:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        certificate = self._sign(subject, key.public_key(), is_authority=False, expired=expired)
        file_name = file_name or common_name
        identity = Identity(self._directory / f"{file_name}.crt", self._directory / f"{file_name}.key")
        identity.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        identity.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return identity

    def client_context(self, identity: Identity | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.path))
        if identity is not None:
            context.load_cert_chain(identity.certificate, identity.key)
        return context


class CertificateSet:
    """Everything a test of TLS listeners needs, made when it is first asked for."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @functools.cached_property
    def ca(self) -> Authority:
        return Authority(self._directory, "ca")

    @functools.cached_property
    def server(self) -> Identity:
        return self.ca.issue("localhost", file_name="server")

    @functools.cached_property
    def new_server(self) -> Identity:
        return self.ca.issue("renewed.localhost", file_name="new-server")

    @functools.cached_property
    def client(self) -> Identity:
        return self.ca.issue("pump-7", file_name="client")

    @functools.cached_property
    def expired_client(self) -> Identity:
        return self.ca.issue("pump-6", file_name="expired-client", expired=True)

    @functools.cached_property
    def stranger(self) -> Identity:
        """A client of an authority the broker does not know."""
        return Authority(self._directory, "other-ca").issue("pump-7", file_name="stranger")

    def client_context(self, identity: Identity | None = None) -> ssl.SSLContext:
        return self.ca.client_context(identity)
