"""AUTH: enhanced authentication (MQTT 5, 4.12), during CONNECT and again later. The methods are plugged in."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock._ext.hub.connection import Connection
from penstock._ext.wire.packets import Reason, build_auth, parse_auth
from penstock.access.base import AuthExchange, AuthStep, Credentials, Identity, Subject
from penstock.core.refusal import Refused
from penstock.mqtt import handle_connect

if TYPE_CHECKING:
    from penstock.mqtt.frontend import MqttFrontend


@dataclass(slots=True)
class Exchange:
    """An exchange under way, or the method a connected client may repeat it with."""

    method: str
    running: AuthExchange | None
    candidate: handle_connect.Candidate | None = None  # None: the client is connected and does it again
    is_deciding: bool = False  # a step is being answered; the next may only come after it


def start(front: MqttFrontend, connection: Connection, candidate: handle_connect.Candidate) -> None:
    """CONNECT named a method."""
    packet = candidate.packet
    assert packet.authentication_method is not None
    running = front.access.chain.begin_exchange(handle_connect.credentials_of(connection, candidate))
    if running is None:
        handle_connect.refuse(connection, packet, Reason.BAD_AUTHENTICATION_METHOD, client_id=candidate.client_id)
        return  # [MQTT-4.12.0-1]
    candidate.exchange = Exchange(packet.authentication_method, running, candidate)
    connection.context = candidate.exchange
    _step(front, connection, candidate.exchange, packet.authentication_data)


def remember(connection: Connection, candidate: handle_connect.Candidate) -> None:
    """After CONNACK a client that came in by a method may repeat it, and only that one."""
    connection.authentication = candidate.exchange and Exchange(candidate.exchange.method, None)


def handle_auth(front: MqttFrontend, connection: Connection, flags: int, body: bytes) -> None:
    packet = parse_auth(flags, body, connection.version)
    exchange: Exchange | None = connection.authentication if connection.is_connected else connection.context
    if exchange is None:
        # AUTH is only for clients that began with it [MQTT-4.12.0-6] [MQTT-4.12.0-7].
        connection.violation_from_handler(Reason.PROTOCOL_ERROR, "AUTH without an authentication method")
    elif packet.authentication_method != exchange.method:
        # [MQTT-4.12.0-5] [MQTT-4.12.1-1]
        connection.violation_from_handler(Reason.BAD_AUTHENTICATION_METHOD, "AUTH with another method")
    elif packet.reason == Reason.RE_AUTHENTICATE and connection.is_connected and exchange.running is None:
        exchange.running = _begin_again(front, connection, exchange.method, packet.authentication_data)
        _step(front, connection, exchange, packet.authentication_data)
    elif packet.reason == Reason.CONTINUE_AUTHENTICATION and exchange.running is not None and not exchange.is_deciding:
        _step(front, connection, exchange, packet.authentication_data)
    else:
        connection.violation_from_handler(Reason.PROTOCOL_ERROR, "AUTH out of turn")


def _begin_again(front: MqttFrontend, connection: Connection, method: str, data: bytes | None) -> AuthExchange:
    session, entrance = connection.session, connection.listener.entrance
    running = front.access.chain.begin_exchange(
        Credentials(entrance, session.client_id, session.username, peer=connection.peer, method=method, data=data)
    )
    assert running is not None  # the client came in by this method, and no reload changes the methods
    return running


def _step(front: MqttFrontend, connection: Connection, exchange: Exchange, data: bytes | None) -> None:
    assert exchange.running is not None
    answer = exchange.running.step(data)
    if inspect.isawaitable(answer):
        exchange.is_deciding = True
        if exchange.candidate is not None:
            connection.decide()
        front.spawn(_answer_later(front, connection, exchange, answer))
    else:
        assert isinstance(answer, AuthStep)
        _answer(front, connection, exchange, answer)


async def _answer_later(
    front: MqttFrontend, connection: Connection, exchange: Exchange, pending: Awaitable[AuthStep]
) -> None:
    try:
        step = await pending
    except Exception as error:  # a broken method keeps its client out, and harms nobody else
        front.on_error(connection, error)
        step = AuthStep.failure()
    exchange.is_deciding = False
    if connection.is_open:
        _answer(front, connection, exchange, step)


def _answer(front: MqttFrontend, connection: Connection, exchange: Exchange, step: AuthStep) -> None:
    candidate = exchange.candidate
    if step.outcome == "proceed":
        if candidate is not None:
            connection.expect_auth(5)
        connection.send(  # [MQTT-4.12.0-2] [MQTT-4.12.0-3]
            build_auth(
                Reason.CONTINUE_AUTHENTICATION,
                authentication_method=exchange.method,
                authentication_data=step.data,
                limit=connection.maximum_packet_size if candidate is None else candidate.packet.maximum_packet_size,
            )
        )
    elif step.outcome == "failure":
        if candidate is not None:
            handle_connect.refuse(connection, candidate.packet, Reason.NOT_AUTHORIZED, client_id=candidate.client_id)
        else:
            connection.disconnect(Reason.NOT_AUTHORIZED, "re-authentication failed")  # [MQTT-4.12.1-2]
    elif candidate is not None:
        assert step.identity is not None
        candidate.authentication_data = step.data
        handle_connect.exchanged(front, connection, candidate, step.identity)
    elif step.username not in (None, connection.session.username):
        # The session, with all it may do, belongs to the user who came in.
        connection.disconnect(Reason.NOT_AUTHORIZED, "re-authentication as another user")
    else:
        assert step.identity is not None
        if front.access.chain.is_remote:
            exchange.is_deciding = True
            # The subject as it is now: the connection may have lost its session when the task runs.
            subject = Subject(step.identity, connection.session.client_id, connection.peer or "")
            front.spawn(_enrich_again(front, connection, exchange, subject, step.data))
        else:
            _succeed_again(front, connection, exchange, step.identity, step.data)


async def _enrich_again(
    front: MqttFrontend, connection: Connection, exchange: Exchange, subject: Subject, data: bytes | None
) -> None:
    """Ask remote authorisers what the identity may do from now on."""
    try:
        found = await front.access.chain.enrich(subject)
    except Refused:
        connection.disconnect(Reason.NOT_AUTHORIZED, "re-authentication failed")
        return
    except Exception as error:  # a client whose rules are unknown must not stay
        front.on_error(connection, error)
        connection.disconnect(Reason.UNSPECIFIED_ERROR, "re-authentication failed")
        return
    exchange.is_deciding = False
    if connection.is_open:
        _succeed_again(front, connection, exchange, found, data)


def _succeed_again(
    front: MqttFrontend, connection: Connection, exchange: Exchange, found: Identity, data: bytes | None
) -> None:
    """A connected client has proved once more who it is: what its identity says from now on applies at once."""
    if found.user == connection.session.username:
        front.identity_changed(connection.session, found)
    exchange.running = None
    connection.send(
        build_auth(
            Reason.SUCCESS,
            authentication_method=exchange.method,
            authentication_data=data,
            limit=connection.maximum_packet_size,
        )
    )
