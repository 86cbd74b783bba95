"""Queries of topics against DuckDB: generated expressions over generated rows give the same values, NULLs and errors.

An expression is made twice, as text for a topic and as text for DuckDB, which has narrower integers and decimals for
literals where a topic has BIGINT and DOUBLE. The policy "null" makes a failing operation NULL at its place, as DuckDB's
`TRY(…)` does, so a third text of each expression has it around every operation. Rows with errors are compared too, also
those of payloads that are not JSON or have values of other types than their columns. Whether there was an error at all
is asked of both besides.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock._ext.query.evaluator import QuerySet
from penstock._ext.record.envelope import encode
from penstock._ext.record.segment import RecordPack
from penstock.subscribers.query.plan import Plan
from penstock.subscribers.query.sql.compiler import TableDefinition, compile_topic
from penstock.subscribers.query.sql.statements import CreateTable, CreateTopic, parse_statement
from penstock_client.errors import SqlError
from penstock_client.types import SqlType

EXAMPLES = int(os.environ.get("PENSTOCK_SQL_EXAMPLES", "120"))
# the same examples in every run, unless more of them are asked for
SETTINGS = settings(
    max_examples=EXAMPLES,
    derandomize="PENSTOCK_SQL_EXAMPLES" not in os.environ,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCHEMA = {
    "i": "BIGINT",
    "k": "BIGINT",
    "d": "DOUBLE",
    "e": "DOUBLE",
    "s": "VARCHAR",
    "u": "VARCHAR",
    "b": "BOOLEAN",
    "t": "TIMESTAMP",
    "j": "JSON",
}
TABLE = f"CREATE TABLE rows FROM 'a/#' ({', '.join(f'{name} {kind}' for name, kind in SCHEMA.items())})"


class Both(NamedTuple):
    """One expression: for a topic, for DuckDB, for DuckDB with TRY around each operation, and whether an engine may
    skip the evaluation of a part of it."""

    ours: str
    theirs: str
    tried: str
    is_lazy: bool = False


def both(template: str, *parts: Both, theirs: str | None = None, lazy: bool = False) -> Both:
    return Both(
        template.format(*(part.ours for part in parts)),
        (theirs or template).format(*(part.theirs for part in parts)),
        f"TRY({(theirs or template).format(*(part.tried for part in parts))})",
        lazy or any(part.is_lazy for part in parts),
    )


def constant(ours: str, theirs: str) -> Both:
    return Both(ours, theirs, theirs)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def literal(value: Any) -> Both:
    if value is None:
        return constant("NULL", "NULL")
    if isinstance(value, bool):
        return constant(str(value).upper(), str(value).upper())
    if isinstance(value, int):
        return constant(f"({value})", f"(({value})::BIGINT)")
    if isinstance(value, float):
        return constant(f"({value!r})", f"('{value!r}'::DOUBLE)")
    if isinstance(value, datetime):
        moment = f"TIMESTAMP '{value:%Y-%m-%d %H:%M:%S.%f}'"
        return constant(moment, moment)
    return constant(quoted(value), quoted(value))


WHOLE = st.one_of(st.integers(-9, 9), st.sampled_from([2**63 - 1, -(2**63) + 1, 2**31, 10**12, 9007199254740993]))
FRACTION = st.one_of(
    st.sampled_from([0.0, -0.5, 0.5, 1.5, 2.5, -2.5, 3.0, 100.25, 1e15, 1e16, 1e-5, 1e300, 0.1, 123456789.123]),
    st.floats(-1e6, 1e6, allow_nan=False).map(lambda value: round(value, 3)),
)
TEXT = st.one_of(
    st.sampled_from(
        ["", "a", "abc", "Abc", " a ", "a,b,,c", "12", " 7 ", "2.5", "1e3", "true", "f", "x", "äöÜß", "İı"]
    ),
    st.sampled_from(
        ["2024-02-29", "2024-02-29 12:34:56.789", "0x1F", "-0", "nan", "inf", "1_000", "a%b", "a_b", "👍é"]
    ),
    st.text(alphabet="aAbB ,%_é👍", max_size=6),
)
TIME = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)).map(lambda at: at.replace(tzinfo=UTC))
JSON_VALUE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 10**6), st.sampled_from([1.5, -2.0, 1e20]), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)),
    max_leaves=4,
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "i": st.none() | WHOLE,
            "k": st.none() | st.integers(-3, 6),
            "d": st.none() | FRACTION,
            "e": st.none() | st.sampled_from([0.0, 1.0, -1.0, 2.0, 0.5]),
            "s": st.none() | TEXT,
            "u": st.none() | TEXT,
            "b": st.none() | st.booleans(),
            "t": st.none() | TIME,
            "j": JSON_VALUE,
        }
    ),
    min_size=1,
    max_size=6,
)

UNITS = ("microsecond", "millisecond", "second", "minute", "hour", "day", "week", "month", "quarter", "year")
PARTS = ("year", "isoyear", "quarter", "month", "week", "day", "dow", "isodow", "doy", "hour", "minute", "second")
INTERVALS = ("1 second", "90 minutes", "2 days", "1 month", "13 months", "1 day 03:04:05.5")
COMPARISONS = ("=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM")


def made(template: str, *parts: st.SearchStrategy[Both], theirs: str | None = None, lazy: bool = False) -> Any:
    return st.tuples(*parts).map(lambda found: both(template, *found, theirs=theirs, lazy=lazy))


def columns(*names: str) -> st.SearchStrategy[Both]:
    return st.sampled_from(names).map(both)


class Grammar:
    """Expressions of each type, by how deep they may be."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], st.SearchStrategy[Both]] = {}

    def of(self, kind: str, depth: int) -> st.SearchStrategy[Both]:
        key = (kind, depth)
        if key not in self._known:
            leaves = getattr(self, f"{kind}_leaves")()
            self._known[key] = st.one_of(leaves, *getattr(self, kind)(depth - 1)) if depth else leaves
        return self._known[key]

    def common(self, kind: str, depth: int) -> list[st.SearchStrategy[Both]]:
        """What every type has."""
        value, test = self.of(kind, depth), self.of("boolean", depth)
        return [
            made("CASE WHEN {} THEN {} WHEN {} THEN {} ELSE {} END", test, value, test, value, value, lazy=True),
            made("coalesce({}, {})", value, value, lazy=True),
            made("nullif({}, {})", value, value),
            made("if({}, {}, {})", test, value, value, lazy=True),
            made("greatest({}, {}, {})", value, value, value),
            made("least({}, {})", value, value),
        ]

    def whole_leaves(self) -> st.SearchStrategy[Both]:
        return columns("i", "k") | columns("i", "k") | WHOLE.map(literal)

    def whole(self, depth: int) -> list[st.SearchStrategy[Both]]:
        whole, fraction, text, time = (self.of(kind, depth) for kind in ("whole", "fraction", "text", "time"))
        small = self.of("small", 0)
        return [
            *(made(f"({{}} {sign} {{}})", whole, whole) for sign in ("+", "-", "*", "//", "%")),
            made("(- {})", columns("i", "k")),
            made("abs({})", whole),
            made("CAST(sign({}) AS BIGINT)", st.one_of(whole, fraction)),
            made("round({}, {})", whole, small, theirs="round({}, {}::INTEGER)"),
            made("CAST({} AS BIGINT)", st.one_of(fraction, text, self.of("boolean", depth))),
            made("TRY_CAST({} AS BIGINT)", st.one_of(fraction, text)),
            made("length({})", text),
            made("strpos({}, {})", text, text),
            *(made(f"date_part('{part}', {{}})", time) for part in (*PARTS, "millisecond", "microsecond")),
            made("epoch_ms({})", time),
            made("epoch_us({})", time),
            made("CAST(json_array_length(j) AS BIGINT)"),
            *self.common("whole", depth),
        ]

    def small_leaves(self) -> st.SearchStrategy[Both]:
        return columns("k") | st.integers(-4, 6).map(literal)

    def fraction_leaves(self) -> st.SearchStrategy[Both]:
        return columns("d", "e") | columns("d", "e") | FRACTION.map(literal)

    def fraction(self, depth: int) -> list[st.SearchStrategy[Both]]:
        whole, fraction, text = (self.of(kind, depth) for kind in ("whole", "fraction", "text"))
        number = st.one_of(whole, fraction)
        return [
            *(made(f"({{}} {sign} {{}})", fraction, number) for sign in ("+", "-", "*", "%")),
            made("({} / {})", number, number),
            *(made(f"{name}({{}})", fraction) for name in ("abs", "round", "floor", "ceil", "sqrt", "ln", "log10")),
            made("(- {})", columns("d", "e")),
            made("exp({})", self.of("small", 0)),
            made("log2({})", fraction),
            made("pow({}, {})", fraction, self.of("small", 0)),
            made("round({}, {})", fraction, self.of("small", 0), theirs="round({}, {}::INTEGER)"),
            made("CAST({} AS DOUBLE)", st.one_of(whole, text, self.of("boolean", depth))),
            made("TRY_CAST({} AS DOUBLE)", text),
            made("epoch({})", self.of("time", depth)),
            *self.common("fraction", depth),
        ]

    def text_leaves(self) -> st.SearchStrategy[Both]:
        return columns("s", "u") | columns("s", "u") | TEXT.map(literal)

    def text(self, depth: int) -> list[st.SearchStrategy[Both]]:
        text, small = self.of("text", depth), self.of("small", 0)
        return [
            *(made(f"{name}({{}})", text) for name in ("lower", "upper", "reverse", "trim", "ltrim", "rtrim")),
            *(made(f"{name}({{}}, {{}})", text, text) for name in ("trim", "ltrim", "rtrim")),
            made("substr({}, {})", text, small),
            made("substring({}, {}, {})", text, small, small),
            made("left({}, {})", text, small),
            made("right({}, {})", text, small),
            made("replace({}, {}, {})", text, text, text),
            made("({} || {})", text, text),
            made("concat({}, {})", text, text),
            made("concat_ws({}, {}, {})", text, text, text),
            made("split_part({}, {}, {})", text, text, small),
            made("lpad({}, {}, {})", text, small, text, theirs="lpad({}, {}::INTEGER, {})"),
            made("rpad({}, {}, {})", text, small, text, theirs="rpad({}, {}::INTEGER, {})"),
            made("CAST({} AS VARCHAR)", st.one_of(columns("i", "k", "d", "e", "b", "t"), self.of("whole", depth))),
            *(made(f"j ->> {quoted(path)}") for path in ("a", "$.a.b", "$.b[0]", "$[1]", "/a/0")),
            made("json_type(j)"),
            made("json_type(j, '$.a')"),
            *self.common("text", depth),
        ]

    def time_leaves(self) -> st.SearchStrategy[Both]:
        return columns("t") | columns("t") | TIME.map(literal)

    def time(self, depth: int) -> list[st.SearchStrategy[Both]]:
        time = self.of("time", depth)
        return [
            *(made(f"date_trunc('{unit}', {{}})", time) for unit in UNITS),
            *(made(f"({{}} {sign} INTERVAL '{length}')", time) for length in INTERVALS for sign in "+-"),
            made("epoch_ms({})", self.of("small", 0)),
            made("CAST(to_timestamp({}) AS TIMESTAMP)", columns("e")),
            made("time_bucket(INTERVAL '5 minutes', {})", time),
            # a topic has no infinite times
            made("TRY_CAST(nullif({}, 'inf') AS TIMESTAMP)", columns("s", "u")),
            *self.common("time", depth),
        ]

    def boolean_leaves(self) -> st.SearchStrategy[Both]:
        return columns("b") | st.booleans().map(literal)

    def boolean(self, depth: int) -> list[st.SearchStrategy[Both]]:
        test, text = self.of("boolean", depth), self.of("text", depth)
        pairs: list[st.SearchStrategy[Both]] = []
        for kind in ("whole", "fraction", "text", "time", "boolean"):
            value = self.of(kind, depth)
            pairs += [made(f"({{}} {sign} {{}})", value, value) for sign in COMPARISONS]
            pairs += [
                made("({} IS NULL)", value),
                made("({} IN ({}, {}, NULL))", value, value, value, lazy=True),
                made("({} NOT IN ({}, {}))", value, value, value, lazy=True),
                made("({} BETWEEN {} AND {})", value, value, value, lazy=True),
            ]
        return [
            st.one_of(pairs),
            made("({} = {})", self.of("whole", depth), self.of("fraction", depth)),
            made("({} AND {})", test, test, lazy=True),
            made("({} OR {})", test, test, lazy=True),
            made("(NOT {})", test),
            made("({} IS TRUE)", test),
            made("({} LIKE {})", text, text),
            made("({} NOT ILIKE {})", text, text),
            # a pattern that ends with the escape is refused at once, and by DuckDB when a text reaches its end
            made("({} LIKE {} ESCAPE 'b')", text, text, lazy=True),
            made("starts_with({}, {})", text, text),
            made("ends_with({}, {})", text, text),
            made("contains({}, {})", text, text),
            made("CAST({} AS BOOLEAN)", st.one_of(text, self.of("fraction", depth))),
            made("json_exists(j, '$.a')"),
        ]

    def json_leaves(self) -> st.SearchStrategy[Both]:
        paths = st.sampled_from(["'a'", "'$.a.b'", "'$.b[0]'", "'$[1]'", "'/a/0'", "0", "'$.c[-1]'", "'$'"])
        return columns("j") | paths.map(lambda path: both(f"(j -> {path})")) | columns(STRICT_JSON)

    def of_json_leaves(self) -> st.SearchStrategy[Both]:
        return made("CAST({} AS VARCHAR)", self.of("json", 0), theirs="({} ->> '$')")

    def of_json(self, depth: int) -> list[st.SearchStrategy[Both]]:
        """What JSON values become."""
        value = self.of("json", depth)
        return [
            *(made(f"{name}({{}} AS {kind})", value) for name in ("CAST", "TRY_CAST") for kind in JSON_BECOMES),
            made("({} IS NULL)", value),
            made("({} > {})", value, self.of("fraction", depth)),
            made("CAST(json_array_length({}) AS BIGINT)", value),
            made("json_type({})", value),
            made("({} ->> 'a')", value),
        ]


