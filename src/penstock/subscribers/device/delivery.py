"""Persistent DEVICE clients: what they have not acknowledged is in a store, and comes from there.

    dispatched, client connected and idle → sent at once ─┬─ acknowledged: it was never stored
                                                          └─ not within persist_after → store, under its packet id
    dispatched, anything else             → store → read in pages → sent → acknowledged → removed

While something waits in the store of a client, everything for it goes through the store, so nothing is overtaken.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

from penstock._ext.device.outlet import DeviceDesk, DeviceOutlet
from penstock._ext.dispatch.desk import Round
from penstock._ext.hub.connection import Hub, Session, count_trimmed
from penstock._ext.record.envelope import encode_delivery
from penstock._ext.record.segment import RecordPack
from penstock.core.clock import now_ms
from penstock.core.logging import Throttled, get_logger
from penstock.settings.redis import DeviceSettings
from penstock.storage.state.base import StoreError
from penstock.subscribers.device.groups import GroupDrains, group_of
from penstock.subscribers.device.store.base import (
    PACKET_ID,
    SOURCE,
    Added,
    Addition,
    DeviceStore,
    NoPacketIdLeft,
    Page,
    Queue,
    client_queue,
)
from penstock.subscribers.device.waiting import Backlog, Given, Held
from penstock_schema.topic_filter import split_share

log = get_logger("penstock.device")

SHORTEST_SWEEP = 0.02
RETRY_SECONDS = 0.5
QOS, RETAIN_AS_PUBLISHED = 3, 8  # of the options of a subscription
FIRST_PAGE = 1_000


class _Known:
    """The sessions that may have something in the store."""

    def __init__(self) -> None:
        self._sessions: set[Session] = set()
        self._added = asyncio.Event()

    def __contains__(self, session: Session) -> bool:
        return session in self._sessions

    def add(self, session: Session) -> None:
        self._sessions.add(session)
        self._added.set()

    def discard(self, session: Session) -> None:
        self._sessions.discard(session)

    async def wait(self) -> None:
        """Return when there is one."""
        if not self._sessions:
            self._added.clear()
            await self._added.wait()


class DeviceDelivery:
    """All persistent DEVICE clients of this node. On the loop."""

    def __init__(self, hub: Hub, store: DeviceStore, settings: DeviceSettings) -> None:
        self._store = store
        self._settings = settings
        self._backlogs: dict[Session, Backlog] = {}
        self._adding: dict[Session, int] = {}  # additions on their way, of sessions that have any
        self._waiting = 0
        self._held: dict[Queue, Held] = {}
        # Messages that were sent under one id and are stored under another: ids of those sessions that have any.
        self._renamed: dict[Session, dict[int, int]] = {}
        self._sweeper: asyncio.Task[None] | None = None
        self._warnings = Throttled(log, interval=10.0)
        self._desk = DeviceDesk(hub, self._on_devices, self._on_detach, persist_after=settings.persist_after)
        self._drains = GroupDrains(hub, store, is_current=self._is_current, on_moved=self._step, on_error=self._warn)
        self._started_ms = 0
        self._known = _Known()
        self._sent_before: dict[str, int] = {}  # what came until then (ms) an earlier process may have sent

    # ---- life ----

    async def start(self) -> None:
        """Raises StoreError."""
        await self._store.start()
        self._started_ms = now_ms()
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep())

    async def stop(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._store.close()

    def check(self) -> bool | str:
        return self._store.check()

    @property
    def is_busy(self) -> bool:
        """Whether the store has more to do than it should be given now."""
        return self._waiting > 2_000

    # ---- sessions ----

    @staticmethod
    def serves(client_type: str, expiry: int) -> bool:
        return client_type != "application" and expiry > 0

    def restore(self, sessions: Iterable[Session], connected_until: Callable[[str], int]) -> int:
        """Sessions of before a restart; `connected_until` says until when (ms) a client was connected, 0 = to the end
        of the broker."""
        count = 0
        for session in sessions:
            if session.expiry_interval > 0:
                # An APPLICATION may have been a DEVICE, and not have got everything that is stored.
                if session.feed is None:
                    self._desk.of(session).open()
                    count += 1
                self._known.add(session)
                self._sent_before[session.client_id] = connected_until(session.client_id) or self._started_ms
        return count

    def opened(self, session: Session, *, is_new: bool = False) -> None:
        """The session is there, CONNACK was not sent yet."""
        outlet = self._desk.of(session)
        outlet.open()
        outlet.live = False
        self._known.add(session)
        if is_new:
            # Nothing of an earlier session of the client, though the store was away when that one ended
            # [MQTT-3.1.2-4] [MQTT3-3.1.2-6].
            self._clear(client_queue(session.client_id), session)

    @staticmethod
    def becomes_application(session: Session) -> None:
        """Messages go to its own topic from now on; what is stored for it, it gets from here."""
        for outlet in session.outlets_now:
            if isinstance(outlet, DeviceOutlet):
                outlet.close()

    def attached(self, session: Session, on_drained: Callable[[], None] | None = None) -> bool:
        """CONNACK was sent: what is stored comes first. Whether anything may be; `on_drained` is called when that is
        sent, if the client is an APPLICATION."""
        if session not in self._known or session.connection is None:
            return False
        if session.feed is not None and self._store.check() is not True:
            return False  # its own topic need not wait for a store that is away; it is looked at the next time
        backlog = Backlog(self._desk.of(session), client_queue(session.client_id), session.generation)
        backlog.on_drained = None if session.feed is None else on_drained
        self._backlogs[session] = backlog
        if session.feed is not None:
            self._step(backlog)
            return True
        backlog.groups = self._groups_of(session)
        self._drain_groups(backlog)
        self._step(backlog)
        return True

    def _drain_groups(self, backlog: Backlog) -> None:
        """Behind everything that was sent: its ids must not be given to others before it is stored under them."""
        if backlog.session not in self._adding:
            groups, backlog.groups = backlog.groups, []
            for share_filter, delivery in groups:
                self._drains.begin(backlog, share_filter, delivery)

    def rules_changed(self, session: Session | None = None) -> None:
        """Members that are connected may read messages by now that wait for another member of their group."""
        backlogs = [each for each in self._backlogs.values() if session is None or each.session is session]
        found = {backlog: self._groups_of(backlog.session) for backlog in backlogs}
        found = {backlog: groups for backlog, groups in found.items() if groups and backlog.session.feed is None}
        if not found:
            return
        for backlog in found:
            backlog.outlet.live = False
        # The store must know the packet ids of what is under way before it gives others to what comes from the groups.
        self._desk.sweep(waits=False)
        self._store_sent()
        for backlog, groups in found.items():
            backlog.groups = groups
            self._drain_groups(backlog)
            self._step(backlog)

    def _groups_of(self, session: Session) -> list[tuple[bytes, bytes]]:
        """The shared filters of a client, and how it subscribed to each."""
        # QoS 0 members keep nothing: members with a higher QoS get the stored messages [MQTT-3.8.4-8].
        return [
            (name, encode_delivery(options & QOS, bool(options & RETAIN_AS_PUBLISHED), identifier))
            for name, options, identifier in self._desk.hub.trie.subscriptions(session)
            if options & QOS and split_share(name)[0] is not None
        ]

    def _on_detach(self, session: Session) -> None:
        """The client has gone; what was under way to it is in its stash."""
        self._backlogs.pop(session, None)
        self._store_sent()

    def ended(self, session: Session) -> None:
        if session not in self._known:
            return
        self._forget(session)
        self._clear(client_queue(session.client_id))
        self.left(session.left_shares)

    def _forget(self, session: Session) -> None:
        self._known.discard(session)
        self._backlogs.pop(session, None)
        self._renamed.pop(session, None)
        self._sent_before.pop(session.client_id, None)

    def left(self, filters: Iterable[bytes]) -> None:
        """Somebody has left these, share groups among them; what is stored for a group goes with its last member."""
        shares = [one for one in filters if split_share(one)[0] is not None]
        queues = [group_of(share) for share in shares if not self._desk.is_in(share)]
        if queues:
            self._store.remove_all(queues, self._on_removed_all)

    def moved_away(self, session: Session) -> None:
        """Another broker delivers what is stored."""
        self._forget(session)

    def is_storing(self, session: Session) -> bool:
        return session in self._adding

    def _on_removed_all(self, results: Sequence[int | StoreError]) -> None:
        for result in results:
            if isinstance(result, StoreError):
                self._warn(
                    "the messages of a share group that nobody is in stay in the store until they expire", result
                )

    # ---- into the store ----

    def give(self, dispatched: Round | None) -> None:
        """What a round of dispatch has for the store; None: the round failed, and all of it comes again."""
        stashed, groups = self._desk.take_stashed()
        if dispatched is None:
            return
        given = []
        for session, pack, in_flight, sent in stashed:
            addition = Addition(client_queue(session.client_id), pack, in_flight + self._read_ids(session))
            given.append(Given(addition, session, dispatched, sent))
        for share_filter, pack in groups.items():
            given.append(Given(Addition(group_of(share_filter), pack), None, dispatched))
        self._add(given)

    def _read_ids(self, session: Session) -> bytes:
        """Ids of messages that were read and wait to be sent: the store may have them no more, because they gave way
        to newer ones, or everything was flushed, and must not give them to others."""
        backlog = self._backlogs.get(session)
        return b"" if backlog is None else array("H", backlog.packet_ids[backlog.at :]).tobytes()

    def _store_sent(self) -> None:
        stashed, _ = self._desk.take_stashed()
        self._add(
            [
                Given(Addition(client_queue(session.client_id), pack), session, sent=sent)
                for session, pack, _, sent in stashed
            ]
        )

    def _add(self, given: list[Given]) -> None:
        if not given:
            return
        for item in given:
            if item.session is not None:
                self._adding[item.session] = self._adding.get(item.session, 0) + 1
        self._waiting += len(given)
        free = []
        for item in given:
            # What failed before goes first.
            held = self._held.get(item.addition.queue)
            if held is None:
                free.append(item)
            else:
                held.items.append(item)
        self._store_all(free)

    def _store_all(self, given: list[Given]) -> None:
        def on_done(results: list[Added | StoreError]) -> None:
            for item, result in zip(given, results, strict=True):
                if isinstance(result, StoreError):
                    self._warn("messages of clients cannot be stored, they are tried again", result)
                    self._hold(item)
                else:
                    self._added(item, result)

        if given:
            self._store.add([item.addition for item in given], on_done)

    def _hold(self, item: Given) -> None:
        """Tried again after a pause, before everything younger for the queue."""
        held = self._held.setdefault(item.addition.queue, Held())
        # In order: the failure of an older one may be told later, because other additions share its call.
        insort(held.items, item, key=attrgetter("number"))
        self._go_on_later(item.addition.queue)

    def _clear(self, queue: Queue, session: Session | None = None) -> None:
        """What a session leaves in the store goes, and whatever comes for the queue waits until it has."""
        held = self._held.setdefault(queue, Held())
        held.must_clear, held.session = True, session
        self._go_on(queue)

    def _go_on_later(self, queue: Queue) -> None:
        asyncio.get_running_loop().call_later(RETRY_SECONDS, self._go_on, queue)

    def _go_on(self, queue: Queue) -> None:
        """The next call for a queue that is held."""
        held = self._held.get(queue)
        if held is None or held.is_busy:
            return
        if held.must_clear:
            held.is_busy = True
            self._store.remove_all([queue], lambda results: self._on_cleared(queue, held, results[0]))
            return
        while held.items and held.items[0].session is not None and held.items[0].session not in self._known:
            self._added(held.items.pop(0), Added([], 0))  # its session has ended: nobody waits for it
        if held.items:
            # One call after the other: the second must not succeed where the first has failed.
            held.is_busy = True
            item = held.items[0]
            self._store.add([item.addition], lambda results: self._on_held_added(queue, held, item, results[0]))
            return
        del self._held[queue]
        if held.settled:
            self._store.remove([(queue, held.settled)], self._on_removed)

    def _on_cleared(self, queue: Queue, held: Held, result: int | StoreError) -> None:
        held.is_busy = False
        if isinstance(result, StoreError):
            self._warn("the messages of a session that ended cannot be removed, it is tried again", result)
            self._go_on_later(queue)
            return
        held.must_clear = False
        self._go_on(queue)
        backlog = self._backlogs.get(held.session) if held.session is not None else None
        if backlog is not None:
            backlog.is_last = not held.items  # else they are about to be stored
            self._step(backlog)

    def _on_held_added(self, queue: Queue, held: Held, item: Given, result: Added | StoreError) -> None:
        if isinstance(result, NoPacketIdLeft):
            self._make_room(queue, held, item, -1)
            return
        held.is_busy = False
        if isinstance(result, StoreError):
            self._warn("messages of clients cannot be stored, they are tried again", result)
            self._go_on_later(queue)
        else:
            held.items.remove(item)
            self._added(item, result)
            self._go_on(queue)

    def _make_room(self, queue: Queue, held: Held, item: Given, after_score: int) -> None:
        """Messages that gave way while they were under way keep their ids, and all others are stored: the oldest that
        are not under way give way too. Else everybody would wait for a client that may never come back."""
        addition = item.addition

        def on_page(page: Page | StoreError) -> None:
            if not isinstance(page, StoreError):
                under_way = set(array("H", addition.in_flight))
                oldest = [one for one in page.packet_ids if one not in under_way][: addition.pack.count]
                if oldest:
                    self._store.remove([(queue, oldest)], on_removed)
                    return
                if not page.is_last:
                    self._make_room(queue, held, item, page.next_score)
                    return
            held.is_busy = False
            self._go_on_later(queue)

        def on_removed(results: Sequence[int | StoreError]) -> None:
            if not isinstance(results[0], StoreError):
                self._store.statistics.trimmed += results[0]
                count_trimmed(self._desk.hub, item.session, results[0])
            held.is_busy = False
            self._go_on(queue)

        self._store.fetch(queue, after_score, FIRST_PAGE, on_page)

    def _added(self, item: Given, added: Added) -> None:
        self._waiting -= 1
        session = item.session
        count_trimmed(self._desk.hub, session, added.trimmed)
        if item.dispatched is not None:
            item.dispatched.settle(item.addition.pack.count - item.sent)
        if session is not None and item.sent:
            self._sent_ones_stored(session, item.addition.pack, added.packet_ids, item.sent)
        if session is None:
            return
        left = self._adding[session] - 1
        if left:
            self._adding[session] = left
        else:
            del self._adding[session]
        backlog = self._backlogs.get(session)
        if backlog is not None and not backlog.outlet.live:
            backlog.is_last = False
            self._drain_groups(backlog)
            self._step(backlog)

    def _sent_ones_stored(self, session: Session, pack: RecordPack, packet_ids: list[int], sent: int) -> None:
        sources: list[Any] = pack.keys()[:sent]
        asked = [source[PACKET_ID] for source in SOURCE.iter_unpack(b"".join(sources))]
        self._desk.of(session).stored(asked)
        # Where a message has its id still, that was acknowledged and could not be removed, the store gives another.
        renamed = {wanted: given for given, wanted in zip(packet_ids, asked, strict=False) if given not in (0, wanted)}
        if renamed and session in self._known:
            self._renamed.setdefault(session, {}).update(renamed)

    def _on_removed(self, results: Sequence[int | StoreError]) -> None:
        for result in results:
            if isinstance(result, StoreError):
                self._warn("acknowledged messages stay in the store, they may come again", result)

    async def _sweep(self) -> None:
        pause = max(self._settings.persist_after / 2, SHORTEST_SWEEP)
        while True:
            await self._known.wait()
            await asyncio.sleep(pause)
            try:
                self._desk.sweep()
                self._store_sent()
            except Exception as error:  # whatever it is, the others need the next round
                log.exception("messages of clients could not be given to the store", error=repr(error))

    # ---- out of the store ----

    def _is_current(self, backlog: Backlog) -> bool:
        session = backlog.session
        return session.connection is not None and session.generation == backlog.generation

    def _step(self, backlog: Backlog) -> None:
        """Sends what was read, reads on, or lets the client have messages as they come again."""
        if not self._is_current(backlog) or backlog.is_fetching:
            return
        session = backlog.session
        held = self._held.get(backlog.queue)
        if held is not None and held.must_clear:
            return
        dup_before = self._sent_before.get(session.client_id, 0)
        backlog.at = backlog.outlet.send_stored(backlog.packet_ids, backlog.values, backlog.at, dup_before)
        if backlog.at < len(backlog.packet_ids):
            return
        backlog.packet_ids, backlog.values, backlog.at = [], [], 0
        if backlog.is_last:
            if session not in self._adding and not backlog.moving:
                backlog.outlet.live = True
                self._sent_before.pop(session.client_id, None)
                self._leave_to_its_topic(backlog, is_drained=True)
            return
        if backlog.reconnects != self._store.statistics.reconnects:
            # It may have lost its last writes, and gives their scores to others.
            backlog.reconnects, backlog.score = self._store.statistics.reconnects, -1
        backlog.is_fetching = True
        backlog.settled = set() if held is None else set(held.settled)
        self._store.fetch(
            backlog.queue,
            backlog.score,
            # everything that can have been in flight is in the first page
            self._settings.page_size if backlog.score >= 0 else max(self._settings.page_size, FIRST_PAGE),
            lambda page: self._on_page(backlog, page),
        )

    def _leave_to_its_topic(self, backlog: Backlog, *, is_drained: bool) -> None:
        """Of an APPLICATION: it has what is stored, or must not wait for it any longer."""
        session = backlog.session
        if session.feed is not None and is_drained and not backlog.outlet.stored_ids():
            self._forget(session)  # else it is looked at once more, when the client comes back
        on_drained, backlog.on_drained = backlog.on_drained, None
        if on_drained is not None:
            on_drained()

    def _on_page(self, backlog: Backlog, page: Page | StoreError) -> None:
        if self._is_current(backlog):
            self._settle([backlog.outlet])
        backlog.is_fetching = False
        if not isinstance(page, StoreError) and page.expired:
            backlog.session.count_expired(page.expired)  # also of a client that has gone: the store tells it once
        if not self._is_current(backlog):
            return
        if isinstance(page, StoreError):
            self._warn("stored messages cannot be read", page)
            self._leave_to_its_topic(backlog, is_drained=False)
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self._step, backlog)
            return
        # What was acknowledged since the page was read, or is under way (and sent again with the rest of the window).
        known = backlog.settled.union(array("H", backlog.outlet.stored_ids()))
        known.update(self._renamed.get(backlog.session, {}).values())
        fresh = [(one, value) for one, value in zip(page.packet_ids, page.values, strict=True) if one not in known]
        fresh.sort(key=lambda message: bool(message[1]))  # PUBRELs first [MQTT-4.4.0-1]
        backlog.packet_ids, backlog.values, backlog.at = [one for one, _ in fresh], [value for _, value in fresh], 0
        is_same = backlog.reconnects == self._store.statistics.reconnects
        backlog.score, backlog.is_last = page.next_score, page.is_last and is_same
        self._step(backlog)

    def _on_devices(self, outlets: list[DeviceOutlet]) -> None:
        """Once per loop iteration: stored messages were acknowledged, or clients can take more."""
        self._settle(outlets)
        for outlet in outlets:
            backlog = self._backlogs.get(outlet.session)
            if backlog is not None and not outlet.live:
                self._step(backlog)

    def _settle(self, outlets: list[DeviceOutlet]) -> None:
        removed: list[tuple[Queue, Sequence[int]]] = []
        for outlet in outlets:
            session = outlet.session
            settled, released = outlet.take_settled()
            queue = client_queue(session.client_id)
            backlog = self._backlogs.get(session)
            if settled:
                ids = array("H", settled)
                if session in self._renamed:
                    ids = self._find_stored(session, ids)
                held = self._held.get(queue)
                if held is None:
                    removed.append((queue, ids))
                else:
                    held.settled += ids
                if backlog is not None and backlog.is_fetching:
                    backlog.settled.update(ids)
            if released:
                self._release(session, queue, array("H", released))
        if removed:
            self._store.remove(removed, self._on_removed)

    def _find_stored(self, session: Session, packet_ids: array[int]) -> array[int]:
        """The ids under which messages are stored that were sent under these."""
        renamed = self._renamed[session]
        found = array("H", [renamed.pop(packet_id, packet_id) for packet_id in packet_ids])
        if not renamed:
            del self._renamed[session]
        return found

    def _release(self, session: Session, queue: Queue, packet_ids: array[int]) -> None:
        """PUBREC came: PUBREL leaves when that is stored."""

        def on_done(results: list[int | StoreError]) -> None:
            if isinstance(results[0], StoreError):
                self._warn("QoS 2 messages wait for the store", results[0])
                asyncio.get_running_loop().call_later(RETRY_SECONDS, self._release, session, queue, packet_ids)
            else:
                self._desk.of(session).send_pubrels(packet_ids)

        self._store.release([(queue, packet_ids)], on_done)

    def _warn(self, what: str, error: StoreError) -> None:
        self._warnings.error(what, error=str(error))

    def counters(self) -> dict[str, int]:
        statistics = self._store.statistics
        counters = {
            "device_stored": statistics.added,
            "device_fetched": statistics.fetched,
            "device_removed": statistics.removed,
            "device_trimmed": statistics.trimmed,
            "device_store_failures": statistics.failed,
            "device_store_commits": statistics.commits,
            "device_waiting": self._waiting,
            "device_backlogs": sum(not backlog.outlet.live for backlog in self._backlogs.values()),
        }
        if statistics.stored is not None:
            counters["device_stored_messages"] = statistics.stored
        if statistics.stored_bytes is not None:
            counters["device_stored_bytes"] = statistics.stored_bytes
        return counters
