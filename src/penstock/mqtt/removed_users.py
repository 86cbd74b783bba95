"""Disconnects clients of users who are no longer in the password file, after SIGHUP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock._ext.hub.connection import Connection, Session
from penstock._ext.wire.packets import Reason
from penstock.core.logging import get_logger
from penstock.listen.tls import username_from_certificate

if TYPE_CHECKING:
    from penstock.mqtt.frontend import MqttFrontend

log = get_logger("penstock.mqtt")

REMOVED = "the user was removed"


def disconnect_removed(front: MqttFrontend) -> None:
    """Disconnect every client that was authenticated by a password and whose user is unknown now. Sessions that outlive
    their connection stay until they expire."""
    removed = [session for session in front.registry.sessions() if _is_removed(front, session)]
    for session in removed:
        if session.connection is not None:
            session.connection.disconnect(Reason.NOT_AUTHORIZED, REMOVED)
    if removed:
        users = sorted({str(session.username) for session in removed})
        log.warning("clients of removed users were disconnected", clients=len(removed), users=users[:10])


def _is_removed(front: MqttFrontend, session: Session) -> bool:
    username, connection = session.username, session.connection
    if username is None or connection is None or front.access.knows_user(username):
        return False
    return connection.authentication is None and not _is_from_certificate(connection, username)


def _is_from_certificate(connection: Connection, username: str) -> bool:
    mode = connection.listener.settings.certificate_username
    if mode == "none":
        return False
    return username_from_certificate(connection.transport.get_extra_info("peercert"), mode) == username
