"""The identity that a session belongs to, as access control knows it."""

from __future__ import annotations

from penstock._ext.hub.connection import Session
from penstock.access.base import Identity, Subject


def identity_of(session: Session) -> Identity:
    """Return the identity of the client that connected last; only a user name is known of older sessions."""
    found: Identity | None = session.identity
    return Identity(session.username) if found is None else found


def subject_of(session: Session) -> Subject:
    """Return whom the rules of the session are about."""
    connection = session.connection
    return Subject(identity_of(session), session.client_id, "" if connection is None else connection.peer or "")


def rights_of(identity: Identity) -> tuple[object, ...]:
    """Return the part of the identity that rules depend on."""
    return identity.user, identity.source, identity.groups, identity.grants, identity.attributes
