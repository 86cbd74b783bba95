"""Regular expressions of topics against DuckDB, whose engine is RE2: generated patterns over generated texts."""

from __future__ import annotations

import re
import time

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock._ext.query.evaluator import QuerySet
from penstock.subscribers.query.sql.compiler import compile_topic
from penstock.subscribers.query.sql.regex import MOST_INSTRUCTIONS, BadRegex, compile_regex
from penstock.subscribers.query.sql.statements import CreateTopic, parse_statement
from penstock_client.errors import SqlError
from tests.support.worlds.queries import BOOLEAN, VARCHAR, make_message, make_pack, make_plan, rows_of

SETTINGS = settings(
    max_examples=400, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
LETTERS = "abAB01_ .\né€👍\u017fK-"
TEXT = st.text(alphabet=LETTERS, max_size=12)
ATOM = st.one_of(
    st.sampled_from(list("abAB01_é€👍k")),
    st.sampled_from([".", "^", "$", r"\d", r"\w", r"\s", r"\D", r"\W", r"\S", r"\b", r"\B", r"\A", r"\z", r"\."]),
    st.sampled_from(["[ab]", "[^ab]", "[a-c]", "[[:alpha:]]", "[^[:digit:]_]", "[é-€]", r"[\d.-]", "[]a]", "[^\\n]"]),
    st.sampled_from([r"\x41", r"\x{1F44D}", r"\n", r"\-", "(?i:k)", "(?i:[a-b])", "(?s:.)", "(?P<n>a)"]),
)
REPEAT = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?", "+?", "??", "{,2}"])
PATTERN = st.recursive(
    st.tuples(ATOM, REPEAT).map("".join),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=2, max_size=3).map("|".join),
        st.tuples(inner, REPEAT).map(lambda found: f"({found[0]}){found[1]}"),
        st.tuples(inner, REPEAT).map(lambda found: f"(?:{found[0]}){found[1]}"),
    ),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()


def matches(program: bytes, texts: list[str]) -> list[bool]:
    plan = make_plan([("regex", BOOLEAN, ("field", VARCHAR, "client_id"), program)])
    return [row[0] for row in rows_of(plan, *(make_message(client_id=text) for text in texts))]


@SETTINGS
@given(
    pattern=PATTERN,
    options=st.sampled_from(["", "", "i", "s", "is", "m", "c", "l"]),
    texts=st.lists(TEXT, min_size=1, max_size=8),
)
def test_the_same_matches_as_duckdb(
    database: duckdb.DuckDBPyConnection, pattern: str, options: str, texts: list[str]
) -> None:
    for function, is_full in (("regexp_matches", False), ("regexp_full_match", True)):
        query = f"SELECT {function}(t, {quoted(pattern)}, '{options}') FROM (SELECT unnest($1) AS t)"
        try:
            theirs = [bool(found) for (found,) in database.execute(query, [texts]).fetchall()]
        except duckdb.Error:
            with pytest.raises(BadRegex):
                compile_regex(pattern, options, is_full=is_full)
            continue
        assert matches(compile_regex(pattern, options, is_full=is_full), texts) == theirs, (pattern, options, texts)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(a*)*b", "a" * 50_000),
        ("(a|aa)+$", "a" * 50_000 + "b"),
        ("(.*)(.*)(.*)(.*)(.*)x", "a" * 50_000),
        ("(a?){300}a{300}b", "a" * 2_000),
        ("(a|b)*a(a|b){14}$", "abbabaab" * 5_000),
        ("x.{200}y", "xé" * 20_000),
    ],
)
def test_no_pattern_is_slow(pattern: str, text: str) -> None:
    """Those that take other engines exponential time. What would still take long is an error of the row."""
    program = compile_regex(pattern)
    record = make_message(payload=text.encode())
    queries = QuerySet()
    value = ("call", VARCHAR, "decode", ("field", 6, "payload"))
    queries.add(make_plan([("regex", BOOLEAN, value, program)], on_error="null"))
    begun = time.process_time()
    queries.evaluate(make_pack([record]), 0)
    assert time.process_time() - begun < 1.0


