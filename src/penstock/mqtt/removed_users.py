"""Disconnects clients of users who were removed, after a reload or a change of a provider."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock._ext.hub.connection import Session
from penstock._ext.wire.packets import Reason
from penstock.access.identities import identity_of
from penstock.core.logging import get_logger

if TYPE_CHECKING:
    from penstock.mqtt.frontend import MqttFrontend

log = get_logger("penstock.mqtt")

REMOVED = "the user was removed"


def disconnect_removed(front: MqttFrontend) -> None:
    """Disconnect every client whose identity its provider does not know any more. Sessions that outlive their
    connection stay until they expire."""
    removed = [session for session in front.registry.sessions() if _is_removed(front, session)]
    for session in removed:
        if session.connection is not None:
            session.connection.disconnect(Reason.NOT_AUTHORIZED, REMOVED)
    if removed:
        users = sorted({str(session.username) for session in removed})
        log.warning("clients of removed users were disconnected", clients=len(removed), users=users[:10])


def _is_removed(front: MqttFrontend, session: Session) -> bool:
    return session.connection is not None and not front.access.chain.knows(identity_of(session))
