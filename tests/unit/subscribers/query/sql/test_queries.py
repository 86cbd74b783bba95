"""Queries of topics: what they become, which are the same, and which are refused."""

from typing import Any

import pytest

from penstock.subscribers.query.plan import Plan
from penstock.subscribers.query.sql.compiler import TableDefinition, compile_topic
from penstock.subscribers.query.sql.statements import CreateTable, CreateTopic, ReloadTopic, parse_statement
from penstock_client.errors import SqlError
from penstock_client.types import SqlType

BOOLEAN, BIGINT, DOUBLE, VARCHAR, TIMESTAMP, BLOB, JSON = (
    int(kind)
    for kind in (
        SqlType.BOOLEAN,
        SqlType.BIGINT,
        SqlType.DOUBLE,
        SqlType.VARCHAR,
        SqlType.TIMESTAMP,
        SqlType.BLOB,
        SqlType.JSON,
    )
)
TEMP = ("cast", DOUBLE, ("json", JSON, ("temp",)))


@pytest.fixture(scope="module")
def tables() -> dict[str, TableDefinition]:
    statement = parse_statement(
        "CREATE TABLE meters FROM 'm/+/data' (temp DOUBLE, Serial BIGINT FROM payload.id, extra JSON) "
        "TAGS (site VARCHAR FROM TOPIC LEVEL 2)"
    )
    assert isinstance(statement, CreateTable)
    return {statement.table.name: statement.table}


def plan(query: str, tables: dict[str, TableDefinition] | None = None) -> Plan:
    statement = parse_statement(f"CREATE TOPIC t AS {query}")
    assert isinstance(statement, CreateTopic)
    return compile_topic(statement, tables or {})


def expression(text: str) -> Any:
    ((_, kind, made),) = plan(f'SELECT {text} AS x FROM "a"').columns
    assert made[1] == kind
    return made


def test_the_query_of_the_manual() -> None:
    made = plan('SELECT ts, client_id, payload.temp AS t FROM "sensors/+/data" WHERE payload.temp > 30')
    assert made.filter == "sensors/+/data"
    assert made.on_error == "null"
    assert made.columns == (
        ("ts", TIMESTAMP, ("field", TIMESTAMP, "ts")),
        ("client_id", VARCHAR, ("field", VARCHAR, "client_id")),
        ("t", JSON, ("call", JSON, "json_nullify", ("json", JSON, ("temp",)))),
    )
    assert made.where == ("gt", BOOLEAN, TEMP, ("literal", DOUBLE, 30.0))


@pytest.mark.parametrize(
    "spelling",
    [
        'select TS, Client_Id as client_id, payload.temp T from "s/#" where payload.temp>30 and qos in (2,1)',
        'SELECT ts,\n client_id,--who\n payload.temp AS "T" FROM "s/#"\nWHERE 30 < payload.temp AND (qos IN (1, 2, 1))',
        'SELECT m.ts, m.client_id, m.payload.temp AS T FROM "s/#" AS m WHERE m.payload.temp > 30.0 AND qos IN (1, 2)',
        'FROM "s/#" SELECT ts, client_id, payload["temp"] T WHERE NOT NOT payload.temp > 30 AND TRUE AND qos IN (1, 2)',
    ],
)
def test_the_same_query_has_the_same_key_however_it_is_written(spelling: str) -> None:
    usual = 'SELECT ts, client_id, payload.temp AS T FROM "s/#" WHERE payload.temp > 30 AND qos IN (1, 2)'
    assert plan(spelling) == plan(usual)


@pytest.mark.parametrize(
    "other",
    [
        'SELECT ts FROM "a/b" WHERE qos = 1',
        'SELECT ts AS t FROM "a" WHERE qos = 1',
        'SELECT ts FROM "a" WHERE qos = 2',
        'SELECT ts FROM "a" WHERE qos = 1.5',
        'SELECT ts FROM "a"',
        'SELECT ts, topic FROM "a" WHERE qos = 1',
    ],
)
def test_another_query_has_another_key(other: str) -> None:
    assert plan(other).key != plan('SELECT ts FROM "a" WHERE qos = 1').key


