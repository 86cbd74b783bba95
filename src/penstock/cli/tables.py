"""Tables of rows for a person: plain columns that a script can cut too, and a question before something is lost."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence

from penstock.core.errors import PenstockError, UsageError

Row = Sequence[object]
FOREVER = 0xFFFFFFFF


def print_table(headings: Sequence[str], rows: Sequence[Row]) -> None:
    """Columns of text; numbers to the right."""
    cells = [[shown(cell) for cell in row] for row in [headings, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings))]
    is_number = [all(_is_number(row[column]) for row in rows) for column in range(len(headings))]
    for row in cells:
        padded = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, is_number, strict=True)
        ]
        print("  ".join(padded).rstrip())


def print_entries(columns: Sequence[str], entries: Sequence[Mapping[str, object]]) -> None:
    """Some fields of entries as the broker gave them."""
    print_table([name.replace("_", " ") for name in columns], [[entry[name] for name in columns] for entry in entries])


def print_fields(fields: Mapping[str, object]) -> None:
    """One field a line."""
    width = max(map(len, fields))
    for name, value in fields.items():
        print(f"{name.replace('_', ' '):<{width}}  {shown(value)}")


def print_json(document: object) -> None:
    print(json.dumps(document, indent=2))


def describe_expiry(seconds: object) -> object:
    return "never" if seconds == FOREVER else seconds


def _is_number(value: object) -> bool:
    """Or the lack of one."""
    return value is None or (isinstance(value, int) and not isinstance(value, bool))


def shown(value: object) -> str:
    """As it stands, unless it could do something to a terminal: names come from clients."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = "-" if value is None else str(value)
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def ask(question: str, refusal: str) -> None:
    """Raises UsageError when nobody can be asked, PenstockError with `refusal` when the answer is no."""
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Nobody is there to say so.", "Add --yes if you are sure.")
    if input(f"{question} [y/N] ").strip().lower() not in {"y", "yes"}:
        raise PenstockError(refusal)
