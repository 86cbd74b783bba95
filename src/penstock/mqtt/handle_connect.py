"""CONNECT: who is it, may it, which session does it get, and what can it count on."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from penstock._ext.hub.connection import Connection, Session
from penstock._ext.wire.packets import (
    ConnectPacket,
    ProtocolViolation,
    Reason,
    WillPacket,
    build_connack,
    parse_connect,
    reason_name,
)
from penstock.access.base import Credentials, Identity, Subject
from penstock.cluster.claims import Claim
from penstock.core.logging import get_logger
from penstock.core.refusal import Refused
from penstock.mqtt import handle_auth, identity
from penstock.mqtt.refusals import CONNACK_REASONS
from penstock.sessions.ownership import ForeignSession
from penstock.sessions.records import RecordError
from penstock.sessions.registry import Opening
from penstock.sessions.will import Will
from penstock.settings.model import ClientType
from penstock.storage.log.base import LogError
from penstock.storage.state.base import StoreError
from penstock.subscribers.base import Arrival

if TYPE_CHECKING:
    from penstock.mqtt.frontend import MqttFrontend

log = get_logger("penstock.mqtt")

UNKNOWN = Subject(Identity())
NOT_VALID = Reason.CLIENT_IDENTIFIER_NOT_VALID
TOO_SMALL = "the client's Maximum Packet Size is too small for a CONNACK"
# What a 3.x CONNACK can say about a CONNECT that breaks the rules; anything else is closed in silence.
WORDS_OF_MQTT_3 = (Reason.UNSUPPORTED_PROTOCOL_VERSION, Reason.CLIENT_IDENTIFIER_NOT_VALID)


class Candidate(msgspec.Struct, eq=False):  # a dataclass takes three times as long to make
    """A client between its CONNECT and our CONNACK."""

    packet: ConnectPacket
    client_id: str
    is_assigned: bool
    subject: Subject = UNKNOWN
    username: str | None = None  # of the subject
    exchange: handle_auth.Exchange | None = None
    authentication_data: bytes | None = None
    client_type: ClientType = "device"
    claim: Claim | None = None

    def arrival(self, expiry: int) -> Arrival:
        return Arrival(self.client_id, self.client_type, expiry, self.packet.clean_start)


class Joining(msgspec.Struct, eq=False):
    """A client whose session is there, and not promised yet."""

    candidate: Candidate
    session: Session
    present: bool
    expiry: int
    previous_expiry: int = 0


def handle_connect(front: MqttFrontend, connection: Connection, body: bytes) -> None:
    limits = front.settings.limits
    try:
        packet = parse_connect(body, limits.max_user_properties, limits.max_topic_levels)
    except ProtocolViolation as violation:
        _refuse_malformed(front, connection, violation)
        return
    reason = _check(front, packet)
    if reason:
        refuse(connection, packet, reason)
        return
    # any id of one character or more [MQTT-3.1.3-5] [MQTT3-3.1.3-5]
    candidate = Candidate(packet, packet.client_id, False)
    if not packet.client_id:
        candidate.client_id = f"penstock-{secrets.token_hex(10)}"  # [MQTT-3.1.3-6] [MQTT3-3.1.3-6] [MQTT-3.1.3-7]
        candidate.is_assigned = True
    connection.context = candidate
    if packet.authentication_method is not None:
        handle_auth.start(front, connection, candidate)
    else:
        _authenticate(front, connection, candidate)


def _refuse_malformed(front: MqttFrontend, connection: Connection, violation: ProtocolViolation) -> None:
    """A CONNECT against the rules: closed, with the reason where the protocol has a word for it.

    [MQTT-3.1.4-1] [MQTT3-3.1.4-1]
    """
    version, reason = violation.version or 0, violation.reason_code
    connack = None
    if version and (version == 5 or reason in WORDS_OF_MQTT_3):
        # An unknown version is answered in the form its number asks for [MQTT-3.1.2-2] [MQTT3-3.1.2-2] [MQTT3-3.1.3-8].
        words = None if violation.limit is None else violation.message
        connack = build_connack(version, False, reason, reason_string=words, limit=violation.limit or 0) or None
    front.hub.count_protocol_error()
    connection.refuse(connack, violation.message)


def _check(front: MqttFrontend, packet: ConnectPacket) -> int:
    """0, or the reason code this CONNECT is refused with whoever sends it."""
    mqtt = front.settings.mqtt
    if not packet.client_id and (
        not mqtt.allow_zero_length_client_id or packet.version == 3 or (packet.version == 4 and not packet.clean_start)
    ):
        return Reason.CLIENT_IDENTIFIER_NOT_VALID  # [MQTT-3.1.3-8] [MQTT3-3.1.3-8] [MQTT3-3.1.3-9]
    will = packet.will
    if will is not None:
        if will.qos > mqtt.maximum_qos:
            return Reason.QOS_NOT_SUPPORTED  # [MQTT-3.2.2-12]
        if will.retain and not mqtt.retain_available:
            return Reason.RETAIN_NOT_SUPPORTED  # [MQTT-3.2.2-13]
    if front.is_draining:
        return Reason.SERVER_UNAVAILABLE
    return 0


def credentials_of(connection: Connection, candidate: Candidate) -> Credentials:
    packet, listener = candidate.packet, connection.listener
    certificate = None
    if listener.settings.client_certificate != "none":
        certificate = connection.transport.get_extra_info("peercert")
    return Credentials(
        listener.entrance,
        candidate.client_id,
        packet.username,
        packet.password,
        connection.peer,
        certificate,
        packet.authentication_method,
        packet.authentication_data,
    )


def _authenticate(front: MqttFrontend, connection: Connection, candidate: Candidate) -> None:
    credentials = credentials_of(connection, candidate)
    try:
        found = front.access.chain.try_now(credentials)
    except Refused as refused:
        reason = CONNACK_REASONS[refused.refusal]
        refuse(connection, candidate.packet, reason, client_id=candidate.client_id)
        return
    if found is None:
        connection.decide()
        front.spawn(_wait_for_identity(front, connection, candidate, front.access.chain.authenticate(credentials)))
    else:
        complete(front, connection, candidate, found)


async def _wait_for_identity(
    front: MqttFrontend, connection: Connection, candidate: Candidate, pending: Awaitable[Identity]
) -> None:
    try:
        found = await pending
    except Refused as refused:
        reason = CONNACK_REASONS[refused.refusal]
        refuse(connection, candidate.packet, reason, client_id=candidate.client_id)
    except Exception as error:  # whatever breaks in a check, nobody gets in by it and the loop goes on
        front.on_error(connection, error)
        refuse(connection, candidate.packet, Reason.UNSPECIFIED_ERROR)
    else:
        complete(front, connection, candidate, found)


def exchanged(front: MqttFrontend, connection: Connection, candidate: Candidate, found: Identity) -> None:
    """The exchange of a CONNECT with a method has succeeded: authorisers elsewhere are asked next."""
    if not front.access.chain.is_remote:
        complete(front, connection, candidate, found)
        return
    connection.decide()
    subject = Subject(found, candidate.client_id, connection.peer or "")
    front.spawn(_wait_for_identity(front, connection, candidate, front.access.chain.enrich(subject)))


# [MQTT-3.1.4-2] [MQTT-3.2.2-8] [MQTT3-3.2.2-5] [MQTT-4.12.0-4]
def refuse(
    connection: Connection,
    packet: ConnectPacket,
    reason: int,
    *,
    client_id: str | None = None,
    is_reported: bool = False,
) -> None:
    """CONNACK with a reason, session present 0, then the end [MQTT-3.2.2-6] [MQTT-3.2.2-7] [MQTT3-3.2.2-4]. A client
    whose Maximum Packet Size is smaller than that is disconnected without one [MQTT-3.1.2-24]."""
    if not connection.is_open:
        return
    name = reason_name(reason)
    if not is_reported:
        connection.handler.refusals.refused(
            name,
            client_id=client_id or "",
            username=packet.username,
            address=connection.peer,
            reason=reason,
            listener=connection.listener.settings.name,
        )
    connack = build_connack(packet.version, False, reason, limit=packet.maximum_packet_size)
    connection.refuse(connack or None, f"refused: {name}")


def complete(front: MqttFrontend, connection: Connection, candidate: Candidate, found: Identity) -> None:
    """The client is who it says: it gets its session and a CONNACK."""
    if not connection.is_open:
        return
    packet = candidate.packet
    client_id, username = candidate.client_id, found.user
    subject = candidate.subject = Subject(found, client_id, connection.peer or "")
    candidate.username = username
    if not candidate.is_assigned and not front.access.may_use_client_id(subject):
        identity.warn_forbidden(front, connection, client_id, username)
        refuse(connection, packet, NOT_VALID, client_id=client_id, is_reported=True)
        return
    previous = front.registry.get(client_id)
    if previous is not None and _refuse_foreign(front, connection, candidate, previous):
        return
    candidate.client_type = front.access.client_type(subject)
    will = packet.will
    if will is not None and not _may_will(front.access.program_for(subject), will):
        topic = will.topic.encode()
        front.refusals.denied(
            "publish",
            topic,
            lambda: f"will: {front.access.explain(subject, 'publish', topic)}",
            client_id=client_id,
            username=username,
            address=connection.peer,
        )
        refuse(connection, packet, Reason.NOT_AUTHORIZED, client_id=client_id, is_reported=True)
        return
    limits = front.settings.limits
    if previous is None and len(front.registry) >= limits.max_sessions:
        refuse(connection, packet, Reason.QUOTA_EXCEEDED, client_id=candidate.client_id)
        return
    expiry = _session_expiry(packet, limits.max_session_expiry)
    if packet.maximum_packet_size and not _build_connack(front, candidate, False, expiry, _keep_alive(front, packet)):
        # Before it gets a session or ends an old one.
        front.refusals.refused(
            TOO_SMALL,
            client_id=client_id,
            username=username,
            address=connection.peer,
            listener=connection.listener.settings.name,
        )
        connection.shutdown(TOO_SMALL)
        return
    if not front.knows_sessions and (expiry or not packet.clean_start):
        refuse(connection, packet, Reason.SERVER_UNAVAILABLE, client_id=candidate.client_id)
        return
    if not candidate.is_assigned and front.cluster.must_claim(candidate.client_id):
        connection.decide()
        front.spawn(_claim(front, connection, candidate, expiry))
    elif not _admit(front, connection, candidate, expiry, previous):
        connection.decide()
        front.spawn(_prepare(front, connection, candidate, expiry))


def _refuse_foreign(front: MqttFrontend, connection: Connection, candidate: Candidate, session: Session | None) -> bool:
    """Refuse a client that would end the persistent session of another user; return False if it may continue."""
    if not front.ownership.is_protected(session, candidate.username):
        return False
    identity.warn_refused(front, connection, candidate.client_id, candidate.username, session)
    refuse(connection, candidate.packet, NOT_VALID, client_id=candidate.client_id, is_reported=True)
    return True


async def _claim(front: MqttFrontend, connection: Connection, candidate: Candidate, expiry: int) -> None:
    """Another broker may have the client: it lets go first, and its session comes here."""
    claim = None
    try:
        claim = candidate.claim = await front.cluster.claim(candidate.client_id, candidate.username)
    except ForeignSession:
        identity.warn_refused(front, connection, candidate.client_id, candidate.username, None)
        refuse(connection, candidate.packet, NOT_VALID, client_id=candidate.client_id, is_reported=True)
        return
    except (LogError, StoreError, RecordError, TimeoutError) as error:
        if expiry or not candidate.packet.clean_start:
            log.warning("cannot take over the client's session", client_id=candidate.client_id, error=str(error))
            refuse(connection, candidate.packet, Reason.SERVER_UNAVAILABLE, client_id=candidate.client_id)
            return
        # Who neither has a session nor wants one is served while nobody can be asked.
    except Exception as error:  # whatever breaks, the client is told and the loop goes on
        front.on_error(connection, error)
        refuse(connection, candidate.packet, Reason.UNSPECIFIED_ERROR, client_id=candidate.client_id)
        return
    try:
        if connection.is_open:
            previous = front.registry.get(candidate.client_id)
            is_refused = _refuse_foreign(front, connection, candidate, previous)
            if not is_refused and not _admit(front, connection, candidate, expiry, previous):
                await _prepare(front, connection, candidate, expiry)
    finally:
        if claim is not None:
            front.cluster.settle(claim)


def _admit(
    front: MqttFrontend, connection: Connection, candidate: Candidate, expiry: int, previous: Session | None
) -> bool:
    """Open the session, or refuse it; return False if something has to be prepared first. The client may end the
    `previous` session."""
    if previous is not None and front.ownership.is_foreign(previous, candidate.username) and front.kinds.keep(previous):
        return False
    arrival = candidate.arrival(expiry)
    try:
        front.kinds.check_arrival(arrival)
    except Refused as refused:
        refuse(connection, candidate.packet, CONNACK_REASONS[refused.refusal], client_id=candidate.client_id)
        return True
    if front.kinds.must_prepare(arrival, previous):
        return False
    _open(front, connection, candidate, expiry, previous)
    return True


async def _prepare(front: MqttFrontend, connection: Connection, candidate: Candidate, expiry: int) -> None:
    """The kinds of subscriber have what the session needs before the client is answered."""
    try:
        served_as = await _try_to_prepare(front, connection, candidate, expiry)
        if served_as is None:
            return
    except LogError as error:
        log.warning("the topic of a client cannot be made", client_id=candidate.client_id, error=str(error))
        refuse(connection, candidate.packet, Reason.SERVER_UNAVAILABLE, client_id=candidate.client_id)
        return
    except Exception as error:  # whatever breaks, the client is told and the loop goes on
        front.on_error(connection, error)
        refuse(connection, candidate.packet, Reason.UNSPECIFIED_ERROR, client_id=candidate.client_id)
        return
    candidate.client_type = "application" if served_as == "application" else "device"
    if connection.is_open:
        _open(front, connection, candidate, expiry, front.registry.get(candidate.client_id))
    elif candidate.claim is None or not candidate.claim.is_lost:  # else another broker has the client, and its topic
        front.kinds.given_up(candidate.client_id)


async def _try_to_prepare(front: MqttFrontend, connection: Connection, candidate: Candidate, expiry: int) -> str | None:
    """Return the type the client is served as, None if it was refused. Raises LogError."""
    client_id, registry = candidate.client_id, front.registry
    while True:
        session = registry.get(client_id)
        if _refuse_foreign(front, connection, candidate, session):
            front.kinds.given_up(client_id)
            return None
        if session is not None and front.ownership.is_foreign(session, candidate.username):
            identity.warn_taken_over(front, connection, client_id, candidate.username, session)
            await front.kinds.evict(session, partial(_evict, front, session))
            continue
        served_as = await front.kinds.prepare(candidate.arrival(expiry), session)
        # A session that was opened or ended meanwhile may belong to another user: prepare again.
        if not connection.is_open or registry.get(client_id) is session:
            return served_as


def _evict(front: MqttFrontend, session: Session) -> None:
    front.registry.disconnect(session)
    if front.registry.get(session.client_id) is session:
        front.registry.end(session)


def _open(
    front: MqttFrontend, connection: Connection, candidate: Candidate, expiry: int, previous: Session | None
) -> None:
    packet = candidate.packet
    if candidate.claim is not None and candidate.claim.is_lost:
        connection.shutdown("connected at another broker meanwhile")
        return
    if not front.access.chain.knows(candidate.subject.identity):  # see _is_removed
        front.kinds.given_up(candidate.client_id)
        refuse(connection, packet, Reason.NOT_AUTHORIZED, client_id=candidate.client_id)
        return
    if previous is not None and front.ownership.is_foreign(previous, candidate.username):
        identity.warn_taken_over(front, connection, candidate.client_id, candidate.username, previous)
    previous_expiry = 0 if previous is None else previous.expiry_interval
    session, present = front.registry.open(
        Opening(
            candidate.client_id,
            candidate.username,
            packet.clean_start,
            expiry,
            None if packet.will is None else _will_of(packet.will),
            packet.version,
            candidate.client_type,
        )
    )
    session.identity = candidate.subject.identity
    session.acl = front.access.program_for(candidate.subject)
    session.client_type = candidate.client_type
    session.is_assigned = candidate.is_assigned
    front.kinds.opened(session, is_present=present)
    joining = Joining(candidate, session, present, expiry, previous_expiry if present else 0)
    keeper = front.registry.keeper
    if keeper is None or not keeper.must_wait(candidate.client_id):
        _join(front, connection, joining)
    else:
        connection.decide()
        connection.context = joining
        front.registry.await_joining(session, connection)
        keeper.wait(partial(_on_durable, front, connection, joining))


def _on_durable(front: MqttFrontend, connection: Connection, joining: Joining, error: StoreError | None) -> None:
    """The session is in the store, or it cannot be promised."""
    if connection.context is not joining or not connection.is_open:
        return  # it has ended meanwhile, see abandon
    front.registry.joined(joining.session)
    candidate = joining.candidate
    is_removed = _is_removed(front, candidate)
    if error is None and not is_removed:
        try:
            _join(front, connection, joining)
        except Exception as failure:  # otherwise the connection would stay open without an answer
            connection.fail_hard(failure)
        return
    connection.context = None
    abandon(front, joining)
    reason = Reason.NOT_AUTHORIZED if is_removed else Reason.SERVER_UNAVAILABLE
    refuse(connection, candidate.packet, reason, client_id=candidate.client_id)


def _is_removed(front: MqttFrontend, candidate: Candidate) -> bool:
    """Return whether a reload has removed the user since it was authenticated."""
    return not front.access.chain.knows(candidate.subject.identity)


def abandon(front: MqttFrontend, joining: Joining) -> None:
    """Nobody was told of the session: one that was there stays as it was, a new one goes."""
    joining.session.expiry_interval = joining.previous_expiry
    front.registry.abandon(joining.session)


def _join(front: MqttFrontend, connection: Connection, joining: Joining) -> None:
    candidate, session, present, expiry = joining.candidate, joining.session, joining.present, joining.expiry
    packet = candidate.packet
    if present:
        front.hub.trie.bump()  # its rules may be others than before
    keep_alive = _keep_alive(front, packet)
    session.attach(
        connection,
        version=packet.version,
        keeps=expiry > 0,
        receive_maximum=packet.receive_maximum,
        maximum_packet_size=packet.maximum_packet_size,
        topic_alias_maximum=packet.topic_alias_maximum,
        keep_alive=keep_alive,
    )
    connection.explains = packet.request_problem_information
    if present:
        front.kinds.returned(session)
    handle_auth.remember(connection, candidate)
    connection.accept(session, _build_connack(front, candidate, present, expiry, keep_alive))
    if candidate.subject.identity.expires_at is not None and connection.is_connected:
        front.expiries.watch(connection, candidate.subject.identity)
    front.kinds.attached(session)
    front.events.connected(session, connection)
    if log.is_enabled(20):
        log.info(
            "client connected",
            client_id=candidate.client_id,
            peer=connection.peer,
            username=candidate.username,
            client_type=candidate.client_type,
            version=packet.version,
            session_present=present,
        )


def _will_of(will: WillPacket) -> Will:
    return Will(will.topic, will.payload, will.qos, will.retain, will.props, will.delay, will.expiry)


def _may_will(program: object, will: WillPacket) -> bool:
    topic = will.topic.encode()
    if topic == b"$SYS" or topic.startswith(b"$SYS/"):
        return False
    return program is None or program.may_publish(topic)  # type: ignore[attr-defined]


def _session_expiry(packet: ConnectPacket, longest: int) -> int:
    if packet.version == 5:
        return min(packet.session_expiry or 0, longest)
    return 0 if packet.clean_start else longest


def _keep_alive(front: MqttFrontend, packet: ConnectPacket) -> int:
    """Return the keep-alive to use: the client's, or a shorter one with MQTT 5 [MQTT-3.2.2-22]."""
    longest = front.settings.limits.max_keep_alive
    if packet.version == 5 and longest and not 0 < packet.keep_alive <= longest:
        return longest
    return packet.keep_alive


