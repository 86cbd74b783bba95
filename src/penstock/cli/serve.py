"""`penstock serve`: the broker."""

from __future__ import annotations

from importlib import import_module

import typer

from penstock.broker.starting import no_collections
from penstock.cli.app import make_app
from penstock.cli.settings_options import Load, with_all_flags
from penstock.core.logging import configure_logging, get_logger

app = make_app()


@app.command()
@with_all_flags
def serve(
    *,
    load: Load,
) -> None:
    """Run the broker until SIGTERM or Ctrl-C. SIGHUP reloads what can change live."""
    loaded = load()
    configure_logging(loaded.settings.logging.level, loaded.settings.logging.format)
    log = get_logger("penstock.settings")
    for warning in loaded.warnings:
        log.warning(warning)
    # The composition root imports every layer: only a broker that starts pays for it.
    with no_collections():
        serving = import_module("penstock.cli.serving")
    raise typer.Exit(serving.run(loaded))
