"""One consumer group: its members, what each of them owns, and when something is due. Knows no clock and no network.

    subscribe ─▶ rebalancing ──(rebalance)──▶ ready ──(topics changed)──▶ rebalancing
    unsubscribe, or silent for too long ──(rebalance)──▶ deleted

Every state has a deadline: a member that is not heard, or does not poll, is removed whatever it was doing. Epochs grow
over the whole group: a member's is that of its latest change, and each partition it owns has that of the moment it got
it. Who shows an epoch at least that old and owns the partition still, has owned it all the time since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from penstock.core.assign import assign
from penstock.subscribers.query.ports import Identity
from penstock_client.errors import NotAMember, StaleEpoch

REBALANCING = "rebalancing"
READY = "ready"


@dataclass(slots=True)
class Terms:
    """What a consumer said when it subscribed."""

    session_timeout: float = 12.0
    max_poll_interval: float = 300.0
    reset: str = "latest"
    replay: bool = False
    parameters: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Member:
    """A consumer. Times are of the group's clock, those for the views milliseconds since 1970."""

    id: str
    who: Identity
    client_id: str
    terms: Terms
    topics: tuple[str, ...]
    heard_at: float
    polled_at: float
    epoch: int
    joined_ms: int
    subscribed_ms: int
    rebalanced_ms: int = 0
    polled_ms: int = 0
    state: str = REBALANCING
    owned: dict[str, dict[int, int]] = field(default_factory=dict)  # topic: partition: epoch it was got in
    refused: dict[str, str] = field(default_factory=dict)
    positions: dict[tuple[str, int], int] = field(default_factory=dict)
    rows: dict[tuple[str, int], int] = field(default_factory=dict)

    @property
    def deadline(self) -> float:
        return min(self.heard_at + self.terms.session_timeout, self.polled_at + self.terms.max_poll_interval)

    def owns(self, topic: str, partition: int, epoch: int) -> bool:
        since = self.owned.get(topic, {}).get(partition)
        return since is not None and since <= epoch <= self.epoch


class Group:
    def __init__(self, name: str, first_epoch: int) -> None:
        """`first_epoch` is higher than any epoch of a group of this name before."""
        self.name = name
        self.members: dict[str, Member] = {}
        self.epoch = first_epoch
        self.due_at: float | None = None

    # ---- who is there ----

    def member(self, consumer: str) -> Member:
        found = self.members.get(consumer)
        if found is None:
            raise NotAMember(
                f"consumer {consumer} is not in group {self.name}: it was removed, or has never subscribed"
            )
        return found

    def members_of(self, topic: str) -> list[Member]:
        return [member for member in self.members.values() if topic in member.topics]

    def topics(self) -> set[str]:
        return {topic for member in self.members.values() for topic in member.topics}

    def add(self, member: Member) -> None:
        """A new one; its epoch is that of this change."""
        self.members[member.id] = member
        self._touch(member)

    def change_topics(self, member: Member, topics: tuple[str, ...]) -> None:
        """It may read again when the next rebalance has applied them; none at all: it goes then."""
        member.topics = topics
        member.refused = {}
        member.state = REBALANCING
        self._touch(member)

    def refuse(self, member: Member, topic: str, reason: str) -> None:
        """The member has lost the topic, and is told why; its other topics go on as they were."""
        member.topics = tuple(name for name in member.topics if name != topic)
        member.owned.pop(topic, None)
        member.refused[topic] = reason
        self._touch(member)

    def renew(self, topic: str) -> None:
        """Everybody asks again before reading on: the topic is another one under the same name."""
        for member in self.members_of(topic):
            self._touch(member)
            owned = member.owned.get(topic, {})
            member.owned[topic] = dict.fromkeys(owned, member.epoch)

    def _touch(self, member: Member) -> None:
        self.epoch += 1
        member.epoch = self.epoch

    # ---- time ----

    def need_rebalance(self, at: float) -> None:
        if self.due_at is None or at < self.due_at:
            self.due_at = at

    def next_deadline(self) -> float | None:
        """When somebody may have been silent for too long, or the rebalance is due."""
        deadlines = [member.deadline for member in self.members.values()]
        if self.due_at is not None:
            deadlines.append(self.due_at)
        return min(deadlines, default=None)

    def remove_silent(self, now: float) -> list[tuple[Member, str]]:
        """Those whose time is over, and why. The caller rebalances."""
        removed: list[tuple[Member, str]] = []
        for member in list(self.members.values()):
            if now < member.deadline:
                continue
            is_lost = now >= member.heard_at + member.terms.session_timeout
            del self.members[member.id]
            removed.append((member, "no heartbeat" if is_lost else "no poll"))
        return removed

    # ---- who owns what ----

    def rebalance(self, partitions: Iterable[int], now_ms: int, is_known: Callable[[str], bool]) -> list[Member]:
        """Shares out every topic of the group that `is_known`; those whose share has changed."""
        self.due_at = None
        for member in [member for member in self.members.values() if not member.topics and not member.refused]:
            del self.members[member.id]
        partitions = list(partitions)
        shares: dict[str, dict[str, list[int]]] = {}
        for topic in sorted(self.topics()):
            if is_known(topic):
                current = {member.id: member.owned.get(topic, {}) for member in self.members.values()}
                shares[topic] = assign(partitions, (member.id for member in self.members_of(topic)), current)
        changed = []
        for member in self.members.values():
            mine = {topic: share[member.id] for topic, share in shares.items() if member.id in share}
            if member.state == REBALANCING or mine != {topic: list(got) for topic, got in member.owned.items()}:
                self._give(member, mine, now_ms)
                changed.append(member)
        return changed

    def _give(self, member: Member, mine: Mapping[str, list[int]], now_ms: int) -> None:
        self._touch(member)
        before = member.owned
        member.owned = {
            topic: {number: before.get(topic, {}).get(number, member.epoch) for number in numbers}
            for topic, numbers in mine.items()
        }
        for seen in (member.positions, member.rows):
            for topic, number in [place for place in seen if place[1] not in member.owned.get(place[0], ())]:
                del seen[topic, number]
        member.state = READY
        member.rebalanced_ms = now_ms

    def owners(self, topic: str) -> Iterator[tuple[int, Member]]:
        for member in self.members.values():
            for partition in member.owned.get(topic, ()):
                yield partition, member

    def check(self, consumer: str, epoch: int, topic: str, partition: int) -> Member:
        """The member, if it may read the partition. Raises NotAMember, StaleEpoch."""
        if self.member(consumer).state != READY:
            raise StaleEpoch(f"group {self.name} is being rebalanced: ask for the assignment")
        return self.check_owner(consumer, epoch, topic, partition)

    def check_owner(self, consumer: str, epoch: int, topic: str, partition: int) -> Member:
        """The same for a commit, which is welcome while its partition is still there."""
        member = self.member(consumer)
        if not member.owns(topic, partition, epoch):
            raise StaleEpoch(
                f"partition {partition} of {topic} is not assigned to consumer {consumer} in epoch {epoch} "
                f"(now {member.epoch}): ask for the assignment"
            )
        return member
