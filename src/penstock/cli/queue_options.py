"""What the commands about queues have in common."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.cli.admin_client import escape
from penstock.core.errors import UsageError
from penstock.queues.names import check_name

PATH = "/queues"
Name = Annotated[
    str, typer.Argument(metavar="QUEUE", help="A name, as in $queue/QUEUE; '$dlq/QUEUE' for the dead letters of one.")
]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "-o",
        "--option",
        metavar="KEY=VALUE",
        help="A setting of the queue, such as limits.max_depth=1000 or retry.initial_backoff=5s; may be repeated.",
    ),
]
GroupName = Annotated[
    str, typer.Argument(metavar="GROUP", help="A name, or NAME@FILTER where several filters are used.")
]
Count = Annotated[int | None, typer.Option("-n", "--count", min=1, help="So many at most; else all there are.")]
Filter = Annotated[
    str, typer.Option("--filter", metavar="FILTER", help="Only routing keys that match: + and # as in MQTT.")
]


def parse_options(options: list[str] | None) -> dict[str, Any]:
    """-o KEY=VALUE as a table; the broker knows what is allowed."""
    table: dict[str, Any] = {}
    for option in options or []:
        key, equals, value = option.partition("=")
        if not equals or not key:
            raise UsageError(f"-o {option!r}: write KEY=VALUE, as in limits.max_depth=1000")
        table[key.strip()] = value
    return table


def path_of(name: str) -> str:
    """The queue's path in the admin API; the slash of $dlq/orders is one of the path, and there is no other: it would
    lead to something else than a queue."""
    try:
        check_name(name)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return f"{PATH}/{'/'.join(escape(level) for level in name.split('/'))}"