# DuckDB takes nan and inf for JSON, which it is not
STRICT_JSON = "json_extract(CASE WHEN s NOT IN ('nan', 'inf') THEN s END, 'a')"
JSON_BECOMES = ("DOUBLE", "BIGINT", "BOOLEAN")
GRAMMAR = Grammar()
KINDS = ("whole", "fraction", "text", "time", "boolean")
EXPRESSION = st.one_of([*(GRAMMAR.of(kind, 2) for kind in KINDS), GRAMMAR.of("of_json", 1)])


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    connection = duckdb.connect()
    connection.execute("SET timezone = 'UTC'; SET threads = 1")
    connection.execute("SET ieee_floating_point_ops = false; SET error_on_division_by_zero = false")
    connection.execute(f"CREATE TABLE rows (n BIGINT, {', '.join(f'{name} {kind}' for name, kind in SCHEMA.items())})")
    yield connection
    connection.close()


def declared() -> dict[str, TableDefinition]:
    statement = parse_statement(TABLE)
    assert isinstance(statement, CreateTable)
    return {"rows": statement.table}


TABLES = declared()


def plain(value: Any) -> Any:
    return f"{value:%Y-%m-%dT%H:%M:%S.%f}" if isinstance(value, datetime) else value


def payload_of(row: dict[str, Any]) -> bytes:
    # a JSON null in `j` is left out: the column would be NULL here and 'null' there
    members = {name: plain(value) for name, value in row.items() if value is not None}
    return json.dumps(members, ensure_ascii=False).encode()


