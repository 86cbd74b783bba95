"""SUBSCRIBE: each filter is granted or refused on its own, then the retained messages follow."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock._ext.hub.connection import Connection, Session
from penstock._ext.wire.packets import Reason, SubscribePacket, build_suback, parse_subscribe, split_share
from penstock.core.logging import get_logger
from penstock.core.refusal import Refused
from penstock.mqtt import queue_consumers
from penstock.mqtt.refusals import SUBACK_REASONS
from penstock.storage.log.base import LogError
from penstock.subscribers.queue.rights import asked_filter

if TYPE_CHECKING:
    from penstock.mqtt.frontend import MqttFrontend

log = get_logger("penstock.mqtt")

QOS = 0x03
SEND_IF_NEW = 1
NEVER_SEND = 2
REFUSED = 0x80
QUEUE = b"$queue/"


@dataclass
class Joined:
    """What is not decided here: by filter the QoS granted or the refusal; `apart` are not in the trie at all."""

    reasons: dict[bytes, int] = field(default_factory=dict)
    apart: set[bytes] = field(default_factory=set)
    words: str = ""


NOTHING_JOINED = Joined()


def handle_subscribe(front: MqttFrontend, connection: Connection, flags: int, body: bytes) -> None:
    limits = front.settings.limits
    packet = parse_subscribe(flags, body, connection.version, limits.max_user_properties, limits.max_topic_levels)
    if any(not error and _is_joined(front, topic_filter) for topic_filter, _, error in packet.entries):
        connection.pause_reading()
        front.spawn(_join_others(front, connection, connection.session, packet))
        return
    _prepare(front, connection, packet)


def _is_joined(front: MqttFrontend, topic_filter: bytes) -> bool:
    """Filters under $queue/ make the client a consumer of a queue, those of query topics one of a query."""
    if topic_filter.startswith(QUEUE):
        return front.queues is not None
    return front.query_topics is not None and front.query_topics.has(topic_filter)


async def _join_others(front: MqttFrontend, connection: Connection, session: Session, packet: SubscribePacket) -> None:
    """Join queues and query topics. That takes time: the log of a queue may have to be created, or another node be
    asked for a group. The connection may have lost its session by the time this runs."""
    joined = Joined()
    for topic_filter, options, error in packet.entries:
        if error or not _is_joined(front, topic_filter):
            continue
        if not connection.is_connected:
            break  # it left while the filter before was looked at
        qos = min(options & QOS, front.settings.mqtt.maximum_qos)
        is_query = not topic_filter.startswith(QUEUE)
        reason, words = _refusal(front, session, topic_filter, packet.identifier, is_query=is_query), ""
        if is_query:
            joined.apart.add(topic_filter)
        elif reason:
            continue  # refused as any filter, with the others
        if not reason:
            try:
                reason = await _join(front, session, topic_filter, qos, packet)
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
            _withdraw(front, session, topic_filter)


async def _join(front: MqttFrontend, session: Session, topic_filter: bytes, qos: int, packet: SubscribePacket) -> int:
    """Return the QoS granted by the queue or the query topic; raises Refused."""
    if not topic_filter.startswith(QUEUE):
        assert front.query_topics is not None
        return await front.query_topics.subscribe(
            session, topic_filter, qos=qos, identifier=packet.identifier, properties=packet.user_properties
        )
    assert front.queues is not None
    return await queue_consumers.subscribe(
        front.queues,
        session,
        topic_filter.decode(),
        qos=qos,
        identifier=packet.identifier,
        properties=packet.user_properties,
        receive_maximum=session.quota,
    )


def _withdraw(front: MqttFrontend, session: Session, topic_filter: bytes) -> None:
    """It was made a consumer, and does not have the subscription after all."""
    if front.queues is not None and topic_filter.startswith(QUEUE) and not front.hub.trie.has(session, topic_filter):
        front.queues.withdraw(session, topic_filter.decode())


def _prepare(
    front: MqttFrontend, connection: Connection, packet: SubscribePacket, joined: Joined = NOTHING_JOINED
) -> None:
    applications = front.applications
    if applications is not None:
        new = _reserve_shared(front, connection.session, packet, joined)
        if new:
            connection.pause_reading()
            front.spawn(_prepare_shared(front, connection, connection.session, packet, filters=new, joined=joined))
            return
    _subscribe(front, connection, packet, joined)


def _reserve_shared(front: MqttFrontend, session: Session, packet: SubscribePacket, joined: Joined) -> list[bytes]:
    """Filters whose topic and group have to be made first; nothing is made for those that will be refused."""
    assert front.applications is not None
    delivery = front.applications.delivery
    granted = [
        name
        for name, _, error in packet.entries
        if name.startswith(b"$share/")
        and name not in joined.apart
        and not (error or _refusal(front, session, name, packet.identifier))
    ]
    unprepared = dict.fromkeys(delivery.unprepared(session, granted))
    reserved = [name for name in unprepared if delivery.shared.reserve(name)]
    refused = unprepared.keys() - set(reserved)
    for index, (name, options, error) in enumerate(packet.entries):
        if name in refused and not error:
            packet.entries[index] = (name, options, int(Reason.QUOTA_EXCEEDED))
    return reserved


async def _prepare_shared(
    front: MqttFrontend,
    connection: Connection,
    session: Session,
    packet: SubscribePacket,
    *,
    filters: list[bytes],
    joined: Joined,
) -> None:
    """Create the log topics through which APPLICATION clients share filters, then answer. The client may have left by
    the time this runs."""
    assert front.applications is not None
    try:
        async with front.applications.sharing(filters):
            if connection.is_connected:
                _subscribe(front, connection, packet, joined)
            else:
                _subscribe_absent(front, session, packet)
    except LogError as error:
        log.warning("a shared subscription cannot be prepared", client_id=session.client_id, error=str(error))
        _refuse_all(connection, packet)
    except Exception as error:  # whatever it is, the client is not left without an answer
        log.exception("a shared subscription cannot be prepared", client_id=session.client_id, error=repr(error))
        _refuse_all(connection, packet)
    finally:
        for topic_filter in filters:
            front.applications.delivery.shared.release(topic_filter)
    if connection.is_connected and connection.is_writable and not connection.is_blocked:
        connection.resume_reading()


def _refuse_all(connection: Connection, packet: SubscribePacket) -> None:
    if connection.is_connected:
        refused = [int(Reason.UNSPECIFIED_ERROR)] * len(packet.entries)
        connection.send(
            build_suback(connection.version, packet.packet_id, refused, limit=connection.maximum_packet_size)
        )


def _subscribe_absent(front: MqttFrontend, session: Session, packet: SubscribePacket) -> None:
    """The client left while its topics were made: it meant the subscription all the same, if its session lives."""
    if front.registry.get(session.client_id) is not session or front.applications is None:
        return
    for topic_filter, options, error in packet.entries:
        if not (error or _refusal(front, session, topic_filter, packet.identifier)):
            granted = options & ~QOS | min(options & QOS, front.settings.mqtt.maximum_qos)
            front.hub.trie.subscribe(session, topic_filter, granted, packet.identifier)
            front.applications.delivery.subscribed(session, topic_filter, granted, packet.identifier)
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
        if topic_filter in joined.apart and not error:
            reasons.append(joined.reasons[topic_filter])
            continue
        reason = error or _refusal(front, session, topic_filter, packet.identifier)
        if joined.reasons.get(topic_filter, 0) >= REFUSED:
            reason = joined.reasons[topic_filter]
        elif reason and topic_filter in joined.reasons:
            _withdraw(front, session, topic_filter)
        if not reason:
            # [MQTT-3.2.2-10] [MQTT-3.9.3-2]
            reason = min(options & QOS, front.settings.mqtt.maximum_qos)  # [MQTT-3.9.3-1] [MQTT-3.8.4-7]
            granted = options & ~QOS | reason
            if change is not None:
                change.remember(topic_filter)
            # Same filter again: the new options replace the old [MQTT-3.8.4-3] [MQTT3-3.8.4-3]. [MQTT-3.8.4-4]
            is_new = trie.subscribe(session, topic_filter, granted, packet.identifier)
            if front.applications is not None:
                front.applications.delivery.subscribed(session, topic_filter, granted, packet.identifier)
            if front.events is not None:
                front.events.subscribed(session, topic_filter, reason)
            if _wants_retained(topic_filter, options, is_new):
                retained[topic_filter] = granted
        elif reason == Reason.NOT_AUTHORIZED and topic_filter not in joined.reasons:
            front.denied(connection, "subscribe", topic_filter, asked=_asked(split_share(topic_filter)[1]))
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
    if front.applications is not None:
        front.applications.delivery.send_retained(session, topic_filter, granted, identifier)
    else:
        front.hub.send_retained(session, topic_filter, granted, identifier)


def _refusal(
    front: MqttFrontend, session: Session, topic_filter: bytes, identifier: int, *, is_query: bool = False
) -> int:
    """0, or why this filter is refused. Rights on query topics are the catalogue's own."""
    limits, mqtt = front.settings.limits, front.settings.mqtt
    group, plain = split_share(topic_filter)
    if len(topic_filter) > limits.max_topic_length:
        return Reason.TOPIC_FILTER_INVALID
    if group is not None and not mqtt.shared_subscriptions:
        return Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
    if group is not None and plain.startswith(QUEUE):
        return Reason.TOPIC_FILTER_INVALID  # it would never get anything: the consumers of a group share a queue
    if identifier and not mqtt.subscription_identifiers:
        return Reason.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED
    if not mqtt.wildcard_subscriptions and (b"+" in plain or b"#" in plain):
        return Reason.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED  # [MQTT3-3.8.3-2]
    if not is_query and session.acl is not None and not session.acl.may_subscribe(_asked(plain)):
        return Reason.NOT_AUTHORIZED
    if front.applications is not None and session.feed is not None and front.applications.delivery.retained.is_full:
        return Reason.QUOTA_EXCEEDED  # its retained messages could not be kept: those of others wait for the log
    return _quota_refusal(front, session, topic_filter)


def _asked(plain: bytes) -> bytes:
    """Return the filter that the rules are asked about, for a filter without `$share`."""
    return asked_filter(plain) if plain.startswith(QUEUE) else plain


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
    return not topic_filter.startswith((b"$share/", QUEUE))
