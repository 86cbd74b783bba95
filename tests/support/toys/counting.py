"""A kind of subscriber made only of what src/ offers to any kind: proof that one can be added from outside.

`$count/<n>` sends the numbers from 1 to n to the client that subscribes to it, with QoS 1: as many at a time as the
client takes, and the next ones when it acknowledges. A client that comes back goes on where it was.
"""

from __future__ import annotations

import asyncio

from penstock._ext.hub.connection import Courier, Session
from penstock.core.refusal import Refusal, Refused
from penstock.subscribers.base import Request, Subscriber

FILTER = b"$count/"
MOST = 1_000


class Count:
    """One subscription."""

    def __init__(self, session: Session, request: Request, last: int) -> None:
        self._topic = request.topic_filter
        self._last = last
        self.sent = 0
        self.acknowledged: list[int] = []
        self._courier = Courier(session, self.go_on, qos=request.qos, identifier=request.identifier)

    def go_on(self) -> None:
        self.acknowledged += self._courier.take_acked()
        while self.sent < self._last and self._courier.has_room:
            self.sent += 1
            self._courier.send(self._topic, str(self.sent).encode(), b"", self.sent)

    def close(self) -> None:
        self._courier.close()


class CountingSubscriber(Subscriber):
    name = "counting"
    is_apart = True

    def __init__(self) -> None:
        self.counts: dict[tuple[str, bytes], Count] = {}
        self.heard: list[str] = []

    def claims(self, topic_filter: bytes) -> bool:
        return topic_filter.startswith(FILTER)

    async def subscribe(self, session: Session, request: Request) -> int:
        text = request.topic_filter[len(FILTER) :]
        if not text.isdigit():
            raise Refused(Refusal.INVALID_NAME, "count to a number")
        if int(text) > MOST:
            raise Refused(Refusal.QUOTA_EXCEEDED, f"count to {MOST} at most")
        self._end(session, request.topic_filter)
        count = self.counts[session.client_id, request.topic_filter] = Count(session, request, int(text))
        asyncio.get_running_loop().call_soon(count.go_on)  # after the answer
        return request.qos

    def unsubscribe(self, session: Session, topic_filter: bytes) -> bool:
        return self._end(session, topic_filter)

    def returned(self, session: Session) -> None:
        self.heard.append(f"returned {session.client_id}")

    def detached(self, session: Session) -> None:
        self.heard.append(f"detached {session.client_id}")

    def ended(self, session: Session) -> None:
        self.heard.append(f"ended {session.client_id}")
        for client_id, topic_filter in list(self.counts):
            if client_id == session.client_id:
                self._end(session, topic_filter)

    async def start(self) -> None:
        self.heard.append("start")

    async def stop(self) -> None:
        self.heard.append("stop")

    def counters(self) -> dict[str, int | float]:
        return {"counting_subscriptions": len(self.counts)}

    def _end(self, session: Session, topic_filter: bytes) -> bool:
        count = self.counts.pop((session.client_id, topic_filter), None)
        if count is not None:
            count.close()
        return count is not None
