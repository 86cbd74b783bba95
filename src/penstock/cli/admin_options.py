"""The options of commands that ask a running broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from penstock.cli.option_groups import with_options
from penstock.cli.settings_options import Config, DataDir, Set, load_from_flags
from penstock.operate.client import AdminClient, admin_of

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="http://host:port of the broker's admin address. [default: from the data directory]",
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        help="Admin token; other users can see it, prefer PENSTOCK_ADMIN__TOKEN or admin.token of the data directory.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")]


def find_admin(
    config: Config = None, data_dir: DataDir = None, assignments: Set = None, url: Url = None, token: Token = None
) -> AdminClient:
    """The broker of these flags: where its data directory says it listens, else where the settings say."""
    return admin_of(
        load_from_flags(config, data_dir=data_dir, assignments=assignments, check=False).settings, url, token
    )


Broker = Callable[[], AdminClient]
with_broker = with_options("broker", find_admin)
"""Decorates a command with a parameter `broker: Broker`."""