def _build_connack(front: MqttFrontend, candidate: Candidate, present: bool, expiry: int, keep_alive: int) -> bytes:
    packet = candidate.packet
    if packet.version != 5:
        # MQTT 3.1 has no session present flag: the bit is reserved there.
        # [MQTT3-3.2.2-3]
        return build_connack(packet.version, present and packet.version == 4)  # [MQTT3-3.2.2-1] [MQTT3-3.2.2-2]
    settings, limits = front.settings.mqtt, front.settings.limits
    response = None
    if packet.request_response_information and settings.response_information:  # [MQTT-3.1.2-28]
        response = settings.response_information.replace("%c", quote(candidate.client_id, safe=""))
    return build_connack(
        5,
        present,  # [MQTT-3.2.2-2] [MQTT-3.2.2-3]
        limit=packet.maximum_packet_size,
        session_expiry=expiry if expiry != (packet.session_expiry or 0) else None,
        # Properties with the default value of the specification are left out: some clients take only small packets.
        receive_maximum=limits.receive_maximum if limits.receive_maximum != 65_535 else None,
        maximum_qos=settings.maximum_qos if settings.maximum_qos < 2 else None,  # [MQTT-3.2.2-9]
        retain_available=None if settings.retain_available else False,
        maximum_packet_size=limits.max_packet_size,
        assigned_client_identifier=candidate.client_id if candidate.is_assigned else None,  # [MQTT-3.2.2-16]
        topic_alias_maximum=limits.topic_alias_maximum or None,
        wildcard_subscription_available=None if settings.wildcard_subscriptions else False,
        subscription_identifiers_available=None if settings.subscription_identifiers else False,
        shared_subscription_available=None if settings.shared_subscriptions else False,
        server_keep_alive=keep_alive if keep_alive != packet.keep_alive else None,  # [MQTT-3.2.2-21]
        response_information=response,
        authentication_method=packet.authentication_method,  # [MQTT-4.12.0-5]
        authentication_data=candidate.authentication_data,
    )
