"""Settings of every kind of listener: TLS, and whether clients may connect without a user name."""

from __future__ import annotations

from typing import Annotated, Literal

from penstock.settings.section import about

ClientCa = Annotated[str, about("PEM file with the authorities whose client certificates are accepted")]
CertificateUsername = Annotated[
    Literal["none", "cn", "dn"], about("take the user name from the client certificate: common or whole name")
]
TlsMinimum = Annotated[Literal["1.2", "1.3"], about("oldest TLS version accepted")]
AnonymousHere = Annotated[
    Literal["inherit", "loopback", "allow", "deny"], about("overrides access.anonymous for this listener")
]
