"""Reports of a CONNECT with the client id of another user: refused, or the other user's session ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock._ext.hub.connection import Connection, Session
from penstock._ext.wire.packets import Reason
from penstock.core.logging import get_logger

if TYPE_CHECKING:
    from penstock.mqtt.frontend import MqttFrontend

log = get_logger("penstock.mqtt")

FOREIGN_IDENTITY = "foreign_identity"
CLIENT_ID_RULE = "client_id_rule"


def warn_refused(
    front: MqttFrontend, connection: Connection, client_id: str, username: str | None, session: Session | None
) -> None:
    """Log and record that a CONNECT is refused. The owner is not known here if its session is at another broker."""
    owner = {} if session is None else {"owner": session.username}
    suppressed = _warn(
        front,
        connection,
        "CONNECT refused: the session of the client id belongs to another user",
        client_id=client_id,
        username=username,
        setting="access.foreign_takeover",
        **owner,
    )
    _record_refused(front, connection, suppressed, client_id=client_id, username=username, cause=FOREIGN_IDENTITY)


def warn_forbidden(front: MqttFrontend, connection: Connection, client_id: str, username: str | None) -> None:
    """Log and record that the [[client_ids]] entries refuse a CONNECT."""
    what = "CONNECT refused: the user may not use the client id ([[client_ids]])"
    suppressed = _warn(front, connection, what, client_id=client_id, username=username)
    _record_refused(front, connection, suppressed, client_id=client_id, username=username, cause=CLIENT_ID_RULE)


def warn_taken_over(
    front: MqttFrontend, connection: Connection, client_id: str, username: str | None, session: Session
) -> None:
    """Log and record that a client ends the session of another user."""
    _warn(
        front,
        connection,
        "another user took over a client id, its session ended",
        client_id=client_id,
        username=username,
        owner=session.username,
        was_persistent=session.expiry_interval > 0,
    )
    front.events.taken_over(client_id, username, FOREIGN_IDENTITY, connection)


def _warn(
    front: MqttFrontend, connection: Connection, what: str, *, client_id: str, username: str | None, **fields: object
) -> int | None:
    """Return the number of warnings held back before this one; None if this one is held back as well."""
    suppressed = front.refusals.try_pass(("identity", client_id, what))
    if suppressed is not None:
        log.warning(what, client_id=client_id, username=username, peer=connection.peer, **fields, suppressed=suppressed)
    return suppressed


def _record_refused(
    front: MqttFrontend,
    connection: Connection,
    suppressed: int | None,
    *,
    client_id: str,
    username: str | None,
    cause: str,
) -> None:
    """Record an event, limited in rate as the warning is."""
    if suppressed is not None:
        front.events.refused(
            client_id,
            username=username,
            reason=int(Reason.CLIENT_IDENTIFIER_NOT_VALID),
            cause=cause,
            address=connection.peer or "",
            count=1 + suppressed,
        )
