"""Reason codes of MQTT for the refusals of the core, and for connections that it ends."""

from __future__ import annotations

from penstock._ext.hub.connection import Connection
from penstock._ext.wire.packets import Reason
from penstock.core.refusal import Refusal
from penstock.sessions.ending import Ending

CONNACK_REASONS = {
    **dict.fromkeys(Refusal, Reason.UNSPECIFIED_ERROR),
    Refusal.NOT_AUTHORISED: Reason.NOT_AUTHORIZED,
    Refusal.BAD_CREDENTIALS: Reason.BAD_USER_NAME_OR_PASSWORD,
    Refusal.BUSY: Reason.SERVER_BUSY,
    Refusal.QUOTA_EXCEEDED: Reason.QUOTA_EXCEEDED,
    Refusal.UNAVAILABLE: Reason.SERVER_UNAVAILABLE,
}

SUBACK_REASONS = {
    Refusal.NOT_AUTHORISED: Reason.NOT_AUTHORIZED,
    Refusal.NOT_FOUND: Reason.TOPIC_FILTER_INVALID,
    Refusal.ALREADY_EXISTS: Reason.IMPLEMENTATION_SPECIFIC_ERROR,
    Refusal.IN_USE: Reason.IMPLEMENTATION_SPECIFIC_ERROR,
    Refusal.INVALID_NAME: Reason.TOPIC_FILTER_INVALID,
    Refusal.INVALID_ARGUMENT: Reason.TOPIC_FILTER_INVALID,
    Refusal.NOT_SUPPORTED: Reason.IMPLEMENTATION_SPECIFIC_ERROR,
    Refusal.BAD_CREDENTIALS: Reason.NOT_AUTHORIZED,
    Refusal.BUSY: Reason.UNSPECIFIED_ERROR,
    Refusal.TOO_LARGE: Reason.QUOTA_EXCEEDED,
    Refusal.QUOTA_EXCEEDED: Reason.QUOTA_EXCEEDED,
    Refusal.UNAVAILABLE: Reason.UNSPECIFIED_ERROR,
    Refusal.INTERNAL: Reason.UNSPECIFIED_ERROR,
}
"""The codec sends each of them as 0x80 to clients of MQTT 3."""

ENDING_REASONS = {
    Ending.TAKEN_OVER: Reason.SESSION_TAKEN_OVER,
    Ending.BY_OPERATOR: Reason.ADMINISTRATIVE_ACTION,
}


def disconnect(connection: Connection, ending: Ending, text: str) -> None:
    """Send a DISCONNECT, to clients of MQTT 5, and close the connection."""
    connection.disconnect(ENDING_REASONS[ending], text)
