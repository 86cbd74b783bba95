"""SUBSCRIBE: each filter is granted or refused on its own, then the retained messages follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock._ext.connection import Connection, Session
from penstock._ext.packets import Reason, build_suback, parse_subscribe, split_share

if TYPE_CHECKING:
    from penstock.frontends.mqtt.frontend import MqttFrontend

QOS = 0x03
SEND_IF_NEW = 1
NEVER_SEND = 2


def handle_subscribe(front: MqttFrontend, connection: Connection, flags: int, body: bytes) -> None:
    limits = front.settings.limits
    packet = parse_subscribe(flags, body, connection.version, limits.max_user_properties, limits.max_topic_levels)
    session = connection.session
    reasons: list[int] = []
    # A filter may stand in a packet many times: the last one counts, and its retained messages are sent once.
    retained: dict[bytes, int] = {}
    for topic_filter, options, error in packet.entries:
        reason = error or _refusal(front, session, topic_filter, packet.identifier)
        if not reason:
            # [MQTT-3.2.2-10] [MQTT-3.9.3-2]
            reason = min(options & QOS, front.settings.mqtt.maximum_qos)  # [MQTT-3.9.3-1] [MQTT-3.8.4-7]
            granted = options & ~QOS | reason
            # Same filter again: the new options replace the old [MQTT-3.8.4-3] [MQTT3-3.8.4-3]. [MQTT-3.8.4-4]
            is_new = front.hub.trie.subscribe(session, topic_filter, granted, packet.identifier)
            if _wants_retained(topic_filter, options, is_new):
                retained[topic_filter] = granted
        reasons.append(reason)
    # One code for each filter, in their order, under the same packet id [MQTT-3.8.4-1] [MQTT-3.8.4-2] [MQTT-3.8.4-5]
    # [MQTT-3.8.4-6] [MQTT3-3.8.4-1] [MQTT3-3.8.4-2] [MQTT3-3.8.4-4] [MQTT3-3.8.4-5].
    connection.send(build_suback(connection.version, packet.packet_id, reasons))
    for topic_filter, granted in retained.items():
        front.hub.send_retained(session, topic_filter, granted, packet.identifier)


def _refusal(front: MqttFrontend, session: Session, topic_filter: bytes, identifier: int) -> int:
    """0, or why this filter is refused."""
    limits, mqtt = front.settings.limits, front.settings.mqtt
    group, plain = split_share(topic_filter)
    if len(topic_filter) > limits.max_topic_length:
        return Reason.TOPIC_FILTER_INVALID
    if group is not None and not mqtt.shared_subscriptions:
        return Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
    if identifier and not mqtt.subscription_identifiers:
        return Reason.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED
    if not mqtt.wildcard_subscriptions and (b"+" in plain or b"#" in plain):
        return Reason.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED  # [MQTT3-3.8.3-2]
    if session.acl is not None and not session.acl.may_subscribe(plain):
        return Reason.NOT_AUTHORIZED
    trie = front.hub.trie
    if trie.count(session) >= limits.max_subscriptions and not trie.has(session, topic_filter):
        return Reason.QUOTA_EXCEEDED
    return 0


def _wants_retained(topic_filter: bytes, options: int, is_new: bool) -> bool:
    """Retain handling [MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11]; in 3.x the bits are 0 and it is always sent
    [MQTT3-3.3.1-6]. A shared subscription never gets any."""
    handling = options >> 4 & 3
    if handling == NEVER_SEND or (handling == SEND_IF_NEW and not is_new):
        return False
    return not topic_filter.startswith(b"$share/")
