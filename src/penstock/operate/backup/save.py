"""A consistent copy of the data directory, while the broker runs.

What points to something is copied in an older state than what it points to: first the offsets of groups, then sessions
with their contexts, then what waits for devices, and the log last, all of its topics at one moment. So the copy is what
a crash at that moment would have left, give or take milliseconds: everything acknowledged before the backup began is in
it, and what is delivered again after a restore is what a crash would have delivered again.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Protocol

import msgspec

from penstock.operate.backup.archive import (
    FORMAT,
    LOST_AND_FOUND,
    MANIFEST,
    BackedUpFile,
    BackupError,
    Limited,
    Manifest,
    Sink,
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

ATTEMPTS = 5
SCRATCH = ".penstock-backup-"
GROUPS = "state"  # the offsets of groups: older than everything that they count
# Made at every start, or made again when they are missing.
LEFT_OUT = frozenset(("log", "admin.address", "admin.token", LOST_AND_FOUND))


class Progress(Protocol):
    """Shows how far a copy is."""

    def advance(self, count: int = 1) -> None: ...


ShowProgress = Callable[[str, int, str], AbstractContextManager[Progress]]
"""Called with what is done, the total and its unit."""


def check_provider(settings: Settings) -> None:
    """Raise BackupError, which says what to save instead, if the broker's data is not in its data directory."""
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


class Backup:
    """One run; `admin` is the client of the broker that runs on the directory, if one does."""

    def __init__(self, settings: Settings, directory: Path, admin: AdminClient | None, progress: ShowProgress) -> None:
        self._show_progress = progress
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
        with self._show_progress("saving", total, "bytes") as progress:
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

    def left_out(self) -> list[str]:
        """Return the files in the data directory that are not the broker's."""
        known = {path.name for path in find_environments(self._directory)} | LEFT_OUT
        return [
            path.name
            for path in sorted(self._directory.iterdir())
            if path.name not in known and not path.name.startswith(".") and path.suffix != ".lock"
        ]


def _copy_stores(snapshots: Snapshots, scratch: Path) -> None:
    for name in snapshots.names:
        snapshots.copy(name, scratch / name)
