"""Statements from their text."""

import pytest

from penstock.subscribers.query.sql import statements as s
from penstock.subscribers.query.sql.compiler import TableDefinition
from penstock.subscribers.query.sql.statements import parse_statement
from penstock.subscribers.query.sql.tables import (
    ColumnDefinition,
    FromField,
    FromJson,
    FromLevel,
    FromProperty,
)
from penstock_client.errors import SqlError
from penstock_client.types import SqlType

METERS = """
CREATE TABLE IF NOT EXISTS Meters FROM 'm/+/+/data' (
  temp DOUBLE,                                 -- the member of the same name
  "Humid" BIGINT FROM payload.h[0].x,
  at TIMESTAMP AS '$.time.stamp',
  extra JSON,
  everything JSON FROM payload,
  sender VARCHAR(64) FROM client_id
) TAGS (
  site TEXT FROM TOPIC LEVEL 2,
  fw STRING FROM USER PROPERTY 'fw-version'
);
"""


def test_a_table_is_declared_with_every_kind_of_source() -> None:
    statement = parse_statement(METERS)
    assert isinstance(statement, s.CreateTable)
    assert statement.if_not_exists
    assert statement.table == TableDefinition(
        "meters",
        "m/+/+/data",
        (
            ColumnDefinition("temp", SqlType.DOUBLE, FromJson(("temp",))),
            ColumnDefinition("Humid", SqlType.BIGINT, FromJson(("h", 0, "x"))),
            ColumnDefinition("at", SqlType.TIMESTAMP, FromJson(("time", "stamp"))),
            ColumnDefinition("extra", SqlType.JSON, FromJson(("extra",))),
            ColumnDefinition("everything", SqlType.JSON, FromJson(())),
            ColumnDefinition("sender", SqlType.VARCHAR, FromField("client_id")),
            ColumnDefinition("site", SqlType.VARCHAR, FromLevel(2), is_tag=True),
            ColumnDefinition("fw", SqlType.VARCHAR, FromProperty("fw-version"), is_tag=True),
        ),
    )
    assert [column.name for column in statement.table.tags] == ["site", "fw"]


def test_a_table_is_written_so_that_it_reads_the_same_and_is_stored_so() -> None:
    import msgspec  # noqa: PLC0415 - only here

    table = parse_statement(METERS).table  # type: ignore[union-attr] - the test above says what it is
    again = parse_statement(table.to_sql())
    assert isinstance(again, s.CreateTable)
    assert again.table == table
    assert msgspec.json.decode(msgspec.json.encode(table), type=TableDefinition) == table
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(table), type=TableDefinition) == table


def test_a_topic_keeps_its_text_and_where_the_query_begins() -> None:
    text = "create topic if not exists hot with (on_error = 'dead-letter') as\n  SELECT ts FROM \"a/#\""
    topic = parse_statement(text)
    assert isinstance(topic, s.CreateTopic)
    assert (topic.name, topic.if_not_exists, topic.mode, topic.meta) == ("hot", True, "query", "none")
    assert topic.on_error == "dead-letter"
    assert topic.text[topic.query_at :] == 'SELECT ts FROM "a/#"'
    assert parse_statement(topic.text) == topic


@pytest.mark.parametrize(
    ("text", "mode", "meta", "on_error"),
    [
        ("CREATE TOPIC t AS STABLE meters", "stable", "none", "null"),
        ("CREATE TOPIC t WITH META AS STABLE meters WHERE site = 'x'", "stable", "with", "null"),
        ("CREATE TOPIC t ONLY META AS DATABASE 'a/#'", "database", "only", "null"),
        ("CREATE TOPIC t WITH META WITH (on_error='skip') AS DATABASE \"a/#\"", "database", "with", "skip"),
    ],
)
def test_table_and_database_topics(text: str, mode: str, meta: str, on_error: str) -> None:
    topic = parse_statement(text)
    assert isinstance(topic, s.CreateTopic)
    assert (topic.mode, topic.meta, topic.on_error) == (mode, meta, on_error)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("DROP TOPIC t", s.DropTopic("t", False, False)),
        ('drop topic if exists force "plant/1"', s.DropTopic("plant/1", True, True)),
        ("DROP TABLE IF EXISTS Meters", s.DropTable("meters", True)),
        ("DROP CONSUMER GROUP g ON t", s.DropGroup("g", "t", False, False)),
        ("DROP CONSUMER GROUP IF EXISTS FORCE g ON t", s.DropGroup("g", "t", True, True)),
        ("SHOW TOPICS", s.ShowTopics()),
        ("show tables;", s.ShowTables()),
        ("SHOW CONSUMERS", s.ShowConsumers()),
        ("SHOW SUBSCRIPTIONS", s.ShowSubscriptions()),
        ("SHOW GRANTS", s.ShowGrants()),
        ("DESCRIBE t", s.Describe("t")),
        ("DESC TABLE meters", s.Describe("meters")),
        ("GRANT SUBSCRIBE ON hot TO alice", s.Grant(("subscribe",), "hot", "alice")),
        ('GRANT DROP, SUBSCRIBE ON hot TO "a@b"', s.Grant(("subscribe", "drop"), "hot", "a@b")),
        ("REVOKE ALL ON * FROM alice", s.Revoke(("subscribe", "create", "drop"), "*", "alice")),
        ("INFER TABLE t FROM 'a/#'", s.InferTable("t", "a/#", 1_000)),
        ("INFER TABLE t FROM 'a/#' SAMPLE 50", s.InferTable("t", "a/#", 50)),
    ],
)
def test_the_other_statements(text: str, expected: s.Statement) -> None:
    assert parse_statement(text) == expected


