"""`penstock backup`: a consistent copy of the data directory, while the broker runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from penstock.cli.admin_options import Json, Token, Url, find_admin
from penstock.cli.app import make_app
from penstock.cli.cleaning_up import cleaning_up
from penstock.cli.progress import Progress
from penstock.cli.settings_options import Config, DataDir, Set, load_from_flags
from penstock.cli.tables import print_answer
from penstock.core.data_dir import check_restored
from penstock.core.text import counted
from penstock.operate.backup.archive import BackupError, Manifest, explain_refusal
from penstock.operate.backup.save import Backup, check_provider
from penstock.operate.running import is_log_open
from penstock.settings.providers import device_capabilities

app = make_app()


@app.command()
def backup(
    target: Annotated[
        Path,
        typer.Argument(metavar="TARGET", help="A new file that ends in .tar, .tar.gz or .tgz, else a new directory."),
    ],
    *,
    config: Config = None,
    data_dir: DataDir = None,
    assignments: Set = None,
    url: Url = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Copy everything the broker keeps in its data directory, while it runs or not; compares all checksums.

    `penstock restore` puts it back. Settings, passwords, ACL and certificates are files of yours: copy them as well.
    """
    settings = load_from_flags(config, data_dir=data_dir, assignments=assignments, check=False).settings
    check_provider(settings)
    directory = Path(settings.server.data_dir)
    try:
        if not directory.is_dir():
            raise BackupError(f"there is no data directory {directory.resolve()}", "Name it with --data-dir.")
        check_restored(directory)
        admin = find_admin(config, data_dir, assignments, url, token) if is_log_open(directory) else None
        with cleaning_up():
            run = Backup(settings, directory, admin, Progress)
            manifest = run.run(target)
        others = run.left_out()
    except OSError as error:
        raise explain_refusal(error, target, "Nothing was left behind.") from error
    if others:
        print(f"penstock: not in the backup: {', '.join(others)}", file=sys.stderr)
    if device_capabilities(settings).uses_redis:
        print(
            "penstock: warning: what waits for DEVICE clients is in Redis, not in this backup: save that as well "
            "(BGSAVE and its RDB file, or its AOF)",
            file=sys.stderr,
        )
    size = sum(file.size for file in manifest.files)
    print_answer(
        {"target": str(target), "size": size, **_summary(manifest)},
        as_json,
        f"{target}: {counted(manifest.topics, 'topic')}, {counted(manifest.records, 'record')}, "
        f"{size / 1_048_576:,.1f} MiB in {counted(len(manifest.files), 'file')}",
    )


def _summary(manifest: Manifest) -> dict[str, object]:
    return {**msgspec.structs.asdict(manifest), "files": len(manifest.files)}
