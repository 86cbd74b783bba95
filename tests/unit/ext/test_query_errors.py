"""Errors of operations inside an expression: NULL at their place, whatever the order of operands and the index."""

from __future__ import annotations

import pytest

from penstock._ext.query.evaluator import QuerySet
from penstock.subscribers.query.sql.compiler import compile_topic
from penstock.subscribers.query.sql.statements import CreateTopic, parse_statement
from tests.support.worlds.queries import make_message, make_pack

NOT_JSON = [make_message("ord/x", payload) for payload in (b"not json", b"")]
TEXT_IN_N = make_message("ord/x", b'{"n": "abc"}')


def add(queries: QuerySet, query: str, on_error: str = "null") -> int:
    statement = parse_statement(f"CREATE TOPIC t WITH (on_error = '{on_error}') AS {query}")
    assert isinstance(statement, CreateTopic)
    return queries.add(compile_topic(statement, {}))


def rows_where(condition: str, *records: bytes, on_error: str = "null") -> tuple[int, int]:
    """Rows and errors."""
    queries = QuerySet()
    number = add(queries, f'SELECT ts FROM "ord/x" WHERE {condition}', on_error)
    queries.evaluate(make_pack(records), 0)
    _, rows, errors = queries.counts(number)
    return rows, errors


@pytest.mark.parametrize(
    "condition",
    [
        "coalesce(payload.zz, 'none') LIKE 'none'",
        "coalesce(payload.zz, 'none') = 'none'",
        "coalesce(payload.zz, 'none') IN ('none', 'x')",
        "'none' = coalesce(payload.zz, 'none') OR FALSE",
        "coalesce(payload.n, 0) = 0 OR qos = 5",
        "payload.n IS NULL",
        "(payload.n IS NULL) = TRUE",
    ],
)
def test_equality_keeps_rows_of_payloads_that_are_not_json(condition: str) -> None:
    assert rows_where(condition, *NOT_JSON) == (2, 2)
    assert rows_where(condition, *NOT_JSON, on_error="skip") == (0, 2)
    assert rows_where(condition, *NOT_JSON, on_error="dead-letter") == (0, 2)


@pytest.mark.parametrize(
    "condition",
    [
        "payload.n < 0 OR payload.b IS NULL",
        "payload.b IS NULL OR payload.n < 0",
        "(NOT (payload.n > 5 AND qos = 7))",
        "(NOT (qos = 7 AND payload.n > 5))",
        "coalesce(payload.n::DOUBLE, 0) = 0",
        "coalesce(payload.n::DOUBLE, 0) IN (0, 1)",
        "CASE WHEN payload.n > 20 THEN 'hot' ELSE 'cold' END = 'cold'",
        "(payload.n > 5) IS NULL",
        "concat('a', payload.n::BIGINT, 'b') = 'ab'",
        "greatest(payload.n::BIGINT, 3) = 3",
        "payload.n::BIGINT IS NOT DISTINCT FROM NULL",
    ],
)
def test_a_failing_operand_does_not_take_the_others_with_it(condition: str) -> None:
    assert rows_where(condition, TEXT_IN_N)[0] == 1


@pytest.mark.parametrize("on_error", ["skip", "dead-letter"])
def test_a_row_is_left_out_when_an_evaluated_operation_failed(on_error: str) -> None:
    """AND, OR, CASE and coalesce() are evaluated from left to right and stop where they are decided."""
    assert rows_where("payload.n < 0 OR payload.b IS NULL", TEXT_IN_N, on_error=on_error) == (0, 1)
    assert rows_where("payload.b IS NULL OR payload.n < 0", TEXT_IN_N, on_error=on_error) == (1, 0)
    assert rows_where("coalesce(1.0, payload.n) > 0", TEXT_IN_N, on_error=on_error) == (1, 0)
    assert rows_where("TRY_CAST(payload.n AS DOUBLE) IS NULL", TEXT_IN_N, on_error=on_error) == (1, 0)


def test_queries_of_every_policy_share_a_key() -> None:
    """The error of the key is one error of each; only those that take NULL for it go on."""
    queries = QuerySet()
    key = "coalesce(payload.n::DOUBLE, 0)"
    numbers = {
        (policy, constant): add(queries, f'SELECT ts FROM "ord/x" WHERE {key} = {constant}', policy)
        for policy in ("null", "skip", "dead-letter")
        for constant in (0, 1)
    }
    queries.evaluate(make_pack([TEXT_IN_N, make_message("ord/x", b"{}"), *NOT_JSON]), 0)
    counts = {which: queries.counts(number) for which, number in numbers.items()}
    assert counts == {
        ("null", 0): (4, 4, 3),
        ("null", 1): (0, 0, 3),
        ("skip", 0): (1, 1, 3),
        ("skip", 1): (0, 0, 3),
        ("dead-letter", 0): (1, 1, 3),
        ("dead-letter", 1): (0, 0, 3),
    }
    assert sorted((error.query, error.offset) for error in queries.take_errors()) == [
        (numbers["dead-letter", constant], offset) for constant in (0, 1) for offset in (0, 2, 3)
    ]


def test_a_forgiven_value_is_not_remembered_for_other_policies() -> None:
    """An expression that several queries share is computed once, except where it has an error."""
    queries = QuerySet()
    shared = "coalesce(payload.n::BIGINT, 7) + 1"
    forgiving = add(queries, f'SELECT {shared} AS x FROM "ord/x"')
    strict = add(queries, f'SELECT {shared} AS x FROM "ord/x"', "skip")
    also_forgiving = add(queries, f'SELECT {shared} AS x, qos FROM "ord/x"')
    found = dict(queries.evaluate(make_pack([TEXT_IN_N]), 0))
    assert {number: block.column(0) for number, block in found.items()} == {forgiving: [8], also_forgiving: [8]}
    assert [queries.counts(number) for number in (forgiving, strict, also_forgiving)] == [
        (1, 1, 1),
        (1, 0, 1),
        (1, 1, 1),
    ]


@pytest.mark.parametrize("text", ["0x1F", "0b11", "0x8000000000000000", "0xZ"])
def test_a_literal_is_cast_as_a_value_is(text: str) -> None:
    """The compiler casts literals, the evaluator casts values."""
    record = make_message("ord/x", b'{"s": "%s"}' % text.encode())
    assert rows_where(
        f"TRY_CAST('{text}' AS BIGINT) IS NOT DISTINCT FROM TRY_CAST(payload ->> 's' AS BIGINT)", record
    ) == (
        1,
        0,
    )