def test_the_error_policy_is_part_of_the_key_and_kept_by_a_reload() -> None:
    keep, skip = (
        parse_statement(f'CREATE TOPIC t {policy} AS SELECT ts FROM "a"') for policy in ("", "WITH (on_error = 'skip')")
    )
    assert isinstance(keep, CreateTopic)
    assert isinstance(skip, CreateTopic)
    assert compile_topic(keep, {}).key != compile_topic(skip, {}).key
    reload = parse_statement('RELOAD TOPIC t AS SELECT ts FROM "a"')
    assert isinstance(reload, ReloadTopic)
    assert compile_topic(reload, {}, "skip") == compile_topic(skip, {})


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("1 + 2 * 3", ("literal", BIGINT, 7)),
        ("2.5", ("literal", DOUBLE, 2.5)),
        ("1e3", ("literal", DOUBLE, 1000.0)),
        ("-9223372036854775808", ("literal", BIGINT, -(2**63))),
        ("'it''s'", ("literal", VARCHAR, "it's")),
        ("CAST('15' AS BIGINT)", ("literal", BIGINT, 15)),
        ("'2.5'::BIGINT", ("literal", BIGINT, 3)),
        ("2.5::BIGINT", ("literal", BIGINT, 2)),
        ("TRY_CAST('x' AS BIGINT)", ("literal", BIGINT, None)),
        ("TIMESTAMP '2024-01-01 00:00:00.000000001'", ("literal", TIMESTAMP, 1704067200000000001)),
        ("'2024-01-01T02:00:00+02:00'::TIMESTAMP", ("literal", TIMESTAMP, 1704067200000000000)),
        ("NOT TRUE", ("literal", BOOLEAN, False)),
        ("1 IN (2, NULL)", ("literal", BOOLEAN, None)),
        ("qos IN (NULL)", ("literal", BOOLEAN, None)),
        ("qos IN (1)", ("eq", BOOLEAN, ("field", BIGINT, "qos"), ("literal", BIGINT, 1))),
        ("NULL AND qos = 1 AND FALSE", ("literal", BOOLEAN, False)),
        ("qos = NULL", ("literal", BOOLEAN, None)),
        ("qos + 1", ("add", BIGINT, ("field", BIGINT, "qos"), ("literal", BIGINT, 1))),
        ("qos + 1.5", ("add", DOUBLE, ("cast", DOUBLE, ("field", BIGINT, "qos")), ("literal", DOUBLE, 1.5))),
        ("qos / 2", ("div", DOUBLE, ("cast", DOUBLE, ("field", BIGINT, "qos")), ("literal", DOUBLE, 2.0))),
        ("qos // 2", ("intdiv", BIGINT, ("field", BIGINT, "qos"), ("literal", BIGINT, 2))),
        ("payload.temp * 2", ("mul", DOUBLE, TEMP, ("literal", DOUBLE, 2.0))),
        ("-payload.temp", ("neg", DOUBLE, TEMP)),
        ("payload.name = 'x'", ("eq", BOOLEAN, ("call", VARCHAR, "json_text", ("json", JSON, ("name",))), "x")),
        ("payload.on AND retain", ("and", BOOLEAN, ("cast", BOOLEAN, ("json", JSON, ("on",))), "retain")),
        ("ts > '2024-01-01'", ("gt", BOOLEAN, ("field", TIMESTAMP, "ts"), ("literal", TIMESTAMP, 1704067200 * 10**9))),
        ("payload.a.b[0].c", ("call", JSON, "json_nullify", ("json", JSON, ("a", "b", 0, "c")))),
        ("payload -> 'a' -> 0", ("json", JSON, ("a", 0))),
        ("payload ->> '$.a.b[1]'", ("call", VARCHAR, "json_text", ("json", JSON, ("a", "b", 1)))),
        ("payload::JSON", ("json", JSON, ())),
        ("json_extract(payload, '/a/0')", ("json", JSON, ("a", 0))),
        ("json_extract(topic, 'a')", ("json_of", JSON, ("field", VARCHAR, "topic"), ("a",))),
        ("json_exists(payload, 'a')", ("not", BOOLEAN, ("is_null", BOOLEAN, ("json", JSON, ("a",))))),
        ("topic_level(3)", ("level", VARCHAR, 3)),
        ("user_property('fw')", ("property", VARCHAR, "fw")),
        ("user_properties.fw", ("property", VARCHAR, "fw")),
        ("tbname", ("field", VARCHAR, "topic")),
        ("now()", ("field", TIMESTAMP, "ts")),
        (
            "ts + INTERVAL 5 MINUTES",
            ("add_ns", TIMESTAMP, ("field", TIMESTAMP, "ts"), ("literal", BIGINT, 300 * 10**9)),
        ),
        (
            "ts - INTERVAL '1 month 1 day'",
            (
                "add_ns",
                TIMESTAMP,
                ("call", TIMESTAMP, "add_months", ("field", TIMESTAMP, "ts"), ("literal", BIGINT, -1)),
                ("literal", BIGINT, -86_400 * 10**9),
            ),
        ),
        (
            "INTERVAL '1 day 03:04:05.5' + ts",
            ("add_ns", TIMESTAMP, ("field", TIMESTAMP, "ts"), ("literal", BIGINT, 97_445_500_000_000)),
        ),
        ("1 / 0", ("literal", DOUBLE, None)),
        ("qos % 0", ("literal", BIGINT, None)),
        ("ts - ts", ("sub_ts", BIGINT, ("field", TIMESTAMP, "ts"), ("field", TIMESTAMP, "ts"))),
        ("hour(ts)", ("call", BIGINT, "date_part", ("literal", VARCHAR, "hour"), ("field", TIMESTAMP, "ts"))),
        (
            "EXTRACT(DAYS FROM ts)",
            ("call", BIGINT, "date_part", ("literal", VARCHAR, "day"), ("field", TIMESTAMP, "ts")),
        ),
        ("EXTRACT(EPOCH FROM ts)", ("call", DOUBLE, "epoch", ("field", TIMESTAMP, "ts"))),
        ("abs(payload.temp)", ("call", DOUBLE, "abs", TEMP)),
        ("coalesce(payload.temp, 0)", ("coalesce", DOUBLE, TEMP, ("literal", DOUBLE, 0.0))),
        ("concat('a', NULL, 'b')", ("literal", VARCHAR, "ab")),
        ("'a' || 1 || NULL", ("literal", VARCHAR, None)),
        ("CASE WHEN FALSE THEN 1 ELSE 2.5 END", ("literal", DOUBLE, 2.5)),
        ("IF(qos = 1, 'a', payload.b)", ("case", VARCHAR, "?", "a", "?")),
        ("topic NOT LIKE 'a!_%' ESCAPE '!'", ("not", BOOLEAN, ("like", BOOLEAN, "?", "a!_%", "!"))),
        ("qos IS NOT DISTINCT FROM NULL", ("is_null", BOOLEAN, ("field", BIGINT, "qos"))),
        ("retain IS NOT TRUE", ("not", BOOLEAN, ("not_distinct", BOOLEAN, ("field", BOOLEAN, "retain"), True))),
    ],
)
def test_expressions_are_typed_and_constants_computed(text: str, made: Any) -> None:
    assert _same(expression(text), made), expression(text)