def pack_of(payloads: list[bytes]) -> RecordPack:
    pack = RecordPack()
    for number, payload in enumerate(payloads):
        pack.append(encode("a/b", payload, 0, False, "c", None, number, 0, b""), b"a/b", timestamp=number)
    pack.place(0)
    return pack


def fill(database: duckdb.DuckDBPyConnection, rows: list[dict[str, Any]]) -> None:
    values: list[Any] = []
    for number, row in enumerate(rows):
        document = None if row["j"] is None else json.dumps(row["j"], ensure_ascii=False)
        plain_row = {**row, "j": document, "t": row["t"].replace(tzinfo=None) if row["t"] is not None else None}
        values += [number, *(plain_row[name] for name in SCHEMA)]
    one = f"({', '.join('?' * (len(SCHEMA) + 1))})"
    database.execute("DELETE FROM rows")
    database.execute(f"INSERT INTO rows VALUES {', '.join([one] * len(rows))}", values)


def normal(value: Any) -> Any:
    """Times as nanoseconds, numbers as they are."""
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return ((aware - EPOCH) // timedelta(microseconds=1)) * 1000
    return value


def is_same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, float) and isinstance(theirs, float):
        return (math.isnan(ours) and math.isnan(theirs)) or math.isclose(ours, theirs, rel_tol=1e-12)
    return type(ours) is type(theirs) and bool(ours == theirs)


