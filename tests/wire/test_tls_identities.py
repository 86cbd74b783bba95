"""Whom does a TLS listener let in: certificates, their names, their dates, old versions, and after a reload?"""

import ssl
import warnings

import pytest

from tests.support.brokers.broker import Listener
from tests.support.clients.packets import V5, Reason
from tests.support.clients.raw_client import ClosedByServer, RawClient
from tests.support.clients.streams import open_tcp, open_tls
from tests.support.servers.certificates import Authority


@pytest.fixture(scope="module")
def server_identity(authority):
    return authority.issue("localhost")


def tls_listener(identity, **options):
    return Listener("tls", {"certificate": str(identity.certificate), "key": str(identity.key), **options})


def try_connect(listener, context, client_id="client", **options):
    """The reason code of the CONNACK, or None when TLS does not come that far."""
    try:
        client = RawClient(open_tls(listener.host_and_port, context), V5)
    except (ssl.SSLError, ConnectionError):
        return None
    try:
        client.send_connect(client_id, **options)
        return client.receive().reason
    except (ClosedByServer, OSError):  # in TLS 1.3 the client learns with its first read that it is refused
        return None
    finally:
        client.close()


def test_expired_client_certificate_is_refused(start_file_broker, authority, server_identity):
    """listeners.client_certificate = "required": yesterday's certificate opens nothing."""
    listener = tls_listener(server_identity, client_ca=str(authority.path), client_certificate="required")
    start_file_broker(listeners=[listener])
    valid = authority.client_context(authority.issue("valid-device"))
    expired = authority.client_context(authority.issue("old-device", expired=True))
    assert try_connect(listener, valid) == 0
    assert try_connect(listener, expired) is None


def test_tls_1_1_is_refused(start_file_broker, authority, server_identity):
    """The issue: TLS 1.2 or newer."""
    listener = tls_listener(server_identity)
    start_file_broker(listeners=[listener])
    for newest, reason in ((ssl.TLSVersion.TLSv1_1, None), (ssl.TLSVersion.TLSv1_2, 0), (ssl.TLSVersion.TLSv1_3, 0)):
        context = authority.client_context()
        context.set_ciphers("DEFAULT:@SECLEVEL=0")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            context.minimum_version = min(newest, ssl.TLSVersion.TLSv1_2)
            context.maximum_version = newest
        assert try_connect(listener, context) == reason, newest


def test_user_name_of_the_certificate(start_file_broker, authority, server_identity, tmp_path):
    """listeners.certificate_username = "cn": the rules see the name of the certificate, whatever CONNECT claims."""
    acl = tmp_path / "acl.toml"
    acl.write_text('[[rules]]\neffect = "allow"\ntopics = ["users/%u/#"]\n')
    listener = tls_listener(
        server_identity,
        client_ca=str(authority.path),
        client_certificate="required",
        certificate_username="cn",
    )
    broker = start_file_broker({"access": {"acl_file": str(acl)}}, [listener])
    context = authority.client_context(authority.issue("device-7"))
    for claimed in ({}, {"username": "device-8", "password": b"x"}):
        client = RawClient(open_tls(listener.host_and_port, context), V5)
        client.connect("client", **claimed)
        assert client.subscribe("users/device-7/a", "users/device-8/a") == [0, Reason.NOT_AUTHORIZED]
        assert client.publish("users/device-7/a", b"x", qos=1).reason == 0
        assert client.publish("users/device-8/a", b"x", qos=1).reason == Reason.NOT_AUTHORIZED
        client.close()
    assert {event["username"] for event in broker.await_events("client connected", 2)} == {"device-7"}


def test_optional_certificate_and_passwords_together(start_file_broker, authority, server_identity, password_file):
    """client_certificate = "optional": a certificate or a password; with neither 0x87 where anonymous is denied."""
    listener = tls_listener(
        server_identity, client_ca=str(authority.path), client_certificate="optional", certificate_username="cn"
    )
    access = {"anonymous": "deny", "password_file": str(password_file)}
    start_file_broker({"access": access}, [listener])
    nobody, device = authority.client_context(), authority.client_context(authority.issue("device-9"))
    assert try_connect(listener, device) == 0
    assert try_connect(listener, nobody) == Reason.NOT_AUTHORIZED
    assert try_connect(listener, nobody, username="alice", password=b"alice-secret") == 0
    assert try_connect(listener, nobody, username="alice", password=b"wrong") == Reason.BAD_CREDENTIALS


def test_certificates_are_reloaded(start_file_broker, authority, tmp_path):
    """SIGHUP: new handshakes see the new certificate, those who are in stay; a bad file keeps the old one."""
    identity = authority.issue("before")
    for source, name in ((identity.certificate, "server.crt"), (identity.key, "server.key")):
        (tmp_path / name).write_bytes(source.read_bytes())
    options = {"certificate": str(tmp_path / "server.crt"), "key": str(tmp_path / "server.key")}
    listener = Listener("tls", options)
    broker = start_file_broker(listeners=[listener])
    early = RawClient(open_tls(listener.host_and_port, authority.client_context()), V5)
    early.connect("early")
    assert server_name(listener, authority) == "before"
    renewed = authority.issue("after")
    (tmp_path / "server.crt").write_bytes(renewed.certificate.read_bytes())
    (tmp_path / "server.key").write_bytes(renewed.key.read_bytes())
    broker.reload()
    assert server_name(listener, authority) == "after"
    early.ping()
    (tmp_path / "server.crt").write_text("no certificate")
    assert "server.crt" in broker.reload(refused=True)["error"]
    assert server_name(listener, authority) == "after"
    early.ping()


def server_name(listener, authority):
    with open_tls(listener.host_and_port, authority.client_context()) as connection:
        subject = dict(pair for part in connection.getpeercert()["subject"] for pair in part)
    return subject["commonName"]


def test_unknown_authority_and_silent_clients_cost_nobody_else(start_file_broker, authority, server_identity, tmp_path):
    """Handshakes that fail or hang keep nobody from coming in."""
    listener = tls_listener(server_identity, client_ca=str(authority.path), client_certificate="required")
    start_file_broker(listeners=[listener])
    silent = [open_tcp(listener.host_and_port) for _ in range(20)]
    strangers = authority.client_context(Authority(tmp_path, "Stranger").issue("stranger"))
    assert try_connect(listener, strangers) is None
    assert try_connect(listener, authority.client_context(authority.issue("friend"))) == 0
    for connection in silent:
        connection.close()
