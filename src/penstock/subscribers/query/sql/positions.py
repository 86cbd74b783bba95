"""Where in a statement something is, and how a refusal says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from penstock_client.errors import SqlError

if TYPE_CHECKING:
    from sqlglot.expressions import Expr


def line_and_column(text: str, offset: int) -> tuple[int, int]:
    """Both from 1."""
    before = text[: max(0, offset)]
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


def refuse(text: str, offset: int, message: str) -> NoReturn:
    line, column = line_and_column(text, offset)
    raise SqlError(f"line {line}, column {column}: {message}", line, column)


def start_of(node: Expr, default: int = 0) -> int:
    """The first character of an expression, as far as the parser remembers it of the node or of what is in it."""
    starts = [part.meta["start"] for part in node.walk() if "start" in part.meta]
    return min(starts, default=default)
