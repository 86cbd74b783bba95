"""UNNEST: the elements of an array in a message are rows."""

from __future__ import annotations

import json
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock._ext.query.evaluator import QuerySet
from penstock.subscribers.query.plan import Plan
from penstock.subscribers.query.sql.compiler import compile_topic
from penstock.subscribers.query.sql.statements import CreateTable, CreateTopic, parse_statement
from penstock_client.errors import SqlError
from tests.support.worlds.queries import block_rows, make_message, make_pack

TWO = b'[{"t": 1}, {"t": 2}]'


def plan_of(query: str, on_error: str = "null") -> Plan:
    table = parse_statement("CREATE TABLE rooms FROM 'a/#' (list JSON FROM payload.list, n BIGINT)")
    assert isinstance(table, CreateTable)
    statement = parse_statement(f"CREATE TOPIC x WITH (on_error = '{on_error}') AS {query}")
    assert isinstance(statement, CreateTopic)
    return compile_topic(statement, {"rooms": table.table})


def evaluate(query: str, *payloads: bytes, on_error: str = "null") -> tuple[list[tuple[Any, ...]], int, QuerySet]:
    """Rows, errors."""
    queries = QuerySet()
    number = queries.add(plan_of(query, on_error))
    found = queries.evaluate(make_pack([make_message("a/b", payload) for payload in payloads]), 0)
    rows = [row for _, block in found for row in block_rows(block)]
    assert queries.counts(number)[1] == len(rows)
    return rows, queries.counts(number)[2], queries


@pytest.mark.parametrize(
    "query",
    [
        'SELECT r.t::BIGINT AS t FROM "a/#", UNNEST(payload) AS r',
        'SELECT r.t::BIGINT AS t FROM "a/#" CROSS JOIN UNNEST(payload) AS r',
        'SELECT r.t::BIGINT AS t FROM "a/#", LATERAL UNNEST(payload) AS r',
        'SELECT r.t::BIGINT AS t FROM "a/#", UNNEST(payload) AS u(r)',
        'SELECT u.r.t::BIGINT AS t FROM "a/#" AS m, UNNEST(m.payload) AS u(r)',
        "SELECT (r ->> 't')::BIGINT AS t FROM \"a/#\", UNNEST(payload) AS r",
        'SELECT i AS t FROM "a/#", UNNEST(payload) WITH ORDINALITY AS u(r, i)',
    ],
)
def test_elements_are_rows(query: str) -> None:
    assert evaluate(query, TWO)[0] == [(1,), (2,)]


def test_a_member_of_the_payload_and_columns_of_the_message() -> None:
    query = 'SELECT "offset", payload.id AS id, r, r[0] AS first FROM "a/#", UNNEST(payload.list) AS r WHERE r[0] > 1'
    payloads = [b'{"id": 7, "list": [[1], [2, 3], [4]]}', b'{"id": 8}', b'{"id": 9, "list": [[5]]}']
    rows, errors, _ = evaluate(query, *payloads)
    assert rows == [(0, 7, [2, 3], 2), (0, 7, [4], 4), (2, 9, [5], 5)]
    assert errors == 0


def test_a_declared_table() -> None:
    rows, _, _ = evaluate(
        "SELECT n, r.a AS a FROM rooms, UNNEST(list) AS r", b'{"n": 1, "list": [{"a": 1}, {"a": null}, 3]}'
    )
    assert rows == [(1, 1), (1, None), (1, None)]


def test_star_has_the_element_too() -> None:
    rows, _, _ = evaluate("SELECT * FROM rooms, UNNEST(list) AS r", b'{"n": 1, "list": [10, 20]}')
    assert rows == [([10, 20], 1, 10), ([10, 20], 1, 20)]


def test_values_of_elements_are_not_remembered_for_the_next() -> None:
    """An expression that several places share is computed once for a message, and here for each element."""
    query = (
        "SELECT upper(r.s) AS a, upper(r.s) || 'x' AS b, upper(payload.s) AS c FROM \"a/#\", UNNEST(payload.list) AS r "
        "WHERE upper(r.s) <> 'B'"
    )
    rows, _, _ = evaluate(query, b'{"s": "z", "list": [{"s": "a"}, {"s": "b"}, {"s": "c"}]}')
    assert rows == [("A", "Ax", "Z"), ("C", "Cx", "Z")]


def test_an_equality_with_an_element_is_not_indexed() -> None:
    query = "SELECT r.n::BIGINT AS n FROM \"a/#\", UNNEST(payload.list) AS r WHERE r.k = 'x' AND payload.k = 'y'"
    payloads = [
        b'{"k": "y", "list": [{"k": "x", "n": 1}, {"k": "z", "n": 2}, {"k": "x", "n": 3}]}',
        b'{"k": "n", "list": [{"k": "x", "n": 4}]}',
    ]
    assert evaluate(query, *payloads)[0] == [(1,), (3,)]


