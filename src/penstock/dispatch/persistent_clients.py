"""Persistent clients as the front-ends see them: what to do before, at and after a CONNECT, and when a session ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import partial

from penstock._ext.hub.connection import Hub, Session
from penstock.core.errors import NotFoundError
from penstock.core.logging import get_logger
from penstock.core.ports import Scheduler
from penstock.dispatch.dispatcher import Dispatcher
from penstock.services.housekeeper import CLIENT, DELETED, SHARE, Housekeeper
from penstock.settings.application import ApplicationSettings
from penstock.storage.log.base import Log, LogError
from penstock.storage.log.waiting import until_available
from penstock.storage.state.base import StateStore
from penstock.subscribers.application.contexts import Contexts
from penstock.subscribers.application.control import ApplicationOverview
from penstock.subscribers.application.delivery import ApplicationDelivery
from penstock.subscribers.application.names import ApplicationNames
from penstock.subscribers.device.delivery import DeviceDelivery

log = get_logger("penstock.application")

CHANGE_SECONDS = 0.5
STORED_SECONDS = 0.005
# What a connected client may still have to acknowledge when dispatch stops for it, and for how long it does.
NEARLY_DONE = 1_000
HOLD_SECONDS = 0.2
REST = 10


class PersistentClients:
    """Made by app.py where there is a log."""

    def __init__(
        self,
        hub: Hub,
        log_provider: Log,
        state: StateStore,
        names: ApplicationNames,
        *,
        settings: ApplicationSettings,
        devices: DeviceDelivery | None,
        ingest_topic: str,
        dispatch_group: str,
        scheduler: Scheduler,
        end_session: Callable[[Session], None],
        on_type: Callable[[Session], None],
        connected_until: Callable[[str], int],
    ) -> None:
        self._hub = hub
        self._log = log_provider
        self._ingest_topic = ingest_topic
        self._on_type = on_type
        # The dispatch groups of brokers that may have members of shares whose members are here, too.
        self.other_groups: Callable[[], Iterable[str]] = list
        self._connected_until = connected_until
        self._changing: set[str] = set()  # DEVICE clients by their credentials, with a log that is not empty yet
        self._changer: asyncio.Task[None] | None = None
        self._names = names
        self.devices = devices
        self._is_fresh = True  # nobody was to have what is in the log already
        self.dispatcher = Dispatcher(
            hub, log_provider, ingest_topic, self._make_again, devices=devices, group=dispatch_group
        )
        self.delivery = ApplicationDelivery(hub, log_provider, Contexts(state, scheduler), names, settings)
        self.overview = ApplicationOverview(self.delivery, log_provider, end_session)

    def keep_house(self, housekeeper: Housekeeper) -> None:
        """What sessions leave behind is removed, whoever lives to do it."""
        self.delivery.note = self.delivery.shared.removals.note = housekeeper.note
        for kind in (CLIENT, DELETED, SHARE):
            housekeeper.serve(kind, self.delivery.tidy)

    def rules_changed(self) -> None:
        """Every session has its new access rules."""
        if self.devices is not None:
            self.devices.rules_changed()

    async def _make_again(self, topic: str) -> bool:
        return await self.delivery.make_again(topic)

    # ---- life ----

    async def start(self) -> None:
        await self.delivery.start()
        if self.devices is not None:
            await self.devices.start()
        self.overview.start()
        self.dispatcher.start()
        self._changer = asyncio.get_running_loop().create_task(self._change_types())

    async def restore(self, sessions: Iterable[Session]) -> None:
        """After the sessions are back: their feeds, and the dispatcher from its last commit on."""
        sessions = list(sessions)
        count = await until_available(partial(self.delivery.restore, sessions), "restore APPLICATION clients")
        if self.devices is not None:
            count += self.devices.restore(sessions, self._connected_until)
        if count:
            self._is_fresh = False
            await until_available(partial(self.dispatcher.activate, from_now=False), "begin to dispatch")

    async def stop(self) -> None:
        if self._changer is not None:
            self._changer.cancel()
        await self.dispatcher.stop()
        await self.overview.stop()
        await self.delivery.stop()
        if self.devices is not None:
            await self.devices.stop()

    # ---- other brokers on the same log ----

    async def join(self) -> None:
        """What others publish is for clients here, persistent or not. Raises LogError."""
        await self.dispatcher.activate(from_now=self._is_fresh)

    async def adopt(self, filters: Iterable[bytes], starts: Mapping[int, int], insert: Callable[[], None]) -> int:
        """Sessions with these filters come from another broker, which has dispatched to them as far as `starts`;
        `insert` puts them into the trie and calls `inserted` for each. How many records were read again. Raises
        LogError."""
        await self.join()
        shared = [name for name in filters if name.startswith(b"$share/")]
        async with self.delivery.shared.held(shared):
            await self.delivery.shared.learn(shared)
            filled_to = await self._fill(shared, starts)
            return await self.dispatcher.adopt(starts, insert, self.delivery.shared.unfed(shared), filled_to)

    def inserted(self, session: Session, connected_until: int) -> None:
        self.delivery.take(session)
        if self.devices is not None:
            self.devices.restore([session], lambda _: connected_until)

    async def give_away(self, session: Session, remove: Callable[[], None]) -> dict[int, int]:
        """Another broker goes on with the session, when everything is stored; how far it was dispatched to here."""

        def leave() -> None:
            self.delivery.moved_away(session)
            if self.devices is not None:
                self.devices.moved_away(session)
            remove()

        if session.feed is not None:
            await self.delivery.is_stored(session)
        positions = await self.dispatcher.leave(leave)
        while self.devices is not None and self.devices.is_storing(session):  # noqa: ASYNC110  # of many sessions at once
            await asyncio.sleep(STORED_SECONDS)
        return positions

    # ---- shared topics that other brokers write, too ----

    # Who reads such a topic takes for a repeat what comes after a later record of the log of all messages. So a broker
    # may begin to write only when everything before is there: what another one has not surely written, which is what it
    # has not committed, is written by this one first.

    @contextlib.asynccontextmanager
    async def sharing(self, filters: Sequence[bytes]) -> AsyncIterator[None]:
        """The topics and groups of the filters are there. Clients become members within the context; nothing that the
        groups are to have is missing then. Raises LogError."""
        shared = self.delivery.shared
        await shared.kept(filters)
        for name in filters:
            await shared.make(name)
        # Not for groups that are new, which begin behind it.
        filled_to = await self._fill(filters, {})
        for name in filters:
            await shared.begin(name)
        if not filled_to:
            yield
            return
        async with self.dispatcher.filling(shared.unfed(filters), filled_to):
            yield

    async def _fill(self, filters: Iterable[bytes], starts: Mapping[int, int]) -> dict[int, int]:
        """Writes to the topics that nothing was written to from here yet, from where the slowest broker is; how far."""
        feeds = self.delivery.shared.unfed(filters)
        if not feeds:
            return {}
        lowest = dict(starts)
        for offsets in await asyncio.gather(*map(self.dispatched_by, self.other_groups())):
            for partition, offset in offsets.items():
                lowest[partition] = min(lowest.get(partition, offset), offset)
        return await self.dispatcher.refill(feeds, lowest) if lowest else {}

    async def dispatched_by(self, group: str) -> dict[int, int]:
        """Return how far a broker has dispatched each partition of the log of all messages. Raises LogError."""
        committed = await self._log.admin.group_offsets(group, [self._ingest_topic])
        return {place.partition: offset.offset for place, offset in committed.items()}

    # ---- CONNECT ----

    def must_prepare(self, session: Session | None, client_id: str, client_type: str, expiry: int, clean: bool) -> bool:
        """Whether something has to be done before the session can be opened."""
        if expiry and not self.dispatcher.is_active:
            return True
        if client_type == "application" and expiry and self._names.client_topic(client_id) is None:
            return True  # to be told that it is served as a DEVICE
        if self.delivery.serves(client_id, client_type, expiry):
            return session is None or clean or session.feed is None or not self.delivery.is_ready(client_id)
        return session is not None and session.feed is not None and client_type != "application" and not clean

    async def prepare(self, session: Session | None, client_id: str, client_type: str, expiry: int, clean: bool) -> str:
        """Makes the topic of a client that is to have one; the type it is served as. Raises LogError."""
        if expiry and not self.dispatcher.is_active:
            await self.dispatcher.activate(from_now=self._is_fresh)
        if client_type == "application" and expiry > 0 and self._names.client_topic(client_id) is None:
            log.warning(
                "the client id has characters no topic can have: the APPLICATION client is served as a DEVICE",
                client_id=client_id,
                setting="application.client_id_validation",
            )
            return "device"
        if self.delivery.serves(client_id, client_type, expiry):
            self._changing.discard(client_id)
            await self.delivery.prepare(client_id, is_new=session is None or clean or session.feed is None)
            return client_type
        if session is not None and session.feed is not None and client_type != "application" and not clean:
            return await self._change_type(session)
        return client_type

    async def evict(self, session: Session, end: Callable[[], None]) -> None:
        """End the session of another user, by calling `end`, before the client id gets a new one, so that the new
        session cannot read what was written for the old one. Raises LogError."""
        async with self.dispatcher.between_rounds():
            end()
        await self.delivery.cleared(session.client_id)

    def given_up(self, client_id: str) -> None:
        """What was prepared is for nobody: the connection ended meanwhile."""
        self.delivery.given_up(client_id)

    async def _change_type(self, session: Session) -> str:
        """An APPLICATION client comes back as a DEVICE: what is in its log is delivered first, nothing is dropped."""
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
        """Whether nothing is left in the client's log: then it goes on without. While that is found out nothing is put
        there, however busy the broker is; what is in the log of all messages by then goes the way of a DEVICE."""
        with contextlib.suppress(NotFoundError):  # it was released, or has ended, while somebody was asked
            if await self._count_waiting(session) > (NEARLY_DONE if session.connection is not None else 0):
                return False
            # What is dispatched again after a crash would get into its store, though it came from its topic already.
            async with self.dispatcher.held(HOLD_SECONDS) as is_committed:
                if is_committed and await self._has_everything(session):
                    self._release(session)
        return self.delivery.find(session.client_id) is not session

    async def _count_waiting(self, session: Session) -> int:
        """Raises NotFoundError where the session has no log any more."""
        entry = await self.overview.show(session.client_id)
        own, shared = entry["lag"] or entry["in_flight"], sum(share["lag"] for share in entry["shared"])
        return int(own + shared) + self.delivery.retained.count(entry["topic"])

    async def _has_everything(self, session: Session) -> bool:
        """A client that is connected may have some moments to acknowledge the last of it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + HOLD_SECONDS
        while await self._count_waiting(session):
            if session.connection is None or loop.time() > deadline:
                return False
            await asyncio.sleep(STORED_SECONDS)
        if self.delivery.find(session.client_id) is not session:
            return False
        if self.devices is not None and self.devices.serves("device", session.expiry_interval):
            return True
        # Nobody reads the log for it from here on: nothing that it is to have may be there.
        return await self.dispatcher.lag() == 0 and not self._hub.ingest_pending

    def _release(self, session: Session) -> None:
        self._changing.discard(session.client_id)
        self.delivery.release(session)
        session.client_type = "device"
        if self.devices is not None and self.devices.serves("device", session.expiry_interval):
            self.devices.opened(session)
            self.devices.attached(session)
        self._on_type(session)
        log.info("an APPLICATION client is a DEVICE from now on, its topic goes", client_id=session.client_id)

    async def _change_types(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(CHANGE_SECONDS)
            for client_id in list(self._changing):
                session = self.delivery.find(client_id)
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

    def is_full(self, client_id: str, client_type: str, expiry: int) -> bool:
        return self.delivery.serves(client_id, client_type, expiry) and self.delivery.is_full(client_id)

    def opened(self, session: Session, expiry: int, *, present: bool) -> None:
        """The session is there, CONNACK was not sent yet."""
        if self.delivery.serves(session.client_id, session.client_type, expiry):
            seen = None
            if present and session.feed is None:
                log.info("a DEVICE client is an APPLICATION from now on", client_id=session.client_id)
                seen = self.dispatcher.dispatched
            self.delivery.opened(session, is_new=not present or session.feed is None, seen=seen)
            if self.devices is not None:
                self.devices.becomes_application(session)
        elif self.devices is not None and self.devices.serves(session.client_type, expiry):
            self.devices.opened(session, is_new=not present)

    def attached(self, session: Session) -> None:
        # A DEVICE that has become an APPLICATION may still have something in the store, which comes first.
        if self.devices is None or not self.devices.attached(session, lambda: self.delivery.attached(session)):
            self.delivery.attached(session)

    def ended(self, session: Session) -> None:
        self.delivery.ended(session)
        if self.devices is not None:
            self.devices.ended(session)

    def counters(self) -> dict[str, int]:
        devices = {} if self.devices is None else self.devices.counters()
        return {**self.overview.counters(), **self.dispatcher.counters(), **devices}
