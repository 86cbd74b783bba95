"""The listener for other nodes of the cluster, which consume queues in the place of their clients:
relays.py is the other end, and link.py describes how nodes prove who they are.

A listener of its own: no client can use it, whatever its name and password, and the limits for clients do not apply
here; they were applied where the client is connected. The access rules of the client do apply, because this node
chooses the receiver of each message.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass

from penstock._ext.hub.connection import Connection, Hub, Session
from penstock._ext.match.acl import AclProgram
from penstock._ext.wire.packets import (
    ConnectPacket,
    ProtocolViolation,
    Reason,
    SubscribePacket,
    build_auth,
    build_connack,
    build_suback,
    parse_auth,
    parse_connect,
    parse_subscribe,
)
from penstock.access.base import Subject
from penstock.core.errors import PenstockError
from penstock.core.logging import Throttled, get_logger
from penstock.core.refusal import Refused
from penstock.core.tasks import TaskSet
from penstock.listen.listener import Listener, ListenerError
from penstock.mqtt.nodes.clients import read_client
from penstock.mqtt.nodes.departures import end_groups, has_left
from penstock.mqtt.nodes.link import CHALLENGE_BYTES, METHOD, prove
from penstock.mqtt.queue_consumers import subscribe
from penstock.mqtt.refusals import SUBACK_REASONS
from penstock.services.membership import Door
from penstock.services.node import ClusterNode
from penstock.settings.address import Address, parse_address
from penstock.settings.cluster import OFF, ClusterSettings
from penstock.settings.model import ListenerSettings
from penstock.subscribers.queue.manager import QueueManager
from penstock.subscribers.queue.rights import RELAYED_BY

log = get_logger("penstock.cluster")

RETRY_SECONDS = 5.0
MOST_UNKNOWN = 1_000
ProgramFor = Callable[[Subject], AclProgram | None]
EVERYWHERE = ("", "0.0.0.0", "::")
QOS = 0x03


@dataclass(slots=True)
class _Arrival:
    """A node between CONNECT and its proof."""

    packet: ConnectPacket
    challenge: bytes


class NodeListener:
    """The handler of its connections, too. `kafka`: where this node finds Kafka, `host:port,…`."""

    def __init__(
        self,
        hub: Hub,
        queues: QueueManager,
        node: ClusterNode,
        settings: ClusterSettings,
        *,
        kafka: str,
        receive_maximum: int,
        program_for: ProgramFor,
    ) -> None:
        """`program_for` returns the access rules of a client, the same as at the node it is connected to."""
        self._hub = hub
        self._queues = queues
        self._node = node
        self._settings = settings
        self._kafka = kafka
        self.receive_maximum = receive_maximum
        self._program_for = program_for
        self._clients: dict[Session, Subject] = {}
        self._secret = secrets.token_urlsafe(32)
        self._listener: Listener | None = None
        self._opening: asyncio.Task[None] | None = None
        self._tasks = TaskSet()
        self._errors = Throttled(log, interval=10.0)
        self.connections = 0
        self.sessions = 0

    # ---- life ----

    async def start(self) -> None:
        """Raises ListenerError if it cannot listen where it is told to."""
        if self._settings.relay_address == OFF:
            return
        if self._settings.relay_address:
            await self._open(self._settings.relay_address)
        else:
            self._opening = asyncio.get_running_loop().create_task(self._open_where_kafka_is())

    async def _open_where_kafka_is(self) -> None:
        while True:
            try:
                await self._open(str(Address(await address_towards(self._kafka), 0)))
                return
            except (OSError, ListenerError) as error:
                self._errors.warning("other nodes cannot reach this one yet", error=str(error))
            await asyncio.sleep(RETRY_SECONDS)

    async def _open(self, address: str) -> None:
        settings = ListenerSettings(name="cluster", address=address)
        self._listener = Listener(settings, lambda: Connection(self._hub, self, self))
        await self._listener.start()
        bound = parse_address(self._listener.address)
        host = bound.host
        if host in EVERYWHERE and not self._settings.relay_advertised:
            host = await address_towards(self._kafka)
        advertised = self._settings.relay_advertised or str(Address(host, bound.port))
        log.info("listening for other nodes", address=self._listener.address, advertised=advertised)
        await self._node.open_door(Door(advertised, self._secret))

    def stop_accepting(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        if self._listener is not None:
            self._listener.stop_accepting()

    async def close(self) -> None:
        self.stop_accepting()
        if self._listener is not None:
            await self._listener.close()

    def reload(self, receive_maximum: int) -> None:
        """Apply changed settings."""
        self.receive_maximum = receive_maximum

    def rules_changed(self) -> None:
        """Give every client of another node its new access rules."""
        for session, subject in self._clients.items():
            session.acl = self._program_for(subject)

    # ---- called by Connection ----

    def on_open(self, connection: Connection) -> None:
        self.connections += 1
        if self.connections - self.sessions > MOST_UNKNOWN:
            connection.shutdown("too many that have not said who they are")

    def on_connect(self, connection: Connection, body: bytes) -> None:
        try:
            packet = parse_connect(body)
        except ProtocolViolation:
            connection.shutdown("not a node of the cluster")
            return
        if packet.version != 5 or packet.authentication_method != METHOD or not packet.username:
            self._refuse(connection, packet.version)
            return
        challenge = secrets.token_bytes(CHALLENGE_BYTES)
        connection.context = _Arrival(packet, challenge)
        connection.expect_auth(5)
        reason = Reason.CONTINUE_AUTHENTICATION
        connection.send(build_auth(reason, authentication_method=METHOD, authentication_data=challenge))

    def on_auth(self, connection: Connection, flags: int, body: bytes) -> None:
        arrival: _Arrival | None = connection.context
        proof = parse_auth(flags, body, 5).authentication_data or b""
        if arrival is None or connection.is_connected:
            connection.violation_from_handler(Reason.PROTOCOL_ERROR, "AUTH out of turn")
            return
        packet = arrival.packet
        expected = prove(self._secret, packet.authentication_data or b"", arrival.challenge)
        if not hmac.compare_digest(proof, expected):
            self._refuse(connection, 5)
            return
        # Nobody else's subscriptions may be taken for the client's, not even those it has here a moment later.
        identity = read_client(packet.user_properties)
        session = Session(self._hub, f"{packet.client_id}{RELAYED_BY}{packet.username}", identity.user)
        session.identity = identity
        if packet.client_id:  # else it is for the node itself: it consumes nothing
            subject = self._clients[session] = Subject(identity, packet.client_id)
            session.acl = self._program_for(subject)
        session.attach(
            connection,
            version=5,
            keeps=False,
            receive_maximum=packet.receive_maximum,
            maximum_packet_size=packet.maximum_packet_size,
            keep_alive=packet.keep_alive,
        )
        self.sessions += 1
        connection.accept(
            session,
            build_connack(5, False, receive_maximum=self.receive_maximum, authentication_method=METHOD),
        )

    def _refuse(self, connection: Connection, version: int) -> None:
        log.warning("somebody who is no node of the cluster was refused", peer=connection.peer)
        connection.refuse(build_connack(version, False, Reason.NOT_AUTHORIZED), "not a node of the cluster")

    def on_subscribe(self, connection: Connection, flags: int, body: bytes) -> None:
        # The session as it is now: the link may have ended when the task runs.
        self._tasks.spawn(self._subscribe(connection, connection.session, parse_subscribe(flags, body, 5)))

    async def _subscribe(self, connection: Connection, session: Session, packet: SubscribePacket) -> None:
        if not connection.is_connected:
            return
        topic_filter, options, error = packet.entries[0]
        reason, words = error, ""
        try:
            if not error and has_left(packet.user_properties):
                await end_groups(self._queues, topic_filter.decode(), packet.user_properties)
            elif not error:
                reason = await subscribe(
                    self._queues,
                    session,
                    topic_filter.decode(),
                    qos=options & QOS,
                    properties=packet.user_properties,
                    receive_maximum=session.quota,
                    is_relayed=True,
                )
        except Refused as refused:
            reason, words = int(SUBACK_REASONS[refused.refusal]), str(refused)
        except PenstockError as failure:
            reason, words = int(Reason.UNSPECIFIED_ERROR), str(failure)
        if connection.is_connected:
            connection.send(build_suback(5, packet.packet_id, [reason], reason_string=words or None))
        else:
            self._queues.ended(session)  # it has become a consumer since it went

    def on_unsubscribe(self, connection: Connection, flags: int, body: bytes) -> None:
        connection.violation_from_handler(Reason.PROTOCOL_ERROR, "nodes end a subscription with its connection")

    def on_disconnect(self, connection: Connection, flags: int, body: bytes) -> None:
        connection.shutdown("closed by the other node", clean=True)

    def on_denied(self, connection: Connection, topic: bytes, held: int) -> None:
        """Do nothing: the broker that the client is connected to reports it."""

    def on_closed(self, connection: Connection, session: Session | None) -> None:
        self.connections -= 1
        if session is not None:
            self.sessions -= 1
            self._clients.pop(session, None)
            self._queues.ended(session)
            session.end()

    def on_error(self, connection: Connection, error: BaseException) -> None:
        self._errors.exception("internal error, the link is closed", per=type(error).__name__, error=repr(error))

    def counters(self, of_hub: dict[str, int]) -> dict[str, int]:
        """Those of the hub without the links, which are no clients."""
        return of_hub | {
            "connections_current": of_hub["connections_current"] - self.connections,
            "sessions": of_hub["sessions"] - self.sessions,
            "sessions_connected": of_hub["sessions_connected"] - self.sessions,
            "cluster_links": self.sessions,
        }


async def address_towards(servers: str) -> str:
    """The address of this machine that the first of the servers sees; raises OSError."""
    first = servers.partition(",")[0].strip().rpartition("://")[2]
    host, _, port = first.rpartition(":")
    found = await asyncio.get_running_loop().getaddrinfo(
        (host or first).strip("[]"), int(port) if host and port.isdigit() else 9092, type=socket.SOCK_DGRAM
    )
    family, kind, protocol, _, where = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(where)  # of UDP: nothing is sent
        return str(probe.getsockname()[0])