def test_states_are_forgotten_and_found_again() -> None:
    """More states than are remembered: the answers stay right."""
    pattern = "(a|b)*a(a|b){12}$"
    texts = [format(number * 7919 % 2**20, "020b").replace("0", "a").replace("1", "b") for number in range(300)]
    assert matches(compile_regex(pattern), texts) == [re.search(pattern, text) is not None for text in texts]


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", "a \\) is missing"),
        (")", "too many"),
        ("[a", "a \\] is missing"),
        ("*a", "nothing to repeat"),
        ("a**", "nothing to repeat"),
        ("a{1001}", "1000"),
        ("a{3,2}", "the smaller first"),
        ("[b-a]", "range"),
        ("(?=a)", "not supported"),
        ("(?<=a)b", "not supported"),
        ("(?P<name", "the name of a group"),
        (r"(a)\1", "refers back"),
        (r"\pL", "not supported"),
        ("[[:nothing:]]", "not a class"),
        ("a\\", "backslash"),
        (r"\x{110000}", "largest"),
        (r"\xg1", "hexadecimal"),
        ("(((){1000}){1000}){1000}", "too large"),
        ("((a{1000}){1000}){1000}", "too large"),
        ("(" * 101 + ")" * 101, "nested"),
        ("a" * 10_001, "characters"),
    ],
)
def test_what_is_refused(pattern: str, why: str) -> None:
    begun = time.process_time()
    with pytest.raises(BadRegex, match=why):
        compile_regex(pattern)
    assert time.process_time() - begun < 1.0


def test_programs_are_bounded_and_checked() -> None:
    assert len(compile_regex(".{0,100}")) <= 4 + 8 * MOST_INSTRUCTIONS
    program = compile_regex("ab")
    for wrong in (b"", program[:-1], b"\0\0\0\0", program[:2] + b"\xff\xff" + program[4:], program[:-8] + b"\xff" * 8):
        with pytest.raises(ValueError, match="regular expression"):
            matches(wrong, ["ab"])


def value(expression: str) -> object:
    statement = parse_statement(f'CREATE TOPIC t AS SELECT {expression} AS x FROM "#"')
    assert isinstance(statement, CreateTopic)
    payload = b'{"name": "Pump-7", "n": 12, "list": [1]}'
    ((found,),) = rows_of(compile_topic(statement, {}), make_message("plant/7", payload))
    return found


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("payload.name ~ 'mp-[0-9]'", True),
        ("payload.name ~ 'mp$'", False),
        ("payload.name !~ 'mp$'", True),
        ("payload.name ~* '^PUMP'", True),
        ("payload.name SIMILAR TO 'Pump-[0-9]+'", True),
        ("payload.name NOT SIMILAR TO 'Pump'", True),
        ("regexp_matches(topic, '^plant/[0-9]+$')", True),
        ("regexp_full_match(topic, 'plant')", False),
        ("regexp_matches(payload.name, 'pump', 'i')", True),
        ("payload.n ~ '^12$'", True),
        ("payload.missing ~ 'a'", None),
        ("topic ~ NULL", None),
        ("NULL ~ 'a'", None),
    ],
)
def test_in_sql(expression: str, expected: object) -> None:
    assert value(expression) == expected


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("topic ~ client_id", "written out"),
        ("qos ~ '1'", "CAST"),
        ("topic ~ '('", "a \\) is missing"),
        ("regexp_matches(topic, 'a', 'x')", "not an option"),
        ("regexp_matches(topic)", "2 to 3 arguments"),
        (" OR ".join(f"topic ~ 'a{number}'" for number in range(33)), "at most 32 regular expressions"),
    ],
)
def test_what_sql_refuses(expression: str, why: str) -> None:
    with pytest.raises(SqlError, match=why):
        value(expression)
