"""Edge cases of retained messages; sequences of changes are in tests/model/test_retained_model.py."""

from __future__ import annotations

import pytest

from penstock._ext.match.retained import RetainedTree


def tree_of(*topics: bytes) -> RetainedTree:
    tree = RetainedTree()
    for topic in topics:
        tree.put(topic, topic)
    return tree


def found(tree: RetainedTree, topic_filter: bytes) -> list[bytes]:
    return [topic for topic, _, _ in tree.match(topic_filter)]


def test_the_last_message_of_a_topic() -> None:
    """[MQTT-3.3.1-5] [MQTT3-3.3.1-5]"""
    tree = RetainedTree()
    assert tree.put(b"a", b"one", 1, b"props", 5) is True
    assert tree.get(b"a") == (b"one", 1, b"props", 5)
    assert tree.put(b"a", b"two") is False
    assert (tree.get(b"a"), tree.count) == ((b"two", 0, b"", 0), 1)
    assert tree.get(b"a/b") is None
    assert tree.discard(b"a") is True
    assert tree.discard(b"a") is False
    assert (tree.count, tree.bytes, tree.node_count) == (0, 0, 0)


@pytest.mark.parametrize(
    ("topic_filter", "expected"),
    [
        (b"#", [b"a", b"a/b", b"a/b/c", b"a/", b"/", b"//", b"/a"]),
        (b"+", [b"a"]),
        (b"a/#", [b"a", b"a/b", b"a/b/c", b"a/"]),
        (b"+/+", [b"a/b", b"a/", b"/", b"/a"]),
        (b"a/+", [b"a/b", b"a/"]),
        (b"a/+/#", [b"a/b", b"a/b/c", b"a/"]),
        (b"/#", [b"/", b"//", b"/a"]),
        (b"+/+/+", [b"a/b/c", b"//"]),
        # [MQTT-4.7.2-1]
        (b"$SYS/#", [b"$SYS", b"$SYS/x"]),
        (b"+/x", []),
        (b"a/b", [b"a/b"]),
        (b"b/#", []),
    ],
)
def test_by_filter(topic_filter: bytes, expected: list[bytes]) -> None:
    tree = tree_of(b"$SYS", b"a", b"$SYS/x", b"a/b", b"a/b/c", b"a/", b"/", b"//", b"/a")
    assert found(tree, topic_filter) == expected
    assert tree.topics(topic_filter, 2) == expected[:2]


def test_deep_and_long_topics() -> None:
    topics = [b"/" * 65_535, b"x" * 65_535, b"/" * 65_534 + b"x"]
    tree = tree_of(*topics)
    assert sorted(found(tree, b"#")) == sorted(topics)
    assert found(tree, b"+/" * 32_000 + b"#") == [topics[0], topics[2]]
    assert found(tree, topics[2]) == [topics[2]]
    for topic in topics:
        assert tree.discard(topic)
    assert tree.node_count == 0


@pytest.mark.parametrize("topic", [b"", b"x" * 65_536])
def test_what_is_no_topic(topic: bytes) -> None:
    with pytest.raises(ValueError, match="topic"):
        RetainedTree().put(topic, b"")


def test_expired_messages_are_left_out_and_swept() -> None:
    tree = RetainedTree()
    for i in range(100):
        tree.put(b"t/%d" % i, b"", expires_at=1000 if i % 2 else 0)
    assert len(tree.match(b"t/+", 999)) == 100
    assert len(tree.match(b"t/+", 1000)) == 50
    assert tree.count == 100, "a lookup removes nothing"
    assert tree.sweep(999, 1000) == 0
    first = tree.sweep(1000, 30)
    assert 0 < first <= 30, "bounded work"
    assert first + sum(tree.sweep(1000, 30) for _ in range(4)) == 50
    assert (tree.count, len(tree.match(b"t/+"))) == (50, 50)
    assert RetainedTree().sweep(1, 10) == 0


def test_bytes_count_what_is_held() -> None:
    tree = tree_of(b"a", b"b")
    before = tree.bytes
    tree.put(b"a", b"x" * 1000)
    assert tree.bytes == before + 999
    tree.discard(b"a")
    assert tree.bytes == before // 2


def test_memory_of_removed_topics_is_used_again() -> None:
    tree = RetainedTree()
    for round_number in range(50):
        for i in range(100):
            tree.put(b"%d/a-level-name-longer-than-a-node-holds/%d" % (round_number, i), b"")
        for i in range(100):
            tree.discard(b"%d/a-level-name-longer-than-a-node-holds/%d" % (round_number, i))
    assert tree.node_count == 0
