"""What the jobs have in common: the stream of messages, batches that count once, the quarantine, the outcome."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce, update_wrapper
from typing import Any, Concatenate, ParamSpec

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped] # it has no types of its own
from pyspark.errors.exceptions.base import PySparkException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from penstock_spark import schema, watch
from penstock_spark.errors import CheckpointError, OptionError, PenstockSparkError
from penstock_spark.hadoop import Files
from penstock_spark.kafka import gone_before
from penstock_spark.ledger import HOME, Ledger, Note, Table
from penstock_spark.lock import only_run
from penstock_spark.options import SourceOptions, parse
from penstock_spark.reading import options_of, read_messages

P = ParamSpec("P")
CHECKPOINT = f"{HOME}/checkpoint"
QUARANTINE = "quarantine"
# Spark gives the Python process of a stream ten seconds to start, whatever else the machine has to do.
STARTS = 5
STOP_SECONDS = 10.0
SLOW_START = "Python worker failed to connect back"
# what a job may fail with: Spark, the JVM below it, or the file system
FAILURES = (PySparkException, Py4JError, OSError)
# How Spark's connector says that records are gone.
KAFKA_LOST = (
    "OffsetOutOfRangeException",
    "Some data may have been lost because they are not available in Kafka",
    "[KAFKA_DATA_LOSS",
)
# A task makes a file of each table: fewer and larger ones than a query would like.
BYTES_PER_TASK = 268_435_456
# what the quarantine says of a record
NEEDED = "log_topic,log_partition,log_offset,log_time,error,raw"


@dataclass(frozen=True)
class MessageSource:
    """Where the messages are: the options of `read_messages`."""

    path: str | None = None
    kafka: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def parse(self) -> SourceOptions:
        return parse(options_of(self.path, kafka=self.kafka, **self.options))

    def read(self, spark: SparkSession, *, stream: bool, **more: Any) -> DataFrame:
        return read_messages(spark, self.path, kafka=self.kafka, stream=stream, **{**self.options, **more})


@dataclass
class JobOutcome:
    """What a run did, for the table on the screen."""

    job: str
    output: str
    batches: int = 0
    messages: int = 0
    others: int = 0  # records of topics that hold something else
    bad: int = 0
    failed: int = 0  # messages that the target of the job did not take
    seconds: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    report: str | None = None


@dataclass
class Run:
    """A batch at work: what it may write is written as one, once."""

    spark: SparkSession
    ledger: Ledger
    batch: str
    plain: DataFrame  # the good messages once more, to look at: those that the work is given are counted as they pass
    kept: list[DataFrame] = field(default_factory=list)  # persisted, to be let go after the batch
    # records of other topics that the work cannot read: (log_topic, log_partition, log_offset, reason)
    refused: DataFrame | None = None


# From the good messages of a batch to the tables that it writes.
Work = Callable[[Run, DataFrame], Mapping[str, Table]]
# What is counted, how many there are so far, and of how many (0 = nobody knows).
Notify = Callable[[str, int, int], None]


def is_bad(others: Sequence[str] = ()) -> Column:
    """Could not be read as a publish; `others` are topics of the log whose records are something else anyway."""
    condition = F.col("error").isNotNull()
    # a gap in such a topic is bad all the same
    return (
        condition & ~(F.col("log_topic").isin(*others) & ~F.startswith("error", F.lit("gap:"))) if others else condition
    )


def only_good(messages: DataFrame, others: Sequence[str] = ()) -> DataFrame:
    """Messages without what could not be read."""
    return messages.filter(~is_bad(others))


def only_bad(messages: DataFrame, others: Sequence[str] = ()) -> DataFrame:
    """What could not be read, with the reason: the rows of the quarantine."""
    bad = messages.filter(is_bad(others))
    return bad.select("log_topic", "log_partition", "log_offset", "log_time", F.col("error").alias("reason"), "raw")


def only_refused(messages: DataFrame, refused: DataFrame) -> DataFrame:
    """What a job itself could not read, as rows of the quarantine."""
    found = messages.join(refused, ["log_topic", "log_partition", "log_offset"])
    return found.select("log_topic", "log_partition", "log_offset", "log_time", "reason", "raw")


class IncrementalJob:
    """Runs `work` on everything that has come since the last run, in one or more batches."""

    def __init__(self, spark: SparkSession, name: str, output: str, checkpoint: str | None = None) -> None:
        self.spark = spark
        self.name = name
        self.ledger = Ledger(spark, output)
        self.output = self.ledger.files.root
        self._checkpoint = Files(spark, checkpoint or f"{self.output}/{CHECKPOINT}")

    def run(
        self,
        source: MessageSource,
        work: Work,
        *,
        recover: bool = False,
        notify: Notify | None = None,
        columns: str = "",
        others: Sequence[str] = (),
    ) -> JobOutcome:
        """`columns` are those that the work needs (all of them if none is named)."""
        started = time.monotonic()
        outcome = JobOutcome(self.name, self.output)
        start = self._prepare(recover)
        options: dict[str, Any] = {"columns": f"{columns},{NEEDED}"} if columns else {}
        if source.path is not None and "maxBytesPerTask" not in source.options:
            options["maxBytesPerTask"] = BYTES_PER_TASK
        if start is not None:
            options["start"] = json.dumps(start)
        elif source.kafka is not None and "start" not in source.options:
            options["start"] = "earliest"
        stream = source.read(self.spark, stream=True, **options)

        def process(frame: DataFrame, number: int) -> None:
            counted = frame if source.kafka is None else self._with_gaps(frame, number, source)
            self._process(counted, number, work, outcome, others)
            if notify is not None:
                notify("messages", outcome.messages, 0)

        self._run_stream(stream, process)
        outcome.seconds = time.monotonic() - started
        return outcome

    def _run_stream(self, stream: DataFrame, process: Callable[[DataFrame, int], None]) -> None:
        for left in reversed(range(STARTS)):
            query = (
                stream.writeStream.queryName(f"penstock-{self.name}")
                .foreachBatch(process)
                .option("checkpointLocation", self._checkpoint.root)
                .trigger(availableNow=True)
                .start()
            )
            try:
                query.awaitTermination()
                return
            except KeyboardInterrupt:
                stop(query)
                raise
            except PySparkException as error:
                # what was written counts: another start goes on behind it
                if not left or SLOW_START not in str(error):
                    raise translate(error) from error

    def keep_levels(self, levels: int) -> None:
        """All that is in the output has so many levels of topics: rows of another number would not fit to them."""
        self._has_owner()
        path = f"{HOME}/layout.json"
        known = self.ledger.files.read_json(path)
        if known is None or self.ledger.is_empty:
            self.ledger.files.write_text(path, json.dumps({"levels": levels}))
        elif known["levels"] != levels:
            raise OptionError(
                f"the output {self.output} of {self.name} has {known['levels']} levels of topics, not {levels}",
                f"Run with --levels {known['levels']}, or write to another directory",
            )

    def _has_owner(self) -> bool:
        """A job has written to the output: this one, else OptionError."""
        owner = self.ledger.files.read_json(f"{HOME}/job.json") or {}
        if owner.get("job", self.name) != self.name:
            raise OptionError(f"{self.output} is the output of the job {owner['job']}", "Take another directory")
        return bool(owner)

    def _prepare(self, recover: bool) -> Mapping[str, Any] | None:
        """The offsets to start from when the checkpoint is new; CheckpointError when it does not fit the output."""
        has_checkpoint = bool(self._numbers("offsets") or self._numbers("commits"))
        note = self.ledger.last()
        if not self._has_owner():
            self.ledger.files.write_text(f"{HOME}/job.json", json.dumps({"job": self.name}))
        if note is not None and not has_checkpoint and not recover:
            raise CheckpointError(
                f"{self.output} has the output of earlier runs; their checkpoint {self._checkpoint.root} is gone",
                "--recover goes on behind the last batch that was written; or take a new output directory",
            )
        if note is None and self._numbers("commits"):
            raise CheckpointError(
                f"the checkpoint {self._checkpoint.root} is of another output than {self.output}",
                "Take the output that belongs to it, or remove the checkpoint to start at the beginning",
            )
        if recover:
            # all of it: a query that went on under its old name would have its new batches taken for the old ones
            self._checkpoint.delete("")
            return note.end if note is not None else None
        self._check_checkpoint(note)
        return None

    def _numbers(self, directory: str) -> list[int]:
        """Of the batches that the checkpoint has a file of."""
        return sorted(int(name) for name in self._checkpoint.names(directory) if name.isdecimal())

    def _check_checkpoint(self, note: Note | None) -> None:
        """Spark itself says of a damaged checkpoint only that some JSON has no end, and goes on wrongly where a file is
        missing. What it says of where we are has to be what the ledger says."""
        offsets, commits = self._numbers("offsets"), self._numbers("commits")
        looked_at = "metadata"
        try:
            query = ""
            if offsets or commits or self._checkpoint.exists(looked_at):
                query = json.loads(self._checkpoint.read_text(looked_at))["id"]
            if commits:
                looked_at = f"commits/{commits[-1]}"
                json.loads(self._checkpoint.read_text(looked_at).split("\n")[1])
            last = max([*offsets[-1:], *commits[-1:]], default=-1)
            ends: dict[int, Mapping[str, Any] | None] = {}
            for number in range(max(0, last - 1), last + 1):
                looked_at = f"offsets/{number}"
                ends[number] = self._end_of(number)
        except (ValueError, LookupError, TypeError, Py4JJavaError):
            raise self._damaged(looked_at) from None
        # what Spark has noted as done was written before that
        is_done = commits[-1:] == [last] or self.ledger.has(f"{query[:8]}.{last}")
        done = last if is_done else last - 1
        if note is not None and note.end is not None and ends.get(done, note.end) != note.end:
            raise self._damaged(f"offsets/{done}", " (it is not what was written last)")

    def _damaged(self, name: str, how: str = "") -> CheckpointError:
        return CheckpointError(
            f"the checkpoint is damaged: {self._checkpoint.path(name)}{how}",
            "--recover makes a new one that goes on behind the last batch that was written",
        )

    def _process(self, frame: DataFrame, number: int, work: Work, outcome: JobOutcome, others: Sequence[str]) -> None:
        query = self.spark.sparkContext.getLocalProperty("sql.streaming.queryId") or "query"
        batch = f"{query[:8]}.{number}"
        if self.ledger.has(batch):
            return  # the run that wrote it was killed before Spark noted it
        observation = Observation()
        bad = is_bad(others)
        is_other = F.col("log_topic").isin(*others) & ~bad
        counted = F.count("*").alias("rows"), F.count_if(bad).alias("bad"), F.count_if(is_other).alias("others")
        observed = frame.observe(observation, *counted)
        entry = self.ledger.open(batch)
        run = Run(self.spark, self.ledger, batch, only_good(frame, others))
        try:
            for name, table in work(run, only_good(observed, others)).items():
                entry.stage(name, table)
            counts = observation.get
            refused = run.refused.count() if run.refused is not None else 0
            quarantined = [only_bad(frame, others)] if counts["bad"] else []
            if run.refused is not None and refused:
                quarantined.append(only_refused(frame, run.refused))
            if quarantined:
                entry.stage(QUARANTINE, Table(reduce(DataFrame.unionByName, quarantined)))
        finally:
            for kept in run.kept:
                kept.unpersist()
        messages = counts["rows"] - counts["bad"] - counts["others"]
        bad = counts["bad"] + refused
        outcome.bad += bad
        outcome.messages += messages
        outcome.others += counts["others"] - refused
        outcome.batches += 1
        entry.commit(self._end_of(number), messages=messages, bad=bad)

    def _with_gaps(self, frame: DataFrame, number: int, source: MessageSource) -> DataFrame:
        """The batch, and a row for each stretch that Kafka had not any more when it began: the embedded log has them
        by itself."""
        options, note = source.parse(), self.ledger.last()
        begin = note.end if note is not None else options.start.offsets
        if options.fail_on_data_loss or begin is None:
            return frame
        gone = gone_before(options, begin, self._end_of(number) or {})
        if not gone:
            return frame
        rows = [dict(zip(schema.NAMES, lost.row(topic), strict=True)) for topic, lost in gone]
        chosen = [tuple(row[name] for name in frame.columns) for row in rows]
        return frame.unionByName(frame.sparkSession.createDataFrame(chosen, frame.schema))

    def _end_of(self, number: int) -> Mapping[str, Any] | None:
        """Where the batch ended: Spark noted it before the batch began."""
        _version, _metadata, last = self._checkpoint.read_text(f"offsets/{number}").strip().splitlines()
        found = json.loads(last)
        return found if isinstance(found, dict) else None


def stop(query: StreamingQuery) -> None:
    """Ends a query that this thread was waiting for when somebody pressed Ctrl-C: the thread's connection to Java still
    waits for the answer, so another one has to say it."""
    thread = threading.Thread(target=query.stop, daemon=True)
    thread.start()
    thread.join(STOP_SECONDS)


Job = Callable[Concatenate[SparkSession, MessageSource, str, P], JobOutcome]


def alone(run: Job[P]) -> Job[P]:
    """A job that has its output for itself as long as it runs."""

    def locked(
        spark: SparkSession, source: MessageSource, output: str, /, *words: P.args, **options: P.kwargs
    ) -> JobOutcome:
        with only_run(Files(spark, output)):
            outcome = run(spark, source, output, *words, **options)
            watch.say(spark, None)
            return outcome

    return update_wrapper(locked, run)


def translate(error: Exception) -> PenstockSparkError:
    """The sentence for people out of the many lines of a failed query."""
    text = re.sub("^: ", "", str(error), flags=re.MULTILINE)
    if "No space left on device" in text:
        return PenstockSparkError("no space left on device", "Make room and run again: it goes on where it was")
    if any(sign in text for sign in KAFKA_LOST):
        where = re.search(r"out of range for partition (\S+)-(\d+)", text)
        place = f" of {where[1]}[{where[2]}]" if where else ""
        return PenstockSparkError(
            f"Kafka has not any more what comes next{place}",
            "Retention has removed it, or the topic was recreated. Start with a new output, or go on with what is "
            "there by failOnDataLoss=false",
        )
    ours = re.findall(r"penstock_spark\.errors\.(\w+): (.+)", text)
    if ours:
        return PenstockSparkError(ours[-1][1].strip())
    causes = re.findall(r"^(?:\S+: |Caused by: )?(\[[A-Z_.]+\] .+|[\w.$]*(?:Error|Exception): .+)$", text, re.MULTILINE)
    lines = [line for line in text.splitlines() if line.strip()]
    return PenstockSparkError((causes[-1] if causes else lines[0] if lines else "Spark failed")[:500])
