"""Several statements in one text, and where a mistake is."""

from __future__ import annotations

import pytest

from penstock.cli.sql import EXAMPLES
from penstock.cli.statements import place_in_file, point_at, split_statements
from penstock.subscribers.query.sql.statements import parse_statement


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("", []),
        (" ;; ", []),
        ("-- nothing; at all\n/* ; */", []),
        ("SHOW TOPICS", ["SHOW TOPICS"]),
        ("a; b ;\nc", ["a", "b", "c"]),
        ("x 'it''s; one' ; y", ["x 'it''s; one'", "y"]),
        ('x "a;""b" ; y', ['x "a;""b"', "y"]),
        ("x -- ; no\n, y; z", ["x -- ; no\n, y", "z"]),
        ("x /* ;\n; */ y", ["x /* ;\n; */ y"]),
        ("x 'not closed; y", ["x 'not closed", "y"]),
    ],
)
def test_split(text: str, statements: list[str]) -> None:
    assert [each.text for each in split_statements(text)] == statements


def test_the_statements_of_the_help() -> None:
    """One or more on a line, several spaces apart; those with an ellipsis or a choice are not whole."""
    lines = [line.strip() for line in EXAMPLES.partition("Statements:")[2].partition("\n\n")[0].splitlines()]
    statements = [text for line in lines for text in line.split("    ") if text and not set(text) & set("…[")]
    assert len(statements) > 5
    for text in statements:
        parse_statement(text.strip())


def test_places() -> None:
    first, second = split_statements("one;\n  two\n three")
    assert place_in_file(first, 1, 2) == (1, 2)
    assert place_in_file(second, 1, 1) == (2, 3)
    assert place_in_file(second, 2, 4) == (3, 4)


def test_caret() -> None:
    (statement,) = split_statements("SELECT a,\n\tb FROM")
    assert point_at(statement, 2, 2) == " b FROM\n ^"
    assert point_at(statement, 1, 99) == "SELECT a,\n         ^"
    assert point_at(statement, 9, 1) == ""
