"""APPLICATION clients: each persistent one has a topic of its own, from which its packs are delivered.

    session opens    → topic and feed are there before CONNACK; the dispatcher runs
    client connected → a lane from the stored context on: PUBRELs first, then what was in flight, then what is new
    pack read        → packet ids planned → context durable → sent → acknowledged → committed
    client gone      → the lane's last context is stored, the topic fills up
    session ends     → topic and contexts go

What is shared among such clients is in shared/delivery.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

from penstock._ext.application.context import read_context, write_context
from penstock._ext.application.feed import Feed
from penstock._ext.application.lane import Lane
from penstock._ext.hub.connection import Hub, Session
from penstock.core.errors import PenstockError
from penstock.core.logging import get_logger
from penstock.core.tasks import TaskSet
from penstock.services.housekeeper import CLIENT, DELETED, JOIN, SHARE, Note, Task, Undecided, Use
from penstock.settings.application import ApplicationSettings
from penstock.storage.log.base import Consumer, Log, TopicNotFound, TopicPartition, parse_properties
from penstock.storage.log.pack_reader import PackReader
from penstock.subscribers.application.contexts import OWN, Contexts, make_key
from penstock.subscribers.application.elsewhere import Elsewhere
from penstock.subscribers.application.lane_book import LaneBook, Place
from penstock.subscribers.application.names import ApplicationNames
from penstock.subscribers.application.patience import patiently
from penstock.subscribers.application.retained_appends import RetainedAppends
from penstock.subscribers.application.shared.contexts import ids_given_to_all, with_ids_given
from penstock.subscribers.application.shared.delivery import SharedDelivery

log = get_logger("penstock.application")

CLAIMS_SECONDS = 0.5
REMOVE_AGAIN_SECONDS = 10.0


class ApplicationDelivery:
    """All APPLICATION clients of this node. On the loop."""

    def __init__(
        self,
        hub: Hub,
        log_provider: Log,
        contexts: Contexts,
        names: ApplicationNames,
        settings: ApplicationSettings,
        *,
        elsewhere: Elsewhere,
        note: Note,
    ) -> None:
        """`note` writes down for the housekeeper what is left to be removed."""
        self._hub = hub
        self._log = log_provider
        self._names = names
        self.settings = settings
        self.contexts = contexts
        self._properties = parse_properties(settings.topic_properties)
        self.book = LaneBook(hub, contexts, settings, self._on_detach)
        self._reader = PackReader(log_provider.consumer(names.clients_group), settings.max_poll_records, self.book.save)
        self.shared = SharedDelivery(
            hub,
            log_provider,
            contexts,
            names,
            settings,
            book=self.book,
            find_session=self.find,
            has_session=self._has_session,
            elsewhere=elsewhere,
            note=note,
        )
        self.retained = RetainedAppends(log_provider, self._is_current, self.make_again)
        self._sessions: dict[str, Session] = {}  # with a feed, connected or not
        self._topics: dict[str, str] = {}  # client ids of the topics that are there
        self._starts: dict[str, int] = {}  # where a new session begins in a topic that was there
        self._preparing: dict[str, int] = {}  # client ids whose topic is being made, and for how many connections
        self._removals: dict[str, asyncio.Task[None]] = {}
        self._asking: dict[str, bool] = {}  # topics, while other brokers are asked: whether it may still go on
        self._tasks = TaskSet()
        self._asker: Consumer | None = None
        self._elsewhere = elsewhere
        self._note = note

    # ---- life ----

    async def start(self) -> None:
        """Reads the contexts; sessions are restored after it and clients connect after that."""
        await self.contexts.load()
        self._reader.start()
        self.book.start(self.shared.denials.handle)
        self._tasks.spawn(self._finish_claims())

    async def stop(self) -> None:
        self.retained.stop()
        await self.book.stop()
        await self.shared.stop()
        await self._reader.stop()
        if self._asker is not None:
            await self._asker.close()
        self._tasks.cancel()

    def __len__(self) -> int:
        return len(self._sessions)

    # ---- sessions ----

    def serves(self, client_id: str, client_type: str, expiry: int) -> bool:
        """Whether a client with these credentials and this session gets a topic of its own."""
        return self._names.serves(client_id, client_type, expiry)

    def is_full(self, client_id: str) -> bool:
        limit = self.settings.max_clients
        return bool(limit) and len(self._sessions) >= limit and client_id not in self._sessions

    async def prepare(self, client_id: str, *, is_new: bool) -> None:
        """The topic is there, and a new session knows where in it it begins; `opened` or `given_up` comes at once after
        it. Raises LogError."""
        self._preparing[client_id] = self._preparing.get(client_id, 0) + 1
        is_there = False
        try:
            await self._prepare(client_id, is_new)
            is_there = True
        finally:
            self._preparing[client_id] -= 1
            if not self._preparing[client_id]:
                del self._preparing[client_id]
            if not is_there:
                self.given_up(client_id)

    def given_up(self, client_id: str) -> None:
        """The connection ended while the topic was made: there is no session, so there is no topic."""
        self._starts.pop(client_id, None)
        if not self._is_used(client_id):
            self.contexts.remove(self.contexts_of(client_id))
        if self.settings.remove_topics == "session-end" and self._names.client_topic(client_id) in self._topics:
            self._remove_unused(client_id)

    async def _prepare(self, client_id: str, is_new: bool) -> None:
        topic = self._names.client_topic(client_id)
        assert topic is not None
        await self._removed(topic)
        if topic not in self._topics:
            await self._log.admin.create(topic, 1, self._properties)
            self._topics[topic] = client_id
        if is_new:
            # A topic that was made just now has no leader for a moment.
            await patiently(lambda: self._find_start(client_id, topic))

    async def _find_start(self, client_id: str, topic: str) -> None:
        if self._asker is None:
            self._asker = self._log.consumer("")
        start = self._starts[client_id] = (await self._asker.watermarks(TopicPartition(topic, 0))).end
        if start and client_id not in self._sessions:
            # Messages of an earlier session may belong to another user. If the broker crashes after the new session is
            # stored, the session must have a context, or it would read the topic from its beginning.
            begin = {"committed": start, "end": start, "last_packet_id": 0, "seen": {}, "in_flight": []}
            key = make_key(OWN, client_id, topic, 0)
            self.contexts.put(key, write_context(begin))
            await self.contexts.durable([key])

    async def restore(self, sessions: Iterable[Session]) -> int:
        """Sessions of before a restart get their feeds back; nobody is connected yet. Raises LogError."""
        count = 0
        mine = [one for one in sessions if self.serves(one.client_id, one.client_type, one.expiry_interval)]
        names = [name for session in mine for name, _, _ in self._hub.trie.subscriptions(session)]
        await self.shared.learn(name for name in names if name.startswith(b"$share/"))
        for session in mine:
            self._take(session)
            count += 1
        self.shared.restored(self._sessions)
        self._restore_ids(mine)
        return count

    def _restore_ids(self, sessions: Iterable[Session]) -> None:
        """Continue the packet ids of each session after the last one that any of its contexts has. The client's own
        context stores it from now on, because another member of a share may take over the context that has it."""
        newest = ids_given_to_all(self.contexts)
        for session in sessions:
            laps, last = newest.get(session.client_id, (0, 0))
            session.continue_after(last, laps)
            key = self._key(session)
            if (context := with_ids_given(self.contexts.get(key), (laps, last))) is not None:
                self.contexts.put(key, context)

    def take(self, session: Session) -> bool:
        """A session that was another broker's; False if it is none with a topic of its own."""
        is_mine = self.serves(session.client_id, session.client_type, session.expiry_interval)
        if is_mine:
            self._take(session)
        return is_mine

    def _take(self, session: Session) -> None:
        topic = self._names.client_topic(session.client_id)
        assert topic is not None
        if session.feed is None:
            session.intake = Feed(topic)
        self._sessions[session.client_id] = session
        for topic_filter, options, identifier in self._hub.trie.subscriptions(session):
            self.subscribed(session, topic_filter, options, identifier)

    def opened(self, session: Session, *, is_new: bool, seen: dict[int, int] | None = None) -> None:
        """The session is open, its client is not answered yet. `seen`: what was dispatched to it before it had a topic,
        the newest offset of each partition; should that be dispatched again after a crash, it has it already."""
        self._take(session)
        if is_new:
            self.book.forget([session.client_id])
            key = self._key(session)
            start = self._starts.pop(session.client_id, 0)
            if start or seen:
                lane = Lane(session, self._topic_of(session), 0)
                lane.start_at(start, seen)
                self.contexts.put(key, lane.snapshot())
            else:
                self.contexts.remove([key])

    def attached(self, session: Session) -> None:
        """CONNACK was sent: what was in flight goes out again, then the rest."""
        if session.feed is None or session.connection is None:
            return
        ids, (laps, last) = self.shared.ids_of(session)
        session.reserve(ids)
        session.continue_after(last, laps)
        self._open_lane(session)
        self.shared.attached(session)

    def _open_lane(self, session: Session) -> None:
        lane = Lane(session, self._topic_of(session), 0, pack_size=self.settings.max_poll_records)
        context = self.contexts.get(self._key(session))
        if context is not None:
            try:
                lane.restore(context)
            except ValueError as error:
                log.error("the context of a client is not readable, it gets everything again", error=str(error))
        self.book.open(lane, Place(self._key(session), b"", self._reader))

    def _on_detach(self, session: Session) -> None:
        """Its connection goes; called by the session while its lanes are still there."""
        self.shared.detached(session)
        for lane in self.book.lanes_of(session):
            self.book.close(lane)

    async def _finish_claims(self) -> None:
        while True:
            await asyncio.sleep(CLAIMS_SECONDS)
            self.shared.claims.sweep()

    def ended(self, session: Session) -> None:
        """The session is over: what was kept for it goes, unless the client has a new one already."""
        if not self._is_current(session):
            return
        del self._sessions[session.client_id]
        self.shared.ended(session)
        self.contexts.remove([self._key(session)])
        if self.settings.remove_topics == "session-end":
            asyncio.get_running_loop().call_soon(self._remove_unused, session.client_id)

    def moved_away(self, session: Session) -> None:
        """Another broker goes on with the topic and what is stored of its deliveries."""
        if self._sessions.get(session.client_id) is not session:
            return
        del self._sessions[session.client_id]
        self._topics.pop(self._topic_of(session), None)
        self.shared.moved_away(session)
        self.contexts.give_away([self._key(session)])

    async def is_stored(self, session: Session) -> None:
        """Returns when the context of a client that has left is durable."""
        stored = asyncio.Event()
        self.contexts.when_durable(self._key(session), stored.set)
        await stored.wait()

    def contexts_of(self, client_id: str) -> list[bytes]:
        """Keys under which the deliveries of a client are stored, as far as they belong to it alone."""
        topic = self._names.client_topic(client_id)
        return [] if topic is None else [make_key(OWN, client_id, topic, 0)]

    def _remove_unused(self, client_id: str, *, is_noted: bool = False, kind: str = CLIENT) -> None:
        topic = self._names.client_topic(client_id)
        if topic is None or topic in self._removals or self._is_used(client_id):
            return
        if self._elsewhere.has_session(client_id):
            self._topics.pop(topic, None)
            return  # it has come back at another broker, which goes on with the topic
        if not is_noted:
            self._note(kind, client_id, topic)  # should this broker not live to see the end of it
        self._removals[topic] = self._tasks.spawn(self._remove(Task(CLIENT, client_id, topic)))

    def _is_used(self, client_id: str) -> bool:
        return client_id in self._sessions or client_id in self._preparing

    async def _removed(self, topic: str) -> None:
        while topic in self._removals:
            await asyncio.wait([self._removals[topic]])

    async def _remove(self, task: Task) -> None:
        try:
            await self._delete_unused(task)
        except (PenstockError, TimeoutError) as error:
            if not self._elsewhere.is_alone:
                log.debug("the topic of a client is left to the housekeeper", topic=task.topic, error=str(error))
                return
            log.warning(
                "the topic of a client cannot be removed, it is tried again",
                client_id=task.name,
                topic=task.topic,
                error=str(error),
            )
            again = partial(self._remove_unused, task.name, is_noted=True)
            asyncio.get_running_loop().call_later(REMOVE_AGAIN_SECONDS, again)

    async def _delete_unused(self, task: Task) -> None:
        """Raises PenstockError and TimeoutError."""
        try:
            if await self._is_unused(task):
                await self._log.admin.delete(task.topic)
                log.info("the topic of an APPLICATION client was removed", client_id=task.name, topic=task.topic)
        except TopicNotFound:
            pass
        finally:
            self._topics.pop(task.topic, None)
            self._removals.pop(task.topic, None)

    # ---- what was left behind, here or by another broker ----

    async def tidy(self, task: Task) -> None:
        """The housekeeper's turn. Raises PenstockError where it has to be tried again."""
        if task.kind == DELETED:
            task = Task(CLIENT, task.name, task.topic, task.at)
        elif self.settings.remove_topics != "session-end":
            return  # it did not say so when the session ended, or at another broker
        if task.kind == SHARE:
            await self.shared.removals.tidy(task.name.encode(), task.topic)
            return
        if not self._names.is_client_topic(task.topic, task.name):
            log.warning("not the topic of this client, it stays", client_id=task.name, topic=task.topic)
            return
        await self._removed(task.topic)
        if self._is_used(task.name):
            return
        removal = self._removals[task.topic] = self._tasks.spawn(self._delete_unused(task), is_awaited=True)
        await asyncio.shield(removal)

    async def _is_unused(self, task: Task) -> bool:
        """Whether nobody has the topic, of all brokers; until it is gone others wait for it."""
        if self._elsewhere.is_alone:
            return True
        self._asking[task.topic] = True
        try:
            use = await self._elsewhere.use_of(task)
        finally:
            may_go_on = self._asking.pop(task.topic)
        if not may_go_on:
            raise Undecided("its client comes back at another broker")
        return use is Use.NONE

    async def use_of(self, task: Task) -> Use:
        """Asked by another broker, which is going to remove it. What is being removed here is gone first; not what that
        broker is asked for at the same time, or both would wait. Raises Undecided."""
        if task.kind == JOIN:
            await self.shared.removals.called_off(task.topic.split())
            return Use.NONE
        if task.kind == SHARE:
            return await self.shared.removals.tell_use(task.name.encode(), task.topic)
        if task.topic not in self._asking:
            await self._removed(task.topic)
        return Use.ALL if self._is_used(task.name) else Use.NONE

    async def removed(self, client_id: str) -> None:
        """Nothing of an earlier session of the client is being removed here any more."""
        await asyncio.sleep(0)  # a session that has ended just now begins with it in the next iteration of the loop
        topic = self._names.client_topic(client_id)
        if topic is not None:
            await self._removed(topic)

    async def cleared(self, client_id: str) -> None:
        """Wait until all appends for an earlier session of the client are done and its topic is removed, unless the
        settings keep it."""
        topic = self._names.client_topic(client_id)
        if topic is not None:
            await self.retained.done(topic)
            await self.removed(client_id)

    async def called_off(self, client_id: str) -> None:
        """The same for a client that comes back at another broker: what is not being deleted yet stays, whatever others
        answer, and however long that takes."""
        await asyncio.sleep(0)
        topic = self._names.client_topic(client_id)
        if topic in self._asking:
            self._asking[topic] = False
        elif topic is not None:
            await self._removed(topic)

    async def make_again(self, topic: str) -> bool:
        """The dispatcher found a topic missing: somebody removed it under a session that lives."""
        if self.shared.has_topic(topic):
            await self.shared.make_again(topic)
            return True
        client_id = next((name for name in self._sessions if self._names.client_topic(name) == topic), None)
        if client_id is None:
            return False
        log.warning("the topic of a client was removed by somebody, it is made again", client_id=client_id, topic=topic)
        await self._log.admin.create(topic, 1, self._properties)
        # Its offsets start at 0 again: what the context says is of the old one.
        session = self._sessions[client_id]
        lane = self.lane_of(session)
        if lane is not None:
            self.book.close(lane, keeps_context=False)
        self.contexts.remove([self._key(session)])
        if session.connection is not None:
            self._open_lane(session)
        return True

    # ---- subscriptions ----

    def subscribed(self, session: Session, topic_filter: bytes, options: int, identifier: int) -> None:
        if not topic_filter.startswith(b"$share/"):
            return
        self._elsewhere.joined(topic_filter)
        if session.feed is not None:
            self.shared.subscribed(session, topic_filter, options, identifier)

    def unprepared(self, session: Session, filters: Iterable[bytes]) -> list[bytes]:
        """Shared filters of the session whose topic or group is not there yet."""
        if session.feed is None:
            return []
        return [name for name in filters if name.startswith(b"$share/") and not self.shared.is_ready(name)]

    def unsubscribed(self, session: Session, topic_filter: bytes) -> None:
        if session.feed is not None and topic_filter.startswith(b"$share/"):
            self.shared.unsubscribed(session, topic_filter)

    def send_retained(self, session: Session, topic_filter: bytes, options: int, identifier: int) -> None:
        """Retained messages for a new subscription; those with QoS > 0 of APPLICATION clients go through their logs."""
        for feed, _, pack in self._hub.send_retained(session, topic_filter, options, identifier):
            self.retained.add(session, feed.topic, pack)

    # ---- the rest ----

    def _topic_of(self, session: Session) -> str:
        assert session.feed is not None
        return session.feed.topic

    def _key(self, session: Session) -> bytes:
        topic = self._names.client_topic(session.client_id)
        return make_key(OWN, session.client_id, topic or "", 0)

    def is_ready(self, client_id: str) -> bool:
        """Whether the client's topic is known to be there."""
        topic = self._names.client_topic(client_id)
        return topic in self._topics and topic not in self._removals

    def _is_current(self, session: Session) -> bool:
        return self._sessions.get(session.client_id) is session

    def _has_session(self, client_id: str) -> bool:
        """Return whether the client has a session here or at another broker."""
        return client_id in self._sessions or self._elsewhere.has_session(client_id)

    def find(self, client_id: str) -> Session | None:
        return self._sessions.get(client_id)

    def sessions(self) -> list[Session]:
        return list(self._sessions.values())

    def lane_of(self, session: Session) -> Lane | None:
        return next((lane for lane in self.book.lanes_of(session) if not lane.is_shared), None)

    def context_of(self, session: Session) -> bytes | None:
        """As it is now, or as it was when the client left."""
        lane = self.lane_of(session)
        return self.contexts.get(self._key(session)) if lane is None else lane.peek()

    def committed_of(self, session: Session) -> int:
        """The offset before which the client has everything."""
        lane = self.lane_of(session)
        if lane is not None:
            return lane.committed
        context = self.contexts.get(self._key(session))
        return 0 if context is None else int(read_context(context)["committed"])

    def move(self, session: Session, offset: int) -> None:
        """A client that is not connected goes on from here; what it had in flight is forgotten."""
        lane = Lane(session, self._topic_of(session), 0)
        lane.start_at(offset)
        self.contexts.put(self._key(session), lane.snapshot())

    def release(self, session: Session) -> None:
        """The session goes on without a log of its own."""
        for lane in self.book.lanes_of(session):
            self.book.close(lane, keeps_context=False)
        self.ended(session)
        if session.feed is not None:
            session.intake = None

    def topic_name(self, client_id: str) -> str | None:
        return self._names.client_topic(client_id)

    async def has_topic(self, client_id: str) -> bool:
        return self._names.client_topic(client_id) in await self._log.admin.list()

    async def remove_topic(self, client_id: str) -> None:
        """Now, whatever the settings say."""
        self._remove_unused(client_id, kind=DELETED)
        await self.removed(client_id)
