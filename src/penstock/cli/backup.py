"""`penstock backup`: a consistent copy of the data directory, while the broker runs.

What points to something is copied in an older state than what it points to: first the offsets of groups, then sessions
with their contexts, then what waits for devices, and the log last, all of its topics at one moment. So the copy is what
a crash at that moment would have left, give or take milliseconds: everything acknowledged before the backup began is in
it, and what is delivered again after a restore is what a crash would have delivered again.
"""

from __future__ import annotations

import fcntl
import io
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Annotated

import msgspec
import typer

from penstock.cli.admin_options import Json, Token, Url, find_admin
from penstock.cli.app import make_app
from penstock.cli.cleaning_up import cleaning_up
from penstock.cli.progress import Progress
from penstock.cli.settings_options import Config, DataDir, Set, load_from_flags
from penstock.cli.tables import print_json
from penstock.core.data_dir import check_restored
from penstock.core.text import counted
from penstock.operate.backup.archive import (
    FORMAT,
    LOST_AND_FOUND,
    MANIFEST,
    BackedUpFile,
    BackupError,
    Limited,
    Manifest,
    Sink,
    explain_refusal,
    held_directory,
    open_sink,
    remove_abandoned,
)
from penstock.operate.client import AdminClient
from penstock.operate.http.server import package_version
from penstock.settings import Settings
from penstock.settings.providers import device_capabilities, log_capabilities
from penstock.storage.log.base import TopicCut
from penstock.storage.log.embedded import files
from penstock.storage.log.embedded.backup import CutTooOld, StagedTopic, Staging
from penstock.storage.state.lmdb_copy import Snapshots, find_environments

app = make_app()

ATTEMPTS = 5
SCRATCH = ".penstock-backup-"
GROUPS = "state"  # the offsets of groups: older than everything that they count
# Made at every start, or made again when they are missing.
LEFT_OUT = frozenset(("log", "admin.address", "admin.token", LOST_AND_FOUND))


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
    _check_provider(settings)
    directory = Path(settings.server.data_dir)
    try:
        if not directory.is_dir():
            raise BackupError(f"there is no data directory {directory.resolve()}", "Name it with --data-dir.")
        check_restored(directory)
        admin = find_admin(config, data_dir, assignments, url, token) if is_log_open(directory) else None
        with cleaning_up():
            manifest = _Backup(settings, directory, admin).run(target)
    except OSError as error:
        raise explain_refusal(error, target, "Nothing was left behind.") from error
    if device_capabilities(settings).uses_redis:
        print(
            "penstock: warning: what waits for DEVICE clients is in Redis, not in this backup: save that as well "
            "(BGSAVE and its RDB file, or its AOF)",
            file=sys.stderr,
        )
    size = sum(file.size for file in manifest.files)
    if as_json:
        print_json({"target": str(target), "size": size, **_summary(manifest)})
        return
    typer.echo(
        f"{target}: {counted(manifest.topics, 'topic')}, {counted(manifest.records, 'record')}, "
        f"{size / 1_048_576:,.1f} MiB in {counted(len(manifest.files), 'file')}"
    )


def _summary(manifest: Manifest) -> dict[str, object]:
    return {**msgspec.structs.asdict(manifest), "files": len(manifest.files)}


def _check_provider(settings: Settings) -> None:
    """Raises BackupError that says what to save instead."""
    can = log_capabilities(settings)
    if not can.is_durable:
        raise BackupError(
            f"log.provider = {settings.log.provider}: this broker keeps nothing, so there is nothing to save"
        )
    if can.uses_kafka:
        devices = (
            "Redis, where what waits for DEVICE clients is: its RDB file or AOF"
            if device_capabilities(settings).uses_redis
            else f"{settings.server.data_dir}/devices of each broker, copied while it is stopped"
        )
        raise BackupError(
            "log.provider = kafka: what this broker keeps is in Kafka, which has tools of its own to save it",
            "Save these:\n"
            "- the topics tbmq.* (after services.prefix, if there is one) and their configurations, by MirrorMaker 2\n"
            "  or as volumes of the Kafka brokers; sessions, retained messages and contexts are in the compacted ones\n"
            "- the offsets of the consumer groups, msg-all-consumer-group-<node_id> first: MirrorMaker 2 carries them\n"
            f"- {devices}\n"
            "- the settings, password, ACL and certificate files",
        )
    if not can.has_files:
        raise BackupError(
            f"log.provider = {settings.log.provider}: the log is not in files of {settings.server.data_dir}",
            "Back it up with the tools of that log.",
        )


def is_log_open(data_dir: Path) -> bool:
    """Whether a process writes the log, without disturbing it."""
    path = files.log_directory(data_dir) / files.LOCK_FILE
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise BackupError(
            f"cannot open {path}: {error.strerror}", "Run the command as the user the broker runs as."
        ) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


