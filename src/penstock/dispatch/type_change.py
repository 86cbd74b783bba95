"""APPLICATION clients that come back as DEVICE clients: what is in their log is delivered first, nothing is dropped."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from penstock._ext.hub.connection import Hub, Session
from penstock.core.errors import NotFoundError
from penstock.core.logging import get_logger
from penstock.dispatch.dispatcher import Dispatcher
from penstock.storage.log.base import LogError
from penstock.subscribers.application.control import ApplicationOverview
from penstock.subscribers.application.delivery import ApplicationDelivery
from penstock.subscribers.base import Arrival, Subscriber
from penstock.subscribers.device.delivery import DeviceDelivery

log = get_logger("penstock.application")

CHANGE_SECONDS = 0.5
ACKNOWLEDGED_SECONDS = 0.005
# What a connected client may still have to acknowledge when dispatch stops for it, and for how long it does.
NEARLY_DONE = 1_000
HOLD_SECONDS = 0.2
REST = 10


class TypeChange(Subscriber):
    """`devices` is None where DEVICE clients have no store; `on_type` is called with sessions whose type changed."""

    name = "type change"

    def __init__(
        self,
        hub: Hub,
        dispatcher: Dispatcher,
        *,
        delivery: ApplicationDelivery,
        overview: ApplicationOverview,
        devices: DeviceDelivery | None,
        on_type: Callable[[Session], None],
    ) -> None:
        self._hub = hub
        self._dispatcher = dispatcher
        self._delivery = delivery
        self._overview = overview
        self._devices = devices
        self._on_type = on_type
        self._changing: set[str] = set()  # DEVICE clients by their credentials, with a log that is not empty yet
        self._changer: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._changer = asyncio.get_running_loop().create_task(self._change_types())

    async def stop(self) -> None:
        if self._changer is not None:
            self._changer.cancel()

    def must_prepare(self, arrival: Arrival, session: Session | None) -> bool:
        if arrival.client_type == "application":
            return arrival.client_id in self._changing
        return session is not None and session.feed is not None and not arrival.clean_start

    async def prepare(self, arrival: Arrival, session: Session | None) -> str:
        """An APPLICATION client comes back as a DEVICE, or did and is an APPLICATION again."""
        if arrival.client_type == "application" or session is None:
            self._changing.discard(arrival.client_id)
            return arrival.client_type
        if await self._try_release(session):
            return "device"
        self._changing.add(session.client_id)
        log.warning(
            "the client is a DEVICE by its credentials, but its log as an APPLICATION is not empty: it is served as an "
            "APPLICATION until it has received everything (`penstock app delete` drops the rest)",
            client_id=session.client_id,
        )
        return "application"

    async def _try_release(self, session: Session) -> bool:
        """Return whether nothing is left in the client's log: it then continues without one. While that is found out
        nothing is put there, however busy the broker is; what is in the log of all messages by then goes the way of a
        DEVICE."""
        with contextlib.suppress(NotFoundError):  # it was released, or has ended, during the question
            if await self._count_waiting(session) > (NEARLY_DONE if session.connection is not None else 0):
                return False
            # What is dispatched again after a crash would get into its store, though it came from its topic already.
            async with self._dispatcher.held(HOLD_SECONDS) as is_committed:
                if is_committed and await self._has_everything(session):
                    self._release(session)
        return self._delivery.find(session.client_id) is not session

    async def _count_waiting(self, session: Session) -> int:
        """Raises NotFoundError where the session has no log any more."""
        entry = await self._overview.show(session.client_id)
        own, shared = entry["lag"] or entry["in_flight"], sum(share["lag"] for share in entry["shared"])
        return int(own + shared) + self._delivery.retained.count(entry["topic"])

    async def _has_everything(self, session: Session) -> bool:
        """A client that is connected may have some moments to acknowledge the last of it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + HOLD_SECONDS
        while await self._count_waiting(session):
            if session.connection is None or loop.time() > deadline:
                return False
            await asyncio.sleep(ACKNOWLEDGED_SECONDS)
        if self._delivery.find(session.client_id) is not session:
            return False
        if self._devices is not None and self._devices.serves("device", session.expiry_interval):
            return True
        # The log is not read for it from here on: nothing that it is to have may be there.
        return await self._dispatcher.lag() == 0 and not self._hub.ingest_pending

    def _release(self, session: Session) -> None:
        self._changing.discard(session.client_id)
        self._delivery.release(session)
        session.client_type = "device"
        if self._devices is not None and self._devices.serves("device", session.expiry_interval):
            self._devices.opened(session)
            self._devices.attached(session)
        self._on_type(session)
        log.info("an APPLICATION client is a DEVICE from now on, its topic goes", client_id=session.client_id)

    async def _change_types(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(CHANGE_SECONDS)
            for client_id in list(self._changing):
                session = self._delivery.find(client_id)
                if session is None:
                    self._changing.discard(client_id)
                    continue
                began = loop.time()
                try:
                    await self._try_release(session)
                except (LogError, NotFoundError) as error:
                    log.debug("a client keeps its type for now", client_id=client_id, error=str(error))
                except Exception as error:  # whatever it is, the others need their turn
                    log.exception("the type of a client cannot be changed", client_id=client_id, error=repr(error))
                # Dispatch to all others may have waited for it.
                await asyncio.sleep(REST * (loop.time() - began))
