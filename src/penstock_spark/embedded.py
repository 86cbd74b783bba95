"""Reads stretches of segment files into Arrow batches; runs in Spark's tasks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa  # type: ignore[import-untyped] # it has no types of its own
from pyspark.sql.datasource import InputPartition

from penstock_spark import segments, values
from penstock_spark.arrow import batch_of_rows, load_decoder, take_batch
from penstock_spark.embedded_plan import Piece
from penstock_spark.errors import BadRecord, DataLost, LogDamaged
from penstock_spark.options import SourceOptions
from penstock_spark.topic_filter import Matcher
from penstock_spark.values import Record

CHUNK = 4_194_304


@dataclass
class EmbeddedTask(InputPartition):
    """What one task of Spark reads: of each partition the offsets from the first to before the second."""

    topic: str
    ranges: Sequence[tuple[int, int]]
    pieces: Sequence[Piece]


@dataclass(frozen=True)
class Lost:
    """Records that are gone, or cannot be read."""

    partition: int
    first: int
    end: int
    reason: str

    def row(self, topic: str) -> tuple[object, ...]:
        """As a row, so that a gap is counted with the bad records and stands in the quarantine."""
        count = self.end - self.first
        reason = f"gap: offsets {self.first} to {self.end - 1} ({count} records) {self.reason}"
        place = (topic, self.partition, self.first, values.to_time(0))
        return (*[None] * 16, *place, reason, b"")


class EmbeddedReader:
    """Makes batches of a task's stretches."""

    def __init__(self, options: SourceOptions, task: EmbeddedTask) -> None:
        self._options = options
        self._task = task
        self._decoder = load_decoder(options.decoder)
        self._matcher = Matcher(options.filters)

    def read(self) -> Iterator[pa.RecordBatch]:
        return self._read_compiled() if self._decoder is not None else self._read_python()

    def _read_compiled(self) -> Iterator[pa.RecordBatch]:
        options, task = self._options, self._task
        assert self._decoder is not None
        decoder = self._decoder(
            ranges=task.ranges,
            filters=[one.encode() for one in options.filters],
            max_rows=options.rows_per_batch,
            keep_bad=options.bad_records != "drop",
        )
        lost: list[Lost] = []
        for piece in task.pieces:
            for data, position in self._chunks(piece, lost):
                at = 0
                while True:
                    at, why, size = decoder.add_batches(data, at)
                    if why != "full":
                        break
                    yield take_batch(decoder, options.columns, task.topic)
                if why == "damaged":
                    at += self._skip_damage(piece, position + at, size, lost)
                self._used = at
                self._needed = size if why == "torn" else 0
                self._check(decoder.bad, piece)
        if decoder.rows:
            yield take_batch(decoder, options.columns, task.topic)
        if lost:
            yield batch_of_rows([one.row(task.topic) for one in lost], options.columns)

    def _check(self, bad: int, piece: Piece) -> None:
        if bad and self._options.bad_records == "fail":
            raise BadRecord(
                f"{piece.path} holds {bad} records that are not publishes",
                "badRecords=keep gives them as rows with the reason in the column error",
            )

    def _chunks(self, piece: Piece, lost: list[Lost]) -> Iterator[tuple[bytes, int]]:
        """Bytes and their position; `_used` tells how many of them were of use, `_needed` how many the next has."""
        try:
            fd = os.open(piece.path, os.O_RDONLY)
        except FileNotFoundError:
            self._lose(piece, lost)
            return
        try:
            position = piece.start
            size = CHUNK
            while position < piece.stop:
                data = os.pread(fd, min(size, piece.stop - position), position)
                self._used = self._needed = 0
                yield data, position
                if self._used == 0 and self._needed <= len(data):
                    return  # a batch that was cut off: the end of what is known to be whole
                position += self._used
                size = max(CHUNK, self._needed)
        finally:
            os.close(fd)

    def _lose(self, piece: Piece, lost: list[Lost]) -> None:
        gone = [
            Lost(number, max(span[0], wanted[0]), min(span[1], wanted[1]), "were removed by retention during the read")
            for number, (span, wanted) in enumerate(zip(piece.spans, self._task.ranges, strict=True))
            if max(span[0], wanted[0]) < min(span[1], wanted[1])
        ]
        if self._options.fail_on_data_loss and gone:
            raise DataLost(
                f"{sum(one.end - one.first for one in gone)} records of {self._task.topic} went while they were read: "
                f"retention removed {piece.path}",
                "Read again, from a later start; or failOnDataLoss=false goes on and counts the gap",
            )
        lost += gone

    def _skip_damage(self, piece: Piece, position: int, size: int, lost: list[Lost]) -> int:
        """How many bytes of a batch that cannot be read are passed over."""
        header = None
        with open(piece.path, "rb") as file:
            header = segments.parse_header(os.pread(file.fileno(), segments.HEADER.size, position), 0, position)
        if header is None or self._options.fail_on_data_loss:
            raise LogDamaged(
                f"{piece.path} is damaged at byte {position}",
                "`penstock log repair` (with the broker stopped) sets the damaged bytes aside and says what is lost",
            )
        lost.append(Lost(header.partition, header.first, header.end, f"are damaged in {piece.path}"))
        return size

    def _read_python(self) -> Iterator[pa.RecordBatch]:
        options = self._options
        rows: list[tuple[object, ...]] = []
        lost: list[Lost] = []
        size = 0
        for piece in self._task.pieces:
            for row in self.rows_of(piece, lost):
                rows.append(row)
                size += values.size_of(row)
                if len(rows) >= options.rows_per_batch or size >= values.BATCH_BYTES:
                    yield batch_of_rows(rows, options.columns)
                    rows, size = [], 0
        rows += [one.row(self._task.topic) for one in lost]
        if rows:
            yield batch_of_rows(rows, options.columns)

    def rows_of(self, piece: Piece, lost: list[Lost]) -> Iterator[tuple[object, ...]]:
        """The rows of a stretch in plain Python."""
        for data, position in self._chunks(piece, lost):
            at = 0
            while True:
                header = segments.parse_header(data, at, position + at)
                if header is None or at + header.size > len(data):
                    self._needed = header.size if header is not None else 0
                    break
                if header.kind == 0 and self._wants(header):
                    try:
                        records = list(values.records_of(data[at : at + header.size]))
                    except (ValueError, IndexError):
                        self._skip_damage(piece, position + at, header.size, lost)
                        records = []
                    yield from self._rows_of_records(records, piece)
                at += header.size
            if len(data) - at >= segments.HEADER.size and header is None:
                at += self._skip_damage(piece, position + at, 0, lost)
            self._used = at

    def _wants(self, header: segments.Header) -> bool:
        if header.partition >= len(self._task.ranges):
            return False
        start, end = self._task.ranges[header.partition]
        return header.first < end and header.last >= start

    def _rows_of_records(self, records: Sequence[Record], piece: Piece) -> Iterator[tuple[object, ...]]:
        for record in records:
            start, end = self._task.ranges[record.partition]
            if not start <= record.offset < end:
                continue
            row = values.row_of(record, self._task.topic, self._matcher)
            if row is None:
                continue
            is_bad = row[-2] is not None
            self._check(int(is_bad), piece)
            if not is_bad or self._options.bad_records == "keep":
                yield row
