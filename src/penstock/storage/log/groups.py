"""Groups of consumers within this process: who has which partitions.

Sticky and cooperative: when members come or go only the partitions that must move are given up. A partition changes
hands in the polls of its owners: the one that loses it hears of it when it polls next (so what it polled before is
done), and only then the other one may have it. A member that does not poll for `max_poll_interval` loses what others
wait for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from penstock.core.assign import assign
from penstock.storage.log.base import TopicPartition

PartitionsOf = Callable[[str], int | None]


@dataclass(eq=False, slots=True)
class Member:
    """A consumer as its group sees it."""

    number: int
    topics: frozenset[str]
    wake: Callable[[], None]
    instance_id: str | None = None
    owned: set[TopicPartition] = field(default_factory=set)
    target: set[TopicPartition] = field(default_factory=set)
    # taken away because it did not poll, and not told yet
    lost: set[TopicPartition] = field(default_factory=set)
    polled_at: float = 0.0
    is_waiting: bool = False
    is_fenced: bool = False


class Group:
    """Members, what they have and what they should have."""

    def __init__(self) -> None:
        self.members: dict[int, Member] = {}
        self.owners: dict[TopicPartition, Member] = {}

    def share_out(self, partitions_of: PartitionsOf) -> None:
        """Compute every member's target, and wake those whose target has changed."""
        topics = {topic for member in self.members.values() for topic in member.topics}
        partitions = [TopicPartition(topic, number) for topic in topics for number in range(partitions_of(topic) or 0)]
        # a share that nobody else holds any more is as good as owned: it need not move twice
        current = {
            number: (member.owned & member.target) | (member.target - self.owners.keys())
            for number, member in self.members.items()
        }
        shares = assign(
            partitions, self.members, current, lambda number, partition: partition.topic in self.members[number].topics
        )
        for number, member in self.members.items():
            share = set(shares[number])
            if member.target != share or member.owned != share:
                member.target = share
                member.wake()

    def release(self, member: Member, partitions: Iterable[TopicPartition]) -> None:
        """The partitions are free; whoever should have them is woken."""
        freed = set(partitions)
        member.owned -= freed
        for partition in freed:
            if self.owners.get(partition) is member:
                del self.owners[partition]
        for other in self.members.values():
            if other is not member and other.target & freed:
                other.wake()


class GroupCoordinator:
    """All groups of a provider. On the loop only."""

    def __init__(self, partitions_of: PartitionsOf, clock: Callable[[], float], max_poll_interval: float) -> None:
        self._partitions_of = partitions_of
        self._clock = clock
        self._max_poll_interval = max_poll_interval
        self._groups: dict[str, Group] = {}
        self._numbers = itertools.count(1)

    def join(
        self, group_name: str, topics: frozenset[str], wake: Callable[[], None], instance_id: str | None
    ) -> Member:
        group = self._groups.setdefault(group_name, Group())
        member = Member(next(self._numbers), topics, wake, instance_id, polled_at=self._clock())
        for other in list(group.members.values()):
            if instance_id is not None and other.instance_id == instance_id:
                # the same instance again: it takes its own place, and the old one is out
                other.is_fenced = True
                member.target = set(other.target)
                del group.members[other.number]
                group.release(other, set(other.owned))
                other.wake()
        group.members[member.number] = member
        group.share_out(self._partitions_of)
        return member

    def leave(self, group_name: str, member: Member) -> None:
        group = self._groups.get(group_name)
        if group is None or group.members.pop(member.number, None) is None:
            return
        group.release(member, set(member.owned))
        if group.members:
            group.share_out(self._partitions_of)
        else:
            del self._groups[group_name]

    def topics_changed(self, topic: str) -> None:
        """A topic was created or deleted."""
        for group in self._groups.values():
            if any(topic in member.topics for member in group.members.values()):
                group.share_out(self._partitions_of)

    def to_revoke(self, member: Member) -> list[TopicPartition]:
        """What the member must give up now; `revoked` when it has."""
        member.polled_at = self._clock()
        return sorted((member.owned - member.target) | member.lost)

    def revoked(self, group_name: str, member: Member, partitions: Iterable[TopicPartition]) -> None:
        group = self._groups.get(group_name)
        partitions = set(partitions)
        member.lost -= partitions
        if group is not None:
            group.release(member, partitions & member.owned)

    def take(self, group_name: str, member: Member) -> list[TopicPartition]:
        """What the member gets now: its share as far as the others have let go of it."""
        group = self._groups.get(group_name)
        if group is None or member.number not in group.members:
            return []
        taken = []
        for partition in sorted(member.target - member.owned):
            owner = group.owners.get(partition)
            if owner is not None and not self._is_stuck(owner):
                continue
            if owner is not None:
                owner.owned.discard(partition)
                owner.lost.add(partition)
            group.owners[partition] = member
            member.owned.add(partition)
            taken.append(partition)
        return taken

    def _is_stuck(self, member: Member) -> bool:
        return not member.is_waiting and self._clock() - member.polled_at > self._max_poll_interval

    def members_of(self, group_name: str) -> int:
        group = self._groups.get(group_name)
        return len(group.members) if group else 0

    @property
    def names(self) -> list[str]:
        return sorted(self._groups)
