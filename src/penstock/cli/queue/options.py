"""What the commands about queues have in common."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.tables import shown
from penstock.core.errors import UsageError
from penstock.operate.client import escape
from penstock.settings.queues import QueueSettings
from penstock.settings.schema import describe
from penstock.settings.units import show_duration, show_size
from penstock.subscribers.queue.names import check_name

PATH = "/queues"
SETTINGS = describe(QueueSettings)
# Options of `create` have these.
_WITH_OPTIONS = ("name", "type", "durable", "topics", "capture")
# What happened to a queue; nothing that a new one is made with.
_HISTORY = ("paused", "origin")


def show_setting(dotted: str, value: object) -> str:
    """A value as -o takes it: `limits.message_ttl` of 604800.0 is 7d."""
    unit = SETTINGS[dotted].unit if dotted in SETTINGS else ""
    if unit == "seconds" and isinstance(value, int | float):
        return show_duration(value)
    if unit == "bytes" and isinstance(value, int):
        return show_size(value)
    return shown(int(value) if isinstance(value, float) and value.is_integer() else value)


def _settings_help() -> str:
    """The settings with their defaults, a line for each table of them."""
    lines: dict[str, list[str]] = {}
    for dotted, key in SETTINGS.items():
        if dotted not in _WITH_OPTIONS:
            value = {True: "true", False: "false"}.get(key.default) if isinstance(key.default, bool) else None
            text = value or show_setting(dotted, key.default)
            lines.setdefault(dotted.rpartition(".")[0], []).append(f"{dotted}={text}")
    return "\n\n".join(["Settings for -o, with their defaults:", *("  ".join(line) for line in lines.values())])


SETTINGS_HELP = _settings_help()
Name = Annotated[
    str, typer.Argument(metavar="QUEUE", help="A name, as in $queue/QUEUE; '$dlq/QUEUE' for the dead letters of one.")
]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "-o",
        "--option",
        metavar="KEY=VALUE",
        help="A setting of the queue, such as limits.max_depth=1000 or retry.initial_backoff=5s; may be repeated. "
        "All of them are listed below.",
    ),
]
GroupName = Annotated[
    str, typer.Argument(metavar="GROUP", help="A name, or NAME@FILTER where several filters are used.")
]
Count = Annotated[int | None, typer.Option("-n", "--count", min=1, help="Maximum number of messages. [default: all]")]
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


def read_definition(source: Path) -> dict[str, Any]:
    """The settings in what `penstock queue show --json` has printed, or in its `definition` alone."""
    try:
        text = sys.stdin.read() if str(source) == "-" else source.read_text()
        document = json.loads(text)
    except OSError as error:
        raise UsageError(f"--from {source}: {error.strerror or error}") from None
    except ValueError:
        raise UsageError(f"--from {source} is not JSON", "Write it with `penstock queue show QUEUE --json`.") from None
    definition = document.get("definition", document) if isinstance(document, dict) else None
    if not isinstance(definition, dict):
        raise UsageError(f"--from {source} has no definition of a queue: it must be what `queue show --json` prints")
    return {name: value for name, value in definition.items() if name not in _HISTORY}


def path_of(name: str) -> str:
    """The queue's path in the admin API; the slash of $dlq/orders is one of the path, and there is no other: it would
    lead to something else than a queue."""
    try:
        check_name(name)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return f"{PATH}/{'/'.join(escape(level) for level in name.split('/'))}"
