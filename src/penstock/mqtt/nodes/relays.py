"""Consumers of queues that another node serves.

    client ◀── deliveries ── this node ◀── Link ── the node that serves the queue
           ── PUBACK ──────▶            ── PUBACK ──▶
           ── $ack … ──────▶            ── $ack … ──▶

For each subscription and each node that serves queues of it there is one link, over which this node is a consumer in
the client's place: same filter, same group, as much room as the client has. What comes is handed on as it is; what the
client says is handed on too, and the answer back. Nothing is kept here: when the link goes, so does what the client had
not settled, and the node that serves the queue then gives it out again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from penstock._ext.hub.connection import Connection, Courier, Session
from penstock._ext.wire.packets import Reason, decode_publish_properties
from penstock.access.identities import identity_of
from penstock.core.logging import Throttled, get_logger
from penstock.core.refusal import Refusal, Refused
from penstock.mqtt.nodes.departures import must_report, report_left
from penstock.mqtt.nodes.link import AWAY, REFUSED, Link, LinkError, open_quietly
from penstock.mqtt.queue_consumers import LIFE_PROPERTY, MqttOutlet
from penstock.services.node import ClusterNode
from penstock.subscribers.queue.names import group_id, parse_publish

if TYPE_CHECKING:
    from penstock.subscribers.queue.manager import QueueManager
    from penstock.subscribers.queue.memberships import Membership

log = get_logger("penstock.queues")

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
SUBACK_SECONDS = 5.0
MOST_UNDER_WAY = 64  # what a courier carries
MOST_HELD = 1 << 20
FOR_IDENTIFIER = 16  # bytes a packet may grow by, here
NOT_A_MEMBER = b"this client does not consume that queue in that group"
NO_DOOR = "it has not said where it can be reached: cluster.relay_address"


class Settlement(NamedTuple):
    """A PUBLISH of a client that is for another node; token 0 with QoS 0."""

    connection: Connection
    topic: bytes
    properties: bytes
    token: int

    def answer(self, reason: int, words: bytes) -> None:
        if self.token:
            self.connection.answer_relayed(self.token, reason, words)


class Relay:
    """One subscription at one other node, for as long as the client is connected and that node serves it."""

    def __init__(
        self,
        relays: Relays,
        membership: Membership,
        outlet: MqttOutlet,
        node: str,
        *,
        position: str = "",
        is_new: bool = False,
    ) -> None:
        """`is_new`: the client waits for its SUBACK; until `begin` it gets nothing."""
        self._relays = relays
        self._membership = membership
        self._outlet = outlet
        self._node = node
        self._position = position
        self._held: deque[tuple[int, bytes]] = deque()
        self._held_bytes = 0
        self._waits = is_new
        self._broken = asyncio.Event()
        self._courier: Courier | None = None
        self.link: Link | None = None
        self.error: LinkError | None = None
        self.opened = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"relay-{node}")

    @property
    def is_open(self) -> bool:
        return self.link is not None and not self.link.is_closed

    def close(self) -> None:
        self._task.cancel()
        self.opened.set()
        self._drop()

    def _drop(self) -> None:
        link, self.link = self.link, None
        if link is not None:
            link.close()
        if self._courier is not None:
            self._courier.close()
            self._courier = None
        self._held.clear()
        self._held_bytes = 0

    async def _run(self) -> None:
        pause = FIRST_PAUSE
        while self._outlet.session.connection is not None:
            try:
                await self._open()
                pause = FIRST_PAUSE
                self.opened.set()
                await self._broken.wait()
                log.info("the link to the node of a queue is lost", node=self._node, filter=self._filter)
            except LinkError as error:
                self.error = error
                self._relays.warn(self._node, error)
            self._drop()
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    @property
    def _filter(self) -> str:
        return self._membership.name

    async def _open(self) -> None:
        session, outlet = self._outlet.session, self._outlet
        connection = session.connection
        door = self._relays.node.door_of(self._node)
        if door is None:
            raise LinkError(NO_DOOR)
        if connection is None:
            raise LinkError("the client is gone")
        limit = connection.maximum_packet_size
        self._broken.clear()
        self._courier = Courier(session, self._on_news, qos=outlet.qos, identifier=outlet.identifier)
        self.link = Link(
            door,
            self._relays.node.service_id,
            session.client_id,
            identity=identity_of(session),
            receive_maximum=min(session.quota, MOST_UNDER_WAY),
            maximum_packet_size=max(limit - FOR_IDENTIFIER, FOR_IDENTIFIER) if limit else 0,
            on_publish=self._on_publish,
            on_closed=self._broken.set,
        )
        await self.link.open()
        await self.link.subscribe(self._filter, min(outlet.qos, 1), self._properties())
        self._position = ""  # where it wanted to begin, it has begun

    def _properties(self) -> list[tuple[str, str]]:
        terms = self._membership.terms
        wanted = [
            ("consumer-group", self._membership.group_name),
            (LIFE_PROPERTY, self._membership.life),
            ("prefetch", str(terms.credit)),
            ("settle-on-ack", "true" if self._outlet.is_settled_by_ack else "false"),
        ]
        if terms.auto_commit is not None:
            wanted.append(("x-auto-commit", "true" if terms.auto_commit else "false"))
        return [*wanted, ("x-stream-offset", self._position)] if self._position else wanted

    # ---- messages ----

    def begin(self) -> None:
        """The client has its SUBACK."""
        self._waits = False
        self._deliver()

    def _on_publish(self, flags: int, body: bytes) -> None:
        self._held.append((flags, body))
        self._held_bytes += len(body)
        self._deliver()

    def _deliver(self) -> None:
        courier, link = self._courier, self.link
        if courier is None or link is None or self._waits:
            return
        while self._held and courier.has_room:
            flags, body = self._held.popleft()
            self._held_bytes -= len(body)
            topic_end = 2 + int.from_bytes(body[:2], "big")
            packet_id = int.from_bytes(body[topic_end : topic_end + 2], "big") if flags & 0x06 else 0
            acl = self._outlet.session.acl
            if acl is not None and not acl.may_receive(body[2:topic_end]):
                # The other node has checked it by its own rules, which may be older.
                self._refuse(link, packet_id, Reason.NOT_AUTHORIZED)
            elif not courier.forward(flags, body):
                self._refuse(link, packet_id, Reason.PACKET_TOO_LARGE)
        # Of QoS 1 the node sends no more than the client may have under way; QoS 0 is only held up by the socket.
        link.pause(bool(self._held) and (self._held_bytes > MOST_HELD or courier.qos == 0))

    def _refuse(self, link: Link, packet_id: int, reason: int) -> None:
        """Settles nothing: the message is delivered again, or buried."""
        if packet_id:
            link.acknowledge([packet_id], reason)

    def _on_news(self) -> None:
        courier, link = self._courier, self.link
        if courier is None or link is None:
            return
        acknowledged = courier.take_acked()
        if acknowledged:
            link.acknowledge(acknowledged)
        if courier.is_connected:
            self._deliver()
        else:
            self._relays.close(self._membership)  # what it has goes to others; when it is back it starts over

    def is_group(self, name: str) -> bool:
        group = self._membership.group_name
        return name in ("", group, group_id(group, self._membership.address.filter))

    def serves(self, node: str, *, spans: bool) -> bool:
        return self._node == node or (spans and self._membership.address.spans_queues)


class Relays:
    """All of this node."""

    def __init__(self, manager: QueueManager, node: ClusterNode) -> None:
        self._manager = manager
        self.node = node
        self._relays: dict[Membership, dict[str, Relay]] = {}
        self._errands: dict[str, Link] = {}
        self.on_settlement = self.settle
        self._warnings = Throttled(log, interval=10.0)

    def warn(self, node: str, error: LinkError) -> None:
        self._warnings.warning("another node does not serve consumers", per=node, node=node, error=str(error))

    # ---- subscriptions ----

    async def open(self, membership: Membership) -> None:
        """Open links to all nodes that serve queues of a new subscription; raises Refused if one cannot be opened."""
        if not isinstance(membership.outlet, MqttOutlet) and self._nodes_of(membership):
            raise Refused(Refusal.NOT_SUPPORTED, "the queue is served by another node, and only MQTT clients reach it")
        self._follow(membership, is_new=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SUBACK_SECONDS):
                while waiting := [relay for relay in self._of(membership).values() if not relay.opened.is_set()]:
                    await waiting[0].opened.wait()
        for node, relay in self._of(membership).items():
            if not relay.is_open:
                refusal = Refusal.UNAVAILABLE if relay.error is None else relay.error.refusal
                raise Refused(refusal, f"the queue is served by {node}: {relay.error or 'no answer'}")
        for relay in self._of(membership).values():
            asyncio.get_running_loop().call_soon(relay.begin)  # behind the SUBACK
            membership.position = ""

    def _of(self, membership: Membership) -> dict[str, Relay]:
        return self._relays.get(membership, {})

    def follow(self, membership: Membership) -> None:
        """Keep a link to each node that serves queues of the subscription now, and to no other."""
        self._follow(membership)

    def _follow(self, membership: Membership, *, is_new: bool = False) -> None:
        outlet = membership.outlet
        if not isinstance(outlet, MqttOutlet):
            return  # `open` refuses these where another node is asked
        wanted = self._nodes_of(membership)
        relays = self._of(membership)
        for node in relays.keys() - wanted:
            relays.pop(node).close()
        for node in wanted - relays.keys():
            position = membership.position if is_new else ""
            relays[node] = Relay(self, membership, outlet, node, position=position, is_new=is_new)
        if relays:
            self._relays[membership] = relays
        else:
            self._relays.pop(membership, None)

    def _nodes_of(self, membership: Membership) -> set[str]:
        is_gone = not membership.client.connected or not self._manager.is_member(membership)
        if is_gone or membership.is_relayed:
            return set()
        queues = self._manager.queues_for(membership)
        owners = {self.node.owner_of(queue.name) for queue in queues if queue.definition.durable}
        return owners - {"", self.node.service_id}

    def close(self, membership: Membership, *, has_left: bool = False) -> None:
        """`has_left`: the client has unsubscribed, or its session has ended."""
        if has_left and must_report(membership) and not self._manager.is_closing:
            self._manager.spawn(report_left(self._manager, self.node, membership))
        for relay in self._relays.pop(membership, {}).values():
            relay.close()

    def close_all(self) -> None:
        for membership in list(self._relays):
            self.close(membership)
        for link in self._errands.values():
            link.close()

    # ---- settlements ----

    def settle(self, connection: Connection, topic: bytes, properties: bytes, token: int) -> None:
        """Called by the hub: the settlement of something that another node has delivered."""
        try:
            name, key = parse_publish(topic.decode())
        except ValueError:
            name, key = "", ""
        owner = self.node.owner_of(name)
        links = self._links_of(connection.session, owner, properties, spans=name not in self._manager.queues)
        words = AWAY if any(True for _ in self._manager.memberships_of(connection.session)) else NOT_A_MEMBER
        acl = connection.session.acl
        if not links and key.endswith("$commit") and (acl is None or acl.may_use_verb(topic)):
            # not only consumers commit; the other node trusts this one to have checked the right
            errand = self._errand(owner)
            links = [] if errand is None else [errand]
            words = AWAY
        self._ask(deque(links), Settlement(connection, topic, properties, token), words)

    def _ask(self, links: deque[Link], settlement: Settlement, words: bytes) -> None:
        """One after the other, until one does not refuse: groups of one name and two filters are two subscriptions."""
        if not links:
            settlement.answer(REFUSED, words)
            return
        link = links.popleft()

        def answered(reason: int, said: bytes) -> None:
            if reason >= REFUSED and links:
                self._ask(links, settlement, said)
            else:
                settlement.answer(reason, said)

        link.ask(settlement.topic, settlement.properties, answered)

    def _links_of(self, session: Session, owner: str, properties: bytes, *, spans: bool) -> list[Link]:
        found = [
            relay
            for membership in self._manager.memberships_of(session)
            for relay in self._of(membership).values()
            if relay.is_open and relay.serves(owner, spans=spans)
        ]
        if len(found) > 1:
            pairs = dict(decode_publish_properties(properties).get("user_properties", ()))
            group = str(pairs.get("group-id", pairs.get("x-group-id", "")))
            found = [relay for relay in found if relay.is_group(group)] or found
        return [relay.link for relay in found if relay.link is not None]

    def _errand(self, node: str) -> Link | None:
        """A link that consumes nothing."""
        link = self._errands.get(node)
        if link is None or link.is_closed:
            door = self.node.door_of(node)
            if door is None or node == self.node.service_id:
                return None
            link = self._errands[node] = Link(door, self.node.service_id)
            self._manager.spawn(open_quietly(link))
        return link

    def counters(self) -> dict[str, int | float]:
        relays = [relay for of_one in self._relays.values() for relay in of_one.values()]
        return {"queue_relays": sum(relay.is_open for relay in relays)}