def plan_of(query: str, on_error: str = "null") -> Plan | None:
    """None if constants have an error before there is a row."""
    statement = parse_statement(f"CREATE TOPIC t WITH (on_error = '{on_error}') AS {query}")
    assert isinstance(statement, CreateTopic)
    try:
        return compile_topic(statement, TABLES)
    except SqlError:
        return None


def without_index(plan: Plan | None) -> Plan | None:
    """The same plan with a condition that is not searched for equalities."""
    if plan is None or plan.where is None:
        return plan
    boolean = int(SqlType.BOOLEAN)
    return replace(plan, where=("or", boolean, plan.where, ("literal", boolean, False)))


def evaluate(plans: list[Plan | None], payloads: list[bytes]) -> list[tuple[dict[int, Any], int] | None]:
    """Of each plan the values by row, and how many errors there were."""
    together = QuerySet()
    numbers = [None if plan is None else together.add(plan) for plan in plans]
    blocks = dict(together.evaluate(pack_of(payloads), 0))
    results: list[tuple[dict[int, Any], int] | None] = []
    for number in numbers:
        found: dict[int, Any] = {}
        if number in blocks:
            block = blocks[number]
            found = dict(zip(block.offsets(), map(normal, block.column(0)), strict=True))
        results.append(None if number is None else (found, together.counts(number)[2]))
    return results


