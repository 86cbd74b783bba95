"""Access patterns against the sets of topics they stand for, written out over a small alphabet."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._ext.match.acl import PUBLISH, RECEIVE, SUBSCRIBE, AclProgram, filter_covers, filters_intersect
from tests.support.checkers.naive_topics import filter_matches, parse_filter, pattern_matches

# The names that filters use, and two that none uses: they stand for all the others. One level deeper than the longest
# filter shows what # does that + does not.
NAMES = (b"", b"a", b"$s", b"other", b"$other")
TOPICS = [
    topic for depth in range(1, 5) for levels in product(NAMES, repeat=depth) if (topic := b"/".join(levels)) != b""
]

names = st.sampled_from([b"", b"a", b"$s"])
filters = (
    st.tuples(st.lists(names | st.just(b"+"), max_size=2), st.sampled_from([b"#", b"+", b"a", b"", b"$s"]))
    .map(lambda parts: b"/".join([*parts[0], parts[1]]))
    .filter(bool)
)
# client ids and user names that would be wildcards or more levels if they were not taken literally
hostile = st.sampled_from([b"+", b"#", b"a/a", b"a+", b"/"])
patterns = filters.map(parse_filter) | st.lists(names | hostile | st.just("+"), min_size=1, max_size=3)
rules = st.lists(
    st.tuples(st.booleans(), st.integers(1, PUBLISH | RECEIVE | SUBSCRIBE), patterns.map(tuple)), max_size=4
)


@settings(max_examples=400, deadline=None)
@given(a=filters, b=filters)
def test_intersects_and_covers_say_what_the_sets_say(a: bytes, b: bytes) -> None:
    in_a = {topic for topic in TOPICS if filter_matches(a, topic)}
    in_b = {topic for topic in TOPICS if filter_matches(b, topic)}
    assert filters_intersect(a, b) == filters_intersect(b, a) == bool(in_a & in_b)
    assert filter_covers(a, b) == (in_a >= in_b)
    assert filter_covers(b, a) == (in_b >= in_a)


@settings(max_examples=100, deadline=None)
@given(rules=rules)
def test_first_rule_that_matches_decides(rules: list[tuple[bool, int, tuple[bytes | str, ...]]]) -> None:
    program = AclProgram(rules)

    def decide(topic: bytes, mask: int) -> bool:
        return next((allow for allow, actions, path in rules if actions & mask and pattern_matches(path, topic)), False)

    for topic in TOPICS[::3]:
        assert program.may_publish(topic) is decide(topic, PUBLISH)
        assert program.may_receive(topic) is decide(topic, RECEIVE | SUBSCRIBE)


@settings(max_examples=250, deadline=None)
@given(rules=rules, topic_filter=filters)
def test_a_filter_is_granted_if_it_could_deliver_something(
    rules: list[tuple[bool, int, tuple[bytes | str, ...]]], topic_filter: bytes
) -> None:
    wanted = {topic for topic in TOPICS if filter_matches(topic_filter, topic)}
    expected = False
    for allow, actions, path in rules:
        if not actions & SUBSCRIBE:
            continue
        named = {topic for topic in TOPICS if pattern_matches(path, topic)}
        if allow and named & wanted:
            expected = True
            break
        if not allow and named >= wanted:
            break
    assert AclProgram(rules).may_subscribe(topic_filter) is expected
