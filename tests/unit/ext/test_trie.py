"""Edge cases of topic filters; sequences of changes are in tests/model/test_trie_model.py."""

from __future__ import annotations

import gc
import sys
from itertools import product

import pytest

from penstock._ext.match.acl import RECEIVE, AclProgram
from penstock._ext.match.topic_tree import NODE_SIZE
from penstock._ext.match.trie import Subscriber, Trie

QOS_NONE = 0xFF
RETAIN_AS_PUBLISHED, NO_LOCAL = 1, 2  # flags of a target


def matching(topic: bytes, *filters: bytes) -> set[bytes]:
    trie = Trie()
    owners = {}
    for topic_filter in filters:
        subscriber = Subscriber()
        owners[subscriber] = topic_filter
        trie.subscribe(subscriber, topic_filter, 0)
    return {owners[target[0]] for target in trie.matches(topic)}


def test_a_node_is_one_cache_line() -> None:
    assert NODE_SIZE == 64


@pytest.mark.parametrize(
    ("topic", "yes", "no"),
    [
        # [MQTT-4.7.1-1] [MQTT3-4.7.1-2]: the parent and any number of levels
        (b"sport", [b"sport/#", b"#", b"+", b"sport"], [b"sport/+", b"sport/", b"+/+", b"Sport", b"/sport"]),
        (b"sport/a/b", [b"sport/#", b"sport/a/#", b"sport/a/b/#", b"+/a/+"], [b"sport/+", b"sport/a"]),
        # [MQTT-4.7.1-2] [MQTT3-4.7.1-3]: one level, also an empty one
        (b"/finance", [b"+/+", b"/+", b"/finance", b"#", b"/#"], [b"+", b"finance"]),
        (b"sport/", [b"sport/+", b"sport/#", b"sport/", b"+/+"], [b"sport", b"+"]),
        (b"/", [b"/", b"+/+", b"/+", b"+/", b"/#", b"#"], [b"+", b"//"]),
        (b"//", [b"//", b"+/+/+", b"/+/", b"//#", b"#"], [b"/", b"+/+", b"///"]),
        # [MQTT-4.7.2-1] [MQTT3-4.7.2-1]
        (b"$SYS/broker", [b"$SYS/#", b"$SYS/+", b"$SYS/broker/#"], [b"#", b"+/broker", b"+/#", b"+/+"]),
        (b"a/$SYS", [b"a/+", b"a/#", b"+/+", b"#", b"a/$SYS"], [b"$SYS", b"$SYS/#"]),
        (b"$", [b"$", b"$/#"], [b"+", b"#"]),
        # [MQTT-4.7.3-4] [MQTT3-4.7.3-4]: compared byte for byte, without normalisation
        ("é".encode(), ["é".encode()], ["e\u0301".encode()]),
    ],
)
def test_matching(topic: bytes, yes: list[bytes], no: list[bytes]) -> None:
    assert matching(topic, *yes, *no) == set(yes)


@pytest.mark.parametrize("size", [15, 16, 17, 1000])
def test_level_names_inside_and_outside_the_node(size: int) -> None:
    name, other = b"n" * size, b"n" * (size - 1) + b"m"
    assert matching(b"a/" + name + b"/b", b"a/" + name + b"/b", b"a/" + other + b"/b") == {b"a/" + name + b"/b"}


def test_the_longest_filters_and_topics() -> None:
    trie, subscriber = Trie(), Subscriber()
    slashes, name, plusses = b"/" * 65_535, b"x" * 65_535, b"+/" * 32_767 + b"#"
    for topic_filter in (slashes, name, plusses):
        assert trie.subscribe(subscriber, topic_filter, 1, 1)
    assert trie.node_count == 65_536 + 1 + 32_768
    assert trie.matches(slashes)[0][4] == (1, 1)
    assert trie.matches(name)[0][4] == (1,)
    assert trie.matches(b"/" * 65_534)[0][4] == (1,)
    assert {path for path, _, _ in trie.subscriptions(subscriber)} == {slashes, name, plusses}
    assert trie.remove(subscriber) == 3
    assert trie.node_count == 0
    with pytest.raises(ValueError, match="65,535"):
        trie.subscribe(subscriber, b"x" * 65_536, 0)


def test_every_combination_of_a_name_and_plus_is_one_walk_over_the_tree() -> None:
    trie, subscriber = Trie(), Subscriber()
    for levels in product([b"a", b"+"], repeat=12):
        trie.subscribe(subscriber, b"/".join(levels), 1, 7)
    target = trie.matches(b"/".join([b"a"] * 12))[0]
    assert target[4] == (7,) * 4096
    assert trie.node_count == 2**13 - 2