def _same(have: Any, want: Any) -> bool:
    """A literal or a field may be given by its value alone, `?` is anything."""
    if want in ("?", have):
        return True
    if isinstance(have, tuple) and not isinstance(want, tuple):
        return have[0] in ("literal", "field") and bool(have[2] == want)
    return isinstance(have, tuple) and len(have) == len(want) and all(map(_same, have, want))


def test_the_columns_of_a_table(tables: dict[str, TableDefinition]) -> None:
    made = plan("SELECT * FROM Meters WHERE SITE = 'x'", tables)
    assert made.filter == "m/+/data"
    assert made.columns == (
        ("temp", DOUBLE, TEMP),
        ("Serial", BIGINT, ("cast", BIGINT, ("json", JSON, ("id",)))),
        ("extra", JSON, ("call", JSON, "json_nullify", ("json", JSON, ("extra",)))),
        ("site", VARCHAR, ("level", VARCHAR, 2)),
    )
    assert made.where == ("eq", BOOLEAN, ("level", VARCHAR, 2), ("literal", VARCHAR, "x"))
    assert [
        name for name, _, _ in plan("SELECT serial, m.extra.a.b, ts, payload.zz FROM meters m", tables).columns
    ] == [
        "Serial",
        "b",
        "ts",
        "zz",
    ]


def test_a_table_topic_says_where_its_rows_came_from(tables: dict[str, TableDefinition]) -> None:
    made = plan("STABLE meters WHERE site = 'x' AND tbname LIKE 'm/%'", tables)
    assert [name for name, _, _ in made.columns] == ["ts", "topic", "client_id", "temp", "Serial", "extra", "site"]
    with pytest.raises(SqlError, match="'temp' is no tag"):
        plan("STABLE meters WHERE temp > 5", tables)