@pytest.mark.parametrize(
    ("payload", "errors"), [(b"[]", 0), (b"null", 0), (b'{"t": 1}', 1), (b"3", 1), (b"no json", 1), (b'"[1]"', 1)]
)
@pytest.mark.parametrize("on_error", ["null", "skip", "dead-letter"])
def test_without_an_array_there_are_no_rows(payload: bytes, errors: int, on_error: str) -> None:
    rows, found, queries = evaluate('SELECT r FROM "a/#", UNNEST(payload) AS r', payload, on_error=on_error)
    assert (rows, found) == ([], errors)
    reported = [(error.offset, error.column) for error in queries.take_errors()]
    assert reported == [(0, "UNNEST")] * (errors if on_error == "dead-letter" else 0)


def test_errors_are_those_of_a_row() -> None:
    query = 'SELECT r::BIGINT AS n FROM "a/#", UNNEST(payload) AS r'
    assert evaluate(query, b'[1, "x", 3]')[:2] == ([(1,), (None,), (3,)], 1)
    assert evaluate(query, b'[1, "x", 3]', on_error="skip")[:2] == ([(1,), (3,)], 1)


def test_a_message_has_not_too_many_rows() -> None:
    query = 'SELECT r FROM "a/#", UNNEST(payload) AS r'
    assert len(evaluate(query, json.dumps([1] * 10_000).encode())[0]) == 10_000
    rows, errors, queries = evaluate(query, json.dumps([1] * 10_001).encode(), b"[5]", on_error="dead-letter")
    assert (rows, errors) == ([(5,)], 1)
    assert "10,000" in queries.take_errors()[0].message


def test_a_message_has_not_too_large_rows() -> None:
    """All of its rows or none; those before and after it are whole."""
    columns = "r, payload AS p, r > 1 AS b, nullif(r::BIGINT, 2) AS n, decode(payload) AS d"
    query = f'SELECT {columns} FROM "a/#", UNNEST(payload) AS r'
    large = json.dumps([1, 2, 3] + [0] * 5_000 + ["x" * 20_000]).encode()
    for before in ([], [b"[1, 2, 3]"]):
        rows, errors, _ = evaluate(query, *before, large, b"[1, 2]")
        shown = [(r, p, b, n) for r, p, b, n, _ in rows]
        wanted = [
            (r, payload, r > 1, None if r == 2 else r) for payload in (*before, b"[1, 2]") for r in json.loads(payload)
        ]
        assert shown == wanted
        assert errors == 1


ELEMENTS = st.lists(
    st.one_of(
        st.integers(-9, 9),
        st.text(alphabet='ab"é', max_size=3),
        st.none(),
        st.dictionaries(st.sampled_from("tk"), st.integers(0, 5) | st.sampled_from(["x", ""]), max_size=2),
    ),
    max_size=5,
)


@settings(max_examples=100, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(arrays=st.lists(ELEMENTS, min_size=1, max_size=4))
def test_the_same_rows_as_duckdb(arrays: list[list[Any]]) -> None:
    payloads = [json.dumps(array, ensure_ascii=False) for array in arrays]
    with duckdb.connect() as database:
        database.execute("CREATE TABLE m (n BIGINT, p JSON)")
        database.executemany("INSERT INTO m VALUES (?, ?)", list(enumerate(payloads)))
        theirs = database.execute(
            "SELECT n, i, r ->> 't', TRY(CAST(r ->> 'k' AS BIGINT)) "
            "FROM m, UNNEST(p::JSON[]) WITH ORDINALITY AS u(r, i) WHERE r ->> 't' IS DISTINCT FROM '1' ORDER BY n, i"
        ).fetchall()
    query = (
        "SELECT \"offset\", i, r ->> 't' AS t, (r ->> 'k')::BIGINT AS k "
        "FROM \"a/#\", UNNEST(payload) WITH ORDINALITY AS u(r, i) WHERE r ->> 't' IS DISTINCT FROM '1'"
    )
    assert evaluate(query, *(payload.encode() for payload in payloads))[0] == theirs


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ('SELECT r FROM "a/#", UNNEST(payload)', "name the elements"),
        ('SELECT r FROM "a/#", UNNEST(payload, payload) AS r', "one array"),
        ('SELECT r FROM "a/#", UNNEST(topic) AS r', "not a VARCHAR"),
        ('SELECT r FROM "a/#", UNNEST(payload) AS r, UNNEST(payload.x) AS s', "JOIN needs more than one row"),
        ('SELECT r FROM "a/#" LEFT JOIN UNNEST(payload) AS r ON TRUE', "JOIN needs more than one row"),
        ('SELECT r FROM "a/#" JOIN rooms ON TRUE', "JOIN needs more than one row"),
        ('SELECT r FROM "a/#", UNNEST(payload) WITH ORDINALITY AS r', "two names"),
        ('SELECT r FROM "a/#", UNNEST(payload) AS u(r, i)', "name the elements"),
        ('SELECT s FROM "a/#", UNNEST(payload) AS r', "no column 's'"),
    ],
)
def test_what_is_refused(query: str, why: str) -> None:
    with pytest.raises(SqlError, match=why):
        plan_of(query)
