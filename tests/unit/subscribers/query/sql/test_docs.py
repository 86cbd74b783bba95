"""docs/data-subscription-sql.md: its statements are read, its values are computed, its functions are all there."""

import json
import re

import pytest

from penstock._ext.query import evaluator
from penstock._ext.query.evaluator import QuerySet
from penstock._ext.record.envelope import encode
from penstock._ext.record.segment import RecordPack
from penstock.subscribers.query.sql.calls import _SPECIAL, _WRITTEN_BY_COMPILER, ALIASES
from penstock.subscribers.query.sql.compiler import TableDefinition, compile_topic
from penstock.subscribers.query.sql.functions import FUNCTIONS, PARTS
from penstock.subscribers.query.sql.statements import CreateTable, CreateTopic, ReloadTopic, parse_statement
from penstock.subscribers.query.sql.tables import FIELDS, TYPE_NAMES
from tests.support.brokers.broker import REPOSITORY

PAGE = (REPOSITORY / "docs" / "data-subscription-sql.md").read_text()
SPARK_PAGE = (REPOSITORY / "docs" / "spark-topic.md").read_text()
STATEMENTS = [
    statement
    for block in re.findall(r"^```sql\n(.*?)^```", PAGE + SPARK_PAGE, re.M | re.S)
    for statement in re.findall(r"[^;]+;", re.sub(r"--.*", "", block))
]
EXAMPLES = [
    (expression.replace("\\|", "|"), value)
    for expression, value in re.findall(r"^\| `(.+)` \| `(.+)` \|$", PAGE.split("## Examples")[1], re.M)
]
RECEIVED = 1_794_808_800_250


@pytest.fixture(scope="module")
def pack() -> RecordPack:
    (payload,) = re.findall(r"^```json\n(.*?)^```", PAGE, re.M | re.S)
    site = b"\x26\x00\x04site\x00\x05north"
    record = encode("plant/7/data", payload.encode(), 1, False, "m7", None, RECEIVED, 0, site)
    one = RecordPack()
    one.append(record, b"plant/7/data", timestamp=RECEIVED)
    one.place(0)
    return one


def test_the_statements_are_read_and_their_queries_compiled() -> None:
    tables: dict[str, TableDefinition] = {}
    kinds = set()
    for text in STATEMENTS:
        statement = parse_statement(text)
        kinds.add(type(statement))
        if isinstance(statement, CreateTable):
            tables[statement.table.name] = statement.table
        elif isinstance(statement, CreateTopic | ReloadTopic):
            assert compile_topic(statement, tables).columns
    assert len(kinds) >= 11


@pytest.mark.parametrize(("expression", "value"), EXAMPLES)
def test_the_values(pack: RecordPack, expression: str, value: str) -> None:
    statement = parse_statement(f'CREATE TOPIC t AS SELECT {expression} AS x FROM "plant/#"')
    assert isinstance(statement, CreateTopic)
    queries = QuerySet()
    number = queries.add(compile_topic(statement, {}))
    ((found, block),) = queries.evaluate(pack, 0)
    assert found == number
    assert json.loads(block.to_json())[0]["x"] == json.loads(value)


def test_the_evaluator_has_every_function() -> None:
    assert set(evaluator.FUNCTION_NAMES) == FUNCTIONS.keys()


def test_every_function_type_and_name_is_explained() -> None:
    callable_names = (FUNCTIONS.keys() | ALIASES.keys() | _SPECIAL.keys()) - _WRITTEN_BY_COMPILER
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", PAGE))))
    assert callable_names - words == set()
    assert {*FIELDS, *PARTS} - words == set()
    assert TYPE_NAMES.keys() - set(re.findall(r"\w+", PAGE)) == set()
