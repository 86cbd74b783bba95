"""Shared subscriptions of APPLICATION clients: a topic for each filter, a consumer group for each share name.

This node is one member of the group; the partitions it gets are shared out among its connected clients, as few as
possible changing hands. Each client has a lane of its own for each partition. A partition that another client goes on
with takes along what was not acknowledged; only QoS 2 messages under way stay with the client they were sent to.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

from penstock._ext.application.context import read_context, split_context
from penstock._ext.application.feed import Feed, feed_group
from penstock._ext.application.lane import Lane
from penstock._ext.hub.connection import Hub, Session
from penstock.core.assign import assign
from penstock.core.logging import Throttled, get_logger
from penstock.core.tasks import TaskSet
from penstock.services.housekeeper import Note, Use
from penstock.settings.application import ApplicationSettings
from penstock.storage.log.base import Log, LogError, TopicNotFound, TopicPartition, parse_properties
from penstock.storage.log.pack_reader import PackReader
from penstock.subscribers.application.contexts import CLAIMED, OFFERED, SHARED, Contexts, make_key, split_key
from penstock.subscribers.application.elsewhere import Elsewhere
from penstock.subscribers.application.lane_book import LaneBook, Place
from penstock.subscribers.application.names import ApplicationNames
from penstock.subscribers.application.shared.begin import ShareBegins
from penstock.subscribers.application.shared.claims import ShareClaims
from penstock.subscribers.application.shared.contexts import (
    IN_GROUP,
    IdsGiven,
    Run,
    abandon,
    begin_at,
    claim_key,
    ids_in,
    packet_ids,
    put_back,
    read_to,
    settle_overlaps,
    share_key_of,
)
from penstock.subscribers.application.shared.denials import ShareDenials
from penstock.subscribers.application.shared.removal import ShareRemovals
from penstock.subscribers.application.shared.returns import RETURNED, ShareReturns, returned_key
from penstock.subscribers.application.shared.shares import Member, Share
from penstock_schema.topic_filter import split_share

log = get_logger("penstock.application")

QOS = 0x03
RETAIN_AS_PUBLISHED = 0x08
TOPICS_AT_ONCE = 1_000


class SharedDelivery:
    """All share groups with APPLICATION clients of this node. On the loop."""

    def __init__(
        self,
        hub: Hub,
        log_provider: Log,
        contexts: Contexts,
        names: ApplicationNames,
        settings: ApplicationSettings,
        *,
        book: LaneBook,
        find_session: Callable[[str], Session | None],
        has_session: Callable[[str], bool],
        elsewhere: Elsewhere,
        note: Note,
    ) -> None:
        """`has_session` asks for sessions at other brokers too."""
        self._find_session = find_session
        self._has_session = has_session
        self._hub = hub
        self._log = log_provider
        self._contexts = contexts
        self._names = names
        self._settings = settings
        self._book = book
        self._properties = parse_properties(settings.shared_topic_properties)
        self._shares: dict[bytes, Share] = {}  # by $share/<name>/<filter>
        self._feeds: dict[str, Feed] = {}  # by topic
        self._partitions: dict[str, int] = {}  # of the topics that are there
        self._tasks = TaskSet()
        self.claims = ShareClaims(
            log_provider,
            contexts,
            book,
            max_records=settings.shared_max_poll_records,
            new_lane=self._lane_for_claims,
            spawn=self._tasks.spawn,
        )
        self.returns = ShareReturns(
            contexts,
            find_share=self._share_of,
            committed_of=self.committed_of,
            put_back=self._put_back,
            spawn=self._tasks.spawn,
        )
        self._leaving: Session | None = None
        self._online: dict[str, int] = {}  # clients that were attached, and the generation of their session then
        self._closed: dict[bytes, set[int]] = {}  # partitions that change hands now: packet ids not sent on it
        self._reserved: dict[bytes, int] = {}  # filters that are being prepared, and for how many clients
        self._elsewhere = elsewhere
        self.denials = ShareDenials(
            contexts,
            self.claims,
            self.shares,
            is_online=lambda session: self._is_online(session) and session is not self._leaving,
            restart=self._restart,
        )
        use_of, forget = self.use_of, self._forget_contexts
        self.removals = ShareRemovals(log_provider, names, settings, use_of, forget, elsewhere=elsewhere, note=note)
        self._begins = ShareBegins(log_provider, contexts)
        self._warnings = Throttled(log, interval=10.0)

    async def stop(self) -> None:
        for share in list(self._shares.values()):
            await share.reader.stop()
        await self.claims.stop()
        self.removals.stop()
        self._tasks.cancel()

    def shares(self) -> list[Share]:
        return list(self._shares.values())

    def committed_of(self, share: Share, partition: int) -> int:
        """The offset before which the members have everything."""
        lane = share.lanes.get(partition)
        if lane is not None:
            return lane.committed
        stored = self._contexts.get(make_key(SHARED, share.group, share.topic, partition))
        committed = 0 if stored is None else int(read_context(stored.partition(b"\0")[2])["committed"])
        return max(committed, share.starts.get(partition, 0))

    def shares_of(self, session: Session) -> list[Share]:
        return [share for share in self._shares.values() if session.client_id in share.members]

    # ---- topics ----

    def has_topic(self, topic: str) -> bool:
        return topic in self._feeds

    def is_ready(self, share_filter: bytes) -> bool:
        return share_filter in self._shares or self._names.shared_topic(split_share(share_filter)[1]) is None

    def reserve(self, share_filter: bytes) -> bool:
        """Before `prepare`: False when there are as many shares as the settings allow. `release` comes after it."""
        most = self._settings.max_shares
        if most and share_filter not in self._reserved and len(self._shares.keys() | self._reserved.keys()) >= most:
            self._warnings.warning(
                "a shared subscription is refused: there are as many as application.max_shares allows",
                filter=share_filter.decode(errors="replace"),
                max_shares=most,
            )
            return False
        self._reserved[share_filter] = self._reserved.get(share_filter, 0) + 1
        return True

    def release(self, share_filter: bytes) -> None:
        """What was prepared for nobody, because the client or its right to it has gone meanwhile, is removed."""
        left = self._reserved.pop(share_filter) - 1
        if left:
            self._reserved[share_filter] = left
            return
        topic = self._topic_of(share_filter)
        if share_filter not in self._shares and topic in self._partitions:
            self._forget_unused(topic)
            if self._elsewhere.has_members(share_filter):
                self.removals.leave(share_filter, topic)
            else:
                self.removals.begin(share_filter, topic, None)

    @contextlib.asynccontextmanager
    async def held(self, filters: Sequence[bytes]) -> AsyncIterator[None]:
        """For sessions that come from another broker with these filters: nobody removes anything of them meanwhile."""
        for name in filters:
            self._reserved[name] = self._reserved.get(name, 0) + 1
        try:
            await self.kept(filters)
            yield
        finally:
            for name in filters:
                self._reserved[name] -= 1
                if not self._reserved[name]:
                    del self._reserved[name]
                    self._forget_unused(self._topic_of(name))

    async def kept(self, filters: Iterable[bytes]) -> None:
        """Returns when nobody removes their topics and groups any more, at no broker. They are reserved."""
        topics = sorted({self._topic_of(name) for name in filters} - {""})
        for topic in topics:
            await self.removals.done(topic)
        for first in range(0, len(topics), TOPICS_AT_ONCE):
            await self._elsewhere.before_joining(topics[first : first + TOPICS_AT_ONCE])

    def _topic_of(self, share_filter: bytes) -> str:
        return self._names.shared_topic(split_share(share_filter)[1]) or ""

    async def make(self, share_filter: bytes) -> None:
        """The topic of the filter is there. Raises LogError."""
        topic = self._topic_of(share_filter)
        await self.removals.done(topic)
        if topic and topic not in self._partitions:
            await self.make_topic(topic)

    async def begin(self, share_filter: bytes) -> None:
        """A new group begins at the end of the topic. Raises LogError."""
        name, plain = split_share(share_filter)
        topic = self._names.shared_topic(plain)
        if topic is not None and name is not None:
            await self._begins.begin(self._names.shared_group(name, plain), topic, self._partitions[topic])

    def unfed(self, filters: Iterable[bytes]) -> list[tuple[bytes, Feed]]:
        """The topics of shared filters that nothing is written to from here yet: [(filter, feed)]."""
        plain = {split_share(name)[1]: self._topic_of(name) for name in filters}
        return [
            (name, Feed(topic, self._partitions[topic]))
            for name, topic in plain.items()
            if topic in self._partitions and topic not in self._feeds
        ]

    async def make_topic(self, topic: str) -> None:
        partitions = self._partitions.get(topic, self._settings.shared_partitions)
        await self._log.admin.create(topic, partitions, self._properties)
        self._partitions[topic] = (await self._log.admin.describe(topic)).partitions

    async def make_again(self, topic: str) -> None:
        """Somebody removed it under subscriptions that live. Raises LogError."""
        with contextlib.suppress(TopicNotFound):
            await self._log.admin.describe(topic)
            return  # it is there by now
        log.warning("the topic of a shared subscription was removed by somebody, it is made again", topic=topic)
        await self.make_topic(topic)
        # Its offsets start at 0 again: what the contexts say is of the old one.
        self.claims.forget_topic(topic)
        self._contexts.remove(self._contexts.keys_of_topic(topic, IN_GROUP))
        for share in [one for one in self._shares.values() if one.topic == topic]:
            for partition in list(share.lanes):
                self._book.close(share.lanes.pop(partition), keeps_context=False)
            share.starts.clear()
            self._share_out(share)

    async def learn(self, filters: Iterable[bytes]) -> None:
        """Of sessions that are restored: how many partitions their topics have. Raises LogError."""
        for topic in {self._names.shared_topic(split_share(name)[1]) for name in filters}:
            if topic is not None and topic not in self._partitions:
                await self.make_topic(topic)

    def restored(self, client_ids: Iterable[str]) -> None:
        """Of all contexts that were read at the start those of other brokers go: what they say is older every moment.
        Who comes from there brings along what is stored by then, see `adopt`."""
        self.returns.find(self._has_session)
        groups = {share.group for share in self._shares.values()}
        mine = {SHARED: groups, CLAIMED: client_ids, OFFERED: {*client_ids, RETURNED}}
        self._contexts.give_away_unless(lambda kind, owner: kind not in mine or owner in mine[kind])
        settle_overlaps(self._contexts)

    def adopt(self, client_id: str, filters: Iterable[bytes], stored: Callable[[bytes], bytes | None]) -> None:
        """Before a client that another broker had is a member here: what is stored of its deliveries from these shares.
        What is stored of other members stays theirs: if they are elsewhere, nobody would finish it here."""
        mine = client_id.encode() + b"\0"
        for share_filter in filters:
            name, plain = split_share(share_filter)
            topic = self._topic_of(share_filter)
            if not topic:
                continue
            group = self._names.shared_group(name or b"", plain)
            lanes = self._shares[share_filter].lanes if share_filter in self._shares else {}
            for partition in range(self._partitions.get(topic, 0)):
                for kind in (CLAIMED, OFFERED):
                    own = claim_key(kind, client_id, group, topic, partition)
                    if (value := stored(own)) is not None:
                        self._contexts.adopt(own, value)
                key = make_key(SHARED, group, topic, partition)
                if partition not in lanes and (value := stored(key)) is not None and value.startswith(mine):
                    self._contexts.adopt(key, value)

    def ids_of(self, session: Session) -> tuple[list[int], IdsGiven]:
        """Packet ids that the client has in flight by what is stored, and the last one it was given."""
        return packet_ids(self._contexts, session.client_id, [share.group for share in self.shares_of(session)])

    # ---- members ----

    def subscribed(self, session: Session, share_filter: bytes, options: int, identifier: int) -> None:
        """An APPLICATION client is in the group; connected or not, the group gets its messages through the log."""
        name, plain = split_share(share_filter)
        topic = self._names.shared_topic(plain)
        if topic is None or name is None:
            log.warning(
                "a shared filter has characters no topic can have: the client shares it as a DEVICE does",
                client_id=session.client_id,
                filter=plain.decode(errors="replace"),
            )
            return
        feed = self._feeds.get(topic)
        if feed is None:
            feed = self._feeds[topic] = Feed(topic, self._partitions.get(topic, self._settings.shared_partitions))
        feed_group(self._hub, share_filter, feed)
        share = self._shares.get(share_filter)
        if share is None:
            share = self._shares[share_filter] = self._open(share_filter, self._names.shared_group(name, plain), topic)
        share.members[session.client_id] = Member(session, options, identifier)
        share.sessions[:] = [member.session for member in share.members.values()]
        if self._is_online(session):
            session.hold_part(share.group)
            self._leave(share, session.client_id)  # it may have had other options
            self._share_out(share)

    def _open(self, share_filter: bytes, group: str, topic: str) -> Share:
        consumer = self._log.consumer(group)
        reader = PackReader(consumer, self._settings.shared_max_poll_records, self._book.save)
        share = Share(share_filter, group, topic, reader)

        def assigned(partitions: Sequence[TopicPartition]) -> None:
            self._tasks.spawn(self._assigned(share, [partition.partition for partition in partitions]))

        def revoked(partitions: Sequence[TopicPartition]) -> None:
            share.partitions.difference_update(partition.partition for partition in partitions)
            self._share_out(share)

        reader.start_shared(topic, assigned, revoked)
        return share

    async def _assigned(self, share: Share, partitions: list[int]) -> None:
        for partition in partitions:
            try:
                share.starts[partition] = await self._begins.find_start(share, partition)
            except LogError as error:
                if self._shares.get(share.share_filter) is not share:
                    return  # it has ended meanwhile
                log.warning("the offset of a shared topic is not known", topic=share.topic, error=str(error))
                share.starts[partition] = 0
        # Without those that went to another broker meanwhile.
        share.partitions.update(one for one in partitions if share.reader.holds(TopicPartition(share.topic, one)))
        if self._shares.get(share.share_filter) is share:
            self._share_out(share)
            self.returns.go_on(share)

    def unsubscribed(self, session: Session, share_filter: bytes) -> None:
        share = self._shares.get(share_filter)
        if share is None or share.members.pop(session.client_id, None) is None:
            return
        share.sessions.remove(session)
        session.hold_part(share.group, False)
        self._leave(share, session.client_id)
        self._give_back(self.claims.offers_of(session.client_id, share.group), session)
        if share.members:
            self._share_out(share)
        else:
            self._end(share)

    def attached(self, session: Session) -> None:
        """The client is connected: what it has to finish first, then its part of every group it is in."""
        self._online[session.client_id] = session.generation
        for key in self.claims.keys_of(session.client_id):
            self.claims.open(session, key)
        shares = self.shares_of(session)
        for share in shares:
            session.hold_part(share.group)
        for share in shares:
            self._share_out(share)

    def _is_online(self, session: Session) -> bool:
        """Not before `attached`: until then a session with a connection has reserved no packet ids, and whatever it was
        given now would be opened a second time."""
        return session.connection is not None and self._online.get(session.client_id) == session.generation

    def detached(self, session: Session) -> None:
        self._online.pop(session.client_id, None)
        self.claims.detached(session.client_id)
        self._leaving = session
        try:
            for share in self.shares_of(session):
                self._leave(share, session.client_id)
                self._closed.clear()
                self._share_out(share, leaving=session)
        finally:
            self._leaving = None

    def ended(self, session: Session) -> None:
        """Give messages the client was never sent back to its groups; a later session does not get them."""
        mine = session.client_id.encode() + b"\0"
        for key, value in self._contexts.of_kind(SHARED):
            if value.startswith(mine):
                self._contexts.put(key, b"\0" + abandon(value.removeprefix(mine)))
        keys = self.claims.keys_of(session.client_id)
        for share in self.shares_of(session):
            self.unsubscribed(session, share.share_filter)
        self._give_back(keys)

    def _give_back(self, keys: list[bytes], session: Session | None = None) -> None:
        """Give claims and offers that a client will not take to the members that have their partitions. A session that
        continues finishes the QoS 2 messages it was sent."""
        for key in keys:
            unsent = self.claims.retire(split_key(key)[1], key)
            stored, share_key = self._contexts.get(key), share_key_of(key)
            if stored is None or self._share_of(split_key(share_key)[1]) is None:
                continue
            self.returns.add(key)
            claims = split_context(stored)[1]
            if session is not None and claims is not None:
                online = session if self._is_online(session) else None
                self.claims.add(session.client_id, share_key, claims, unsent=unsent, session=online)
        self._contexts.remove(keys)

    def _share_of(self, group: str) -> Share | None:
        return next((share for share in self._shares.values() if share.group == group), None)

    def _put_back(self, share: Share, partition: int, runs: list[Run]) -> None:
        lane = share.lanes.get(partition)
        if lane is not None:
            self._stop(share, partition)
        key, start = make_key(SHARED, share.group, share.topic, partition), share.starts.get(partition, 0)
        owner, _, context = (self._contexts.get(key) or b"").partition(b"\0")
        context = begin_at(context, start) if context else read_to(start)
        share.starts[partition] = min(start, runs[0][0])
        self._contexts.put(key, owner + b"\0" + put_back(context, runs))
        if lane is not None:
            self._start(share, partition, share.members[lane.session.client_id])
            self._closed.clear()

    def moved_away(self, session: Session) -> None:
        """Another broker has the client: the group goes on there."""
        self._contexts.give_away(self.claims.keys_of(session.client_id))
        for share in self.shares_of(session):
            del share.members[session.client_id]
            share.sessions.remove(session)
            self._leave(share, session.client_id)
            if share.members:
                self._share_out(share)
            else:
                self.removals.moved_away(share.share_filter)
                self._close(share)

    def _close(self, share: Share) -> None:
        """Nobody is left here, but elsewhere. What is stored is theirs: it changes, and ends, without this broker."""
        del self._shares[share.share_filter]
        feed_group(self._hub, share.share_filter, None)
        self._contexts.give_away(self._contexts.keys(SHARED, share.group))
        self._tasks.spawn(share.reader.stop())
        self._forget_unused(share.topic)

    def _end(self, share: Share) -> None:
        """Nobody is left: the contexts go, and the topic with the last group that reads it."""
        if self._elsewhere.has_members(share.share_filter):
            self._close(share)
            # Those may be DEVICE clients, or leave just now as well: who is the last one is found out later.
            self.removals.leave(share.share_filter, share.topic)
            return
        del self._shares[share.share_filter]
        feed_group(self._hub, share.share_filter, None)
        self._contexts.remove(self._contexts.keys(SHARED, share.group))
        self.returns.forget(share.group)
        self._closed.clear()
        self._forget_unused(share.topic)
        self.removals.begin(share.share_filter, share.topic, share.reader.stop())

    def _forget_unused(self, topic: str) -> None:
        """Other brokers may remove it from here on: who shares it next looks whether it is there. Who is about to share
        it has looked."""
        if not any(share.topic == topic for share in self._shares.values()):
            self._feeds.pop(topic, None)
            if not any(self._topic_of(name) == topic for name in self._reserved):
                self._partitions.pop(topic, None)

    def _forget_contexts(self, group: str, topic: str) -> None:
        """The group is gone, and with it what any broker has stored of it."""
        count = self._partitions.get(topic, self._settings.shared_partitions)
        for partition in range(count):
            self._contexts.clear([make_key(SHARED, group, topic, partition), returned_key(group, topic, partition)])

    def use_of(self, share_filter: bytes, topic: str) -> Use:
        """Of a shared filter and its topic, by the clients of this node."""
        if share_filter in self._shares or share_filter in self._reserved:
            return Use.ALL
        is_read = any(other.topic == topic for other in self._shares.values())
        is_read = is_read or any(self._topic_of(name) == topic for name in self._reserved)
        return Use.TOPIC if is_read else Use.NONE

    # ---- partitions ----

    def _share_out(self, share: Share, leaving: Session | None = None) -> None:
        """Gives every partition of this node to a connected member; what changes hands goes on where it was."""
        online = [
            name
            for name, member in share.members.items()
            if self._is_online(member.session) and member.session is not leaving
        ]
        held: dict[str, list[int]] = {}
        for partition, lane in share.lanes.items():
            held.setdefault(lane.session.client_id, []).append(partition)
        shares = assign(share.partitions, online, held)
        wanted = {partition: name for name, own in shares.items() for partition in own}
        for partition, lane in list(share.lanes.items()):
            if wanted.get(partition) != lane.session.client_id:
                self._stop(share, partition)
        for partition, name in wanted.items():
            if partition not in share.lanes:
                self._start(share, partition, share.members[name])
        self._closed.clear()

    def _stop(self, share: Share, partition: int) -> None:
        lane = share.lanes.pop(partition)
        self._book.close(lane)
        self._closed[make_key(SHARED, share.group, share.topic, partition)] = lane.unsent or set()

    def _start(self, share: Share, partition: int, member: Member) -> None:
        client_id = member.session.client_id
        lane = self._new_lane(member, share.group, share.topic, partition)
        lane.peers = share.sessions
        key = make_key(SHARED, share.group, share.topic, partition)
        start = share.starts.get(partition, 0)
        context = self._context_for(client_id, key, start)
        if context is not None:
            lane.restore(context)
            if key in self._closed:  # its own until now
                lane.is_live, lane.unsent = True, self._closed[key]
        else:
            lane.start_at(start)
        share.lanes[partition] = lane
        self.claims.precede(share.group, lane)
        self._book.open(lane, Place(key, client_id.encode() + b"\0", share.reader))

    def _new_lane(self, member: Member, group: str, topic: str, partition: int) -> Lane:
        return Lane(
            member.session,
            topic,
            partition,
            qos=member.options & QOS,
            identifier=member.identifier,
            keeps_retain=bool(member.options & RETAIN_AS_PUBLISHED),
            is_shared=True,
            pack_size=self._settings.shared_max_poll_records,
            part=group,
        )

    def _lane_for_claims(self, kind: str, session: Session, group: str, topic: str, partition: int) -> Lane:
        """Return a lane. Claims keep the QoS they were sent with; offers get that of the subscription."""
        share = next((one for one in self.shares_of(session) if one.group == group), None)
        if share is None or kind != OFFERED:
            return Lane(session, topic, partition, is_shared=True, part=group)
        lane = self._new_lane(share.members[session.client_id], group, topic, partition)
        lane.peers = share.sessions
        return lane

    def _context_for(self, client_id: str, key: bytes, start: int) -> bytes | None:
        """Return what the client goes on with from `start` on, which is what the group has committed. What another
        client has still to finish is kept for that one."""
        stored = self._contexts.get(key)
        if stored is None:
            return None
        name, _, context = stored.partition(b"\0")
        owner, context = name.decode(), begin_at(context, start)
        if owner == client_id:
            return context
        if not self._has_session(owner):
            return abandon(context)
        rest, claims = split_context(context)
        if claims is not None:
            session = self._find_session(owner)  # it may have left the share, and still has to finish what it got
            if session is not None and (session is self._leaving or not self._is_online(session)):
                session = None
            # Not closed just now: the partition was given to this node after its owner connected, as after a restart.
            unsent = self._closed.pop(key, None)
            self.claims.add(owner, key, claims, unsent=ids_in(claims) if unsent is None else unsent, session=session)
            # Stored together: after a crash no message is in both.
            self._contexts.put(key, client_id.encode() + b"\0" + rest)
        return rest

    def _restart(self, share: Share, partition: int, member: Member) -> None:
        self._stop(share, partition)
        self._start(share, partition, member)
        self._closed.clear()

    def _leave(self, share: Share, client_id: str) -> None:
        for partition, lane in list(share.lanes.items()):
            if lane.session.client_id == client_id:
                self._stop(share, partition)
