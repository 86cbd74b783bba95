"""Tables of rows for a person: plain columns that a script can cut too, and a question before something is lost."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence

from penstock.core.errors import PenstockError, UsageError

Row = Sequence[object]
FOREVER = 0xFFFFFFFF
GAP = 2  # between columns
SHORTEST = 12  # a name that is shortened to fit a terminal


def print_table(headings: Sequence[str], rows: Sequence[Row], *, names: Collection[int] = ()) -> None:
    """Columns of text; numbers to the right. On a terminal the cells of the columns `names` are shortened until the
    table fits, and columns that do not fit even so are left out from the right. A script gets all of it."""
    cells = [[shown(cell) for cell in row] for row in [headings, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings))]
    if names and sys.stdout.isatty():
        widths = _fit(widths, names, shutil.get_terminal_size().columns)
    is_number = [all(_is_number(row[column]) for row in rows) for column in range(len(headings))]
    for row in cells:
        padded = [
            cell.rjust(width) if right else _shorten(cell, width).ljust(width)
            for cell, width, right in zip(row, widths, is_number, strict=False)
        ]
        print("  ".join(padded).rstrip())


def _fit(widths: list[int], names: Collection[int], room: int) -> list[int]:
    """Widths of the columns that fit, at least of the first."""
    while len(widths) > 1 and _least(widths, names) > room:
        widths = widths[:-1]
    long = [column for column in names if column < len(widths)]
    while sum(widths) + GAP * (len(widths) - 1) > room:
        widest = max(long, key=lambda column: widths[column])
        if widths[widest] <= SHORTEST:
            break
        widths[widest] -= 1
    return widths


def _least(widths: Sequence[int], names: Collection[int]) -> int:
    shortened = (min(width, SHORTEST) if column in names else width for column, width in enumerate(widths))
    return sum(shortened) + GAP * (len(widths) - 1)


def _shorten(cell: str, width: int) -> str:
    return cell if len(cell) <= width else f"{cell[: width - 1]}…"


def print_entries(
    columns: Sequence[str], entries: Sequence[Mapping[str, object]], *, names: Collection[str] = ()
) -> None:
    """Some fields of entries as the broker gave them. `names`: those that may be shortened to fit a terminal."""
    headings = [name.replace("_", " ") for name in columns]
    rows = [[entry[name] for name in columns] for entry in entries]
    print_table(headings, rows, names=[index for index, name in enumerate(columns) if name in names])


def print_fields(fields: Mapping[str, object]) -> None:
    """One field a line."""
    width = max(map(len, fields))
    for name, value in fields.items():
        print(f"{name.replace('_', ' '):<{width}}  {shown(value)}")


def print_json(document: object) -> None:
    print(json.dumps(document, indent=2))


def print_answer(answer: object, as_json: bool, text: str) -> None:
    """Print an answer of the broker: all of it as JSON, or a sentence about it."""
    if as_json:
        print_json(answer)
    else:
        print(text)


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