def test_a_database_topic_has_the_whole_message_and_with_only_meta_no_row(tables: dict[str, TableDefinition]) -> None:
    made = plan("DATABASE 'a/#'")
    assert [name for name, _, _ in made.columns] == [
        "ts",
        "topic",
        "client_id",
        "username",
        "qos",
        "retain",
        "payload",
        "content_type",
        "response_topic",
        "correlation_data",
        "user_properties",
        "expires_at",
    ]
    assert (made.filter, made.where) == ("a/#", None)
    statement = parse_statement("CREATE TOPIC t ONLY META AS STABLE meters")
    assert isinstance(statement, CreateTopic)
    assert compile_topic(statement, tables).where == ("literal", BOOLEAN, False)


@pytest.mark.parametrize(
    ("query", "line", "column", "part"),
    [
        ('SELECT count(*) FROM "a"', 1, 26, "penstock spark run topic"),
        ('SELECT ts, max(qos) FROM "a"', 1, 30, "penstock spark run topic"),
        ('SELECT sum(qos) OVER () FROM "a"', 1, 26, "penstock spark run topic"),
        ('SELECT topic FROM "a"\n  GROUP BY topic', 2, 3, "penstock spark run topic"),
        ('SELECT topic, count(*) FROM "a" GROUP BY topic', 1, 51, "penstock spark run topic"),
        ('SELECT topic, qos FROM "a" LIMIT 5', 1, 46, "penstock spark run topic"),
        ("SELECT topic FROM sensors/+/data WHERE qos > 1", 1, 37, 'in quotes: FROM "sensors/+/data"'),
        ("SELECT topic FROM sensors/#", 1, 37, 'in quotes: FROM "sensors/#"'),
        ('SELECT DISTINCT topic FROM "a"', 1, 26, "penstock spark run topic"),
        ('SELECT topic FROM "a" ORDER BY 1', 1, 41, "penstock spark run topic"),
        ('SELECT topic FROM "a" LIMIT 5', 1, 41, "penstock spark run topic"),
        ('SELECT topic FROM "a" JOIN "b" ON TRUE', 1, 41, "penstock spark run topic"),
        ('SELECT topic FROM "a", "b"', 1, 40, "penstock spark run topic"),
        ('SELECT (SELECT 1) FROM "a"', 1, 34, "penstock spark run topic"),
        ('SELECT topic FROM (SELECT * FROM "a")', 1, 45, "penstock spark run topic"),
        ('SELECT topic FROM "a" UNION SELECT topic FROM "b"', 1, 41, "penstock spark run topic"),
        ("WITH x AS (SELECT 1) SELECT * FROM x", 1, 19, "penstock spark run topic"),
        ('SELECT topic FROM "a" INTERVAL(1m)', 1, 41, "penstock spark run topic"),
        ('SELECT topic FROM "a" INTERVAL(1m) SLIDING(30s)', 1, 41, "penstock spark run topic"),
        ('SELECT topic FROM "a" WHERE qos > 0 INTERVAL(1m)', 1, 55, "penstock spark run topic"),
        ('SELECT topic FROM "a" WHERE ts > ts - INTERVAL 1 DAY INTERVAL(1m)', 1, 72, "penstock spark run topic"),
        ('SELECT topic FROM "a" SESSION(ts, 10s)', 1, 41, "penstock spark run topic"),
        ('SELECT topic FROM "a" STATE_WINDOW(qos)', 1, 41, "penstock spark run topic"),
        ('SELECT topic FROM "a" COUNT_WINDOW(10)', 1, 41, "penstock spark run topic"),
        ('SELECT topic FROM "a" EVENT_WINDOW START WITH qos > 0 END WITH qos < 2', 1, 41, "penstock spark run topic"),
        ('SELECT topic FROM "a" PARTITION BY tbname', 1, 41, "penstock spark run topic"),
        ('SELECT topic FROM "a" SLIMIT 3', 1, 41, "penstock spark run topic"),
        ('SELECT x FROM "a" AS b(x)', 1, 33, "columns have no other names"),
        ('SELECT lowr(topic) FROM "a"', 1, 26, "is lower() meant?"),
        (f'SELECT {"9" * 5_000} FROM "a"', 1, 26, "at most 400 digits"),
        ('SELECT payload.a[99999999999999999999] FROM "a"', 1, 26, "at most 9 digits"),
        (f"SELECT ts + INTERVAL '{'9' * 60_000}' DAY FROM \"a\"", 1, 40, "at most 200 characters"),
        ('SELECT temp FROM "a"', 1, 26, "payload.temp"),
        ('SELECT topic FROM "a" WHERE payload.kind = "hot"', 1, 62, "in single quotes: 'hot'"),
        ('SELECT clientid FROM "a"', 1, 26, "is 'client_id' meant?"),
        ("SELECT topic FROM nowhere", 1, 37, "CREATE TABLE"),
        ('SELECT topic FROM "a/#/b"', 1, 37, "# stands alone"),
        ('SELECT topic FROM "$SYS/x"', 1, 37, "not kept in the log"),
        ('SELECT ts, qos + topic FROM "a"', 1, 30, "VARCHAR is no number"),
        ('SELECT topic FROM "a" WHERE topic > 5', 1, 47, "cast one of them"),
        ('SELECT topic FROM "a" WHERE payload.a = payload.b', 1, 47, "cast one"),
        ("SELECT topic FROM \"a\" WHERE qos = 'x'", 1, 47, "'x' is no BIGINT"),
        ('SELECT topic FROM "a" WHERE ts', 1, 47, "a condition is expected"),
        ('SELECT sqrt(topic) FROM "a"', 1, 26, "sqrt(DOUBLE)"),
        ('SELECT ts::DATE FROM "a"', 1, 26, "there is no type DATE"),
        ('SELECT ts::BIGINT FROM "a"', 1, 26, "TIMESTAMP cannot become BIGINT"),
        ('SELECT ts + 5 FROM "a"', 1, 26, "INTERVAL"),
        ("SELECT ts + INTERVAL '1 day garbage' FROM \"a\"", 1, 26, "cannot be read"),
        ("SELECT ts + INTERVAL '5' FROM \"a\"", 1, 26, "cannot be read"),
        ('SELECT ts + INTERVAL 1 FORTNIGHT FROM "a"', 1, 26, "no unit"),
        ("SELECT date_trunc('eon', ts) FROM \"a\"", 1, 26, "one of microsecond"),
        ('SELECT ts, ts FROM "a"', 1, 30, "two columns 'ts'"),
        ('SELECT ts, * FROM "a"', 1, 30, "two columns 'ts'"),
        ('SELECT * EXCLUDE (ts) FROM "a"', 1, 26, "name the columns"),
        ('SELECT qos & 1 FROM "a"', 1, 26, "not part of the SQL"),
        ("SELECT topic GLOB 'a' FROM \"a\"", 1, 26, "not part of the SQL"),
        ('SELECT random() FROM "a"', 1, 26, "no function random()"),
        ('SELECT unnest(payload.a) FROM "a"', 1, 26, 'write FROM "<filter>", UNNEST(payload.readings) AS r'),
        ('SELECT json_text(payload.a) FROM "a"', 1, 26, "no function json_text()"),
        ('SELECT payload -> topic FROM "a"', 1, 26, "written out"),
        ('SELECT 9223372036854775808 FROM "a"', 1, 26, "larger than a BIGINT"),
        ("SELECT topic LIKE 'a!' ESCAPE '!' FROM \"a\"", 1, 37, "escape character"),
        ('SELECT FROM "a"', 1, 19, "columns are missing"),
        ("SELECT topic", 1, 19, "FROM is missing"),
        ('SELECT topic,\n  qos +\nFROM "a"', 3, 1, "not complete"),
        ('SELECT topic FRM "a"', 1, 36, "not SQL"),
        ("SELECT topic FROM", 1, 32, "table name"),
        ("SELECT " + "- " * 2_000 + '1 FROM "a"', 1, None, "nested"),
        ("SELECT payload" + ".a" * 3_000 + ' AS a FROM "a"', 1, None, "nested"),
        ("SELECT " + " + ".join(["qos"] * 200) + ' FROM "a"', 1, 26, "nested deeper"),
        ("SELECT " + ", ".join(f"qos AS c{n}" for n in range(513)) + ' FROM "a"', 1, None, "512 columns"),
    ],
)
def test_what_is_refused_has_its_place_the_reason_and_what_to_do(
    query: str, line: int, column: int | None, part: str
) -> None:
    with pytest.raises(SqlError) as refusal:
        plan(query)
    assert part in str(refusal.value)
    assert refusal.value.line == line
    assert column is None or refusal.value.column == column, str(refusal.value)


def test_long_chains_of_and_or_are_not_deep() -> None:
    condition = " OR ".join(f"qos = {number}" for number in range(1_000))
    where = plan(f'SELECT ts FROM "a" WHERE {condition}').where
    assert where is not None
    assert where[0] == "or"
    assert len(where) == 1_002


def test_starting_does_not_load_the_parser() -> None:
    import subprocess  # noqa: PLC0415 - only here
    import sys  # noqa: PLC0415

    code = (
        "import sys; from penstock.subscribers.query.sql import compiler, infer, statements;"
        "sys.exit('sqlglot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
