"""Who of a group has which partitions: balanced, sticky, and never two at a time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.log.base import TopicPartition
from penstock.storage.log.groups import GroupCoordinator, Member

TOPICS = {"a": 5, "b": 3, "c": 1}


def partitions_of(topic: str) -> int | None:
    return TOPICS.get(topic)


def all_of(*topics: str) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for topic in topics for number in range(TOPICS[topic])]


class Crowd:
    """Members that poll when they are told to, and a check after every step that no partition has two."""

    def __init__(self, max_poll_interval: float = 300.0) -> None:
        self.now = 0.0
        self.coordinator = GroupCoordinator(partitions_of, lambda: self.now, max_poll_interval)
        self.members: list[Member] = []

    def join(self, *topics: str, instance_id: str | None = None) -> Member:
        member = self.coordinator.join("g", frozenset(topics), lambda: None, instance_id)
        self.members.append(member)
        return member

    def poll(self, member: Member) -> None:
        revoked = self.coordinator.to_revoke(member)
        if revoked:
            self.coordinator.revoked("g", member, revoked)
        self.coordinator.take("g", member)
        self.check()

    def leave(self, member: Member) -> None:
        self.members.remove(member)
        self.coordinator.leave("g", member)
        self.check()

    def check(self) -> None:
        owned = [partition for member in self.members for partition in member.owned]
        assert len(owned) == len(set(owned))


@given(st.lists(st.tuples(st.sampled_from(["join", "leave", "poll", "poll"]), st.integers(0, 100)), max_size=60))
def test_no_partition_has_two_owners_and_all_are_given_out_in_the_end(steps) -> None:
    crowd = Crowd()
    crowd.join("a", "b")
    for action, number in steps:
        member = crowd.members[number % len(crowd.members)]
        if action == "join":
            crowd.join(*[["a", "b"], ["a"], ["b", "c"]][number % 3])
        elif action == "poll":
            crowd.poll(member)
        elif len(crowd.members) > 1:
            crowd.leave(member)
    for _ in range(3):
        for member in crowd.members:
            crowd.poll(member)
    topics = {topic for member in crowd.members for topic in member.topics}
    assert sorted(p for member in crowd.members for p in member.owned) == sorted(all_of(*topics))


def test_a_partition_moves_only_when_its_owner_polls() -> None:
    crowd = Crowd()
    first = crowd.join("a")
    crowd.poll(first)
    second = crowd.join("a")
    crowd.poll(second)
    assert (len(first.owned), len(second.owned)) == (5, 0)
    crowd.poll(first)
    crowd.poll(second)
    assert (len(first.owned), len(second.owned)) == (3, 2)


def test_a_member_that_does_not_poll_loses_what_others_wait_for() -> None:
    crowd = Crowd(max_poll_interval=10)
    stuck = crowd.join("a")
    crowd.poll(stuck)
    eager = crowd.join("a")
    crowd.now = 9
    crowd.poll(eager)
    assert not eager.owned
    crowd.now = 11
    crowd.poll(eager)
    assert len(eager.owned) == 2
    assert stuck.lost == eager.owned
    assert set(crowd.coordinator.to_revoke(stuck)) == eager.owned


def test_an_instance_that_comes_back_takes_its_own_place() -> None:
    crowd = Crowd()
    old = crowd.join("a", instance_id="one")
    other = crowd.join("a", instance_id="two")
    for _ in range(2):
        crowd.poll(old)
        crowd.poll(other)
    had = set(old.owned)
    crowd.members.remove(old)
    new = crowd.join("a", instance_id="one")
    crowd.poll(new)
    assert old.is_fenced
    assert new.owned == had
