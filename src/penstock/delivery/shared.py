"""Shared subscriptions of APPLICATION clients: a topic for each filter, a consumer group for each share name.

This node is one member of the group; the partitions it gets are shared out among its connected clients, as few as
possible changing hands. Each client has a lane of its own for each partition. A partition that another client goes on
with takes along what was not acknowledged; only QoS 2 messages under way stay with the client they were sent to.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Coroutine, Iterable, Sequence
from typing import Any

from penstock._ext.connection import Feed, Hub, Lane, Session, read_context, split_context
from penstock._ext.packets import split_share
from penstock.core.logging import RateLimited, get_logger
from penstock.core.settings.application import ApplicationSettings
from penstock.delivery.contexts import CLAIMED, OFFERED, SHARED, Contexts, make_key, split_key
from penstock.delivery.lane_book import LaneBook, Place
from penstock.delivery.pack_reader import PackReader, ReaderPool
from penstock.delivery.share_begin import ShareBegins
from penstock.delivery.share_contexts import IN_GROUP, claim_key, make_offer, merge_claims, packet_ids
from penstock.delivery.share_removal import ShareRemovals
from penstock.delivery.shares import Member, Share, may_receive, share_out
from penstock.logs.base import Log, LogError, TopicNotFound, TopicPartition, parse_properties
from penstock.persistence.application_names import ApplicationNames
from penstock.persistence.housekeeper import Use

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
    ) -> None:
        self._find_session = find_session
        self._hub = hub
        self._log = log_provider
        self._contexts = contexts
        self._names = names
        self._settings = settings
        self._book = book
        book.on_denied = self._hand_over
        self._properties = parse_properties(settings.shared_topic_properties)
        self._shares: dict[bytes, Share] = {}  # by $share/<name>/<filter>
        self._feeds: dict[str, Feed] = {}  # by topic
        self._partitions: dict[str, int] = {}  # of the topics that are there
        self._claims: dict[str, list[tuple[Lane, PackReader[Lane], bytes]]] = {}  # by client
        self._claim_readers = ReaderPool(lambda: log_provider.consumer(""), settings.shared_max_poll_records, book.save)
        self._leaving: Session | None = None
        self._closed: dict[bytes, set[int]] = {}  # partitions that change hands now: packet ids not sent on it
        self._reserved: dict[bytes, int] = {}  # filters that are being prepared, and for how many clients
        self.is_elsewhere: Callable[[bytes], bool] | None = None  # whether other brokers have members of a group
        self.before_joining: Callable[[Sequence[str]], Awaitable[None]] | None = None  # tells other brokers of topics
        self.removals = ShareRemovals(log_provider, names, settings, self.use_of, self._forget_contexts)
        self._begins = ShareBegins(log_provider, contexts)
        self._tasks: set[asyncio.Task[None]] = set()
        self._warnings = RateLimited(interval=10.0)

    async def stop(self) -> None:
        for share in list(self._shares.values()):
            await share.reader.stop()
        await self._claim_readers.stop()
        self.removals.stop()
        for task in list(self._tasks):
            task.cancel()

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
            suppressed = self._warnings.try_pass("max_shares")
            if suppressed is not None:
                log.warning(
                    "a shared subscription is refused: there are as many as application.max_shares allows",
                    filter=share_filter.decode(errors="replace"),
                    max_shares=most,
                    suppressed=suppressed,
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
            if self._is_elsewhere(share_filter):
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
        if self.before_joining is not None:
            for first in range(0, len(topics), TOPICS_AT_ONCE):
                await self.before_joining(topics[first : first + TOPICS_AT_ONCE])

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
        # Its offsets begin anew: what the contexts say is of the old one.
        for claims in self._claims.values():
            for claim in [one for one in claims if one[0].topic == topic]:
                claims.remove(claim)
                self._book.close(claim[0], keeps_context=False)
                self._spawn(self._claim_readers.release(claim[1]))
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

    def restored(self, client_ids: Container[str]) -> None:
        """Of all contexts that were read at the start those of other brokers go: what they say is older every moment.
        Who comes from there brings along what is stored by then, see `adopt`."""
        groups = {share.group for share in self._shares.values()}
        mine = {SHARED: groups, CLAIMED: client_ids, OFFERED: client_ids}
        self._contexts.give_away_unless(lambda kind, owner: kind not in mine or owner in mine[kind])

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

    def ids_of(self, session: Session) -> list[int]:
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
        self._hub.feed_group(share_filter, feed)
        share = self._shares.get(share_filter)
        if share is None:
            share = self._shares[share_filter] = self._open(share_filter, self._names.shared_group(name, plain), topic)
        share.members[session.client_id] = Member(session, options, identifier)
        share.sessions[:] = [member.session for member in share.members.values()]
        if session.connection is not None:
            self._leave(share, session.client_id)  # it may have had other options
            self._share_out(share)

    def _open(self, share_filter: bytes, group: str, topic: str) -> Share:
        consumer = self._log.consumer(group)
        reader = PackReader(consumer, self._settings.shared_max_poll_records, self._book.save)
        share = Share(share_filter, group, topic, reader)

        def assigned(partitions: Sequence[TopicPartition]) -> None:
            self._spawn(self._assigned(share, [partition.partition for partition in partitions]))

        def revoked(partitions: Sequence[TopicPartition]) -> None:
            share.partitions.difference_update(partition.partition for partition in partitions)
            self._share_out(share)

        reader.start_shared(topic, assigned, revoked)
        return share

    async def _assigned(self, share: Share, partitions: list[int]) -> None:
        for partition in partitions:
            try:
                share.starts[partition] = await self._find_start(share, partition)
            except LogError as error:
                if self._shares.get(share.share_filter) is not share:
                    return  # it has ended meanwhile
                log.warning("the offset of a shared topic is not known", topic=share.topic, error=str(error))
                share.starts[partition] = 0
        share.partitions.update(partitions)
        if self._shares.get(share.share_filter) is share:
            self._share_out(share)

    async def _find_start(self, share: Share, partition: int) -> int:
        """Where the group is. Never behind the end of the topic: everything before it would be passed over. Raises
        LogError."""
        place = TopicPartition(share.topic, partition)
        start = await share.reader.committed(place) or 0
        end = (await share.reader.watermarks(place)).end
        key = make_key(SHARED, share.group, share.topic, partition)
        _, _, context = (self._contexts.get(key) or b"").partition(b"\0")
        furthest = max(start, read_context(context)["committed"] if context else 0)
        if furthest > end and partition not in share.lanes:
            what = "the topic of a shared subscription was made anew, the group begins with it"
            log.warning(what, topic=share.topic, partition=partition, committed=furthest, end=end)
            self._contexts.clear([key])
        return start if start <= end else 0

    def unsubscribed(self, session: Session, share_filter: bytes) -> None:
        share = self._shares.get(share_filter)
        if share is None or share.members.pop(session.client_id, None) is None:
            return
        share.sessions.remove(session)
        self._contexts.remove(self._offers_of(session.client_id, share))
        self._leave(share, session.client_id)
        if share.members:
            self._share_out(share)
        else:
            self._end(share)

    def attached(self, session: Session) -> None:
        """The client is connected: what it has to finish first, then its part of every group it is in."""
        for key in [*self._contexts.keys(CLAIMED, session.client_id), *self._contexts.keys(OFFERED, session.client_id)]:
            self._finish_claims(session, key)
        for share in self.shares_of(session):
            self._share_out(share)

    def detached(self, session: Session) -> None:
        for lane, reader, _ in self._claims.pop(session.client_id, ()):
            self._book.close(lane)
            self._spawn(self._claim_readers.release(reader))
        self._leaving = session
        try:
            for share in self.shares_of(session):
                self._leave(share, session.client_id)
                self._closed.clear()
                self._share_out(share, leaving=session)
        finally:
            self._leaving = None

    def ended(self, session: Session) -> None:
        self._contexts.remove(self._contexts.keys(CLAIMED, session.client_id))
        self._contexts.remove(self._contexts.keys(OFFERED, session.client_id))
        for share in self.shares_of(session):
            self.unsubscribed(session, share.share_filter)

    def moved_away(self, session: Session) -> None:
        """Another broker has the client: the group goes on there."""
        for kind in (CLAIMED, OFFERED):
            self._contexts.give_away(self._contexts.keys(kind, session.client_id))
        for share in self.shares_of(session):
            del share.members[session.client_id]
            self._leave(share, session.client_id)
            if share.members:
                self._share_out(share)
            else:
                self.removals.moved_away(share.share_filter)
                self._close(share)

    def _close(self, share: Share) -> None:
        """Nobody is left here, but elsewhere. What is stored is theirs: it changes, and ends, without this broker."""
        del self._shares[share.share_filter]
        self._hub.feed_group(share.share_filter, None)
        self._contexts.give_away(self._contexts.keys(SHARED, share.group))
        self._spawn(share.reader.stop())
        self._forget_unused(share.topic)

    def _end(self, share: Share) -> None:
        """Nobody is left: the contexts go, and the topic with the last group that reads it."""
        if self._is_elsewhere(share.share_filter):
            self._close(share)
            # Those may be DEVICE clients, or leave just now as well: who is the last one is found out later.
            self.removals.leave(share.share_filter, share.topic)
            return
        del self._shares[share.share_filter]
        self._hub.feed_group(share.share_filter, None)
        self._contexts.remove(self._contexts.keys(SHARED, share.group))
        self._closed.clear()
        self._forget_unused(share.topic)
        self.removals.begin(share.share_filter, share.topic, share.reader.stop())

    def _is_elsewhere(self, share_filter: bytes) -> bool:
        return self.is_elsewhere is not None and self.is_elsewhere(share_filter)

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
        self._contexts.clear(make_key(SHARED, group, topic, partition) for partition in range(count))

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
            if member.session.connection is not None and member.session is not leaving
        ]
        owners = {partition: lane.session.client_id for partition, lane in share.lanes.items()}
        wanted = share_out(share.partitions, online, owners)
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
        lane = self._new_lane(member, share.topic, partition)
        lane.peers = share.sessions
        key = make_key(SHARED, share.group, share.topic, partition)
        context = self._context_for(client_id, key)
        start = share.starts.get(partition, 0)
        if context is not None and read_context(context)["committed"] >= start:
            lane.restore(context)
            if key in self._closed:  # its own until now
                lane.is_live, lane.unsent = True, self._closed[key]
        else:
            lane.start_at(start)
        share.lanes[partition] = lane
        self._book.open(lane, Place(key, client_id.encode() + b"\0", share.reader))

    def _new_lane(self, member: Member, topic: str, partition: int) -> Lane:
        return Lane(
            member.session,
            topic,
            partition,
            qos=member.options & QOS,
            identifier=member.identifier,
            keeps_retain=bool(member.options & RETAIN_AS_PUBLISHED),
            is_shared=True,
            pack_size=self._settings.shared_max_poll_records,
        )

    def _member(self, session: Session, group: str) -> Member | None:
        return next((one.members[session.client_id] for one in self.shares_of(session) if one.group == group), None)

    def _context_for(self, client_id: str, key: bytes) -> bytes | None:
        """What the client goes on with. What another one has still to finish is kept for that one."""
        stored = self._contexts.get(key)
        if stored is None:
            return None
        owner, _, context = stored.partition(b"\0")
        if owner.decode() == client_id:
            return context
        rest, claims = split_context(context)
        if claims is not None:
            self._claim(owner.decode(), key, claims)
            # Stored together: after a crash no message is in both.
            self._contexts.put(key, client_id.encode() + b"\0" + rest)
        return rest

    def _claim(self, owner: str, key: bytes, claims: bytes) -> None:
        """QoS 2 messages that a client still has to finish, beside those of an earlier absence."""
        _, group, topic, partition = split_key(key)
        own = claim_key(CLAIMED, owner, group, topic, partition)
        unsent = self._closed.pop(key, set()) | self._retire(owner, own)
        before = self._contexts.get(own)
        self._contexts.put(own, claims if before is None else merge_claims(before, claims))
        session = self._find_session(owner)  # it may have left the share, and still has to finish what it got
        if session is not None and session.connection is not None and session is not self._leaving:
            self._finish_claims(session, own, live_without=unsent)  # its partition has moved, it has not

    def _retire(self, client_id: str, key: bytes) -> set[int]:
        """The claims that are being finished go on with others that come to them."""
        unsent: set[int] = set()
        for lane, reader, own in [one for one in self._claims.get(client_id, ()) if one[2] == key]:
            self._book.close(lane)
            unsent |= lane.unsent or set()
            self._claims[client_id].remove((lane, reader, own))
            self._spawn(self._claim_readers.release(reader))
        return unsent

    def _hand_over(self, lane: Lane) -> None:
        """Its client may not have the next message, but another member may: it goes on with the partition, or gets that
        one message when it is back. Nobody is left who may: the message is dropped."""
        share = next((one for one in self._shares.values() if one.lanes.get(lane.partition) is lane), None)
        topic = lane.denied_topic
        if share is None or topic is None:
            return
        able = [member for member in share.members.values() if may_receive(member.session, topic)]
        online = [one for one in able if one.session.connection is not None and one.session is not self._leaving]
        if online:
            owners = [other.session for other in share.lanes.values()]
            self._stop(share, lane.partition)
            self._start(share, lane.partition, min(online, key=lambda one: owners.count(one.session)))
            self._closed.clear()
            return
        if able:
            self._keep_for(able[0].session.client_id, share, lane)
        lane.pass_over(counts=not able)
        # Stored together: after a crash the message does not come from both.
        key = make_key(SHARED, share.group, share.topic, lane.partition)
        self._contexts.put(key, lane.session.client_id.encode() + b"\0" + lane.peek())
        lane.is_paused = False
        share.reader.add(lane)

    def _keep_for(self, client_id: str, share: Share, lane: Lane) -> None:
        own = claim_key(OFFERED, client_id, share.group, share.topic, lane.partition)
        offer, before = make_offer(lane.position), self._contexts.get(own)
        self._contexts.put(own, offer if before is None else merge_claims(before, offer))

    def _offers_of(self, client_id: str, share: Share) -> list[bytes]:
        name = f"{share.topic}{IN_GROUP}{share.group}"
        return [key for key in self._contexts.keys(OFFERED, client_id) if split_key(key)[2] == name]

    def _leave(self, share: Share, client_id: str) -> None:
        for partition, lane in list(share.lanes.items()):
            if lane.session.client_id == client_id:
                self._stop(share, partition)

    # ---- QoS 2 messages of partitions that others have now ----

    def _finish_claims(self, session: Session, key: bytes, *, live_without: set[int] | None = None) -> None:
        """`live_without`: what is in flight was sent on this connection, except these packet ids."""
        context = self._contexts.get(key)
        if context is None:
            return
        kind, _, name, partition = split_key(key)
        topic, _, group = name.partition(IN_GROUP)
        # What was sent keeps its QoS; what is sent for the first time has that of the subscription.
        member = self._member(session, group) if kind == OFFERED else None
        if member is None:
            lane = Lane(session, topic, partition, is_shared=True)
        else:
            lane = self._new_lane(member, topic, partition)
        lane.restore(context)
        lane.until = read_context(context)["end"]
        lane.is_live, lane.unsent = live_without is not None, live_without
        reader = self._claim_readers.reader_for(TopicPartition(topic, partition))
        self._claims.setdefault(session.client_id, []).append((lane, reader, key))
        self._book.open(lane, Place(key, b"", reader))

    def sweep_claims(self) -> None:
        """Claims that are finished go."""
        for client_id, lanes in list(self._claims.items()):
            for lane, reader, key in list(lanes):
                if lane.committed >= lane.until and not lane.packs:
                    lanes.remove((lane, reader, key))
                    self._book.close(lane, keeps_context=False)
                    self._contexts.remove([key])
                    self._spawn(self._claim_readers.release(reader))
            if not lanes:
                del self._claims[client_id]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
