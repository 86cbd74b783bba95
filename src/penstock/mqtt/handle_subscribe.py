"""SUBSCRIBE: each filter is granted or refused on its own, then the retained messages follow."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock._ext.hub.connection import Connection, Session
from penstock._ext.wire.packets import Reason, SubscribePacket, build_suback, parse_subscribe, split_share
from penstock.core.logging import get_logger
from penstock.core.refusal import Refused
from penstock.mqtt.refusals import SUBACK_REASONS
from penstock.storage.log.base import LogError
from penstock.subscribers.base import Request, Subscriber

if TYPE_CHECKING:
    from penstock.mqtt.frontend import MqttFrontend

log = get_logger("penstock.mqtt")

QOS = 0x03
SEND_IF_NEW = 1
NEVER_SEND = 2
REFUSED = 0x80

Reserved = dict[bytes, list[Subscriber]]
"""Kinds that have to prepare a filter."""


@dataclass
class Joined:
    """Filters that a kind of subscriber claims, and by filter the QoS it granted or the reason code of its refusal."""

    kinds: dict[bytes, Subscriber] = field(default_factory=dict)
    reasons: dict[bytes, int] = field(default_factory=dict)
    words: str = ""

    def is_apart(self, topic_filter: bytes) -> bool:
        """Return whether the filter is not in the topic tree."""
        kind = self.kinds.get(topic_filter)
        return kind is not None and kind.is_apart


NOTHING_JOINED = Joined()


def handle_subscribe(front: MqttFrontend, connection: Connection, flags: int, body: bytes) -> None:
    limits = front.settings.limits
    packet = parse_subscribe(flags, body, connection.version, limits.max_user_properties, limits.max_topic_levels)
    found = [(topic_filter, front.kinds.find(topic_filter)) for topic_filter, _, error in packet.entries if not error]
    claimed = {topic_filter: kind for topic_filter, kind in found if kind is not None}
    if claimed:
        connection.pause_reading()
        front.spawn(_join(front, connection, connection.session, packet, Joined(claimed)))
        return
    _prepare(front, connection, packet)


async def _join(
    front: MqttFrontend, connection: Connection, session: Session, packet: SubscribePacket, joined: Joined
) -> None:
    """Join what the claimed filters name. That takes time: the log of a queue may have to be created, or another node
    be asked for a group. The connection may have lost its session by the time this runs."""
    for topic_filter, options, error in packet.entries:
        kind = joined.kinds.get(topic_filter)
        if error or kind is None:
            continue
        if not connection.is_connected:
            break  # it left while the filter before was looked at
        qos = min(options & QOS, front.settings.mqtt.maximum_qos)
        reason, words = _refusal(front, session, topic_filter, packet.identifier, kind), ""
        if reason and not kind.is_apart:
            continue  # refused as any filter, with the others
        if not reason:
            try:
                request = Request(topic_filter, qos, packet.identifier, packet.user_properties)
                reason = await kind.subscribe(session, request)
            except Refused as refused:
                reason, words = int(SUBACK_REASONS[refused.refusal]), str(refused)
        joined.reasons[topic_filter] = reason
        joined.words = joined.words or words
        if reason == Reason.NOT_AUTHORIZED and connection.is_connected:
            front.denied(connection, "subscribe", topic_filter, why=words)
    if connection.is_connected:
        _prepare(front, connection, packet, joined)
        if connection.is_writable and not connection.is_blocked:
            connection.resume_reading()
    else:
        for topic_filter in joined.reasons:
            _withdraw(front, session, topic_filter, joined)


def _withdraw(front: MqttFrontend, session: Session, topic_filter: bytes, joined: Joined) -> None:
    """It was made a consumer, and does not have the subscription after all."""
    if not joined.is_apart(topic_filter) and not front.hub.trie.has(session, topic_filter):
        joined.kinds[topic_filter].withdraw(session, topic_filter)


def _prepare(
    front: MqttFrontend, connection: Connection, packet: SubscribePacket, joined: Joined = NOTHING_JOINED
) -> None:
    reserved = _reserve(front, connection.session, packet, joined)
    if reserved:
        connection.pause_reading()
        front.spawn(
            _subscribe_prepared(front, connection, connection.session, packet, reserved=reserved, joined=joined)
        )
    else:
        _subscribe(front, connection, packet, joined)


def _reserve(front: MqttFrontend, session: Session, packet: SubscribePacket, joined: Joined) -> Reserved:
    """Find the filters that have to be prepared first; nothing is made for those that will be refused."""
    reserved: Reserved = {}
    refused: dict[bytes, int] = {}
    for name, _, error in packet.entries:
        if error or name in reserved or name in refused or not name.startswith(b"$share/") or joined.is_apart(name):
            continue
        if _refusal(front, session, name, packet.identifier, joined.kinds.get(name)):
            continue
        try:
            if kinds := front.kinds.reserve(session, name):
                reserved[name] = kinds
        except Refused as error_of_kind:
            refused[name] = int(SUBACK_REASONS[error_of_kind.refusal])
    for index, (name, options, error) in enumerate(packet.entries):
        if name in refused and not error:
            packet.entries[index] = (name, options, refused[name])
    return reserved


async def _subscribe_prepared(
    front: MqttFrontend,
    connection: Connection,
    session: Session,
    packet: SubscribePacket,
    *,
    reserved: Reserved,
    joined: Joined,
) -> None:
    """Let the kinds prepare what they reserved, then answer. The client may have left by the time this runs."""
    try:
        async with front.kinds.prepared(reserved):
            if connection.is_connected:
                _subscribe(front, connection, packet, joined)
            else:
                _subscribe_absent(front, session, packet, joined)
    except LogError as error:
        log.warning("a shared subscription cannot be prepared", client_id=session.client_id, error=str(error))
        _refuse_all(connection, packet)
    except Exception as error:  # whatever it is, the client is not left without an answer
        log.exception("a shared subscription cannot be prepared", client_id=session.client_id, error=repr(error))
        _refuse_all(connection, packet)
    if connection.is_connected and connection.is_writable and not connection.is_blocked:
        connection.resume_reading()


def _refuse_all(connection: Connection, packet: SubscribePacket) -> None:
    if connection.is_connected:
        refused = [int(Reason.UNSPECIFIED_ERROR)] * len(packet.entries)
        connection.send(
            build_suback(connection.version, packet.packet_id, refused, limit=connection.maximum_packet_size)
        )


def _subscribe_absent(front: MqttFrontend, session: Session, packet: SubscribePacket, joined: Joined) -> None:
    """The client left while its topics were made: it meant the subscription all the same, if its session lives."""
    if front.registry.get(session.client_id) is not session:
        return
    for topic_filter, options, error in packet.entries:
        if error or joined.is_apart(topic_filter):
            continue
        if not _refusal(front, session, topic_filter, packet.identifier, joined.kinds.get(topic_filter)):
            granted = options & ~QOS | min(options & QOS, front.settings.mqtt.maximum_qos)
            front.hub.trie.subscribe(session, topic_filter, granted, packet.identifier)
            front.kinds.subscribed(session, topic_filter, granted, packet.identifier)
    if front.registry.keeper is not None:
        front.registry.keeper.save_subscriptions(session)


def _subscribe(
    front: MqttFrontend, connection: Connection, packet: SubscribePacket, joined: Joined = NOTHING_JOINED
) -> None:
    session = connection.session
    trie = front.hub.trie
    change = front.answers.begin(session)
    reasons: list[int] = []
    # A filter may stand in a packet many times: the last one counts, and its retained messages are sent once.
    retained: dict[bytes, int] = {}
    for topic_filter, options, error in packet.entries:
        kind = joined.kinds.get(topic_filter)
        if not error and joined.is_apart(topic_filter):
            reasons.append(joined.reasons[topic_filter])
            continue
        reason = error or _refusal(front, session, topic_filter, packet.identifier, kind)
        if joined.reasons.get(topic_filter, 0) >= REFUSED:
            reason = joined.reasons[topic_filter]
        elif reason and topic_filter in joined.reasons:
            _withdraw(front, session, topic_filter, joined)
        if not reason:
            # [MQTT-3.2.2-10] [MQTT-3.9.3-2]
            reason = min(options & QOS, front.settings.mqtt.maximum_qos)  # [MQTT-3.9.3-1] [MQTT-3.8.4-7]
            granted = options & ~QOS | reason
            if change is not None:
                change.remember(topic_filter)
            # Same filter again: the new options replace the old [MQTT-3.8.4-3] [MQTT3-3.8.4-3]. [MQTT-3.8.4-4]
            is_new = trie.subscribe(session, topic_filter, granted, packet.identifier)
            front.kinds.subscribed(session, topic_filter, granted, packet.identifier)
            front.events.subscribed(session, topic_filter, reason)
            if kind is None and _wants_retained(topic_filter, options, is_new):
                retained[topic_filter] = granted
        elif reason == Reason.NOT_AUTHORIZED and topic_filter not in joined.reasons:
            front.denied(connection, "subscribe", topic_filter, asked=_ruled(topic_filter, kind))
        reasons.append(reason)

    def answer(is_stored: bool) -> None:
        # One code for each filter, in their order, under the same packet id [MQTT-3.8.4-1] [MQTT-3.8.4-2]
        # [MQTT-3.8.4-5] [MQTT-3.8.4-6] [MQTT3-3.8.4-1] [MQTT3-3.8.4-2] [MQTT3-3.8.4-4] [MQTT3-3.8.4-5].
        told = reasons if is_stored else [max(reason, int(Reason.UNSPECIFIED_ERROR)) for reason in reasons]
        words = joined.words if joined.words and connection.explains else None
        limit = connection.maximum_packet_size
        connection.send(build_suback(connection.version, packet.packet_id, told, reason_string=words, limit=limit))
        if is_stored and connection.is_connected:
            _send_all_retained(front, connection, list(retained.items()), packet.identifier)

    if change is None:
        answer(True)
    else:
        front.answers.send_when_durable(connection, change, answer)


def _send_all_retained(
    front: MqttFrontend, connection: Connection, wanted: list[tuple[bytes, int]], identifier: int
) -> None:
    """Send the retained messages of new subscriptions. A filter may visit every retained message, so after
    `limits.match_steps` nodes other clients get their turn first."""
    session = connection.session
    start = front.hub.retained.steps
    for number, (topic_filter, granted) in enumerate(wanted, 1):
        _send_retained(front, session, topic_filter, granted, identifier)
        if front.hub.retained.steps - start > front.settings.limits.match_steps and number < len(wanted):
            connection.pause_reading()
            front.spawn(_send_retained_later(front, connection, wanted[number:], identifier))
            return


async def _send_retained_later(
    front: MqttFrontend, connection: Connection, wanted: list[tuple[bytes, int]], identifier: int
) -> None:
    """Continue with one filter per loop iteration, in turn with other clients that wait. Each client gets the messages
    that are retained when its turn comes."""
    session = connection.session
    for topic_filter, granted in wanted:
        async with front.retained_turn:
            await asyncio.sleep(0)
            if not connection.is_connected or connection.session is not session:
                return
            if front.hub.trie.has(session, topic_filter):
                _send_retained(front, session, topic_filter, granted, identifier)
    if connection.is_writable and not connection.is_blocked:
        connection.resume_reading()


def _send_retained(front: MqttFrontend, session: Session, topic_filter: bytes, granted: int, identifier: int) -> None:
    for feed, _, pack in front.hub.send_retained(session, topic_filter, granted, identifier):
        for kind in front.kinds:
            kind.take_retained(session, feed, pack)


def _refusal(
    front: MqttFrontend, session: Session, topic_filter: bytes, identifier: int, kind: Subscriber | None
) -> int:
    """Return 0, or why this filter, which `kind` claims, is refused."""
    limits, mqtt = front.settings.limits, front.settings.mqtt
    group, plain = split_share(topic_filter)
    if len(topic_filter) > limits.max_topic_length:
        return Reason.TOPIC_FILTER_INVALID
    if group is not None and not mqtt.shared_subscriptions:
        return Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
    try:
        front.kinds.check(session, topic_filter)
    except Refused as refused:
        return SUBACK_REASONS[refused.refusal]
    if identifier and not mqtt.subscription_identifiers:
        return Reason.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED
    if not mqtt.wildcard_subscriptions and (b"+" in plain or b"#" in plain):
        return Reason.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED  # [MQTT3-3.8.3-2]
    if session.acl is not None:
        ruled = _ruled(topic_filter, kind)
        if ruled is not None and not session.acl.may_subscribe(ruled):
            return Reason.NOT_AUTHORIZED
    return _quota_refusal(front, session, topic_filter)


def _ruled(topic_filter: bytes, kind: Subscriber | None) -> bytes | None:
    """Return the filter that the access rules are asked about; None if the kind that claims it checks the rights."""
    return split_share(topic_filter)[1] if kind is None else kind.rule_filter(topic_filter)


def _quota_refusal(front: MqttFrontend, session: Session, topic_filter: bytes) -> int:
    """Return 0, or QUOTA_EXCEEDED for a new filter over a limit of subscriptions or bytes."""
    limits, trie = front.settings.limits, front.hub.trie
    size = trie.weigh(topic_filter)
    if trie.count(session) >= limits.max_subscriptions:
        name = "limits.max_subscriptions"
    elif trie.weight(session) + size > limits.max_subscription_bytes:
        name = "limits.max_subscription_bytes"
    elif trie.subscription_bytes + size > limits.max_total_subscription_bytes:
        name = "limits.max_total_subscription_bytes"
    else:
        return 0
    if trie.has(session, topic_filter):
        return 0
    front.warn_of_limit(session, name, topic_filter)
    return Reason.QUOTA_EXCEEDED


def _wants_retained(topic_filter: bytes, options: int, is_new: bool) -> bool:
    """Retain handling [MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11]; in 3.x the bits are 0 and it is always sent
    [MQTT3-3.3.1-6]. A shared subscription never gets any."""
    handling = options >> 4 & 3
    if handling == NEVER_SEND or (handling == SEND_IF_NEW and not is_new):
        return False
    return not topic_filter.startswith(b"$share/")
