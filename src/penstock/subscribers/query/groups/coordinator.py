"""The coordinator of consumer groups at the node that owns them; see Coordinator in ports.py.

Every group has one timer, for the first of its deadlines. A rebalance waits for `rebalance_delay`, so that consumers
that start together are shared out once, and needs nothing but the number of partitions; should the log not even say
that, it is tried again, and the members keep what they have.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from penstock.core.logging import Throttled, get_logger
from penstock.core.ports import Scheduler, Timer
from penstock.core.signal import Signal
from penstock.core.tasks import TaskSet
from penstock.subscribers.query.catalogue import QueryTopic
from penstock.subscribers.query.groups import views
from penstock.subscribers.query.groups.assignment import build_assignment
from penstock.subscribers.query.groups.group import READY, Group, Member, Terms
from penstock.subscribers.query.groups.limits import GroupSettings, check_commit, check_group, check_subscribe
from penstock.subscribers.query.groups.offsets import Key, OffsetBook
from penstock.subscribers.query.ports import Identity, Source
from penstock.subscribers.query.privileges import unknown
from penstock_client import wire
from penstock_client.errors import (
    BadRequest,
    DataError,
    NotAllowed,
    NotAMember,
    NotFound,
    OutOfRange,
    StaleEpoch,
    Unavailable,
)

log = get_logger("penstock.datasub")

RETRY_SECONDS = 0.5
WATCH_SECONDS = 2.0
SWEEP_SECONDS = 60.0
TOLD_SECONDS = 3_600.0
"""How old what is stored of a group that is alive may say that it is."""
RESTORED_SECONDS = 30.0
"""How long a group that was there before this process may take to come back, before what it had begun is forgotten."""


class Topics(Protocol):
    """The part of the catalogue that groups need."""

    def topic(self, name: str) -> QueryTopic | None: ...
    async def look_for(self, name: str) -> QueryTopic | None:
        """After having looked whether another node has just made it."""
        ...


Refusal = Callable[[Identity, str], str | None]
"""Why this one may not subscribe to the topic; None: may."""


def new_consumer_id() -> str:
    return os.urandom(8).hex()


class GroupCoordinator:
    def __init__(
        self,
        topics: Topics,
        refusal: Refusal,
        source: Source,
        book: OffsetBook,
        scheduler: Scheduler,
        *,
        settings: GroupSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        new_id: Callable[[], str] = new_consumer_id,
    ) -> None:
        self._topics = topics
        self._refusal = refusal
        self._source = source
        self._book = book
        self._scheduler = scheduler
        self._settings = settings or GroupSettings()
        self._clock = clock
        self._wall_clock = wall_clock
        self._new_id = new_id
        self.groups: dict[str, Group] = {}
        self._timers: dict[str, tuple[float, Timer]] = {}
        self._rebalancing: set[str] = set()
        self._partitions: list[int] = []
        self._restored_until = 0.0
        self._started = wall_clock(), clock()
        self._watcher: Timer | None = None
        self._sweeper: Timer | None = None
        self._tasks = TaskSet()
        self._warnings = Throttled(log, interval=10.0)
        self.rebalances = self.removed = self.commits = self.fenced = 0
        self.on_changed = Signal[[str, str]]()

    # ---- life ----

    async def start(self) -> None:
        self._restored_until = self._clock() + RESTORED_SECONDS
        self._watcher = self._scheduler.call_later(WATCH_SECONDS, self._watch)
        self._sweeper = self._scheduler.call_later(RESTORED_SECONDS, self._sweep)

    async def stop(self) -> None:
        for timer in (self._watcher, self._sweeper, *(timer for _, timer in self._timers.values())):
            if timer is not None:
                timer.cancel()
        self._tasks.cancel()

    # ---- requests ----

    async def subscribe(self, who: Identity, request: wire.Subscribe, *, is_new: bool = False) -> wire.Assignment:
        """`is_new`: the consumer has an id, and yet it is its first subscription."""
        check_subscribe(request, self._settings)
        known = self.groups.get(request.group)
        member = None if known is None else known.members.get(request.consumer)
        if member is not None:
            _check_user(member, who)
        wanted = tuple(dict.fromkeys(request.topics))
        if not wanted:
            if known is not None and member is not None:
                self._let_go(known, member)
            return wire.Assignment(request.consumer, 0, READY, [], [], {})
        topics, refused = await self._check_topics(who, request, wanted, is_new=is_new or not request.consumer)
        # Others may have come and gone meanwhile.
        group = self._open(request.group)
        member = group.members.get(request.consumer)
        if member is None:
            member = self._join(group, who, request, topics)
        else:
            member.who, member.client_id = who, request.client_id
            if topics != member.topics:
                group.change_topics(member, topics)
                self.on_changed(group.name, member.id)
                self._rebalance_soon(group)
        member.terms = _terms_of(request)
        member.refused = refused
        now = self._clock()
        member.heard_at = member.polled_at = now  # it is neither silent nor idle who subscribes
        member.subscribed_ms = self._now_ms()
        self._arm(group)
        return await self._assignment(group, member)

    async def _check_topics(
        self, who: Identity, request: wire.Subscribe, wanted: tuple[str, ...], *, is_new: bool
    ) -> tuple[tuple[str, ...], dict[str, str]]:
        topics: list[str] = []
        refused: dict[str, DataError] = {}
        for name in wanted:
            try:
                topic = await self._find_for(who, name)
                if request.replay and topic.mode != "query":
                    raise BadRequest(f"{name} cannot be replayed: only topics of queries can")
                topics.append(name)
            except (NotFound, NotAllowed) as error:
                refused[name] = error
        if refused and (is_new or not topics):
            raise next(iter(refused.values()))
        return tuple(topics), {name: error.message for name, error in refused.items()}

    async def _find_for(self, who: Identity, name: str) -> QueryTopic:
        """Who may not read a topic of this name hears the same whether there is one or not."""
        topic = await self._topics.look_for(name)
        if self._refusal(who, name) is not None:
            raise NotAllowed(unknown(who, "subscribe", name))
        if topic is None:
            raise NotFound(f"there is no topic {name}")
        return topic

    def _open(self, name: str) -> Group:
        group = self.groups.get(name)
        if group is None:
            stored = self._book.groups()
            if name not in stored:
                count = len(stored) + sum(1 for each in self.groups if each not in stored)
                if count >= self._settings.max_groups:
                    raise BadRequest(f"there are {count} groups already, as many as are allowed")
            group = self.groups[name] = Group(name, self._book.open(name))
        return group

    def _join(self, group: Group, who: Identity, request: wire.Subscribe, topics: tuple[str, ...]) -> Member:
        if len(group.members) >= self._settings.max_members:
            raise BadRequest(f"group {group.name} has {len(group.members)} members already, as many as are allowed")
        if sum(len(each.members) for each in self.groups.values()) >= self._settings.max_consumers:
            raise BadRequest("there are as many consumers already as are allowed")
        now, now_ms = self._clock(), self._now_ms()
        member = Member(
            id=request.consumer or self._new_id(),
            who=who,
            client_id=request.client_id or who.client_id,
            terms=_terms_of(request),
            topics=topics,
            heard_at=now,
            polled_at=now,
            epoch=0,
            joined_ms=now_ms,
            subscribed_ms=now_ms,
        )
        group.add(member)
        self._rebalance_soon(group)
        log.info("a consumer has joined", group=group.name, consumer=member.id, topics=len(topics))
        return member

    async def ask(self, who: Identity, request: wire.Ask) -> wire.Assignment | None:
        group, member = self._heard(who, request.group, request.consumer)
        return None if request.epoch == member.epoch else await self._assignment(group, member)

    async def heartbeat(self, who: Identity, request: wire.Heartbeat) -> wire.Assignment | None:
        group, member = self._heard(who, request.group, request.consumer)
        if request.polled:
            member.polled_at = self._clock()
            member.polled_ms = self._now_ms()
        counts = request.counts if len(request.counts) == len(request.positions) else ()
        for number, (topic, partition, position) in enumerate(request.positions):
            if partition in member.owned.get(topic, ()):
                member.positions[topic, partition] = position
                if counts:
                    member.rows[topic, partition] = counts[number]
        return None if request.epoch == member.epoch else await self._assignment(group, member)

    async def commit(self, who: Identity, request: wire.Commit) -> None:
        check_commit(request)
        _, member = self._heard(who, request.group, request.consumer)

        def check() -> None:
            group, _ = self._find(who, request.group, request.consumer)
            for topic, partition, _ in request.offsets:
                group.check_owner(request.consumer, request.epoch, topic, partition)

        try:
            check()
            for topic, partition, offset in request.offsets:
                await self._check_end(topic, partition, offset)
            await self._book.commit(request.group, request.offsets, check)
        except (NotAMember, StaleEpoch):
            self.fenced += 1
            raise
        self.commits += 1
        for topic, partition, offset in request.offsets:
            place = topic, partition
            member.positions[place] = max(offset, member.positions.get(place, 0))

    async def _check_end(self, topic: str, partition: int, offset: int) -> None:
        seen = self._source.last_seen(partition)
        if seen is None or offset > seen[1]:
            seen = await self._source.watermarks(partition)
        if offset > seen[1]:
            error = OutOfRange(f"offset {offset} of partition {partition} of {topic} is behind its end, {seen[1]}")
            error.begin, error.end = seen
            raise error

    async def committed(self, request: wire.Positions) -> list[int | None]:
        check_group(request.group)
        return [self._book.of(request.group, topic).committed.get(number) for topic, number in request.partitions]

    async def leave(self, who: Identity, request: wire.Leave) -> None:
        group = self.groups.get(request.group)
        member = None if group is None else group.members.get(request.consumer)
        if group is None or member is None:
            return  # it is gone, as it wants to be
        _check_user(member, who)
        self._let_go(group, member)

    def _let_go(self, group: Group, member: Member) -> None:
        group.change_topics(member, ())
        self.on_changed(group.name, member.id)
        self._rebalance_soon(group)
        log.info("a consumer leaves", group=group.name, consumer=member.id)

    async def check_fetch(self, who: Identity, request: wire.Fetch) -> None:
        self.check_fetch_now(who, request)

    def check_fetch_now(self, who: Identity, request: wire.Fetch) -> None:
        group, member = self._find(who, request.group, request.consumer)
        if request.topic in member.refused:
            raise NotAllowed(member.refused[request.topic])
        # Of a topic that is not its own a consumer does not hear whether it is there.
        group.check(request.consumer, request.epoch, request.topic, request.partition)
        if self._topics.topic(request.topic) is None:
            raise NotFound(f"there is no topic {request.topic}")

    def _find(self, who: Identity, name: str, consumer: str) -> tuple[Group, Member]:
        group = self.groups.get(name) or Group(name, 0)
        member = group.member(consumer)
        _check_user(member, who)
        return group, member

    def _heard(self, who: Identity, name: str, consumer: str) -> tuple[Group, Member]:
        group, member = self._find(who, name, consumer)
        member.heard_at = self._clock()
        return group, member

    async def _assignment(self, group: Group, member: Member) -> wire.Assignment:
        return await build_assignment(group, member, self._topics.topic, self._source, self._book)

    # ---- topics that change ----

    def topic_dropped(self, name: str) -> None:
        self._book.topic_dropped(name)
        for group in self.groups.values():
            self._refuse(group, group.members_of(name), name, f"topic {name} was dropped")

    def topic_reloaded(self, name: str) -> None:
        """Every partition is subscribed to again: with another query rows are other rows."""
        for group in self.groups.values():
            group.renew(name)
            for member in group.members_of(name):
                self.on_changed(group.name, member.id)

    def access_changed(self, topic: str | None = None) -> None:
        """Whoever may not read any more is told so, of one topic or of all."""
        for group in self.groups.values():
            for name in group.topics() if topic is None else [topic]:
                for member in group.members_of(name):
                    if (reason := self._refusal(member.who, name)) is not None:
                        self._refuse(group, [member], name, reason)

    def _refuse(self, group: Group, members: Iterable[Member], topic: str, reason: str) -> None:
        for member in members:
            group.refuse(member, topic, reason)
            self.on_changed(group.name, member.id)
            self._rebalance_soon(group)

    async def groups_of(self, topic: str) -> list[str]:
        """Those with members that read it."""
        return sorted(group.name for group in self.groups.values() if group.members_of(topic))

    async def drop_group(self, name: str, topic: str, *, is_forced: bool) -> None:
        """Forgets how far the group is in the topic. Raises NotFound, BadRequest, Unavailable."""
        group = self.groups.get(name)
        members = [] if group is None else group.members_of(topic)
        if not members and (name, topic) not in self._book:
            raise NotFound(f"there is no group {name} on topic {topic}")
        if members and not is_forced:
            raise BadRequest(
                f"group {name} has {len(members)} members that read {topic}: close them, or use "
                f"DROP CONSUMER GROUP FORCE {name} ON {topic}"
            )
        if group is not None:
            self._refuse(group, members, topic, f"group {name} was dropped from topic {topic}")
        await self._book.remove([(name, topic)])

    # ---- views ----

    async def consumers(self) -> list[list[object]]:
        return views.consumer_rows(group for _, group in sorted(self.groups.items()))

    async def subscriptions(self) -> list[list[object]]:
        keys: set[Key] = {key for key in self._book if self.is_served(key[0])}
        keys |= {(group.name, topic) for group in self.groups.values() for topic in group.topics()}
        rows: list[list[object]] = []
        for name, topic in sorted(keys, key=lambda key: (key[1], key[0])):
            group = self.groups.get(name) or Group(name, 0)
            partitions = self._partitions or [*self._book.of(name, topic).committed]
            rows += views.subscription_rows(group, topic, partitions, self._book, self._source)
        return rows

    def release(self, name: str) -> None:
        """Another node is the coordinator of the group now: its members come to that one."""
        group = self.groups.pop(name, None)
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer[1].cancel()
        if group is not None:
            self._book.close(name)
            log.info("a group went to another node", group=name, members=len(group.members))

    def is_served(self, group: str) -> bool:
        """Whether the group's record is shown by this node."""
        return self._book.is_mine(group)

    def positions(self) -> dict[Key, dict[int, int]]:
        """See Progress in ports.py. A consumer that replays stores nothing: it needs what it has not read."""
        found: dict[Key, dict[int, int]] = {}
        oldest = self._oldest_ms()
        for key in self._book:
            record = self._book.of(*key)
            if record.active >= oldest or self._has_members(key):
                found[key] = {**record.starts, **record.committed}
        for group in self.groups.values():
            for member in group.members.values():
                if member.terms.replay:
                    for (topic, partition), position in member.positions.items():
                        found.setdefault((group.name, topic), {})[partition] = position
        return found

    def needed(self) -> dict[int, int]:
        lowest: dict[int, int] = {}
        for positions in self.positions().values():
            for partition, position in positions.items():
                lowest[partition] = min(position, lowest.get(partition, position))
        return lowest

    def _has_members(self, key: Key) -> bool:
        group = self.groups.get(key[0])
        return group is not None and bool(group.members_of(key[1]))

    def counters(self) -> dict[str, int]:
        members = [member for group in self.groups.values() for member in group.members.values()]
        return {
            "groups": len(self.groups),
            "consumers": len(members),
            "consumers_rebalancing": sum(member.state != READY for member in members),
            "rebalances_total": self.rebalances,
            "consumers_removed_total": self.removed,
            "commits_total": self.commits,
            "commits_refused_total": self.fenced,
        }

    # ---- time ----

    def _now_ms(self) -> int:
        return int(self._wall_clock() * 1_000)

    def _oldest_ms(self) -> int:
        """Groups that were used last before that are forgotten. A clock that is set while the broker runs, forwards
        from 1970 or by mistake, makes no group older."""
        wall, clock = self._started
        passed = wall + self._clock() - clock
        return int((min(self._wall_clock(), passed) - self._settings.offsets_retention) * 1_000)

    def _rebalance_soon(self, group: Group) -> None:
        group.need_rebalance(self._clock() + self._settings.rebalance_delay)
        self._arm(group)

    def _arm(self, group: Group) -> None:
        """The timer never comes later than the group's first deadline; it may come early, and then goes on waiting."""
        deadline = group.next_deadline()
        armed = self._timers.get(group.name)
        if deadline is None or (armed is not None and armed[0] <= deadline):
            return
        if armed is not None:
            armed[1].cancel()
        timer = self._scheduler.call_later(max(0.0, deadline - self._clock()), self._on_timer, group)
        self._timers[group.name] = deadline, timer

    def _on_timer(self, group: Group) -> None:
        self._timers.pop(group.name, None)
        if self.groups.get(group.name) is not group:
            return
        if not self._book.is_mine(group.name):
            self.release(group.name)
            return
        now = self._clock()
        for member, reason in group.remove_silent(now):
            self.removed += 1
            log.warning("a consumer was removed from its group", group=group.name, consumer=member.id, reason=reason)
            group.need_rebalance(now)
            self.on_changed(group.name, member.id)
        if group.due_at is not None and group.due_at <= now:
            if group.name in self._rebalancing:
                group.due_at = now + RETRY_SECONDS  # one at a time
            else:
                self._tasks.spawn(self._rebalance(group))
                return
        self._arm(group)

    async def _rebalance(self, group: Group) -> None:
        self._rebalancing.add(group.name)
        group.due_at = None
        try:
            self._partitions = await self._source.partitions()
            if self.groups.get(group.name) is not group:
                return  # another node has it by now
            before = len(group.members)
            changed = group.rebalance(
                self._partitions, self._now_ms(), lambda name: self._topics.topic(name) is not None
            )
            self.rebalances += 1
            for member in changed:
                self.on_changed(group.name, member.id)
            log.info("rebalanced", group=group.name, members=len(group.members), before=before, changed=len(changed))
        except Unavailable as error:
            self._warnings.warning("a group cannot be rebalanced now", error=str(error))
            group.need_rebalance(self._clock() + RETRY_SECONDS)
        finally:
            self._rebalancing.discard(group.name)
        if group.members:
            self._arm(group)
        else:
            await self._end(group)

    async def _end(self, group: Group) -> None:
        """Nobody is left. What it has committed stays."""
        if self.groups.get(group.name) is group:
            del self.groups[group.name]
        timer = self._timers.pop(group.name, None)
        if timer is not None:
            timer[1].cancel()
        try:
            await self._book.rest(group.name)
        except DataError as error:
            log.warning("the end of a group could not be stored", group=group.name, error=str(error))

    def _watch(self) -> None:
        self._watcher = self._scheduler.call_later(WATCH_SECONDS, self._watch)
        if self.groups:
            self._tasks.spawn(self._look_for_partitions())

    async def _look_for_partitions(self) -> None:
        try:
            partitions = await self._source.partitions()
        except Unavailable:
            return  # who needs them says so
        if partitions != self._partitions:
            self._partitions = partitions
            for group in self.groups.values():
                self._rebalance_soon(group)

    def _sweep(self) -> None:
        self._sweeper = self._scheduler.call_later(min(SWEEP_SECONDS, self._longest_untold()), self._sweep)
        self._tasks.spawn(self._tidy())

    def _longest_untold(self) -> float:
        return min(TOLD_SECONDS, self._settings.offsets_retention / 4)

    async def _tidy(self) -> None:
        try:
            await self._tell_who_is_alive()
            await self._forget_old()
        except DataError as error:
            log.warning("what is stored of groups cannot be tidied now", error=str(error))

    async def _tell_who_is_alive(self) -> None:
        """A group that has had nothing to commit for long is in use all the same. Stored, since after a restart nobody
        knows it but from there, and it would be forgotten, and the log not held, before its consumers are back."""
        oldest = self._now_ms() - int(self._longest_untold() * 1_000)
        for group in list(self.groups.values()):
            stored = {
                name: self._book.of(group.name, name) for name in group.topics() if (group.name, name) in self._book
            }
            untold = [name for name, record in stored.items() if record.active < oldest]
            if untold:
                await self._book.keep(group.name, untold)

    async def _forget_old(self) -> None:
        """Groups that nobody has used for long, and what groups had begun that did not come back."""
        oldest = self._oldest_ms()
        mine = [key for key in self._book if self.is_served(key[0]) and key[0] not in self.groups]
        await self._book.remove([key for key in mine if self._book.of(*key).active < oldest])
        for group in {key[0] for key in mine if self._book.of(*key).starts}:
            if group not in self.groups:
                await self._book.rest(group)


def _terms_of(request: wire.Subscribe) -> Terms:
    return Terms(
        request.session_timeout_ms / 1_000,
        request.max_poll_interval_ms / 1_000,
        request.auto_offset_reset,
        request.replay,
        dict(request.parameters),
    )


def _check_user(member: Member, who: Identity) -> None:
    if member.who.user != who.user and not who.is_operator:
        raise NotAllowed(f"consumer {member.id} belongs to another user")