def fails(database: duckdb.DuckDBPyConnection, expression: Both) -> bool:
    try:
        database.execute(f"SELECT {expression.theirs} FROM rows").fetchall()
    except duckdb.Error:
        return True
    return False


def tried(database: duckdb.DuckDBPyConnection, query: str) -> list[Any] | None:
    """None where a part that occurs twice is computed once, before TRY could look after it. The optimizer computes
    max <= i + max as 0 <= i, without the overflow."""
    database.execute("PRAGMA disable_optimizer")
    try:
        return database.execute(query).fetchall()
    except duckdb.Error:
        return None
    finally:
        database.execute("PRAGMA enable_optimizer")


@SETTINGS
@given(rows=ROWS, expressions=st.lists(EXPRESSION, min_size=1, max_size=6))
def test_values_nulls_and_errors(database: duckdb.DuckDBPyConnection, rows: Any, expressions: list[Both]) -> None:
    fill(database, rows)
    plans = [plan_of(f"SELECT {expression.ours} AS x FROM rows") for expression in expressions]
    results = evaluate(plans, [payload_of(row) for row in rows])
    for expression, result in zip(expressions, results, strict=True):
        is_wrong = fails(database, expression)
        if not (expression.is_lazy and (is_wrong or result is None)):
            assert is_wrong == (result is None or result[1] > 0), expression
        theirs = tried(database, f"SELECT n, {expression.tried} FROM rows ORDER BY n")
        if result is None or theirs is None:
            continue
        assert sorted(result[0]) == [number for number, _ in theirs], expression
        for number, value in theirs:
            assert is_same(result[0][number], normal(value)), (expression, rows[number], result[0][number], value)


@SETTINGS
@given(rows=ROWS, expressions=st.lists(GRAMMAR.of("boolean", 2), min_size=1, max_size=6))
def test_where_keeps_what_is_true(database: duckdb.DuckDBPyConnection, rows: Any, expressions: list[Both]) -> None:
    """All of them at once: the index over equalities must leave none out."""
    fill(database, rows)
    plans = [plan_of(f"SELECT 1 AS x FROM rows WHERE {expression.ours}") for expression in expressions]
    results = evaluate(plans, [payload_of(row) for row in rows])
    for expression, result in zip(expressions, results, strict=True):
        is_wrong = fails(database, expression)
        if result is None:
            assert expression.is_lazy or is_wrong, expression
            continue
        theirs = tried(database, f"SELECT n FROM rows WHERE {expression.tried} ORDER BY n")
        assert theirs is None or sorted(result[0]) == [number for (number,) in theirs], expression


