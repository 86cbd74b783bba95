"""Addresses of queues as clients write them, and names of logs that no two queues share."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.services.names import checked
from penstock.subscribers.queue.names import (
    Address,
    check_name,
    default_binding,
    group_id,
    key_of,
    matches,
    parse_group_id,
    parse_publish,
    parse_subscription,
    topic_of,
    verb_of,
)

HASHED = re.compile(r"tbmq\.queue\.(dlq\.)?[0-9a-f]{64}")
names = st.text(st.characters(codec="utf-8", exclude_characters="/+#\0"), min_size=1, max_size=60).filter(
    lambda name: not name.startswith("$")
)


@pytest.mark.parametrize(
    ("queue", "topic"),
    [
        ("orders", "tbmq.queue.orders"),
        ("Work_items-2", "tbmq.queue.Work_items-2"),
        ("$dlq/orders", "tbmq.queue.dlq.orders"),
        ("x" * 238, "tbmq.queue." + "x" * 238),
    ],
)
def test_a_plain_name_is_seen_in_the_name_of_the_log(queue, topic):
    assert topic_of(queue) == topic
    assert topic_of(queue[:200], "site").startswith("site.tbmq.queue.")


@pytest.mark.parametrize(
    "queue",
    [
        "a.b",
        "dlq.orders",
        "dlq_orders",
        "dlq",
        "state",
        "members",
        "definitions",
        "ä",
        "a b",
        "x" * 239,
        "ab" * 32,
        "AB" * 32,
        ".",
    ],
)
def test_a_name_that_a_log_cannot_have_or_that_something_else_has_is_hashed(queue):
    assert HASHED.fullmatch(topic_of(queue))
    assert HASHED.fullmatch(topic_of(f"$dlq/{queue[:200]}")) or queue in ("x" * 239,)


@given(st.lists(names, unique=True, min_size=2, max_size=6))
def test_two_queues_never_share_a_log_nor_a_name_in_kafkas_metrics(queues):
    every = [*queues, *(f"$dlq/{queue}" for queue in queues)]
    topics = {checked(topic_of(queue, "site")).replace(".", "_") for queue in every}
    assert len(topics) == len(every)


@pytest.mark.parametrize(
    ("topic_filter", "address"),
    [
        ("$queue/orders", ("orders", "")),
        ("$queue/orders/", ("orders", "")),
        ("$queue/orders/#", ("orders", "")),
        ("$queue/orders/eu/+/image/#", ("orders", "eu/+/image/#")),
        ("$queue/orders/+", ("orders", "+")),
        ("$queue/$dlq/orders", ("$dlq/orders", "")),
        ("$queue/$dlq/orders/eu/#", ("$dlq/orders", "eu/#")),
        ("$queue/+/temperature", ("+", "temperature")),
        ("$queue/#", ("+", "")),
        ("$queue/$dlq/+", ("$dlq/+", "")),
        ("$queue/$dlq/#", ("$dlq/+", "")),
    ],
)
def test_what_a_subscription_consumes(topic_filter, address):
    found = parse_subscription(topic_filter)
    assert found == address
    assert found.spans_queues == ("+" in address[0])


@pytest.mark.parametrize(
    ("topic_filter", "message"),
    [
        ("orders", r"use \$queue/<queue>"),
        ("$queue", r"use \$queue/<queue>"),
        ("$queue/", r"use \$queue/<queue>"),
        ("$queue//a", "use one topic level"),
        ("$queue/$dlq", r"use \$queue/\$dlq/<queue>"),
        ("$queue/$dlq//a", r"use \$queue/\$dlq/<queue>"),
        ("$queue/$dlq/$dlq/a", "begin with \\$"),
        ("$queue/$other/a", "begin with \\$"),
        ("$queue/orders/#/a", "# stands alone in the last level"),
        ("$queue/orders/a#", "# stands alone"),
        ("$queue/orders/a+", r"\+ stands alone in its level"),
        ("$queue/orders/$ack", "for publishing"),
        ("$queue/" + "x" * 256, "longer than 255 bytes"),
        ("", "empty"),
    ],
)
def test_a_bad_subscription_says_what_to_write(topic_filter, message):
    with pytest.raises(ValueError, match=message):
        parse_subscription(topic_filter)


@pytest.mark.parametrize(
    ("topic", "queue", "key", "verb"),
    [
        ("$queue/orders", "orders", "", ""),
        ("$queue/orders/eu/images", "orders", "eu/images", ""),
        ("$queue/orders/$ack", "orders", "$ack", "$ack"),
        ("$queue/orders/eu/$reject", "orders", "eu/$reject", "$reject"),
        ("$queue/$dlq/orders/$nack", "$dlq/orders", "$nack", "$nack"),
        ("$queue/orders/my$ack", "orders", "my$ack", ""),
    ],
)
def test_where_a_publish_goes(topic, queue, key, verb):
    assert parse_publish(topic) == (queue, key)
    assert verb_of(key) == verb


@pytest.mark.parametrize(
    "topic",
    ["$queue/$ack", "$queue/orders/$ack/eu", "$queue/orders/$commit/$ack", "$queue/orders/$other", "a/b", "$queue/"],
)
def test_a_control_word_stands_in_the_last_level_only(topic):
    with pytest.raises(ValueError, match="is no"):
        parse_publish(topic)


@given(names)
def test_what_every_queue_is_bound_to_leads_to_it(queue):
    check_name(queue)
    for name in (queue, f"$dlq/{queue}"):
        assert parse_subscription(default_binding(name)) == Address(name, "")
        assert parse_publish(f"$queue/{name}/a/b") == (name, "a/b")


@pytest.mark.parametrize(
    ("topic_filter", "key", "is_match"),
    [
        ("", "a/b", True),
        ("", "", True),
        ("x/#", "x", True),
        ("x/#", "x/", True),
        ("x/#", "xy", False),
        ("+", "", True),
        ("+", "a", True),
        ("+", "a/b", False),
        ("a/+", "a/", True),
        ("a/+", "a", False),
        ("a/+/c", "a/b/c", True),
        ("a", "a", True),
        ("a", "a/b", False),
        ("#", "", True),
    ],
)
def test_filters_are_those_of_mqtt(topic_filter, key, is_match):
    assert matches(topic_filter, key) is is_match


def test_the_key_of_a_message_in_a_queue():
    assert key_of("orders", "$queue/orders/eu/1") == "eu/1"
    assert key_of("orders", "$queue/orders") == ""
    assert key_of("audit", "$queue/orders/eu") == "$queue/orders/eu"
    assert key_of("all", "sensors/1") == "sensors/1"
    assert key_of("$dlq/orders", "$queue/$dlq/orders/eu") == "eu"


@given(st.text(max_size=8), st.text("a@%/+#", max_size=8))
def test_a_group_is_known_by_its_name_and_filter(group, topic_filter):
    assert parse_group_id(group_id(group, topic_filter)) == (group, topic_filter)


def test_the_identity_of_a_group_is_readable():
    assert group_id("workers", "") == "workers"
    assert group_id("workers", "eu/#") == "workers@eu/#"
