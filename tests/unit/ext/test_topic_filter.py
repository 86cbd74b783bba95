"""The matcher of Python code agrees with the compiled one and with the words of the specification."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._ext.record.columns import match_filter
from penstock_schema.topic_filter import is_valid, matches, matches_levels
from tests.support.checkers.naive_topics import filter_matches

LEVELS = st.sampled_from(["", "a", "b", "$a", "ä"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)


@st.composite
def filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(st.one_of(LEVELS, st.just("+")), max_size=4)) + draw(st.sampled_from([[], ["#"]]))
    return "/".join(levels) or "#"


@given(filters(), TOPICS)
def test_all_matchers_agree(topic_filter: str, topic: str) -> None:
    assert is_valid(topic_filter)
    expected = filter_matches(topic_filter.encode(), topic.encode())
    assert matches(topic_filter, topic) == match_filter(topic_filter.encode(), topic.encode()) == expected


def test_names_that_are_not_topics_have_no_system_names() -> None:
    assert matches_levels("#", "$a")
    assert matches_levels("+/b", "$a/b")
    assert not matches("#", "$a")


@pytest.mark.parametrize("text", ["", "a+", "#/a", "a#", "a/#/b", "a\0"])
def test_what_is_not_a_filter(text: str) -> None:
    assert not is_valid(text)