class _Backup:
    """One run."""

    def __init__(self, settings: Settings, directory: Path, admin: AdminClient | None) -> None:
        self._node_id = settings.server.node_id
        self._directory = directory
        self._admin = admin
        self._files: list[BackedUpFile] = []
        self._created = datetime.now(UTC)

    def run(self, target: Path) -> Manifest:
        environments = find_environments(self._directory)
        environments.sort(key=lambda path: (path.name != GROUPS, path.name))
        if not environments and not files.log_directory(self._directory).is_dir():
            raise BackupError(f"nothing is kept in {self._directory.resolve()} yet")
        sink = open_sink(target)
        try:
            remove_abandoned(target.parent, SCRATCH)
            # A hidden directory beside the target: on its disk there is room for it, if there is for the backup.
            with held_directory(target.parent / f"{SCRATCH}{os.getpid()}", "another backup is at work") as scratch:
                topics = self._copy_all(sink, environments, scratch)
            manifest = self._manifest(topics)
            text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
            sink.put(MANIFEST, io.BytesIO(text), len(text))
            sink.finish()
        except BaseException:
            sink.discard()
            raise
        self._note_others()
        return manifest

    def _copy_all(self, sink: Sink, environments: list[Path], scratch: Path) -> list[StagedTopic]:
        if not files.log_directory(self._directory).is_dir():
            with Snapshots(environments) as snapshots:
                _copy_stores(snapshots, scratch)
            self._copy(sink, scratch, [], {})
            return []
        with Staging(self._directory) as staging:
            topics, journals = self._stage(staging, environments, scratch)
            self._copy(sink, scratch, topics, journals)
        return topics

    def _stage(
        self, staging: Staging, environments: list[Path], scratch: Path
    ) -> tuple[list[StagedTopic], dict[str, bytes]]:
        """Everything as it is at one moment; a log that changes too fast is asked again, with new pictures."""
        for attempt in range(ATTEMPTS):
            with Snapshots(environments) as snapshots:
                try:
                    if self._admin is None:
                        staging.stage_all()
                    else:
                        staging.stage(self._ask_cut(self._admin))
                except CutTooOld:
                    staging.clear()
                    if attempt == ATTEMPTS - 1:
                        raise
                    continue
                _copy_stores(snapshots, scratch)
            break
        return list(staging.topics.values()), staging.journals

    @staticmethod
    def _ask_cut(admin: AdminClient) -> list[TopicCut]:
        return [TopicCut(*topic) for topic in admin.post("/backup/cut", {})["topics"]]

    def _copy(self, sink: Sink, scratch: Path, topics: list[StagedTopic], journals: dict[str, bytes]) -> None:
        stores = sorted(scratch.glob("*/data.mdb"))
        total = sum(path.stat().st_size for path in stores) + sum(topic.size for topic in topics)
        with Progress("saving", total, "bytes") as progress:
            for path in stores:
                self._put_file(sink, f"{path.parent.name}/{path.name}", path, path.stat().st_size, progress)
                path.unlink()
            for topic in topics:
                topic.verify()
                self._put_topic(sink, topic, progress)
            for name, data in journals.items():
                self._put(sink, f"log/{name}", io.BytesIO(data), len(data), progress)

    def _put_topic(self, sink: Sink, topic: StagedTopic, progress: Progress) -> None:
        directory = f"log/{files.escape_topic(topic.topic)}"
        for name, data in ((files.TOPIC_FILE, topic.description), (files.TAIL_FILE, topic.tail)):
            if data is not None:
                self._put(sink, f"{directory}/{name}", io.BytesIO(data), len(data), progress)
        for segment in topic.segments:
            self._put_file(sink, f"log/{segment.name}", segment.path, segment.size, progress)

    def _put_file(self, sink: Sink, name: str, path: Path, size: int, progress: Progress) -> None:
        with path.open("rb") as file:
            self._put(sink, name, file, size, progress)

    def _put(self, sink: Sink, name: str, file: IO[bytes], size: int, progress: Progress) -> None:
        source = Limited(file, size, progress.advance)
        sink.put(name, source, size)  # type: ignore[arg-type] # a RawIOBase reads bytes, which is all that is asked of it
        if not source.is_whole:
            raise BackupError(f"{name} became shorter while it was copied")
        self._files.append(BackedUpFile(name, size, source.digest))

    def _manifest(self, topics: list[StagedTopic]) -> Manifest:
        return Manifest(
            format=FORMAT,
            version=package_version(),
            created=self._created.isoformat(timespec="seconds"),
            node_id=self._node_id,
            was_running=self._admin is not None,
            topics=len(topics),
            records=sum(topic.records for topic in topics),
            files=self._files,
        )

    def _note_others(self) -> None:
        """Files in the data directory that are not the broker's are not taken along in silence."""
        known = {path.name for path in find_environments(self._directory)} | LEFT_OUT
        others = [
            path.name
            for path in sorted(self._directory.iterdir())
            if path.name not in known and not path.name.startswith(".") and path.suffix != ".lock"
        ]
        if others:
            print(f"penstock: not in the backup: {', '.join(others)}", file=sys.stderr)


def _copy_stores(snapshots: Snapshots, scratch: Path) -> None:
    for name in snapshots.names:
        snapshots.copy(name, scratch / name)
