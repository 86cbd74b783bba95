"""Names of the topics and groups of APPLICATION clients: those of TBMQ, and never one for two."""

import hashlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.services.names import checked
from penstock.subscribers.application.names import ApplicationNames

NAMES = ApplicationNames()
HASH = re.compile(r"[0-9a-f]{64}")
TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def sha(text):
    return hashlib.sha256(text if isinstance(text, bytes) else text.encode()).hexdigest()


def test_a_client_of_letters_and_digits_keeps_its_name():
    assert NAMES.client_topic("Client7") == "tbmq.msg.app.Client7"


@pytest.mark.parametrize("client_id", ["a-b", "a.b", "a/b", "ä", "a\n", "a b", " ", "x" * 237, "ab" * 32, "AB" * 32])
def test_other_clients_are_hashed(client_id):
    assert NAMES.client_topic(client_id) == f"tbmq.msg.app.{sha(client_id)}"


def test_the_longest_name_is_kafkas():
    assert len(NAMES.client_topic("x" * 236)) == 249
    prefixed = ApplicationNames("site.one")
    assert prefixed.client_topic("x" * 227) == "site.one.tbmq.msg.app." + "x" * 227
    assert len(prefixed.client_topic("x" * 227)) == 249
    assert prefixed.client_topic("x" * 228) == f"site.one.tbmq.msg.app.{sha('x' * 228)}"
    assert prefixed.clients_group == "site.one.application-persisted-msg-consumer-group"


def test_without_validation_clients_with_other_characters_have_no_topic():
    names = ApplicationNames(client_id_validation=False)
    assert names.client_topic("a-b") is None
    assert names.client_topic("ab") == "tbmq.msg.app.ab"
    # nothing is wrong with its characters: it is hashed so that it is nobody else's
    assert names.client_topic("ab" * 32) == f"tbmq.msg.app.{sha('ab' * 32)}"


@pytest.mark.parametrize(
    ("topic_filter", "name"),
    [
        (b"test/topic", "test.topic"),
        (b"test/#", "test.mlw"),
        (b"test/+", "test.slw"),
        (b"#", "mlw"),
        (b"+/a/+", "slw.a.slw"),
        (b"a", "a"),
    ],
)
def test_filters_are_spelled_out_as_in_the_seed(topic_filter, name):
    assert NAMES.shared_topic(topic_filter) == f"tbmq.msg.app.shared.{name}"
    group = NAMES.shared_group(b"workers", topic_filter)
    assert group == f"application-shared-msg-consumer-group-workers-tbmq.msg.app.shared.{name}"


@pytest.mark.parametrize(
    "topic_filter",
    [b"a/slw", b"a/mlw", b"slw", b"a//b", b"/a", b"a/", b"/", b"a.b", b"a-b", b"$SYS/#", b"a" * 230, b"ab" * 32, b"a+"],
)
def test_a_filter_that_could_be_taken_for_another_is_hashed(topic_filter):
    assert NAMES.shared_topic(topic_filter) == f"tbmq.msg.app.shared.{sha(topic_filter)}"


def test_without_validation_filters_with_other_characters_have_no_topic():
    names = ApplicationNames(shared_topic_validation=False)
    assert names.shared_topic(b"a-b/#") is None
    assert names.shared_topic(b"a/+") == "tbmq.msg.app.shared.a.slw"
    assert names.shared_topic(b"a/slw") == f"tbmq.msg.app.shared.{sha(b'a/slw')}"


@pytest.mark.parametrize("share", [b"a b", "ä".encode(), b"s-tbmq.msg.app.shared.a", b"x" * 129, b"ab" * 32, b"$x"])
def test_share_names_that_no_group_can_have_are_hashed(share):
    group = NAMES.shared_group(share, b"a")
    assert group == f"application-shared-msg-consumer-group-{sha(share)}-tbmq.msg.app.shared.a"


WORDS = st.sampled_from(["", "a", "b", "A", "slw", "mlw", "+", "#", ".", "-", "shared", "aslw", "a.b", "ä", "0" * 64])
SOME_WORDS = st.lists(WORDS, max_size=4).map("".join)
CLIENT_IDS = st.text(max_size=300) | SOME_WORDS | SOME_WORDS.map(sha)
FILTERS = st.lists(WORDS, min_size=1, max_size=6).map("/".join) | st.text(min_size=1, max_size=260)
SHARES = st.lists(
    st.sampled_from(["a", "-", ".", "tbmq.msg.app.shared.", "tbmq", "x.", "é", "0" * 64]), min_size=1, max_size=5
).map("".join)
PREFIXES = st.sampled_from(["", "p", "a-b", "tbmq.msg.app.shared.q", "x-tbmq.msg.app.shared", "tbmq.msg.app"])


@given(CLIENT_IDS, CLIENT_IDS, PREFIXES)
def test_two_clients_never_share_a_name(one, other, prefix):
    names = ApplicationNames(prefix)
    assert (names.client_topic(one) == names.client_topic(other)) == (one == other)


@given(st.data(), PREFIXES)
def test_two_filters_never_share_a_name(data, prefix):
    names = ApplicationNames(prefix)
    one = data.draw(FILTERS).encode()
    # the words of its name are the likeliest to be taken for it
    alike = [one, names.shared_topic(one).rpartition("shared.")[2].replace(".", "/").encode(), sha(one).encode()]
    other = data.draw(st.sampled_from(alike) | FILTERS.map(str.encode))
    assert (names.shared_topic(one) == names.shared_topic(other)) == (one == other)


@given(CLIENT_IDS, FILTERS, PREFIXES)
def test_a_client_and_a_filter_never_share_a_name(client_id, topic_filter, prefix):
    names = ApplicationNames(prefix)
    topic, shared = names.client_topic(client_id), names.shared_topic(topic_filter.encode())
    assert topic != shared
    assert checked(topic) == topic
    assert checked(shared) == shared
    assert TOPIC.fullmatch(topic)


@given(SHARES, FILTERS, SHARES, FILTERS, PREFIXES)
def test_two_shared_subscriptions_never_share_a_group(share, one, other_share, other, prefix):
    names = ApplicationNames(prefix)
    first = names.shared_group(share.encode(), one.encode())
    second = names.shared_group(other_share.encode(), other.encode())
    assert (first == second) == ((share, one) == (other_share, other))
    assert re.fullmatch(r"[a-zA-Z0-9._-]+", first)
