"""Persistent DEVICE clients as a kind of subscriber: what they have not acknowledged is in a store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from penstock._ext.hub.connection import Session
from penstock.subscribers.base import Moved, Subscriber
from penstock.subscribers.device.delivery import DeviceDelivery

STORED_SECONDS = 0.005


class DeviceSubscriber(Subscriber):
    """In the list of kinds after APPLICATION clients: one of those may have been a DEVICE, and gets what is still
    stored for it first. `connected_until` says until when (ms since 1970) a client was connected, 0 = to the end of the
    broker."""

    name = "devices"

    def __init__(
        self, delivery: DeviceDelivery, connected_until: Callable[[str], int], *, is_remote: bool = False
    ) -> None:
        self._delivery = delivery
        self._connected_until = connected_until
        self.is_remote = is_remote

    def opened(self, session: Session, *, is_present: bool) -> None:
        if self._delivery.serves(session.client_type, session.expiry_interval):
            self._delivery.opened(session, is_new=not is_present)
        elif session.expiry_interval > 0:
            self._delivery.becomes_application(session)

    def attached(self, session: Session, go_on: Callable[[], None]) -> bool:
        may_have_more = self._delivery.attached(session, go_on)
        return not may_have_more or session.feed is None

    def left(self, filters: Iterable[bytes]) -> None:
        self._delivery.left(filters)

    def ended(self, session: Session) -> None:
        self._delivery.ended(session)

    def moved_away(self, session: Session) -> None:
        self._delivery.moved_away(session)

    async def released(self, session: Session) -> None:
        while self._delivery.is_storing(session):  # noqa: ASYNC110  # of many sessions at once
            await asyncio.sleep(STORED_SECONDS)

    def take_up(self, session: Session, moved: Moved) -> None:
        self._delivery.restore([session], lambda _: moved.left_at)

    async def start(self) -> None:
        await self._delivery.start()

    async def restore(self, sessions: Sequence[Session]) -> None:
        self._delivery.restore(sessions, self._connected_until)

    def rules_changed(self, session: Session | None = None) -> None:
        self._delivery.rules_changed(session)

    async def stop(self) -> None:
        await self._delivery.stop()

    def health(self) -> bool | str:
        return self._delivery.check()

    def counters(self) -> Mapping[str, int | float]:
        return self._delivery.counters()
