"""Clients that prove nothing, at listeners that admit them (`access.anonymous`)."""

from __future__ import annotations

from penstock.access.base import NEXT, Answer, Authenticator, Credentials, Entrance, Identity, Surroundings

NOBODY = Identity(None, "anonymous")


class Anonymous(Authenticator):
    name = "anonymous"

    def __init__(self, surroundings: Surroundings) -> None: ...

    def serves(self, entrance: Entrance) -> bool:
        return entrance.admits_anonymous

    def try_now(self, credentials: Credentials) -> Answer | None:
        # A user name that nobody has checked is a name, not a proof: it must not open what the rules give to that name,
        # nor what rules that come with a reload will give.
        return NEXT if credentials.was_examined else NOBODY
