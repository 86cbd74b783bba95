"""Who may do what with query topics: the [[data]] entries of the ACL file, first match decides.

    [[data]]
    effect = "allow"                            # or "deny"
    actions = ["create", "subscribe", "drop"]   # default: all of them
    topics = ["hot", "alarms-*"]                # names of query topics, * for any text; default: all
    users = ["alice"]                           # default: everybody
    clients = ["report-*"]                      # client ids, * for any text; default: all
    anonymous = true                            # only clients without (false: with) a user name, default: both

Where no entry fits, owners and what was given by GRANT decide (penstock.subscribers.query.privileges).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.access.client_types import matches_glob
from penstock.access.entries import check_keys, read_anonymous, read_texts
from penstock.core.errors import AccessFileError

ACTIONS = ("create", "subscribe", "drop")
KEYS = ("effect", "actions", "topics", "users", "clients", "anonymous")


@dataclass(frozen=True, slots=True)
class DataRule:
    """One [[data]] entry."""

    allow: bool
    actions: frozenset[str]
    topics: tuple[str, ...] | None
    users: frozenset[str] | None
    clients: tuple[str, ...] | None
    anonymous: bool | None

    def applies_to(self, client_id: str, username: str | None, action: str, topic: str) -> bool:
        if action not in self.actions or (self.users is not None and username not in self.users):
            return False
        if self.clients is not None and not any(matches_glob(pattern, client_id) for pattern in self.clients):
            return False
        if self.topics is not None and not any(matches_glob(pattern, topic) for pattern in self.topics):
            return False
        return self.anonymous is None or self.anonymous is (username is None)


def parse_data_rule(entry: dict[str, Any], where: str) -> DataRule:
    check_keys(entry, KEYS, where)
    effect = entry.get("effect")
    if effect not in ("allow", "deny"):
        raise AccessFileError(f'{where}: effect = {effect!r} is not allowed: use "allow" or "deny"')
    actions = read_texts(entry, "actions", where)
    for action in actions or ():
        if action not in ACTIONS:
            raise AccessFileError(f"{where}: action {action!r} is not allowed: use {', '.join(ACTIONS)}")
    if actions == []:
        raise AccessFileError(f"{where}: actions is empty: leave it out for all of them")
    topics, users = read_texts(entry, "topics", where), read_texts(entry, "users", where)
    clients = read_texts(entry, "clients", where)
    return DataRule(
        allow=effect == "allow",
        actions=frozenset(ACTIONS if actions is None else actions),
        topics=None if topics is None else tuple(topics),
        users=None if users is None else frozenset(users),
        clients=None if clients is None else tuple(clients),
        anonymous=read_anonymous(entry, ("users",), where),
    )