def test_overlapping_filters_are_merged() -> None:
    """[MQTT-3.3.4-2] [MQTT-3.3.4-4] [MQTT3-3.3.5-1]; identifiers of filters without no-local come first."""
    trie, subscriber = Trie(), Subscriber()
    trie.subscribe(subscriber, b"a/#", 2 | 4, 30)
    trie.subscribe(subscriber, b"a/+", 0 | 8, 10)
    trie.subscribe(subscriber, b"a/b", 1, 20)
    trie.subscribe(subscriber, b"+/b", 1)
    ((owner, qos, own_qos, flags, ids, own_id_count),) = trie.matches(b"a/b")
    assert owner is subscriber
    assert (qos, own_qos, flags) == (2, 1, RETAIN_AS_PUBLISHED | NO_LOCAL)
    assert (set(ids[:own_id_count]), ids[own_id_count:]) == ({10, 20}, (30,))
    assert trie.matches(b"a")[0][1:] == (2, QOS_NONE, NO_LOCAL, (30,), 0)


def test_more_identifiers_than_a_target_can_count() -> None:
    trie, subscriber = Trie(), Subscriber()
    for levels in product([b"a", b"+"], repeat=16):
        trie.subscribe(subscriber, b"/".join(levels), 1, 7)
    trie.subscribe(subscriber, b"#", 2 | 4, 8)
    target = trie.matches(b"/".join([b"a"] * 16))[0]
    assert (target[1], len(target[4])) == (2, 65_535)


def test_subscribing_again_replaces() -> None:
    """[MQTT-3.8.4-3] [MQTT3-3.8.4-3]"""
    trie, subscriber = Trie(), Subscriber()
    assert trie.subscribe(subscriber, b"a", 2, 9) is True
    version = trie.version
    assert trie.subscribe(subscriber, b"a", 2, 9) is False
    assert trie.version == version, "nothing has changed: what is cached stays good"
    assert trie.subscribe(subscriber, b"a", 1 | 16, 0) is False
    assert trie.version > version
    assert trie.subscriptions(subscriber) == [(b"a", 17, 0)]
    assert trie.matches(b"a")[0][1:5] == (1, 1, 0, ())


def test_shared_subscriptions() -> None:
    """A group per name and filter, members in the order of joining; not merged with ordinary subscriptions."""
    trie = Trie()
    first, second, third = (Subscriber() for _ in range(3))
    for subscriber in (first, second, third):
        assert trie.subscribe(subscriber, b"$share/g/a/+", 1, 5)
    assert trie.subscribe(first, b"$share/h/a/+", 0)
    assert trie.subscribe(first, b"a/+", 2)
    assert not trie.subscribe(second, b"$share/g/a/+", 2 | 8)
    groups = {(name, path): [member[0] for member in members] for name, path, members in trie.groups(b"a/b")}
    assert groups == {(b"g", b"a/+"): [first, second, third], (b"h", b"a/+"): [first]}
    assert [target[0] for target in trie.matches(b"a/b")] == [first]
    assert trie.unsubscribe(first, b"$share/g/a/+")
    members = {name: members for name, _, members in trie.groups(b"a/b")}[b"g"]
    assert members == [(second, 2, 0, RETAIN_AS_PUBLISHED), (third, 1, 5, 0)]
    assert (trie.group_count, trie.filter_count) == (2, 3)
    for subscriber in (first, second, third):
        trie.remove(subscriber)
    assert (trie.group_count, trie.filter_count, trie.node_count) == (0, 0, 0)


def test_a_shared_wildcard_does_not_see_dollar_topics() -> None:
    trie, subscriber = Trie(), Subscriber()
    trie.subscribe(subscriber, b"$share/g/#", 0)
    trie.subscribe(subscriber, b"$share/g/$SYS/#", 0)
    assert [path for _, path, _ in trie.groups(b"$SYS/x")] == [b"$SYS/#"]


def test_many_groups_at_one_filter_can_leave_in_any_order() -> None:
    trie = Trie()
    members = {b"g%d" % i: Subscriber() for i in range(9)}
    for name, subscriber in members.items():
        trie.subscribe(subscriber, b"$share/%b/a" % name, 0)
    for name in (b"g4", b"g8", b"g0", b"g5"):
        trie.remove(members.pop(name))
        assert {group for group, _, _ in trie.groups(b"a")} == set(members)


@pytest.mark.parametrize("bad", [b"", b"$share/g", b"$share//a", b"$share/g/"])
def test_what_is_no_filter(bad: bytes) -> None:
    """[MQTT-4.7.3-1] [MQTT-4.8.2-1] [MQTT-4.8.2-2] [MQTT3-4.7.3-1]"""
    trie, subscriber = Trie(), Subscriber()
    with pytest.raises(ValueError, match="filter"):
        trie.subscribe(subscriber, bad, 0)
    assert trie.node_count == 0


@pytest.mark.parametrize(("options", "identifier"), [(3, 0), (64, 0), (-1, 0), (0, 268_435_456)])
def test_options_that_do_not_exist(options: int, identifier: int) -> None:
    with pytest.raises(ValueError, match="no such"):
        Trie().subscribe(Subscriber(), b"a", options, identifier)


