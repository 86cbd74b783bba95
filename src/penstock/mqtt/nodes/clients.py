"""The identity of a client, as user properties of the CONNECT by which its node connects to another."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.access.base import Identity

USER = "user"  # a client without a user name has none
# Groups and rules, if there are any: the other node must not know less of the client than its own node does.
IDENTITY = "identity"
LONGEST_PIECE = 16_000  # characters of at most four bytes: a property has room for 65,535 bytes

Properties = Iterable[tuple[str, str]]


def describe_client(identity: Identity) -> list[tuple[str, str]]:
    properties = [] if identity.user is None else [(USER, identity.user)]
    if identity.groups or identity.grants is not None or identity.attributes:
        text = msgspec.json.encode(identity).decode()
        properties += [(IDENTITY, text[at : at + LONGEST_PIECE]) for at in range(0, len(text), LONGEST_PIECE)]
    return properties


def read_client(properties: Properties) -> Identity:
    """Raises msgspec.DecodeError."""
    text = "".join(value for name, value in properties if name == IDENTITY)
    if text:
        return msgspec.json.decode(text, type=Identity)
    return Identity(dict(properties).get(USER))
