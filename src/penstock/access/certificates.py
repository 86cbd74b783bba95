"""Users named by their verified client certificate (`certificate_username` of a listener)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.access.base import NEXT, Answer, Authenticator, Credentials, Entrance, Identity, Surroundings

CERTIFICATE = "certificate"
# RFC 4514 names of the parts of a distinguished name as ssl spells them; others keep their own name.
_SHORT_NAMES = {
    "commonName": "CN",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "domainComponent": "DC",
    "userId": "UID",
}
_ESCAPED = frozenset('"+,;<=>\\')


class Certificates(Authenticator):
    name = CERTIFICATE

    def __init__(self, surroundings: Surroundings) -> None: ...

    def serves(self, entrance: Entrance) -> bool:
        return entrance.certificate_username != "none"

    def try_now(self, credentials: Credentials) -> Answer | None:
        name = username_from_certificate(credentials.certificate, credentials.entrance.certificate_username)
        return NEXT if name is None else Identity(name, self.name)


def username_from_certificate(certificate: Mapping[str, Any] | None, mode: str) -> str | None:
    """The user name a verified client certificate gives (`ssl.getpeercert()`): its CN, or its whole RFC 4514 name.

    None without a certificate, with mode `none`, or when there is not exactly one usable common name.
    """
    if not certificate or mode == "none":
        return None
    names: tuple[tuple[tuple[str, str], ...], ...] = certificate.get("subject", ())
    if mode == "cn":
        common = [value for relative in names for key, value in relative if key == "commonName"]
        # An empty name is nobody's, and U+0000 has no place in a user name.
        return common[0] if len(common) == 1 and common[0] and "\0" not in common[0] else None
    relatives = ["+".join(f"{_SHORT_NAMES.get(k, k)}={_escape(v)}" for k, v in relative) for relative in names]
    return ",".join(reversed(relatives)) or None


def _escape(value: str) -> str:
    escaped = "".join("\\00" if c == "\0" else f"\\{c}" if c in _ESCAPED else c for c in value)
    if escaped[:1] in ("#", " "):
        escaped = f"\\{escaped}"
    if value[1:].endswith(" "):
        escaped = f"{escaped[:-1]}\\ "
    return escaped
