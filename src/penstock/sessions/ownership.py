"""Owners of sessions: a session, its topic, subscriptions and stored messages belong to the user who created it.

Owners are compared by user name alone. The provider that has authenticated the user (the source of the identity) does
not matter: `bob` of the password file and `bob` of a certificate are one owner, as they are for the rules, and records
of older brokers have no source. All clients without a user name are one owner. Another user never gets anything of the
session.
`access.foreign_takeover` decides whether it may end the session by connecting with the same client id.
"""

from __future__ import annotations

from typing import Self

from penstock._ext.hub.connection import Session
from penstock.core.errors import PenstockError
from penstock.core.logging import get_logger
from penstock.settings import Settings
from penstock.settings.checks import is_anonymous_allowed

log = get_logger("penstock.cluster")


class ForeignSession(PenstockError):
    """The client id has a persistent session of another user, which must not end."""


class Ownership:
    """On the loop. `admits_anonymous`: some listener accepts clients without a user name."""

    def __init__(self, takeover: str, *, admits_anonymous: bool) -> None:
        self.takeover = takeover
        self._admits_anonymous = admits_anonymous

    @classmethod
    def of(cls, settings: Settings) -> Self:
        access = settings.access
        admits = any(is_anonymous_allowed(listener, access) for listener in settings.listeners)
        return cls(access.foreign_takeover, admits_anonymous=admits)

    def note_lost(self, session: Session | None, username: str | None, node: str) -> None:
        """Log that a session here ends, or moves and ends there, because another user connects at another broker."""
        if session is not None and session.username != username:
            log.warning(
                "another user took over a client id, its session ended",
                client_id=session.client_id,
                username=username,
                owner=session.username,
                was_persistent=session.expiry_interval > 0,
                node=node,
            )

    @staticmethod
    def is_foreign(session: Session | None, username: str | None) -> bool:
        """Return whether the session belongs to another identity."""
        return session is not None and session.username != username

    def is_protected(self, session: Session | None, username: str | None) -> bool:
        """Return whether a client of this user must be refused, because it would end the session."""
        if session is None or session.username == username:
            return False
        if session.expiry_interval == 0 or self.takeover == "allow":
            return False
        # No client can come back to an anonymous session if all listeners require a user name.
        return session.username is not None or self._admits_anonymous
