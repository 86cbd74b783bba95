"""Clients that are at another broker now, though this one was not asked, or did not answer: it was cut off or too slow.

It learns of them in two ways. The record of a session that outlives its connection names the broker that has it. And
who got no answer leaves a notice in this broker's topic of notifications, where it waits until it is read: of a session
that ends with its connection nothing else is written down.

Letting go of a session takes the log and the stores, which may fail. So both ways are queues with a strategy: clients
do not wait for each other, what is told of one client stays in order, and what fails is tried again.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import msgspec

from penstock._ext.hub.connection import Session
from penstock._ext.record.segment import Record
from penstock.core.logging import Throttled, get_logger
from penstock.dispatch.moves import SessionMoves
from penstock.services.factory import QueueFactory
from penstock.services.housekeeper import Undecided
from penstock.services.messages import QueueMessage, decode_message, encode_key
from penstock.services.model import ServiceType
from penstock.services.packs.message import PackMessage
from penstock.services.packs.processor import Decoded
from penstock.sessions.registry import SessionRegistry
from penstock.storage.log.base import LogError

log = get_logger("penstock.cluster")

TRANSPORT = ServiceType.TB_TRANSPORT
MOST_REMEMBERED = 10_000


class Notice(msgspec.Struct, array_like=True, frozen=True):
    """The client is at this node since then, nanoseconds since 1970."""

    client_id: str
    at: int
    node: str


class Departures:
    """`owner_of`: the broker that has a client's session, as far as the records that were read say, None without one;
    `catch_up`: reads them to their end, with what this broker has to write; `is_claimed`: whether the client is about
    to get its session here."""

    def __init__(
        self,
        queues: QueueFactory,
        registry: SessionRegistry,
        moves: SessionMoves,
        *,
        node: str,
        owner_of: Callable[[str], str | None],
        catch_up: Callable[[], Awaitable[None]],
        is_claimed: Callable[[str], bool],
    ) -> None:
        self._partitions = queues.partitions
        self._registry = registry
        self._moves = moves
        self._node = node
        self._owner_of = owner_of
        self._catch_up = catch_up
        self._is_claimed = is_claimed
        self._producer = queues.notifications_producer(TRANSPORT)
        self._notices = queues.notifications_manager(TRANSPORT, self._on_notice, _decode)
        self._records = queues.changes("sessions", self._on_record, _decode)
        self._came: dict[str, int] = {}  # clients that connected here, the last ones at the end
        self._came_before = 0  # when the last of those did that are not remembered
        self._warnings = Throttled(log, interval=10.0)
        self.told = self.lost = 0

    def start(self) -> None:
        self._records.start()
        self._notices.update([self._partitions.notifications(TRANSPORT, self._node)])

    async def stop(self) -> None:
        await self._records.stop()
        await self._notices.stop()

    def came(self, client_id: str) -> None:
        """A client connects here: what was told of it before counts no more."""
        self._came.pop(client_id, None)
        while len(self._came) >= MOST_REMEMBERED:
            self._came_before = self._came.pop(next(iter(self._came)))
        self._came[client_id] = time.time_ns()

    def tell(self, node: str, client_id: str, at: int) -> None:
        """To a node that did not answer. Nobody waits for it."""
        notice = QueueMessage(client_id, msgspec.msgpack.encode(Notice(client_id, at, self._node)))
        try:
            self._producer.send(self._partitions.notifications(TRANSPORT, node), notice, self._on_told)
        except LogError as error:
            self._on_told(error)
        self.told += 1

    def _on_told(self, error: LogError | None) -> None:
        if error is not None:
            self._warnings.warning("a broker cannot be told of clients it had", error=str(error))

    def read(self, client_id: str, node: str) -> None:
        """The record of the client's session names another node."""
        notice = Notice(client_id, time.time_ns(), node)
        self._records.put(encode_key(client_id), msgspec.msgpack.encode(notice))

    async def _on_notice(self, message: PackMessage) -> None:
        notice: Notice = message.value
        session = self._find(notice)
        if session is None or session.connection is None:
            return
        if session.expiry_interval:
            # If it goes while its record still says that it is here, it would take the session away from the other.
            await self._catch_up()
            if self._owner_of(notice.client_id) == self._node:
                raise Undecided(f"the session of {notice.client_id!r} is still this broker's")
        if self._find(notice) is session:
            await self._lose(session, notice.node)

    async def _on_record(self, message: PackMessage) -> None:
        notice: Notice = message.value
        session = self._find(notice)
        if session is None or not session.expiry_interval:
            return
        # Of two brokers that have the client, because neither answered the other, the one that wrote last keeps it.
        # What was read so far may end before what this one wrote: then both would let go.
        await self._catch_up()
        is_elsewhere = self._owner_of(notice.client_id) not in (None, "", self._node)
        if is_elsewhere and self._find(notice) is session:
            await self._lose(session, notice.node)

    def _find(self, notice: Notice) -> Session | None:
        """The session the notice is about, unless the client came back since."""
        if self._came.get(notice.client_id, self._came_before) >= notice.at:
            return None
        if self._is_claimed(notice.client_id):
            raise Undecided(f"the session of {notice.client_id!r} is just being taken up")
        return self._registry.get(notice.client_id)

    async def _lose(self, session: Session, node: str) -> None:
        log.warning("another broker has a client of this one", client_id=session.client_id, node=node)
        self.lost += 1
        if self._registry.keeper is not None:
            # The record is the other broker's: that the client has left here would take the session away from it.
            self._registry.keeper.give_away(session)
        self._registry.disconnect(session)
        if self._registry.get(session.client_id) is session:
            await self._moves.give_away(session, lambda: self._registry.give_away(session))


def _decode(record: Record) -> Decoded:
    message = decode_message(record)
    notice = msgspec.msgpack.decode(message.data, type=Notice)
    return Decoded(notice, notice.client_id)
