"""Which user may connect with which client id: the [[client_ids]] entries of the ACL file, first match decides.

    [[client_ids]]
    effect = "allow"                        # or "deny"
    clients = ["%u", "%u-*", "billing"]     # client ids; default: all
    users = ["alice"]                       # exact user names; default: all users
    anonymous = true                        # only clients without (false: with) a user name, default: both

In clients a * stands for any text, also for none, %u for the user name as it is, and %% for a percent sign. An id with
%u matches no client without a user name. A file without such entries allows every id; with them, an id that no entry
allows is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from penstock.access.client_types import matches_parts
from penstock.access.entries import check_keys, read_anonymous, read_texts
from penstock.core.errors import AccessFileError

KEYS = ("effect", "clients", "users", "anonymous")
_TOKENS = re.compile(r"(\*|%u|%%)")


@dataclass(frozen=True, slots=True)
class ClientIdRule:
    """One [[client_ids]] entry."""

    allow: bool
    clients: tuple[str, ...] | None
    users: frozenset[str] | None
    anonymous: bool | None

    def applies_to(self, client_id: str, username: str | None) -> bool:
        if self.users is not None and username not in self.users:
            return False
        if self.anonymous is not None and self.anonymous is not (username is None):
            return False
        return self.clients is None or any(matches_id(pattern, client_id, username) for pattern in self.clients)


def may_use(rules: Iterable[ClientIdRule], client_id: str, username: str | None) -> bool:
    """Return whether the first rule for this client allows its id; without any rules every id is allowed."""
    has_rules = False
    for rule in rules:
        has_rules = True
        if rule.applies_to(client_id, username):
            return rule.allow
    return not has_rules


def matches_id(pattern: str, client_id: str, username: str | None) -> bool:
    """Return whether the id matches the pattern. A * in a user name is a character like any other."""
    parts = [""]
    for token in _TOKENS.split(pattern):
        if token == "*":
            parts.append("")
        elif token == "%u":
            if username is None:
                return False
            parts[-1] += username
        else:
            parts[-1] += "%" if token == "%%" else token
    return matches_parts(parts, client_id)


def parse_client_id_rule(entry: dict[str, Any], where: str) -> ClientIdRule:
    check_keys(entry, KEYS, where)
    effect = entry.get("effect")
    if effect not in ("allow", "deny"):
        raise AccessFileError(f'{where}: effect = {effect!r} is not allowed: use "allow" or "deny"')
    clients, users = read_texts(entry, "clients", where), read_texts(entry, "users", where)
    for pattern in clients or ():
        if "%" in _TOKENS.sub("", pattern):
            raise AccessFileError(
                f"{where}: client id {pattern!r} is not allowed: write %u for the user name and %% for a percent sign"
            )
    return ClientIdRule(
        allow=effect == "allow",
        clients=None if clients is None else tuple(clients),
        users=None if users is None else frozenset(users),
        anonymous=read_anonymous(entry, ("users",), where),
    )
