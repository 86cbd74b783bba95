"""Many queries over one stream: who sees which message, what is an error, what is counted."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from penstock._ext.query.evaluator import QuerySet
from penstock.subscribers.query.plan import Expression
from tests.support.worlds.queries import (
    BIGINT,
    BLOB,
    BOOLEAN,
    DOUBLE,
    ERROR,
    JSON,
    PROPERTIES,
    RECEIVED_AT,
    TIMESTAMP,
    VARCHAR,
    block_rows,
    call,
    cast,
    make_message,
    make_pack,
    make_plan,
    path,
    real,
    rows_of,
    text,
    value_of,
    whole,
)

OFFSET = ("field", BIGINT, "offset")
ID = cast(BIGINT, path("id"))
A, B = (call(VARCHAR, "json_text", path(name)) for name in "ab")
PROPS = (
    b"\x03\x00\x04text\x08\x00\x01r\x09\x00\x02\x00\x01"
    b"\x26\x00\x01a\x00\x011\x26\x00\x01b\x00\x012\x26\x00\x01a\x00\x013"
)


def eq(a: Expression, b: Expression) -> Expression:
    return ("eq", BOOLEAN, a, b)


def both(*conditions: Expression) -> Expression:
    return ("and", BOOLEAN, *conditions)


def offsets_of(queries: QuerySet, *records: bytes | None, **options: Any) -> dict[int, list[int]]:
    return {query: block.offsets() for query, block in queries.evaluate(make_pack(records), 3, **options)}


def payload(**members: Any) -> bytes:
    return make_message("t", json.dumps(members))


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (VARCHAR, "topic", "a/b"),
        (VARCHAR, "client_id", "c"),
        (VARCHAR, "username", "u"),
        (VARCHAR, "content_type", "text"),
        (VARCHAR, "response_topic", "r"),
        (BLOB, "correlation_data", b"\x00\x01"),
        (BLOB, "payload", b"\xff"),
        (BIGINT, "qos", 1),
        (BIGINT, "partition", 0),
        (BIGINT, "offset", 0),
        (BOOLEAN, "retain", True),
        (TIMESTAMP, "ts", RECEIVED_AT * 1_000_000),
        (TIMESTAMP, "expires_at", 5_000_000),
        (PROPERTIES, "user_properties", [("a", "1"), ("b", "2"), ("a", "3")]),
    ],
)
def test_fields(kind: int, name: str, value: Any) -> None:
    fields = {"qos": 1, "retain": True, "username": "u", "expires_at": 5, "props": PROPS}
    assert value_of(("field", kind, name), b"\xff", "a/b", **fields) == value


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (VARCHAR, "username"),
        (VARCHAR, "content_type"),
        (TIMESTAMP, "expires_at"),
        (PROPERTIES, "user_properties"),
        (BLOB, "correlation_data"),
    ],
)
def test_absent_fields_are_null(kind: int, name: str) -> None:
    assert value_of(("field", kind, name)) is None


def test_levels_and_properties() -> None:
    assert [value_of(("level", VARCHAR, n), topic="a//c") for n in (1, 2, 3, 4)] == ["a", "", "c", None]
    assert [value_of(("property", VARCHAR, n), props=PROPS) for n in ("a", "b", "c")] == ["1", "2", None]


def test_topic_filters_choose_queries() -> None:
    queries = QuerySet()
    numbers = {name: queries.add(make_plan(topic_filter=name)) for name in ("a/+", "a/#", "b", "#")}
    found = offsets_of(queries, *(make_message(topic) for topic in ("a/x", "a/x/y", "b", "$SYS/x")))
    assert found == {numbers["a/+"]: [0], numbers["a/#"]: [0, 1], numbers["b"]: [2], numbers["#"]: [0, 1, 2]}


def test_where_keeps_only_true() -> None:
    condition = ("gt", BOOLEAN, cast(DOUBLE, path("t")), real(30.0))
    records = [payload(t=31), payload(t=30), payload(), payload(t=None), payload(t="44.5"), payload(t=1e3)]
    assert rows_of(make_plan([OFFSET, path("t")], condition), *records) == [(0, 31), (4, "44.5"), (5, 1000.0)]


def test_partition_slices_and_what_is_no_envelope() -> None:
    queries = QuerySet()
    number = queries.add(make_plan([("field", BIGINT, "partition")]))
    records = [make_message(), None, b"not an envelope", make_message(), make_message()]
    assert [(query, block_rows(block)) for query, block in queries.evaluate(make_pack(records), 3)] == [
        (number, [(3,), (3,), (3,)])
    ]
    assert (queries.passed_over, queries.next_offset) == (2, 5)
    assert offsets_of(queries, *records, from_offset=3, max_records=1) == {number: [3]}
    assert queries.next_offset == 4
    assert offsets_of(queries, *records, from_offset=9) == {}
    assert queries.next_offset == -1


def test_equalities_find_their_queries() -> None:
    """Queries of one filter with `x = constant` or IN are found by the value, others are all asked."""
    queries = QuerySet()
    conditions = {
        "one": eq(ID, whole(1)),
        "turned": eq(whole(1), ID),
        "in": ("in", BOOLEAN, ID, whole(1), whole(2), whole(None)),
        "or": ("or", BOOLEAN, eq(ID, whole(3)), eq(ID, whole(1))),
        "and": both(("gt", BOOLEAN, cast(DOUBLE, path("t")), real(5.0)), eq(ID, whole(1))),
        "never": eq(ID, whole(None)),
        "other": eq(call(VARCHAR, "json_text", path("name")), text("x")),
        "level": eq(("level", VARCHAR, 1), text("t")),
        "plain": ("ge", BOOLEAN, ID, whole(2)),
    }
    numbers = {queries.add(make_plan(where=condition)): name for name, condition in conditions.items()}
    records = [payload(id=1, t=9), payload(id=1, t=1), payload(id=2, name="x"), payload(id=3), payload(name="y")]
    found = {numbers[query]: offsets for query, offsets in offsets_of(queries, *records).items()}
    assert found == {
        "one": [0, 1],
        "turned": [0, 1],
        "in": [0, 1, 2],
        "or": [0, 1, 3],
        "and": [0],
        "other": [2],
        "level": [0, 1, 2, 3, 4],
        "plain": [2, 3],
    }
    evaluated = {name: queries.counts(query)[0] for query, name in numbers.items()}
    assert evaluated["one"] == evaluated["and"] == 2
    assert evaluated["other"] == 1
    assert evaluated["plain"] == 5


@pytest.mark.parametrize(
    ("kind", "constants", "records"),
    [
        (DOUBLE, [0.0, 1.5, -7.0], [0.0, -0.0, 1.5, 2.5, -7]),
        (VARCHAR, ["", "a", "é" * 50], ["a", "b", "é" * 50, ""]),
        (BOOLEAN, [True, False], [True, False, None]),
    ],
)
def test_equalities_of_every_type(kind: int, constants: list[Any], records: list[Any]) -> None:
    key = call(VARCHAR, "json_text", path("v")) if kind == VARCHAR else cast(kind, path("v"))
    queries = QuerySet()
    numbers = {queries.add(make_plan(where=eq(key, ("literal", kind, one)))): one for one in constants}
    found = offsets_of(queries, *(payload(v=value) for value in records))
    for number, constant in numbers.items():
        assert found.get(number, []) == [i for i, value in enumerate(records) if value == constant]


def test_a_thousand_queries_cost_one_lookup() -> None:
    queries = QuerySet()
    numbers = [queries.add(make_plan(where=eq(ID, whole(i)))) for i in range(1_000)]
    found = offsets_of(queries, *(payload(id=i) for i in range(500, 510)))
    assert found == {numbers[i]: [i - 500] for i in range(500, 510)}
    assert sum(queries.counts(number)[0] for number in numbers) == 10


def test_queries_come_and_go() -> None:
    queries = QuerySet()
    first = queries.add(make_plan([path("a")], topic_filter="t"))
    second = queries.add(make_plan([path("b", "c")], eq(ID, whole(1)), "t"))
    records = [payload(a=1, b={"c": 2}, id=1)]

    def values() -> dict[int, Any]:
        return {query: block.column(0)[0] for query, block in queries.evaluate(make_pack(records), 0)}

    assert values() == {first: 1, second: 2}
    queries.remove(first)
    assert (values(), len(queries)) == ({second: 2}, 1)
    third = queries.add(make_plan([path("d")], eq(ID, whole(1)), "t"))
    assert third not in (first, second)
    assert values() == {second: 2, third: None}
    queries.remove(second)
    queries.remove(third)
    assert (values(), len(queries)) == ({}, 0)
    with pytest.raises(KeyError):
        queries.remove(first)
    with pytest.raises(KeyError):
        queries.counts(first)


@pytest.mark.parametrize("policy", ["skip", "null", "dead-letter"])
def test_policies_for_a_value_that_cannot_be(policy: str) -> None:
    queries = QuerySet()
    number = queries.add(make_plan([OFFSET, cast(BIGINT, path("v"))], on_error=policy))
    rows = [
        row
        for _, block in queries.evaluate(make_pack([payload(v=1), payload(v="x"), payload()]), 0)
        for row in block_rows(block)
    ]
    assert rows == [(0, 1), (1, None), (2, None)] if policy == "null" else [(0, 1), (2, None)]
    assert queries.counts(number) == (3, len(rows), 1)
    errors = [(error.query, error.offset, error.column, error.message) for error in queries.take_errors()]
    reported = [(number, 1, "c1", "cannot convert '\"x\"' from JSON to BIGINT")]
    assert errors == (reported if policy == "dead-letter" else [])
    assert queries.take_errors() == []


@pytest.mark.parametrize("policy", ["skip", "null", "dead-letter"])
@pytest.mark.parametrize("needs_json", ["column", "where", "key"])
def test_policies_for_a_payload_that_is_no_json(policy: str, needs_json: str) -> None:
    """An error of the queries that need its values, and only of them; with `null` they are NULL."""
    queries = QuerySet()
    where = {
        "column": None,
        "where": ("is_null", BOOLEAN, path("v")),
        "key": eq(cast(BIGINT, path("v")), whole(1)),
    }[needs_json]
    number = queries.add(make_plan([OFFSET, path("v")], where, on_error=policy))
    free = queries.add(make_plan([OFFSET]))
    found = dict(queries.evaluate(make_pack([make_message("t", b"no json"), make_message("t", b"\xff")]), 0))
    assert found[free].rows == 2
    assert queries.counts(free) == (2, 2, 0)
    if policy == "null" and needs_json != "key":
        assert block_rows(found[number]) == [(0, None), (1, None)]
    else:
        assert number not in found
    assert queries.counts(number)[2] == 2
    errors = queries.take_errors()
    assert [error.offset for error in errors] == ([0, 1] if policy == "dead-letter" else [])
    assert all("not JSON" in error.message for error in errors)


def test_errors_in_where_are_not_true() -> None:
    for policy in ("skip", "null", "dead-letter"):
        queries = QuerySet()
        number = queries.add(make_plan(where=("gt", BOOLEAN, ID, whole(0)), on_error=policy))
        assert offsets_of(queries, payload(id="x"), payload(id=1)) == {number: [1]}
        assert queries.counts(number) == (2, 1, 1)
        assert [error.column for error in queries.take_errors()] == ["WHERE"] * (policy == "dead-letter")


def test_errors_of_a_key_outlive_changes() -> None:
    """They are counted for the group and then for each query, also when others come and go."""
    queries = QuerySet()
    first = queries.add(make_plan(where=eq(ID, whole(1))))
    offsets_of(queries, payload(id="x"))
    second = queries.add(make_plan(where=eq(ID, whole(2))))
    offsets_of(queries, payload(id="x"))
    queries.remove(second)
    offsets_of(queries, payload(id="x"))
    assert queries.counts(first) == (0, 0, 3)


def test_reported_errors_are_bounded() -> None:
    queries = QuerySet()
    number = queries.add(make_plan([ID], on_error="dead-letter"))
    offsets_of(queries, *([payload(id="x")] * 1_200))
    assert len(queries.take_errors()) == 1_000
    assert queries.counts(number) == (1_200, 0, 1_200)


def test_many_paths_of_one_document() -> None:
    """One pass finds them all, with as many members as there are."""
    document = {f"m{i}": {"x": [i, {"y": -i}]} for i in range(50)}
    columns = [path(f"m{i}", "x", 1, "y") for i in range(50)] + [path(), path("m3"), path("m3", "x", -2), path("m50")]
    [row] = rows_of(make_plan(columns), make_message("t", json.dumps(document)))
    assert row == (*(-i for i in range(50)), document, document["m3"], 3, None)


def test_of_equal_members_the_first_counts() -> None:
    assert value_of(path("a"), b'{"a":1,"a":2}') == 1
    assert value_of(path("a", "b"), b'{"a":1,"a":{"b":2}}') is None


def test_json_of_texts() -> None:
    document = text('{"a": [10, {"b\\n": true}], "é": null}')
    assert value_of(("json_of", JSON, document, ("a", 1, "b\n"))) is True
    assert value_of(("json_of", JSON, document, ("a", -2))) == 10
    assert value_of(("json_of", JSON, document, ("a", 2))) is None
    assert value_of(("json_of", JSON, document, ("é",))) is None
    assert value_of(("json_of", JSON, text("nonsense"), ("a",))) is ERROR
    assert value_of(("json_of", JSON, path("x"), ("y",)), b'{"x":{"y":5}}') == 5


def test_what_is_promised_is_kept() -> None:
    """A plan that gives another type than its column says is an error of the row, not a crash."""
    plan = make_plan([("cast", VARCHAR, whole(1))])
    lying = type(plan)("k", "#", (("c", BIGINT, text("x")),), None, "dead-letter")
    queries = QuerySet()
    queries.add(lying)
    assert offsets_of(queries, payload()) == {}
    assert "VARCHAR" in queries.take_errors()[0].message
    assert value_of(("concat", VARCHAR, call(VARCHAR, "length", text("x")), text("y"))) is ERROR
    assert value_of(("case", VARCHAR, ("literal", BOOLEAN, True), whole(1), text("y"))) is ERROR


@pytest.mark.parametrize(
    "expression",
    [
        ("nonsense", BIGINT),
        ("field", BIGINT, "nonsense"),
        ("call", BIGINT, "nonsense", whole(1)),
        ("add", BIGINT, whole(1)),
        ("case", BIGINT, whole(1), whole(1)),
        ("level", VARCHAR, 0),
        ("json", JSON, (1.5,)),
        ("like", BOOLEAN, text("a"), text("a"), "xx"),
        ("literal", 99, 1),
        ("field", BIGINT, "topic"),
        ("concat", VARCHAR, text("a"), whole(1)),
        ("add", BIGINT, text("a"), whole(1)),
        ("in", BOOLEAN, text("a"), whole(1)),
        ("like", BOOLEAN, whole(1), text("a"), None),
        call(VARCHAR, "upper", whole(1)),
        call(VARCHAR, "substr", text("a"), text("b")),
        call(VARCHAR, "greatest", text("a"), whole(1)),
        call(VARCHAR, "json_type", text("{}")),
        ("call", TIMESTAMP, "date_trunc", text("eon"), ("field", TIMESTAMP, "ts")),
    ],
)
def test_plans_that_make_no_sense(expression: Expression) -> None:
    queries = QuerySet()
    with pytest.raises((ValueError, KeyError)):
        queries.add(make_plan([expression, path("a")]))
    assert len(queries) == 0


def test_nesting_of_expressions_is_bounded() -> None:
    expression: Expression = whole(1)
    for _ in range(400):
        expression = ("neg", BIGINT, expression)
    assert value_of(expression) == 1
    for _ in range(200):
        expression = ("neg", BIGINT, expression)
    with pytest.raises(ValueError, match="nested"):
        value_of(expression)


def test_null_does_not_hide_errors_of_other_arguments() -> None:
    bad = call(VARCHAR, "lpad", text("x"), whole(5), text(""))
    assert value_of(call(VARCHAR, "replace", text(None), text("a"), bad)) is ERROR
    assert value_of(("concat", VARCHAR, text(None), bad)) is ERROR
    assert value_of(("concat", VARCHAR, text(None), text("a"))) is None
    assert value_of(call(VARCHAR, "concat_ws", text(None), text("a"))) is None
    assert value_of(call(VARCHAR, "concat_ws", text("-"), text(None), text("a"), text("b"))) == "a-b"
    assert value_of(("coalesce", VARCHAR, text("a"), bad)) == "a"


def test_large_payloads() -> None:
    document = {"skip": ["x" * 1_000] * 2_000, "v": "y" * 3_000_000, "n": 1}
    assert value_of(path("n"), json.dumps(document)) == 1
    assert (
        value_of(call(VARCHAR, "upper", call(VARCHAR, "json_text", path("v"))), json.dumps(document)) == "Y" * 3_000_000
    )


def test_rows_are_bounded_in_one_call_and_each_alone() -> None:
    """Large payloads in many columns: an evaluation ends early, and a row that is too large is an error of its own."""
    queries = QuerySet()
    number = queries.add(make_plan([("field", BLOB, "payload")] * 5))
    records = [make_message(payload=b"x" * 1_000)] * 10
    assert offsets_of(queries, *records, max_bytes=11_000) == {number: [0, 1, 2]}
    assert queries.next_offset == 3
    assert offsets_of(queries, *records, from_offset=3, max_bytes=0) == {number: [3]}, "one at least"
    assert offsets_of(queries, *records, from_offset=4, max_ns=0) == {number: [4]}
    large = make_message(payload=b"x" * (13 << 20))
    fits = queries.add(make_plan([("field", BLOB, "payload")] * 4))
    assert offsets_of(queries, large) == {fits: [0]}
    assert queries.counts(number)[2] == 1


@pytest.mark.parametrize(
    "condition",
    [
        ("like", BOOLEAN, A, B, None),
        ("ilike", BOOLEAN, A, B, None),
        eq(call(VARCHAR, "trim", A, B), text("")),
    ],
)
def test_no_message_makes_a_query_slow(condition: Expression) -> None:
    """Both texts are a client's: what takes their product is an error of the row, not half a minute of the broker."""
    queries = QuerySet()
    number = queries.add(make_plan(where=condition))
    began = time.thread_time()
    found = offsets_of(queries, payload(a="a" * 500_000, b="%" + "a" * 40_000 + "b"), payload(a="abc", b="a%"))
    assert (found.get(number, []), queries.counts(number)[2]) == ([1] if condition[0] != "eq" else [], 1)
    assert time.thread_time() - began < 5


def test_what_functions_build_of_one_message_is_bounded() -> None:
    queries = QuerySet()
    padded = [
        call(BIGINT, "length", call(VARCHAR, "lpad", text(str(i)), whole(9_000_000), text("x"))) for i in range(40)
    ]
    number = queries.add(make_plan(padded, on_error="null"))
    ((_, block),) = queries.evaluate(make_pack([make_message()]), 0)
    assert {9_000_000, None} == {block.column(i)[0] for i in range(40)}
    assert queries.counts(number)[2] == 1
