"""Certificates of a listener: what is refused at start."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from penstock.listen.tls import TlsError, build_context
from penstock.settings.model import ListenerSettings
from tests.support.servers.certificates import CertificateSet


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> CertificateSet:
    return CertificateSet(tmp_path_factory.mktemp("certificates"))


def settings(certificate: Path | str, key: Path | str, **more: str) -> ListenerSettings:
    return ListenerSettings(name="secure", transport="tls", certificate=str(certificate), key=str(key), **more)


def test_defaults_are_strict(certificates):
    context = build_context(settings(certificates.server.certificate, certificates.server.key))
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.verify_mode == ssl.CERT_NONE


def test_sessions_are_not_resumed_where_client_certificates_are_checked(certificates):
    context = build_context(
        settings(
            certificates.server.certificate,
            certificates.server.key,
            client_certificate="required",
            client_ca=str(certificates.ca.path),
        )
    )
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.num_tickets == 0
    assert context.options & ssl.OP_NO_TICKET


def test_bad_files_are_named(certificates, tmp_path):
    server, client = certificates.server, certificates.client
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no certificate")
    for bad in [
        settings("", ""),
        settings(tmp_path / "missing.pem", server.key),
        settings(garbage, server.key),
        settings(server.certificate, client.key),
        settings(server.certificate, server.key, client_certificate="required"),
        settings(server.certificate, server.key, client_certificate="required", client_ca=str(garbage)),
    ]:
        with pytest.raises(TlsError, match=r"listener secure: .*(certificate|client_ca)") as caught:
            build_context(bad)
        assert caught.value.exit_code == 78


def test_a_key_with_a_pass_phrase_is_refused_and_asks_nobody(certificates, tmp_path):
    key = serialization.load_pem_private_key(certificates.server.key.read_bytes(), None)
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(TlsError):
        build_context(settings(certificates.server.certificate, encrypted))
