"""Retained messages against a dict of dicts that keeps the same order."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock._ext.match.retained import RetainedTree
from tests.support.checkers.naive_topics import filter_matches

names = st.sampled_from([b"", b"a", b"b", b"$s", b"a-level-name-longer-than-a-node-holds"])
topics = st.lists(names, min_size=1, max_size=4).map(b"/".join).filter(bool)
filters = (
    st.tuples(st.lists(names | st.just(b"+"), max_size=3), st.sampled_from([b"#", b"+", b"a", b"", None]))
    .map(lambda parts: b"/".join([*parts[0], *([parts[1]] if parts[1] is not None else [])]))
    .filter(bool)
)
times = st.integers(1, 20)


class NaiveNode:
    def __init__(self) -> None:
        self.children: dict[bytes, NaiveNode] = {}
        self.message: tuple[bytes, bytes, int, int] | None = None

    def messages(self) -> list[tuple[bytes, bytes, int, int]]:
        below = [message for child in self.children.values() for message in child.messages()]
        return [self.message, *below] if self.message else below

    def nodes(self) -> int:
        return sum(1 + child.nodes() for child in self.children.values())


class RetainedMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tree = RetainedTree()
        self.root = NaiveNode()
        self.weight_of_nothing = self.measure_header()

    @staticmethod
    def measure_header() -> int:
        tree = RetainedTree()
        tree.put(b"t", b"")
        return tree.bytes - 1

    def find(self, topic: bytes) -> NaiveNode | None:
        node: NaiveNode | None = self.root
        for name in topic.split(b"/"):
            node = node.children.get(name) if node else None
        return node

    def drop(self, topic: bytes) -> bool:
        node = self.find(topic)
        if node is None or node.message is None:
            return False
        node.message = None
        levels = topic.split(b"/")
        while levels:
            node, parent = self.find(b"/".join(levels)), self.find(b"/".join(levels[:-1])) if levels[1:] else self.root
            if node.message or node.children:
                break
            del parent.children[levels.pop()]
        return True

    @rule(topic=topics, payload=st.binary(max_size=3), qos=st.integers(0, 2), expires_at=st.just(0) | times)
    def put(self, topic: bytes, payload: bytes, qos: int, expires_at: int) -> None:
        node = self.root
        for name in topic.split(b"/"):
            node = node.children.setdefault(name, NaiveNode())
        assert self.tree.put(topic, payload, qos, b"", expires_at) is (node.message is None)
        node.message = topic, payload, qos, expires_at

    @rule(topic=topics)
    def discard(self, topic: bytes) -> None:
        assert self.tree.discard(topic) is self.drop(topic)

    @rule(topic=topics)
    def get(self, topic: bytes) -> None:
        node = self.find(topic)
        if node is None or node.message is None:
            assert self.tree.get(topic) is None
        else:
            _, payload, qos, expires_at = node.message
            assert self.tree.get(topic) == (payload, qos, b"", expires_at)

    @rule(topic_filter=filters, now=st.just(0) | times, limit=st.integers(0, 5))
    def match(self, topic_filter: bytes, now: int, limit: int) -> None:
        hits = [message for message in self.root.messages() if filter_matches(topic_filter, message[0])]
        assert self.tree.match(topic_filter, now) == [m[:3] for m in hits if not m[3] or m[3] > now]
        assert self.tree.topics(topic_filter, limit) == [m[0] for m in hits[:limit]]

    @rule(now=times, step=st.integers(1, 7))
    def sweep(self, now: int, step: int) -> None:
        expired = [message[0] for message in self.root.messages() if message[3] and message[3] <= now]
        # numbers of nodes that were given back are still passed over
        swept = sum(self.tree.sweep(now, step) for _ in range(200 // step + 1))
        assert swept == len(expired)
        for topic in expired:
            self.drop(topic)

    @invariant()
    def counts_agree(self) -> None:
        held = self.root.messages()
        assert self.tree.count == len(held)
        assert self.tree.bytes == sum(self.weight_of_nothing + len(m[0]) + len(m[1]) for m in held)
        assert self.tree.node_count == self.root.nodes()


RetainedMachine.TestCase.settings = settings(max_examples=70, stateful_step_count=40, deadline=None)
TestRetained = RetainedMachine.TestCase