def test_a_reloaded_topic() -> None:
    topic = parse_statement('RELOAD TOPIC IF EXISTS t AS SELECT ts FROM "a"')
    assert isinstance(topic, s.ReloadTopic)
    assert (topic.name, topic.if_exists, topic.on_error) == ("t", True, "")


@pytest.mark.parametrize(
    ("text", "line", "column", "part"),
    [
        ("", 1, 1, "empty"),
        ("UPDATE t", 1, 1, "begins with CREATE"),
        ("SELECT 1", 1, 1, "CREATE TOPIC"),
        ("SHOW\n  NOTHING", 2, 3, "SHOW is followed by"),
        ("SHOW TOPICS; SHOW TABLES", 1, 12, "one statement"),
        ("SHOW TOPICS please", 1, 13, "should end here"),
        ("CREATE TOPIC t AS SELECT 'it''s", 1, 26, "the string that begins here is not closed"),
        ("CREATE TOPIC t -- 'x\nAS SELECT qos FROM \"a", 2, 20, "the quoted name that begins here is not closed"),
        ("SHOW /* TOPICS", 1, 6, "the comment that begins here is not closed"),
        ("CREATE CONSUMER GROUP g", 1, 1, "first subscription"),
        ("CREATE TOPIC", 1, 13, "name of a topic"),
        ("CREATE TOPIC a-b AS DATABASE '#'", 1, 15, "double quotes"),
        ("CREATE TOPIC \"a/+\" AS DATABASE '#'", 1, 14, "'+'"),
        ("CREATE TOPIC \"a#\" AS DATABASE '#'", 1, 14, "'#'"),
        ("CREATE TOPIC \"$x\" AS DATABASE '#'", 1, 14, "'$'"),
        (f"CREATE TOPIC {'a' * 193} AS DATABASE '#'", 1, 14, "192 bytes"),
        ("CREATE TOPIC t AS something", 1, 19, "SELECT, STABLE or DATABASE"),
        ("CREATE TOPIC t WITH META AS SELECT 1", 1, 16, "META"),
        ("CREATE TOPIC t WITH (on_error='panic') AS DATABASE '#'", 1, 31, "dead-letter"),
        ("CREATE TOPIC t AS DATABASE 'a' WHERE qos = 1", 1, 32, "AS SELECT"),
        ("CREATE TOPIC t AS DATABASE 'a/#/b'", 1, 28, "# stands alone"),
        ("CREATE TOPIC t AS STABLE s GROUP BY x", 1, 28, "WHERE"),
        ("RELOAD TOPIC t AS DATABASE '#'", 1, 19, "takes a SELECT"),
        ('DROP CONSUMER GROUP "a:b" ON t', 1, 21, "':'"),
        ("GRANT EVERYTHING ON t TO u", 1, 7, "SUBSCRIBE"),
        ("GRANT SUBSCRIBE ON t FROM u", 1, 22, "TO and the user"),
        ("CREATE TABLE t FROM 'a'", 1, 24, "INFER TABLE t"),
        ("CREATE TABLE t FROM 'a' (x DECIMAL)", 1, 28, "a type is expected"),
        ("CREATE TABLE t FROM 'a' (x INT, X INT)", 1, 33, "twice"),
        ("CREATE TABLE t FROM 'a' (x INT) TAGS (y INT)", 1, 39, "TOPIC LEVEL"),
        ("CREATE TABLE t FROM 'a' (x INT FROM TOPIC LEVEL 0)", 1, 49, "from 1"),
        ("CREATE TABLE t FROM 'a' (x INT FROM ts)", 1, 32, "TIMESTAMP cannot become BIGINT"),
        ("CREATE TABLE t FROM 'a' (x INT FROM '$.a[*]')", 1, 37, "wildcards"),
        ("CREATE TABLE t FROM '$SYS/#' (x INT)", 1, 21, "not kept in the log"),
        ("CREATE TABLE t FROM 'a' (x INT", 1, 31, "a comma or )"),
        ("INFER TABLE t FROM 'a' SAMPLE 0", 1, 31, "from 1"),
        ("CREATE TOPIC t AS SELECT 'abc", 1, 26, "not closed"),
        ("SHOW " + "x" * 70_000, 1, 1, "characters"),
        ("SHOW " + "x " * 9_000, 1, 16_004, "words"),
        ("CREATE TOPIC t AS " + "(" * 70, 1, 83, "brackets"),
    ],
)
def test_what_is_refused_has_its_place_and_what_to_do(text: str, line: int, column: int, part: str) -> None:
    with pytest.raises(SqlError) as refusal:
        parse_statement(text)
    assert (refusal.value.line, refusal.value.column) == (line, column), str(refusal.value)
    assert part in str(refusal.value)
