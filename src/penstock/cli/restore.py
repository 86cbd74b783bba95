"""`penstock restore`: a backup becomes the data directory of a broker, or nothing changes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.admin_options import Json
from penstock.cli.app import make_app
from penstock.cli.cleaning_up import cleaning_up
from penstock.cli.progress import Progress
from penstock.cli.settings_options import Config, DataDir, Set, load_from_flags
from penstock.cli.tables import print_json
from penstock.core.text import counted
from penstock.operate.backup.archive import BackupError, explain_refusal
from penstock.operate.backup.restore import restore as put_back
from penstock.settings.providers import log_capabilities

app = make_app()


@app.command()
def restore(
    source: Annotated[Path, typer.Argument(metavar="BACKUP", help="File or directory made by `penstock backup`.")],
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Restore over existing data, which is set aside, not deleted.")
    ] = False,
    config: Config = None,
    data_dir: DataDir = None,
    assignments: Set = None,
    as_json: Json = False,
) -> None:
    """Restore a backup. The broker must not be running.

    All checksums are compared before the data directory changes.
    """
    settings = load_from_flags(config, data_dir=data_dir, assignments=assignments, check=False).settings
    if not log_capabilities(settings).has_files:
        raise BackupError(
            f"log.provider = {settings.log.provider}: a broker with these settings does not use a data directory",
            "A backup is of an embedded log: restore it for settings with log.provider = embedded.",
        )
    target = Path(settings.server.data_dir)
    try:
        with cleaning_up():
            manifest, owner, aside = put_back(source, target, force=force, progress=Progress)
    except OSError as error:
        raise explain_refusal(error, target, "Nothing was restored.") from error
    if as_json:
        print_json(
            {
                "data_dir": str(target.resolve()),
                "created": manifest.created,
                "version": manifest.version,
                "node_id": manifest.node_id,
                "topics": manifest.topics,
                "records": manifest.records,
                "owner": owner.name,
                "set_aside": None if aside is None else str(aside),
            }
        )
        return
    typer.echo(
        f"{target}: {counted(manifest.topics, 'topic')}, {counted(manifest.records, 'record')} "
        f"of {manifest.node_id}, as of {manifest.created}"
    )
    if os.geteuid() == 0:
        typer.echo(owner.describe())
    if aside is not None:
        typer.echo(f"what was there is in {aside}: delete it when you do not need it any more")