# What cannot become the type of its column: the value is NULL there.
DAMAGE = {
    "i": ["abc", [1], {"a": 1}, 1e30],
    "k": ["", [], "2.5"],
    "d": ["abc", [0.5], {}],
    "e": ["one", "1_0"],
    "b": ["maybe", [True]],
    "t": ["yesterday", 5, True, {}],
}
NOT_JSON = [b"", b"not json", b"{", b'{"i": 1', b"\xff\xfe", b'{"i": NaN}', b'{"i": 1} x']
DAMAGES = st.one_of(
    st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in DAMAGE.items()}),
    st.sampled_from(NOT_JSON),
)


def damaged(row: dict[str, Any], damage: dict[str, Any] | bytes) -> tuple[dict[str, Any], bytes]:
    """The row as DuckDB has it, and the payload."""
    if isinstance(damage, bytes):
        return dict.fromkeys(row), damage
    return {**row, **dict.fromkeys(damage)}, payload_of({**row, **damage})


@SETTINGS
@given(
    rows=st.lists(st.tuples(ROWS.map(lambda found: found[0]), DAMAGES), min_size=1, max_size=6),
    expressions=st.lists(EXPRESSION, min_size=1, max_size=4),
    conditions=st.lists(GRAMMAR.of("boolean", 2), min_size=1, max_size=4),
)
def test_a_failing_operand_is_null_at_its_place(
    database: duckdb.DuckDBPyConnection, rows: Any, expressions: list[Both], conditions: list[Both]
) -> None:
    clean, payloads = map(list, zip(*(damaged(row, damage) for row, damage in rows), strict=True))
    fill(database, clean)
    plans = [plan_of(f"SELECT {expression.ours} AS x FROM rows") for expression in expressions]
    for expression, result in zip(expressions, evaluate(plans, payloads), strict=True):
        theirs = tried(database, f"SELECT n, {expression.tried} FROM rows ORDER BY n")
        if result is None or theirs is None:
            continue
        for number, value in theirs:
            assert is_same(result[0][number], normal(value)), (expression, rows[number], result[0][number], value)
    wheres = [plan_of(f"SELECT 1 AS x FROM rows WHERE {condition.ours}") for condition in conditions]
    for condition, result in zip(conditions, evaluate(wheres, payloads), strict=True):
        theirs = tried(database, f"SELECT n FROM rows WHERE {condition.tried} ORDER BY n")
        if result is not None and theirs is not None:
            assert sorted(result[0]) == [number for (number,) in theirs], (condition, rows)


KEYS = ("whole", "fraction", "text", "boolean")


def equality(kind: str) -> st.SearchStrategy[Both]:
    """What the index over equalities takes."""
    value = GRAMMAR.of(kind, 2)
    constants = {"whole": WHOLE, "fraction": FRACTION, "text": TEXT, "boolean": st.booleans()}[kind].map(literal)
    return st.one_of(
        made("({} = {})", value, constants),
        made("({} IN ({}, {}))", value, constants, constants, lazy=True),
        made("(({} = {}) AND {})", value, constants, GRAMMAR.of("boolean", 1), lazy=True),
        made("({} AND ({} IN ({}, {})))", GRAMMAR.of("boolean", 1), value, constants, constants, lazy=True),
    )


@SETTINGS
@given(
    rows=st.lists(st.tuples(ROWS.map(lambda found: found[0]), DAMAGES), min_size=1, max_size=6),
    conditions=st.lists(st.one_of([equality(kind) for kind in KEYS]), min_size=1, max_size=8),
)
def test_the_index_changes_no_row(database: duckdb.DuckDBPyConnection, rows: Any, conditions: list[Both]) -> None:
    """With each policy, alone and among others that compare the same value."""
    clean, payloads = map(list, zip(*(damaged(row, damage) for row, damage in rows), strict=True))
    fill(database, clean)
    for on_error in ("null", "skip", "dead-letter"):
        plans = [plan_of(f"SELECT 1 AS x FROM rows WHERE {condition.ours}", on_error) for condition in conditions]
        indexed = evaluate(plans, payloads)
        plain_results = evaluate([without_index(plan) for plan in plans], payloads)
        for condition, result, plain_result in zip(conditions, indexed, plain_results, strict=True):
            assert (result is None) == (plain_result is None)
            if result is None or plain_result is None:
                continue
            assert result[0] == plain_result[0], (on_error, condition, rows)
            theirs = tried(database, f"SELECT n FROM rows WHERE {condition.tried} ORDER BY n")
            if theirs is not None and on_error == "null":
                assert sorted(result[0]) == [number for (number,) in theirs], (condition, rows)