def test_a_subscriber_has_one_trie() -> None:
    first, second, subscriber = Trie(), Trie(), Subscriber()
    first.subscribe(subscriber, b"a", 0)
    with pytest.raises(ValueError, match="another trie"):
        second.subscribe(subscriber, b"a", 0)
    assert not second.unsubscribe(subscriber, b"a")
    assert (second.remove(subscriber), second.count(subscriber), second.subscriptions(subscriber)) == (0, 0, [])
    first.remove(subscriber)
    assert second.subscribe(subscriber, b"a", 0)


def test_the_acl_is_asked_about_every_topic() -> None:
    trie, subscriber = Trie(), Subscriber()
    trie.subscribe(subscriber, b"#", 0, 3)
    trie.subscribe(subscriber, b"+/b", 1, 4)
    subscriber.acl = AclProgram([(False, RECEIVE, (b"a", "#")), (True, RECEIVE, ("#",))])
    trie.bump()
    assert trie.matches(b"a/b") == []
    assert [target[0] for target in trie.matches(b"b/b")] == [subscriber]
    subscriber.acl = None
    trie.bump()
    assert len(trie.matches(b"a/b")) == 1


def test_references_while_there_are_subscriptions() -> None:
    trie, subscriber = Trie(), Subscriber()
    before = sys.getrefcount(subscriber)
    trie.subscribe(subscriber, b"a", 0)
    trie.subscribe(subscriber, b"b", 0)
    trie.subscribe(subscriber, b"$share/g/b", 0)
    assert sys.getrefcount(subscriber) == before + 1
    trie.matches(b"b")
    trie.groups(b"b")
    trie.unsubscribe(subscriber, b"a")
    trie.unsubscribe(subscriber, b"$share/g/b")
    assert sys.getrefcount(subscriber) == before + 1
    trie.unsubscribe(subscriber, b"b")
    assert sys.getrefcount(subscriber) == before
    trie.subscribe(subscriber, b"c", 0)
    assert trie.remove(subscriber) == 1
    assert sys.getrefcount(subscriber) == before


def test_a_trie_that_dies_lets_go_of_its_subscribers() -> None:
    alive = []

    class Counted(Subscriber):
        def __init__(self) -> None:
            alive.append(1)

        def __del__(self) -> None:
            alive.pop()

    trie = Trie()
    for i in range(10):
        subscriber = Counted()
        trie.subscribe(subscriber, b"all", 0)
        trie.subscribe(subscriber, b"one/%d" % i, 0)
        trie.subscribe(subscriber, b"$share/g/all", 0)
    del subscriber
    gc.collect()
    assert len(alive) == 10, "the trie keeps them"
    assert len(trie.matches(b"all")) == 10
    del trie
    gc.collect()
    assert alive == []


def test_the_cache_is_bounded_and_keeps_what_is_used() -> None:
    trie, subscriber = Trie(cache_topics=10), Subscriber()
    trie.subscribe(subscriber, b"#", 0)
    for i in range(100):
        trie.matches(b"often")
        trie.matches(b"once/%d" % i)
    assert trie.cache_size == 10
    assert trie.cache_hits == 99
    version = trie.version
    trie.bump()
    assert trie.version == version + 1
    trie.matches(b"often")
    assert trie.cache_hits == 99, "void by version"
    assert trie.cache_size == 10


def test_the_cache_is_bounded_in_bytes() -> None:
    trie = Trie(cache_bytes=100_000)
    for _ in range(100):
        trie.subscribe(Subscriber(), b"many", 0)
    for _ in range(3000):
        trie.subscribe(Subscriber(), b"too/many", 0)
    for i in range(1000):
        trie.matches(b"t/%d" % i)
        trie.matches(b"many")
        assert trie.cache_bytes <= 100_000
    assert trie.cache_hits == 999
    size = trie.cache_size
    assert len(trie.matches(b"too/many")) == 3000
    assert trie.cache_size == size, "one match does not push out all others"


def test_leaving_a_crowded_filter_keeps_the_others() -> None:
    trie = Trie()
    crowd = [Subscriber() for _ in range(500)]
    for i, subscriber in enumerate(crowd):
        trie.subscribe(subscriber, b"all", i % 3, i)
        trie.subscribe(subscriber, b"own/%d" % i, 0)
    for subscriber in crowd[::2]:
        assert trie.unsubscribe(subscriber, b"all")
    for subscriber in crowd[1::4]:
        assert trie.remove(subscriber) == 2
    left = crowd[3::4]
    assert {target[0] for target in trie.matches(b"all")} == set(left)
    for i, subscriber in list(enumerate(crowd))[3::4]:
        assert sorted(trie.subscriptions(subscriber)) == [(b"all", i % 3, i), (b"own/%d" % i, 0, 0)]
