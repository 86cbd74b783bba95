"""What a job has written, so that each batch counts exactly once however often a run is killed and repeated.

A batch is written to a staging directory first. Then a note says which files go where, the files are moved, and the
note is marked as done. A run that finds a note that is not done moves the rest; a batch that has a note is not written
again. Other programs see plain Parquet directories: what is staged is hidden from them by its name.

    <output>/_penstock/ledger/00000012-3f2a…-12.json   the note of one batch (.done when its files are in place)
    <output>/_penstock/staging/…                      files on their way
    <output>/<table>/…                                the tables
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from penstock_spark import watch
from penstock_spark.errors import CheckpointError
from penstock_spark.hadoop import Files

HOME = "_penstock"
LEDGER, STAGING = f"{HOME}/ledger", f"{HOME}/staging"
KEPT_NOTES = 200
# Batches that the jobs make of what is there, other than those of the stream.
TABLES, COMPACTED = "tables.", "compact."


@dataclass(frozen=True)
class Table:
    """Rows for a table: added to it, or in place of all that it has."""

    frame: DataFrame
    partition_by: Sequence[str] = ()
    replaces: bool = False
    files: int | None = None


@dataclass
class Note:
    """What one batch did."""

    sequence: int
    batch: str
    moves: list[list[str]]
    removes: list[str]
    end: Mapping[str, Any] | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{LEDGER}/{self.sequence:08}-{self.batch}"


class Ledger:
    def __init__(self, spark: SparkSession, output: str) -> None:
        self._spark = spark
        self.files = Files(spark, output)
        self._notes: dict[str, int] = {}
        self._last = 0
        for name in self.files.names(LEDGER):
            stem, _, state = name.rpartition(".")
            if state not in ("done", "json") or "-" not in stem:
                continue
            number, _, batch = stem.partition("-")
            self._notes[batch] = int(number)
            self._last = max(self._last, int(number))
            if state == "json":
                self._finish(self._load(f"{LEDGER}/{name}"))
        self.files.delete(STAGING)

    def say(self, what: str) -> None:
        watch.say(self._spark, what)

    @property
    def is_empty(self) -> bool:
        return self._last == 0

    @property
    def next_number(self) -> int:
        return self._last + 1

    def has(self, batch: str) -> bool:
        return batch in self._notes

    def _load(self, path: str) -> Note:
        try:
            return Note(**self.files.read_json(path))
        except (TypeError, ValueError) as error:
            raise CheckpointError(
                f"{self.files.path(path)} is damaged: {error}",
                "It says where the job was: restore it from a backup, or take a new output directory",
            ) from None

    def last(self) -> Note | None:
        """The newest note."""
        for name in reversed(self.files.names(LEDGER)):
            if name.endswith(".done"):
                return self._load(f"{LEDGER}/{name}")
        return None

    @property
    def has_old_tables(self) -> bool:
        """Something was written since the tables were last made of all: also by a run that was killed before it."""
        note = self.last()
        return note is not None and not note.batch.startswith(TABLES)

    def open(self, batch: str) -> Entry:
        """A batch that is to be written."""
        self.files.delete(f"{STAGING}/{batch}")
        return Entry(self, batch)

    def commit(self, entry: Entry, end: Mapping[str, Any] | None, facts: Mapping[str, Any]) -> Note:
        home = f"{STAGING}/{entry.batch}"
        moves = []
        for number, (path, _) in enumerate(self.files.walk(home)):
            directory, _, leaf = path[len(home) + 1 :].rpartition("/")
            moves.append([path, f"{directory}/{entry.batch}-{number:05}.{leaf.partition('.')[2]}"])
        note = Note(self._last + 1, entry.batch, moves, entry.removes, end, dict(facts))
        self.files.write_text(f"{note.name}.json", json.dumps(note.__dict__))
        self._last, self._notes[entry.batch] = note.sequence, note.sequence
        self._finish(note)
        self.files.delete(home)
        return note

    def _finish(self, note: Note) -> None:
        """Every step may have been done before."""
        for path in note.removes:
            self.files.delete(path)
        for source, target in note.moves:
            if self.files.exists(source):
                self.files.rename(source, target)
        self.files.rename(f"{note.name}.json", f"{note.name}.done")
        self._forget_old()

    def _forget_old(self) -> None:
        names = [name for name in self.files.names(LEDGER) if name.endswith(".done")]
        streamed = [name for name in names if not name.partition("-")[2].startswith((TABLES, COMPACTED))]
        # by the newest of the stream the checkpoint is known to be right, however much was put together since
        for name in set(names[:-KEPT_NOTES]) - set(streamed[-1:]):
            self.files.delete(f"{LEDGER}/{name}")

    def read(self, table: str, empty: Any = None) -> DataFrame | None:
        """The table as it is now; `empty` is the schema of a table that has nothing yet."""
        if next(self.files.walk(table), None) is None:
            return None if empty is None else self._spark.createDataFrame([], empty)
        return self._spark.read.option("mergeSchema", "true").parquet(self.files.path(table))


class Entry:
    """The tables of one batch on their way into the ledger; nothing of it is seen before `commit`."""

    def __init__(self, ledger: Ledger, batch: str) -> None:
        self._ledger = ledger
        self.batch = batch
        self.removes: list[str] = []

    def stage(self, name: str, table: Table) -> None:
        """Computes and writes the rows."""
        files = self._ledger.files
        self._ledger.say(f"writing {name}")
        frame = table.frame.coalesce(table.files) if table.files else table.frame
        writer = frame.write.mode("overwrite").option("compression", "zstd")
        if table.partition_by:
            writer = writer.partitionBy(*table.partition_by)
        writer.parquet(files.path(f"{STAGING}/{self.batch}/{name}"))
        if table.replaces:
            self.removes += [path for path, _ in files.walk(name)]

    def remove(self, paths: Sequence[str]) -> None:
        """Files that go when the batch counts."""
        self.removes += paths

    def commit(self, end: Mapping[str, Any] | None = None, **facts: Any) -> Note:
        return self._ledger.commit(self, end, facts)
