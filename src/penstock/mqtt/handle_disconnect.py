"""DISCONNECT from a client: it leaves on purpose, and says what becomes of its will and its session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock._ext.hub.connection import Connection
from penstock._ext.wire.packets import Reason, parse_disconnect
from penstock.mqtt.answers import LEFT

if TYPE_CHECKING:
    from penstock.mqtt.frontend import MqttFrontend


def handle_disconnect(front: MqttFrontend, connection: Connection, flags: int, body: bytes) -> None:
    packet = parse_disconnect(flags, body, connection.version)
    session = connection.session
    if session is not None and packet.session_expiry is not None:
        if session.expiry_interval == 0 and packet.session_expiry > 0:
            # A session that was to end with its connection cannot be prolonged [MQTT-3.1.2-23].
            connection.violation_from_handler(Reason.PROTOCOL_ERROR, "session expiry set by DISCONNECT after 0")
            return
        session.expiry_interval = min(packet.session_expiry, front.settings.limits.max_session_expiry)
    # Every reason but 0x00 keeps the will, 0x04 on purpose, the others because something went wrong
    # [MQTT-3.14.4-3] [MQTT3-3.14.4-3].
    is_clean = packet.reason == Reason.SUCCESS
    if not front.answers.hold_disconnect(connection, is_clean):
        connection.shutdown(LEFT, clean=is_clean)
