"""Consumer groups against a naive model: consumers come, go and die, partitions are added, the broker crashes; whatever
happens, shares are balanced, complete and moved as little as can be, commits are fenced, and none that was answered is
lost."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from itertools import count
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock_client import wire
from penstock_client.errors import NotAMember, StaleEpoch
from tests.support.worlds.datasub_world import ALICE, DataWorld

T = TypeVar("T")
TOPICS = ("hot", "cold")
Shares = dict[str, set[int]]
lists_of_topics = st.sampled_from([("hot",), ("cold",), ("hot", "cold")])
picks = st.integers(0, 1_000)


class Groups(RuleBasedStateMachine):
    """The model: who is alive with which topics, what was committed, who owned what when the group was quiet last."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.world = self.run(self._open())
        self.alive: dict[str, tuple[str, ...]] = {}
        self.answers: dict[str, wire.Assignment] = {}  # the latest that each of them has
        self.old: list[wire.Assignment] = []
        self.committed: dict[tuple[str, int], int] = {}
        self.before: dict[str, Shares] | None = None  # None: something has changed since
        self.numbers = count()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    async def _open(self) -> DataWorld:
        world = DataWorld(partitions=3)
        await world.service.start()
        await world.make_topics(*TOPICS)
        world.source.write(1_000)
        return world

    def teardown(self) -> None:
        self.run(self.world.service.stop())
        self.run(self.loop.shutdown_default_executor())
        self.loop.close()

    @initialize()
    def begin(self) -> None:
        self.join(("hot",))

    # ---- what happens ----

    @rule(topics=lists_of_topics)
    def join(self, topics: tuple[str, ...]) -> None:
        # Ids in no order, so that a newcomer may be the first.
        name = f"{(next(self.numbers) * 7) % 10}-{next(self.numbers)}"
        self.run(self.world.join(*topics, consumer=name))
        self.alive[name] = topics
        self.before = None

    @precondition(lambda self: self.alive)
    @rule(pick=picks, topics=lists_of_topics)
    def change_topics(self, pick: int, topics: tuple[str, ...]) -> None:
        name = self._pick(pick)
        self.run(self.world.join(*topics, consumer=name))
        self.alive[name] = topics
        self.before = None

    @precondition(lambda self: self.alive)
    @rule(pick=picks)
    def leave(self, pick: int) -> None:
        name = self._pick(pick)
        self.run(self.world.service.handle(ALICE, "leave", wire.Leave(name, "g")))
        self._forget(name)

    @precondition(lambda self: self.alive)
    @rule(pick=picks)
    def die(self, pick: int) -> None:
        """It is silent, and the others are not."""
        name = self._pick(pick)
        self._forget(name)
        for _ in range(3):
            self.run(self.world.pass_time(4.5, step=1.5))
            self._everybody_asks()

    @rule()
    def add_partition(self) -> None:
        ends = self.world.source.ends
        if len(ends) < 7:
            ends[len(ends)] = 0, 1_000
            self.before = None
            self.run(self.world.pass_time(2.5))
            self._everybody_asks()

    @rule()
    def crash(self) -> None:
        """Everybody has to come again; what was answered is still there."""
        self.run(self.world.restart())
        self.old += self.answers.values()
        self.answers = {}
        self.before = None
        for name, topics in self.alive.items():
            self.run(self.world.join(*topics, consumer=name))

    @precondition(lambda self: self.answers)
    @rule(pick=picks, offset=st.integers(0, 1_000))
    def commit(self, pick: int, offset: int) -> None:
        """All that a consumer thinks is its own, by what it heard last."""
        answer = list(self.answers.values())[pick % len(self.answers)]
        self._commit(answer, [(each.topic, each.partition, offset) for each in answer.partitions])

    @precondition(lambda self: self.old)
    @rule(pick=picks, offset=st.integers(0, 1_000))
    def commit_late(self, pick: int, offset: int) -> None:
        """One that was under way for long."""
        answer = self.old[pick % len(self.old)]
        self._commit(answer, [(each.topic, each.partition, offset) for each in answer.partitions])

    def _commit(self, answer: wire.Assignment, offsets: list[tuple[str, int, int]]) -> None:
        member = self._members().get(answer.consumer)
        owned = {} if member is None else member.owned
        are_owned = all(number in owned.get(topic, ()) for topic, number, _ in offsets)
        try:
            self.run(self.world.commit(answer, *offsets))
        except NotAMember:
            assert member is None
        except StaleEpoch:
            current = self.answers.get(answer.consumer)
            # What it has heard last, and has all of it still, must not be refused.
            assert not (are_owned and current is not None and current is answer and current.epoch == member.epoch)  # type: ignore[union-attr]  # a member, or it were NotAMember
        else:
            assert are_owned
            self.committed |= {(topic, number): offset for topic, number, offset in offsets}

    @rule()
    def quiet(self) -> None:
        """Time for what is due; then the shares are what they must be."""
        self.run(self.world.pass_time(2.0))
        self._everybody_asks()
        members = self._members()
        assert set(members) == set(self.alive)
        partitions = set(self.world.source.ends)
        now = {name: {topic: set(got) for topic, got in member.owned.items()} for name, member in members.items()}
        assert self.before in (None, now)  # nothing moves by itself
        self.before = now
        for topic in TOPICS:
            shares = {name: set(member.owned[topic]) for name, member in members.items() if topic in self.alive[name]}
            if not shares:
                continue
            sizes = [len(share) for share in shares.values()]
            assert max(sizes) - min(sizes) <= 1
            assert sorted(number for share in shares.values() for number in share) == sorted(partitions)
            for name, share in shares.items():
                assert self.answers[name].state == "ready"
                answer = self.run(self.world.ask(name))
                assert answer is not None
                assert answer.epoch == self.answers[name].epoch
                assert {each.partition for each in answer.partitions if each.topic == topic} == share
                for each in answer.partitions:
                    assert each.committed == self.committed.get((each.topic, each.partition), -1)
                    assert each.offset == (1_000 if each.committed < 0 else each.committed)

    # ---- what always holds ----

    @invariant()
    def nobody_owns_the_same(self) -> None:
        for topic in TOPICS:
            owned = [number for member in self._members().values() for number in member.owned.get(topic, ())]
            assert len(owned) == len(set(owned))

    @invariant()
    def what_was_committed_is_there(self) -> None:
        asked = sorted(self.committed)
        assert self.run(self.world.committed(*asked)) == [self.committed[key] for key in asked]

    # ---- help ----

    def _members(self) -> dict[str, Any]:
        group = self.world.coordinator.groups.get("g")
        return {} if group is None else group.members

    def _pick(self, pick: int) -> str:
        return sorted(self.alive)[pick % len(self.alive)]

    def _forget(self, name: str) -> None:
        del self.alive[name]
        self.before = None
        if name in self.answers:
            self.old.append(self.answers.pop(name))

    def _everybody_asks(self) -> None:
        for name in self.alive:
            epoch = self.answers[name].epoch if name in self.answers else -1
            answer = self.run(self.world.ask(name, epoch))
            if answer is not None:
                if name in self.answers:
                    self.old.append(self.answers[name])
                self.answers[name] = answer


TestGroups = Groups.TestCase
TestGroups.settings = settings(
    max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
