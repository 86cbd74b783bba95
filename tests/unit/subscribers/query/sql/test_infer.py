"""A table proposed from messages."""

import pytest

from penstock.subscribers.query.sql.infer import Sample, infer_table
from penstock.subscribers.query.sql.statements import CreateTable, parse_statement
from penstock_client.errors import NotFound


def test_types_nested_members_levels_and_properties() -> None:
    samples: list[Sample] = [
        (
            "s/a/b",
            b'{"temp":1,"at":"2024-01-01T00:00:00Z","name":"x","pos":{"lat":1.5,"Lat":2,"in":{"x":{"y":1}}},"l":[1],"n":null}',
            [("fw", "1")],
        ),
        ("s/b/c", b'{"temp":1.5,"n":true,"mixed":1,"odd key":1}', [("fw", "2"), ("hw", "1")]),
        ("s/b/d", b'{"mixed":"two","name":"2024-01-01T00:00:00Z"}', []),
        ("s/b/d", b"no json", []),
    ]
    table = infer_table("t", "s/+/#", samples)
    assert table.to_sql() == (
        "CREATE TABLE \"t\" FROM 's/+/#' (\n"
        '  "temp" DOUBLE,\n'
        '  "at" TIMESTAMP,\n'
        '  "name" VARCHAR,\n'
        "  \"pos_lat\" DOUBLE FROM '$.pos.lat',\n"
        "  \"pos_Lat_2\" BIGINT FROM '$.pos.Lat',\n"
        "  \"pos_in_x\" JSON FROM '$.pos.in.x',\n"
        '  "l" JSON,\n'
        '  "n" BOOLEAN,\n'
        '  "mixed" JSON,\n'
        '  "odd key" BIGINT\n'
        ") TAGS (\n"
        '  "level_2" VARCHAR FROM TOPIC LEVEL 2,\n'
        '  "level_3" VARCHAR FROM TOPIC LEVEL 3,\n'
        "  \"fw\" VARCHAR FROM USER PROPERTY 'fw',\n"
        "  \"hw\" VARCHAR FROM USER PROPERTY 'hw'\n"
        ")"
    )
    again = parse_statement(table.to_sql())
    assert isinstance(again, CreateTable)
    assert again.table == table


def test_messages_without_members_tell_nothing() -> None:
    with pytest.raises(NotFound, match="CREATE TABLE"):
        infer_table("t", "a", [("a", b"12", []), ("a", b"[]", []), ("a", b"{}", [])])


def test_hostile_messages_do_not_hide_the_others() -> None:
    deep = b'{"a":' * 10_000 + b"1" + b"}" * 10_000
    samples = [
        ("a", deep, []),
        ("a", b"[" * 10_000, []),
        ("a", b'{"a":' + b"9" * 10_000 + b"}", []),
        ("a", b'{"b":1}', []),
    ]
    assert '"b" BIGINT' in infer_table("t", "a", samples).to_sql()
