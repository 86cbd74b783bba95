"""`penstock check-config`: the effective settings and where each came from."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Annotated

import typer

from penstock.access.control import AccessControl
from penstock.cli.app import make_app
from penstock.cli.settings_options import Load, with_all_flags
from penstock.settings import Loaded, flatten
from penstock.settings.schema import without_secrets

app = make_app()


@app.command()
@with_all_flags
def check_config(
    *,
    load: Load,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check settings, certificates, password and ACL files as `serve` would; exit code 78 when something is wrong."""
    loaded = load()
    AccessControl(loaded.settings.access)
    import_module("penstock.broker.check").check(loaded.settings)  # what only the parts themselves can judge
    for warning in loaded.warnings:
        print(f"penstock: warning: {warning}", file=sys.stderr)
    rows = list(_rows(loaded))
    if as_json:
        typer.echo(json.dumps({key: {"value": value, "origin": origin} for key, value, origin in rows}, indent=2))
    elif sys.stdout.isatty():
        _print_table(rows)
    else:
        for key, value, origin in rows:
            typer.echo(f"{key} = {json.dumps(value, ensure_ascii=False)}\t# {origin}")


def _rows(loaded: Loaded) -> Iterator[tuple[str, object, str]]:
    origins = loaded.origins
    for key, value in flatten(loaded.settings):
        yield key, without_secrets(key, value), origins[key]


def _print_table(rows: list[tuple[str, object, str]]) -> None:
    # rich is slow to import and only wanted on a terminal.
    table = import_module("rich.table").Table(box=None, pad_edge=False)
    for heading in ("setting", "value", "from"):
        table.add_column(heading, overflow="fold")
    text = import_module("rich.text").Text
    for key, value, origin in rows:
        style = "dim" if origin == "default" else "bold"
        table.add_row(text(key), text(json.dumps(value, ensure_ascii=False), style), text(origin, style))
    import_module("rich.console").Console().print(table)
