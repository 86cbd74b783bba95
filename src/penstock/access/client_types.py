"""Which client is an APPLICATION: the [[types]] entries of the ACL file, first match decides.

    [[types]]
    type = "application"                    # or "device"
    users = ["analytics"]                   # exact user names, however they were proved; default: everybody
    certificates = ["billing", "etl-*"]     # user names that were taken from a client certificate
    clients = ["report-*", "*-archive"]     # client ids
    anonymous = true                        # only clients without (false: with) a user name, default: both

A client must fit every key that is there. In clients and certificates a * stands for any text, also for none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

from penstock.access.entries import check_keys, read_anonymous, read_texts
from penstock.core.errors import AccessFileError
from penstock.settings.model import ClientType

TYPES = get_args(ClientType)
KEYS = ("type", "users", "certificates", "clients", "anonymous")


def matches_glob(pattern: str, text: str) -> bool:
    """Whether the text is the pattern, with * for any text. Takes time in proportion to the text, whatever is in it."""
    return matches_parts(pattern.split("*"), text)


def matches_parts(parts: Sequence[str], text: str) -> bool:
    """Return whether the text consists of these parts in their order, with any text between two of them."""
    first, *rest = parts
    if not rest:
        return text == first
    *middle, last = rest
    if not text.startswith(first) or not text.endswith(last) or len(text) < len(first) + len(last):
        return False
    at, end = len(first), len(text) - len(last)
    for part in middle:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


@dataclass(frozen=True, slots=True)
class TypeRule:
    """One [[types]] entry."""

    client_type: ClientType
    users: frozenset[str] | None
    certificates: tuple[str, ...] | None
    clients: tuple[str, ...] | None
    anonymous: bool | None

    def applies_to(self, client_id: str, username: str | None, *, from_certificate: bool) -> bool:
        if self.users is not None and username not in self.users:
            return False
        if self.certificates is not None and not (
            from_certificate
            and username is not None
            and any(matches_glob(pattern, username) for pattern in self.certificates)
        ):
            return False
        if self.clients is not None and not any(matches_glob(pattern, client_id) for pattern in self.clients):
            return False
        return self.anonymous is None or self.anonymous is (username is None)


def parse_type_rule(entry: dict[str, Any], where: str) -> TypeRule:
    check_keys(entry, KEYS, where)
    users, clients = read_texts(entry, "users", where), read_texts(entry, "clients", where)
    certificates = read_texts(entry, "certificates", where)
    return TypeRule(
        client_type=checked_type(entry.get("type"), f"{where}: type"),
        users=None if users is None else frozenset(users),
        certificates=None if certificates is None else tuple(certificates),
        clients=None if clients is None else tuple(clients),
        anonymous=read_anonymous(entry, ("users", "certificates"), where),
    )


def checked_type(text: object, where: str) -> ClientType:
    if text not in TYPES:
        raise AccessFileError(f'{where} = {text!r} is not allowed: use "application" or "device"')
    return cast(ClientType, text)
