"""A kind of subscriber that receives published messages inside the broker, made only of what src/ offers to any kind.

A client that subscribes to a filter below `toy/` opens a tap: the messages go to the tap and not to the client. A tap
takes as many as it has credit for, and the next ones when the first are done. Meanwhile the others wait, and when
twice its credit waits, so do publishers to its topics: nothing is lost.
"""

from __future__ import annotations

import time

from penstock._ext.hub.connection import Hub, Session
from penstock._ext.local.outlet import LocalDesk, LocalOutlet
from penstock._ext.record.envelope import decode
from penstock._ext.record.segment import RecordPack
from penstock.core.refusal import Refusal, Refused
from penstock.storage.log.base import LogError
from penstock.subscribers.base import Request, Subscriber
from penstock.subscribers.surroundings import Surroundings

ROOT = b"toy/"
CREDIT = 4
MOST = 100


class Tap:
    """One subscription. It belongs to a session of its own, which never has a connection."""

    def __init__(self, hub: Hub, desk: LocalDesk, client_id: str, topic_filter: bytes) -> None:
        self.session = Session(hub, f"$toy/{client_id}/{topic_filter.decode()}")
        self.session.since = int(time.time() * 1_000)
        self.received: list[bytes] = []
        self.outlet = LocalOutlet(desk, self.session, self._receive, credit=CREDIT)
        hub.trie.subscribe(self.session, topic_filter, 1)

    def _receive(self, pack: RecordPack) -> None:
        self.received += [decode(value).payload for value in pack.values()]

    def finish(self, count: int = 1) -> None:
        """The oldest messages that it received are done."""
        self.outlet.settle(count)

    def close(self) -> None:
        self.session.end()  # closes the outlet


class ReceivingSubscriber(Subscriber):
    name = "receiving"
    is_apart = True

    def __init__(self, surroundings: Surroundings) -> None:
        self._hub = surroundings.hub
        self._read_log = surroundings.read_log
        self._desk = LocalDesk(surroundings.hub)
        self.taps: dict[tuple[str, bytes], Tap] = {}

    def claims(self, topic_filter: bytes) -> bool:
        return topic_filter.startswith(ROOT)

    async def subscribe(self, session: Session, request: Request) -> int:
        if request.qos == 0:
            raise Refused(Refusal.NOT_SUPPORTED, "a tap takes QoS 1")
        try:
            await self._read_log()
        except LogError as error:
            raise Refused(Refusal.UNAVAILABLE, str(error)) from error
        key = session.client_id, request.topic_filter
        if key not in self.taps:
            if len(self.taps) == MOST:
                raise Refused(Refusal.QUOTA_EXCEEDED, f"there are {MOST} taps")
            self.taps[key] = Tap(self._hub, self._desk, *key)
        return 1

    def unsubscribe(self, session: Session, topic_filter: bytes) -> bool:
        return self._close(session.client_id, topic_filter)

    def ended(self, session: Session) -> None:
        for client_id, topic_filter in list(self.taps):
            if client_id == session.client_id:
                self._close(client_id, topic_filter)

    async def stop(self) -> None:
        for key in list(self.taps):
            self._close(*key)

    def counters(self) -> dict[str, int | float]:
        return {"receiving_taps": len(self.taps)}

    def _close(self, client_id: str, topic_filter: bytes) -> bool:
        tap = self.taps.pop((client_id, topic_filter), None)
        if tap is not None:
            tap.close()
        return tap is not None
