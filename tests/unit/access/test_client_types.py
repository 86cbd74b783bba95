"""Which client is an APPLICATION: entries of the ACL file, the password file, the settings, in this order."""

import fnmatch
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.access import AccessControl, AclFile, PasswordFile
from penstock.access.base import Identity, Subject
from penstock.access.client_types import matches_glob
from penstock.access.passwords import hash_password
from penstock.core.errors import AccessFileError
from penstock.settings import AccessSettings

TYPES = {
    "types": [
        {"type": "device", "clients": ["report-test*"]},
        {"type": "application", "clients": ["report-*", "*-archive", "exact"]},
        {"type": "application", "certificates": ["billing", "CN=etl-*,O=Plant"]},
        {"type": "application", "users": ["analytics"], "clients": ["*"]},
        {"type": "application", "anonymous": True, "clients": ["kiosk*"]},
    ]
}


@pytest.mark.parametrize(
    ("client_id", "username", "from_certificate", "expected"),
    [
        ("report-7", None, False, "application"),
        ("report-test-7", None, False, "device"),  # the first entry decides
        ("old-archive", "anybody", False, "application"),
        ("exact", None, False, "application"),
        ("exactly", None, False, None),
        ("c", "billing", True, "application"),
        ("c", "billing", False, None),  # a password proves no certificate
        ("c", "CN=etl-4,O=Plant", True, "application"),
        ("c", "CN=etl-4,O=Other", True, None),
        ("c", "analytics", False, "application"),
        ("c", "analytics", True, "application"),
        ("c", "Analytics", False, None),
        ("kiosk1", None, False, "application"),
        ("kiosk1", "alice", False, None),
        ("c", None, False, None),
    ],
)
def test_the_first_entry_that_fits_decides(client_id, username, from_certificate, expected):
    file = AclFile.parse(TYPES, "acl.toml")
    assert file.client_type(client_id, username, from_certificate=from_certificate) == expected


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({}, r'type 1: type = None is not allowed: use "application" or "device"'),
        ({"type": "app"}, r"type 1: type = 'app' is not allowed"),
        ({"type": "device", "client": ["a"]}, r"type 1: client is unknown: did you mean clients\?"),
        ({"type": "device", "clients": "a"}, r"type 1: clients = 'a' is not allowed: use a list"),
        ({"type": "device", "anonymous": 1}, r"type 1: anonymous = 1 is not allowed"),
        ({"type": "device", "anonymous": True, "certificates": ["a"]}, r"none of certificates"),
    ],
)
def test_mistakes_name_the_entry(entry, message):
    with pytest.raises(AccessFileError, match=message):
        AclFile.parse({"types": [entry]}, "acl.toml")


def test_order_of_what_decides(tmp_path):
    stored = hash_password(b"secret")
    users = PasswordFile({"app": stored, "dev": stored, "plain": stored}, {"app": "application", "dev": "device"})
    users.save(tmp_path / "passwords")
    (tmp_path / "acl.toml").write_text('[[types]]\ntype = "device"\nclients = ["d*"]\n')
    settings = AccessSettings(
        password_file=str(tmp_path / "passwords"),
        acl_file=str(tmp_path / "acl.toml"),
        anonymous_type="application",
        default_type="application",
    )
    control = AccessControl(settings)
    assert control.client_type(Subject(Identity("app"), "d1")) == "device"
    assert control.client_type(Subject(Identity("app"), "c1")) == "application"
    assert control.client_type(Subject(Identity("dev"), "c1")) == "device"
    assert control.client_type(Subject(Identity("plain"), "c1")) == "application"
    assert control.client_type(Subject(Identity("unknown", "certificate"), "c1")) == "application"
    assert control.client_type(Subject(Identity(None), "c1")) == "application"
    assert control.client_type(Subject(Identity(None), "d1")) == "device"
    control.reload(AccessSettings(password_file=str(tmp_path / "passwords")))
    assert control.client_type(Subject(Identity("app"), "d1")) == "application"
    assert control.client_type(Subject(Identity("plain"), "c1")) == "device"
    assert control.client_type(Subject(Identity(None), "c1")) == "device"


def test_without_anything_everybody_is_a_device():
    control = AccessControl(AccessSettings())
    assert control.client_type(Subject(Identity(None), "c")) == "device"
    assert control.client_type(Subject(Identity("u"), "c")) == "device"


@given(st.text("ab*", max_size=8), st.text("ab", max_size=12))
def test_globs_as_everybody_knows_them(pattern, text):
    assert matches_glob(pattern, text) == fnmatch.fnmatchcase(text, pattern)


def test_a_long_client_id_does_not_hold_up_the_broker():
    started = time.thread_time()
    assert not matches_glob("*a" * 200 + "*b*c", "a" * 65_535)
    assert time.thread_time() - started < 0.5
