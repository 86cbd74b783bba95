"""Access rules; the set logic of patterns is in tests/model/test_acl_model.py."""

from __future__ import annotations

import pytest

from penstock._ext.match.acl import PUBLISH, RECEIVE, SUBSCRIBE, AclProgram, filter_covers, filters_intersect


def test_nothing_is_allowed_without_a_rule() -> None:
    program = AclProgram([])
    assert not program.may_publish(b"a")
    assert not program.may_receive(b"a")
    assert not program.may_subscribe(b"a")


def test_first_match_decides() -> None:
    program = AclProgram([(False, PUBLISH, (b"a", b"secret")), (True, PUBLISH, (b"a", "#"))])
    assert program.may_publish(b"a")
    assert program.may_publish(b"a/b/c")
    assert not program.may_publish(b"a/secret")
    assert not program.may_publish(b"b")
    assert not program.may_receive(b"a/b")


def test_allow_everything_does_not_open_dollar_topics() -> None:
    """[MQTT-4.7.2-1]"""
    program = AclProgram([(True, PUBLISH | SUBSCRIBE, ("#",))])
    assert program.may_publish(b"a/$SYS")
    assert not program.may_publish(b"$SYS/broker")
    assert not program.may_receive(b"$SYS/broker")
    assert not program.may_subscribe(b"$SYS/#")
    assert AclProgram([(True, SUBSCRIBE, (b"$SYS", "#"))]).may_receive(b"$SYS/broker")


def test_a_rule_for_subscribe_answers_delivery_too() -> None:
    program = AclProgram([(False, RECEIVE, (b"a", b"b")), (True, SUBSCRIBE, (b"a", "+"))])
    assert program.may_receive(b"a/c")
    assert not program.may_receive(b"a/b")
    assert program.may_subscribe(b"a/b"), "a rule about delivery says nothing about subscribing"


@pytest.mark.parametrize("name", [b"+", b"#", b"a/b", b"+/#", b"a+"])
def test_a_client_id_never_widens_a_pattern(name: bytes) -> None:
    program = AclProgram([(True, PUBLISH | SUBSCRIBE, (b"client", name)), (True, PUBLISH, (name,))])
    for topic in (b"client/x", b"client/a/b", b"client/" + name, b"client", b"x", name):
        assert not program.may_publish(topic)
        assert not program.may_receive(topic)
    for topic_filter in (b"client/+", b"client/#", b"#", b"client/" + name):
        assert not program.may_subscribe(topic_filter)


def test_a_hostile_name_in_a_deny_rule_does_not_lock_out_others() -> None:
    program = AclProgram([(False, SUBSCRIBE, (b"client", b"#")), (True, SUBSCRIBE, (b"client", "#"))])
    assert program.may_subscribe(b"client/#")


def test_a_filter_that_is_partly_allowed_is_granted() -> None:
    program = AclProgram([(False, SUBSCRIBE, (b"a", b"secret", "#")), (True, SUBSCRIBE, (b"a", "#"))])
    assert program.may_subscribe(b"#")
    assert program.may_subscribe(b"+/secret")
    assert program.may_subscribe(b"a/+/x")
    assert not program.may_subscribe(b"a/secret/+")
    assert not program.may_subscribe(b"a/secret/#")
    assert not program.may_subscribe(b"b/#")


@pytest.mark.parametrize(
    ("a", "b", "intersect", "covers"),
    [
        (b"a/#", b"a", True, True),
        (b"a/+", b"a", False, False),
        (b"+/#", b"#", True, True),
        (b"a/+/#", b"a/#", True, False),
        (b"#", b"$SYS/#", False, False),
        (b"+/+", b"/", True, True),
        (b"+", b"/#", False, False),
        (b"/+/#", b"/#", True, True),
        (b"a/+/c", b"+/b/+", True, False),
        (b"a/b", b"a/+", True, False),
        (b"/" * 65_535, b"+/#", True, False),
        (b"+/#", b"/" * 65_535, True, True),
    ],
)
def test_pairs(a: bytes, b: bytes, intersect: bool, covers: bool) -> None:
    assert filters_intersect(a, b) is intersect
    assert filter_covers(a, b) is covers


@pytest.mark.parametrize(
    "rule",
    [
        (True, PUBLISH, ()),
        (True, 0, (b"a",)),
        (True, 8, (b"a",)),
        (True, PUBLISH, ("#", b"a")),
        (True, PUBLISH, ("a",)),
    ],
)
def test_rules_that_mean_nothing(rule: tuple[bool, int, tuple[bytes | str, ...]]) -> None:
    with pytest.raises(ValueError, match="access"):
        AclProgram([rule])


def test_rules_are_kept_for_people() -> None:
    rules = ((True, PUBLISH, (b"a", "+")), (False, SUBSCRIBE, ("#",)))
    assert AclProgram(iter(rules)).rules == rules


def test_everything_of_a_filter() -> None:
    program = AclProgram(
        [
            (False, SUBSCRIBE, (b"$queue", b"events", b"secret", "#")),
            (True, SUBSCRIBE, (b"$queue", b"events", "#")),
            (True, SUBSCRIBE, (b"$queue", b"jobs", b"eu", "#")),
            (True, SUBSCRIBE, (b"$queue", b"jobs", b"us", "#")),
            (True, PUBLISH, (b"$queue", "#")),
        ]
    )
    assert program.may_receive_all(b"$queue/events/clicks/#")
    assert not program.may_receive_all(b"$queue/events/#"), "a part is denied"
    assert program.may_receive_all(b"$queue/jobs/eu/#")
    assert not program.may_receive_all(b"$queue/jobs/#")
    assert not program.may_receive_all(b"$queue/spy/#"), "a rule for publishing says nothing about it"


def test_a_verb_has_to_be_named() -> None:
    program = AclProgram(
        [
            (True, PUBLISH, (b"$queue", b"events", "#")),
            (True, PUBLISH, (b"$queue", b"events", "+")),
            (False, PUBLISH, (b"$queue", b"secret", "#")),
            (True, SUBSCRIBE, (b"$queue", b"jobs", b"$commit")),
            (True, PUBLISH, (b"$queue", b"orders", b"$commit")),
            (True, PUBLISH, (b"$queue", "+", b"$commit")),
        ]
    )
    assert program.may_use_verb(b"$queue/orders/$commit")
    assert program.may_use_verb(b"$queue/events/$commit"), "by the last rule"
    assert not program.may_use_verb(b"$queue/secret/$commit")
    assert not program.may_use_verb(b"$queue/events/$ack")
    assert not AclProgram(program.rules[:4]).may_use_verb(b"$queue/events/$commit")
    assert not AclProgram(program.rules[:4]).may_use_verb(b"$queue/jobs/$commit")
