"""The user name that a client's certificate gives."""

import pytest

from penstock.access.certificates import username_from_certificate

SUBJECT = {
    "subject": (
        (("countryName", "DE"),),
        (("organizationName", "Pumps, Valves + Co"),),
        (("commonName", "pump-7"), ("userId", "7")),
    )
}


@pytest.mark.parametrize(
    ("certificate", "mode", "name"),
    [
        (SUBJECT, "cn", "pump-7"),
        (SUBJECT, "dn", "CN=pump-7+UID=7,O=Pumps\\, Valves \\+ Co,C=DE"),
        (SUBJECT, "none", None),
        (None, "cn", None),
        ({}, "cn", None),
        ({"subject": ()}, "dn", None),
        ({"subject": ((("commonName", "admin\0.evil"),),)}, "cn", None),
        ({"subject": ((("commonName", "a"),), (("commonName", "b"),))}, "cn", None),
        ({"subject": ((("commonName", " #x "),),)}, "dn", "CN=\\ #x\\ "),
    ],
)
def test_user_name_of_a_certificate(certificate, mode, name):
    assert username_from_certificate(certificate, mode) == name
