"""Settings that contradict each other, missing files, and doors open to the network."""

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock.core.errors import SettingsError
from penstock.settings import ListenerSettings, is_anonymous_allowed, load_settings
from penstock.settings.model import AccessSettings


def load(environ=None, **given):
    return load_settings(None, environ or {}, {key.replace("__", "."): value for key, value in given.items()})


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A self-signed certificate and its key, and another key that does not fit."""
    directory = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    (directory / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    for file, secret in (("key.pem", key), ("other.pem", ec.generate_private_key(ec.SECP256R1()))):
        (directory / file).write_bytes(
            secret.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
    return directory


def test_low_watermark_is_below_high():
    with pytest.raises(SettingsError, match=r"limits.write_low_watermark = 2000 must be less than .* = 2000"):
        load(limits__write_low_watermark="2000", limits__write_high_watermark="2000")


@pytest.mark.parametrize("address", ["0.0.0.0:1883", "[::]:1883", "*:1883", "10.1.2.3:1883", "broker.example:1883"])
@pytest.mark.parametrize("anonymous", ["loopback", "deny"])
def test_a_listener_open_to_the_network_without_authentication_is_refused(address, anonymous):
    with pytest.raises(SettingsError, match="is open to the network without authentication") as caught:
        load(listeners=address, access__anonymous=anonymous)
    assert caught.value.exit_code == 78
    assert f"listener mqtt on {address}" in caught.value.message
    assert 'set access.password_file, or access.anonymous = "allow" if that is meant' in caught.value.message
    assert len(caught.value.hint.splitlines()) == 2


def test_what_makes_an_open_listener_acceptable(tmp_path):
    passwords = tmp_path / "passwords"
    passwords.touch()
    load(listeners="0.0.0.0:1883", access__anonymous="allow")
    load(**{"listeners": "0.0.0.0:1883", "listeners.0.anonymous": "allow"})
    load(listeners="0.0.0.0:1883", access__password_file=str(passwords))
    load(**{"listeners": "0.0.0.0:1883", "access.enhanced.SCRAM": "some.module:factory"})


def test_insecure_in_the_environment_opens_it_with_a_warning():
    loaded = load({"PENSTOCK_INSECURE": "1"}, listeners="0.0.0.0:1883,127.0.0.1:1884")
    assert [is_anonymous_allowed(x, loaded.settings.access) for x in loaded.settings.listeners] == [True, True]
    assert [x.anonymous for x in loaded.settings.listeners] == ["allow", "inherit"]
    assert loaded.origins["listeners.0.anonymous"] == "environment PENSTOCK_INSECURE"
    assert len(loaded.warnings) == 1
    assert "0.0.0.0:1883" in loaded.warnings[0]


def test_a_local_listener_that_nobody_can_use_is_refused():
    with pytest.raises(SettingsError, match=r"listener mqtt on .* refuses every client"):
        load(access__anonymous="deny")


@pytest.mark.parametrize(
    ("rule", "own", "address", "allowed"),
    [
        ("loopback", "inherit", "127.0.0.1:1", True),
        ("loopback", "inherit", "0.0.0.0:1", False),
        ("allow", "inherit", "0.0.0.0:1", True),
        ("deny", "inherit", "127.0.0.1:1", False),
        ("deny", "loopback", "127.0.0.1:1", True),
        ("allow", "deny", "127.0.0.1:1", False),
        ("allow", "loopback", "0.0.0.0:1", False),
        ("deny", "allow", "0.0.0.0:1", True),
    ],
)
def test_who_may_be_anonymous(rule, own, address, allowed):
    listener = ListenerSettings(address=address, anonymous=own)
    assert is_anonymous_allowed(listener, AccessSettings(anonymous=rule)) is allowed


def test_unix_sockets_are_local():
    assert is_anonymous_allowed(ListenerSettings(transport="unix", address="/run/x"), AccessSettings())
    with pytest.raises(SettingsError, match="at most 107 bytes"):
        load(listeners=f"unix:/{'x' * 107}")


def test_bad_addresses_name_their_source():
    with pytest.raises(SettingsError, match=r"--set listeners = '127.0.0.1' is not allowed: .*use host:port"):
        load(listeners="127.0.0.1")
    with pytest.raises(SettingsError, match=r"admin.address = 'x' is not allowed"):
        load(admin__address="x")
    assert load(admin__address="").settings.admin.address == ""


def test_duplicate_names_and_addresses():
    with pytest.raises(SettingsError, match=r"= '127.0.0.1:5' is the address of listener mqtt too"):
        load(listeners="127.0.0.1:5,ws://127.0.0.1:5")
    with pytest.raises(SettingsError, match=r"listeners.1.name = 'a' is the name of listener 0 too"):
        load(**{"listeners": "127.0.0.1:5,127.0.0.1:6", "listeners.0.name": "a", "listeners.1.name": "a"})
    with pytest.raises(SettingsError, match=r"admin.address = '127.0.0.1:5' is the address of listener mqtt too"):
        load(listeners="127.0.0.1:5", admin__address="127.0.0.1:5")
    load(listeners="127.0.0.1:0,127.0.0.1:0", admin__address="127.0.0.1:0")


def test_tls_needs_a_certificate_and_its_key(certificate, tmp_path):
    base = {"listeners": "tls://127.0.0.1:8883"}
    with pytest.raises(SettingsError, match=r"listeners.0.certificate is missing"):
        load(**base)
    good = {**base, "listeners.0.certificate": f"{certificate}/cert.pem", "listeners.0.key": f"{certificate}/key.pem"}
    load(**good)
    with pytest.raises(SettingsError, match=r"listeners.0.key is missing"):
        load(**{**good, "listeners.0.key": ""})
    with pytest.raises(SettingsError, match=r"listeners.0.certificate: cannot read /nowhere: No such file"):
        load(**{**good, "listeners.0.certificate": "/nowhere"})
    with pytest.raises(SettingsError, match=r"must be a certificate and its unencrypted key"):
        load(**{**good, "listeners.0.key": f"{certificate}/other.pem"})


def test_client_certificates_need_an_authority(certificate, tmp_path):
    good = {
        "listeners": "tls://0.0.0.0:8883",
        "listeners.0.certificate": f"{certificate}/cert.pem",
        "listeners.0.key": f"{certificate}/key.pem",
        "listeners.0.client_ca": f"{certificate}/cert.pem",
        "listeners.0.client_certificate": "required",
    }
    load(**good)
    with pytest.raises(SettingsError, match="open to the network"):
        load(**{**good, "listeners.0.client_certificate": "optional"})
    load(**{**good, "listeners.0.client_certificate": "optional", "listeners.0.certificate_username": "cn"})
    with pytest.raises(SettingsError, match=r"listeners.0.client_ca is missing: .*client_certificate is required"):
        load(**{**good, "listeners.0.client_ca": ""})
    with pytest.raises(SettingsError, match=r"client_ca: .*key.pem holds no PEM certificate"):
        load(**{**good, "listeners.0.client_ca": f"{certificate}/key.pem"})
    with pytest.raises(SettingsError, match=r"certificate_username needs client_certificate"):
        load(**{**good, "listeners.0.client_certificate": "none", "listeners.0.certificate_username": "cn"})


def test_tls_settings_on_a_plain_listener_are_an_error(certificate):
    with pytest.raises(SettingsError, match="has no effect on transport tcp"):
        load(**{"listeners": "127.0.0.1:1", "listeners.0.certificate": f"{certificate}/cert.pem"})
    with pytest.raises(SettingsError, match="needs transport tls or wss"):
        load(**{"listeners": "127.0.0.1:1", "listeners.0.client_certificate": "required"})


def test_files_must_be_there():
    with pytest.raises(SettingsError, match=r"access.password_file: cannot read /nowhere: No such file"):
        load(access__password_file="/nowhere")
    with pytest.raises(SettingsError, match=r"access.acl_file: cannot read /nowhere: No such file"):
        load(access__acl_file="/nowhere")


def test_enhanced_names_a_factory():
    with pytest.raises(SettingsError, match="use module:factory"):
        load(**{"access.enhanced.SCRAM": "nonsense"})
