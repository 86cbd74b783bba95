"""UNSUBSCRIBE: the filters go, what is already under way still arrives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock._ext.hub.connection import Connection
from penstock._ext.wire.packets import Reason, build_unsuback, parse_unsubscribe

if TYPE_CHECKING:
    from penstock.mqtt.frontend import MqttFrontend


def handle_unsubscribe(front: MqttFrontend, connection: Connection, flags: int, body: bytes) -> None:
    limits = front.settings.limits
    packet = parse_unsubscribe(flags, body, connection.version, limits.max_user_properties, limits.max_topic_levels)
    session = connection.session
    trie = front.hub.trie
    change = front.answers.begin(session)
    reasons = []
    for topic_filter, error in packet.entries:  # [MQTT-3.10.4-6] [MQTT3-3.10.4-6] [MQTT-3.11.3-2]
        if change is not None and not error:
            change.remember(topic_filter)
        # Compared character by character [MQTT-3.10.4-1] [MQTT3-3.10.4-1].
        if error:
            reasons.append(error)
        elif front.kinds.unsubscribe(session, topic_filter):
            reasons.append(int(Reason.SUCCESS))
        elif trie.unsubscribe(session, topic_filter):
            # window and queue keep what they have [MQTT-3.10.4-2] [MQTT-3.10.4-3] [MQTT3-3.10.4-2] [MQTT3-3.10.4-3]
            reasons.append(int(Reason.SUCCESS))
            front.kinds.unsubscribed(session, topic_filter)
            front.events.unsubscribed(session, topic_filter)
        else:
            reasons.append(int(Reason.NO_SUBSCRIPTION_EXISTED))

    def answer(is_stored: bool) -> None:
        if not is_stored and connection.version != 5:
            # MQTT 3 has no word for it: the client loses its connection without an answer and will ask again
            connection.shutdown("the subscriptions cannot be stored now")
            return
        if is_stored:
            front.kinds.left([topic_filter for topic_filter, error in packet.entries if not error])
        told = reasons if is_stored else [max(reason, int(Reason.UNSPECIFIED_ERROR)) for reason in reasons]
        # Answered even if nothing matched, in the order of the filters [MQTT-3.10.4-4] [MQTT-3.10.4-5] [MQTT-3.11.3-1]
        # [MQTT3-3.10.4-4] [MQTT3-3.10.4-5].
        connection.send(
            build_unsuback(connection.version, packet.packet_id, told, limit=connection.maximum_packet_size)
        )

    if change is None:
        answer(True)
    else:
        front.answers.send_when_durable(connection, change, answer)
