"""Text with several SQL statements, taken apart; and where in it a mistake is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# Strings and names in quotes (doubled inside), comments, the end of a statement; anything else is passed over.
_PARTS = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/|;""", re.S)
_COMMENTS = re.compile(r"--[^\n]*|/\*.*?\*/", re.S)


@dataclass(frozen=True)
class Statement:
    text: str
    line: int  # of the whole text, from 1, where it begins
    column: int


def split_statements(text: str) -> Iterator[Statement]:
    """At semicolons outside of strings and comments; empty ones are left out."""
    start = 0
    ends = [found.start() for found in _PARTS.finditer(text) if found[0] == ";"]
    for end in [*ends, len(text)]:
        statement = text[start:end]
        begin = start + len(statement) - len(statement.lstrip())
        if _COMMENTS.sub("", statement).strip():
            before = text[:begin]
            yield Statement(statement.strip(), before.count("\n") + 1, begin - (before.rfind("\n") + 1) + 1)
        start = end + 1


def point_at(statement: Statement, line: int, column: int) -> str:
    """The line of the mistake with a caret under it; `line` and `column` are the statement's own."""
    lines = statement.text.split("\n")
    if not 1 <= line <= len(lines):
        return ""
    shown = lines[line - 1].replace("\t", " ")
    return f"{shown}\n{' ' * min(max(column - 1, 0), len(shown))}^"


def place_in_file(statement: Statement, line: int, column: int) -> tuple[int, int]:
    return statement.line + line - 1, column + (statement.column - 1 if line == 1 else 0)
