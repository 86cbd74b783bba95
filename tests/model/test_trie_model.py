"""The trie against a list of filters: any sequence of changes, with a cache that is too small, and without one."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock._ext.match.acl import SUBSCRIBE, AclProgram
from penstock._ext.match.trie import Subscriber, Trie
from tests.support.checkers.naive_topics import filter_matches, split_share

QOS_NONE = 0xFF
NO_LOCAL = 4
RETAIN_AS_PUBLISHED = 8

LONG = b"a-level-name-longer-than-a-node-holds"
names = st.sampled_from([b"", b"a", b"b", b"$s", LONG])
topics = st.lists(names, min_size=1, max_size=4).map(b"/".join).filter(bool)
plain_filters = (
    st.tuples(st.lists(names | st.just(b"+"), max_size=3), st.sampled_from([b"#", b"+", b"a", b"", None]))
    .map(lambda parts: b"/".join([*parts[0], *([parts[1]] if parts[1] is not None else [])]))
    .filter(bool)
)
filters = plain_filters | st.tuples(st.sampled_from([b"g", b"h", b"a"]), plain_filters).map(
    lambda parts: b"$share/%b/%b" % parts
)
options = st.builds(
    lambda qos, no_local, as_published, handling: (
        qos | NO_LOCAL * no_local | RETAIN_AS_PUBLISHED * as_published | handling << 4
    ),
    st.integers(0, 2),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2),
)
who = st.integers(0, 3)
identifiers = st.sampled_from([0, 0, 1, 2, 268_435_455])


class TrieMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tries = [Trie(cache_topics=3), Trie(cache_topics=0), Trie(cache_bytes=700)]
        # a subscriber is in one trie only
        self.subscribers = [[Subscriber() for _ in range(4)] for _ in self.tries]
        self.denied: dict[int, bytes] = {}
        # in the order of subscribing, as share groups keep it
        self.model: dict[tuple[int, bytes], tuple[int, int]] = {}
        self.walked: bytes | None = None

    def everywhere(self):
        return zip(self.tries, self.subscribers, strict=True)

    @rule(i=who, topic_filter=filters, option=options, identifier=identifiers)
    def subscribe(self, i: int, topic_filter: bytes, option: int, identifier: int) -> None:
        is_new = (i, topic_filter) not in self.model
        self.model[i, topic_filter] = option, identifier
        for trie, subscribers in self.everywhere():
            assert trie.subscribe(subscribers[i], topic_filter, option, identifier) is is_new

    @rule(topic_filter=filters, order=st.permutations(range(4)), option=options)
    def subscribe_all(self, topic_filter: bytes, order: list[int], option: int) -> None:
        for i in order:
            self.subscribe(i, topic_filter, option, i)

    @rule(i=who, topic_filter=filters)
    def unsubscribe(self, i: int, topic_filter: bytes) -> None:
        was_there = self.model.pop((i, topic_filter), None) is not None
        for trie, subscribers in self.everywhere():
            assert trie.unsubscribe(subscribers[i], topic_filter) is was_there

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def unsubscribe_existing(self, data: st.DataObject) -> None:
        self.unsubscribe(*data.draw(st.sampled_from(sorted(self.model))))

    @rule(i=who)
    def remove(self, i: int) -> None:
        mine = [key for key in self.model if key[0] == i]
        for key in mine:
            del self.model[key]
        for trie, subscribers in self.everywhere():
            assert trie.remove(subscribers[i]) == len(mine)

    @rule(i=who, level=st.sampled_from([b"a", b"$s"]))
    def deny_first_level(self, i: int, level: bytes) -> None:
        rules = [(False, SUBSCRIBE, (level, "#")), (True, SUBSCRIBE, ("#",)), (True, SUBSCRIBE, (b"$s", "#"))]
        self.denied[i] = level
        for trie, subscribers in self.everywhere():
            subscribers[i].acl = AclProgram(rules)
            trie.bump()

    @rule(topic=topics)
    def start_walk(self, topic: bytes) -> None:
        """A match in slices: whatever changes until it is done, it then finds what a match at once finds."""
        self.walked = topic
        for trie in self.tries:
            trie.start_walk(topic)

    @precondition(lambda self: self.walked is not None)
    @rule(limit=st.sampled_from([1, 1, 2, 100]))
    def continue_walk(self, limit: int) -> None:
        topic = self.walked
        assert topic is not None
        done = [trie.continue_walk(limit) for trie in self.tries]
        assert len(set(done)) == 1
        if done[0]:
            self.walked = None
            before = [trie.steps for trie in self.tries]
            self.match(topic)
            assert [trie.steps for trie in self.tries] == before

    @rule(topic=topics)
    def match(self, topic: bytes) -> None:
        for trie, subscribers in self.everywhere():
            for _ in range(2):
                found = {
                    subscribers.index(target[0]): (*target[1:4], (sorted(target[4][: target[5]]), sorted(target[4])))
                    for target in trie.matches(topic)
                }
                assert found == self.expected_targets(topic)
                groups = [
                    (name, path, [(subscribers.index(m[0]), *m[1:]) for m in members])
                    for name, path, members in trie.groups(topic)
                ]
                assert sorted(groups) == self.expected_groups(topic)

    def expected_targets(self, topic: bytes) -> dict[int, tuple[int, int, int, tuple[list[int], list[int]]]]:
        expected = {}
        for i in range(4):
            hits = [
                (option, identifier)
                for (owner, topic_filter), (option, identifier) in self.model.items()
                if owner == i and split_share(topic_filter)[0] is None and filter_matches(topic_filter, topic)
            ]
            if not hits or topic.split(b"/")[0] == self.denied.get(i):
                continue
            own = [(option, identifier) for option, identifier in hits if not option & NO_LOCAL]
            flags = any(option & RETAIN_AS_PUBLISHED for option, _ in hits) | 2 * (len(own) < len(hits))
            expected[i] = (
                max(option & 3 for option, _ in hits),
                max((option & 3 for option, _ in own), default=QOS_NONE),
                flags,
                (sorted(n for _, n in own if n), sorted(n for _, n in hits if n)),
            )
        return expected

    def expected_groups(self, topic: bytes) -> list[tuple[bytes, bytes, list[tuple[int, int, int, int]]]]:
        groups: dict[tuple[bytes, bytes], list[tuple[int, int, int, int]]] = {}
        for (owner, topic_filter), (option, identifier) in self.model.items():
            group, path = split_share(topic_filter)
            if group is not None and filter_matches(path, topic):
                member = (owner, option & 3, identifier, int(bool(option & RETAIN_AS_PUBLISHED)))
                groups.setdefault((group, path), []).append(member)
        return sorted((name, path, members) for (name, path), members in groups.items())

    @invariant()
    def counts_agree(self) -> None:
        used = {topic_filter for _, topic_filter in self.model}
        shared = {topic_filter for topic_filter in used if split_share(topic_filter)[0] is not None}
        nodes: set[tuple[bytes, ...]] = set()
        for topic_filter in used:
            levels = split_share(topic_filter)[1].split(b"/")
            nodes |= {tuple(levels[: depth + 1]) for depth in range(len(levels))}
        for trie, subscribers in self.everywhere():
            assert trie.filter_count == len(used)
            assert trie.group_count == len(shared)
            assert trie.subscription_count == len(self.model)
            assert trie.subscription_bytes == sum(map(trie.weight, subscribers))
            assert trie.node_count == len(nodes) + len(shared)
            for i, subscriber in enumerate(subscribers):
                mine = {(path, *given) for (owner, path), given in self.model.items() if owner == i}
                assert trie.count(subscriber) == len(mine)
                # a share's name is a node of its own, without `$share`
                assert trie.weight(subscriber) == sum(trie.weigh(path.removeprefix(b"$share/")) for path, _, _ in mine)
                assert set(trie.subscriptions(subscriber)) == mine
        assert self.tries[0].cache_size <= 3
        assert self.tries[1].cache_size == 0
        assert self.tries[2].cache_bytes <= 700


TrieMachine.TestCase.settings = settings(max_examples=70, stateful_step_count=40, deadline=None)
TestTrie = TrieMachine.TestCase
