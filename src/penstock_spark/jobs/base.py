"""What the jobs have in common: the stream of messages, batches that count once, the quarantine, the outcome."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.errors.exceptions.base import PySparkException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from penstock_spark.errors import CheckpointError, OptionError, PenstockSparkError
from penstock_spark.hadoop import Files
from penstock_spark.ledger import HOME, Ledger, Table
from penstock_spark.reading import read_messages

CHECKPOINT = f"{HOME}/checkpoint"
QUARANTINE = "quarantine"
# Spark gives the Python process of a stream ten seconds to start, whatever else the machine has to do.
STARTS = 5
SLOW_START = "Python worker failed to connect back"
# what the quarantine says of a record
NEEDED = "log_topic,log_partition,log_offset,log_time,error,raw"


@dataclass(frozen=True)
class Source:
    """Where the messages are: the options of `read_messages`."""

    path: str | None = None
    kafka: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def read(self, spark: SparkSession, *, stream: bool, **more: Any) -> DataFrame:
        return read_messages(spark, self.path, kafka=self.kafka, stream=stream, **{**self.options, **more})


@dataclass
class Outcome:
    """What a run did, for the table on the screen."""

    job: str
    output: str
    batches: int = 0
    messages: int = 0
    others: int = 0  # records of topics that hold something else
    bad: int = 0
    seconds: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    report: str | None = None


@dataclass
class Run:
    """A batch at work: what it may write is written as one, once."""

    spark: SparkSession
    ledger: Ledger
    batch: str
    kept: list[DataFrame] = field(default_factory=list)  # persisted, to be let go after the batch


# From the good messages of a batch to the tables that it writes.
Work = Callable[[Run, DataFrame], Mapping[str, Table]]
Notify = Callable[[str, int], None]


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
        source: Source,
        work: Work,
        *,
        recover: bool = False,
        notify: Notify | None = None,
        columns: str = "",
        others: Sequence[str] = (),
    ) -> Outcome:
        """`columns` are those that the work needs (all of them if none is named)."""
        started = time.monotonic()
        outcome = Outcome(self.name, self.output)
        start = self._prepare(recover)
        options = {"columns": f"{columns},{NEEDED}"} if columns else {}
        if start is not None:
            options["start"] = json.dumps(start)
        elif source.kafka is not None and "start" not in source.options:
            options["start"] = "earliest"
        stream = source.read(self.spark, stream=True, **options)

        def process(frame: DataFrame, number: int) -> None:
            self._process(frame, number, work, outcome, others)
            if notify is not None:
                notify(f"batch {number}", outcome.messages)

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
                query.stop()
                raise
            except PySparkException as error:
                # what was written counts: another start goes on behind it
                if not left or SLOW_START not in str(error):
                    raise translate(error) from error

    def _prepare(self, recover: bool) -> Mapping[str, Any] | None:
        """The offsets to start from when the checkpoint is new; CheckpointError when it does not fit the output."""
        has_checkpoint = self._checkpoint.exists("offsets")
        note = self.ledger.last()
        owner = self.ledger.files.read_json(f"{HOME}/job.json") or {}
        if owner.get("job", self.name) != self.name:
            raise OptionError(f"{self.output} is the output of the job {owner['job']}", "Take another directory")
        if not owner:
            self.ledger.files.write_text(f"{HOME}/job.json", json.dumps({"job": self.name}))
        if note is not None and not has_checkpoint:
            if not recover:
                raise CheckpointError(
                    f"{self.output} has the output of earlier runs; their checkpoint {self._checkpoint.root} is gone",
                    "--recover goes on behind the last batch that was written; or take a new output directory",
                )
            return note.end
        if note is None and self._checkpoint.names("commits"):
            raise CheckpointError(
                f"the checkpoint {self._checkpoint.root} is of another output than {self.output}",
                "Take the output that belongs to it, or remove the checkpoint to start at the beginning",
            )
        if recover and has_checkpoint:
            self._checkpoint.delete("")
            return note.end if note is not None else None
        self._check_checkpoint()
        return None

    def _check_checkpoint(self) -> None:
        """Spark itself says of a damaged checkpoint only that some JSON has no end."""
        numbers = [int(name) for name in self._checkpoint.names("offsets") if name.isdecimal()]
        looked_at = "metadata"
        try:
            if self._checkpoint.exists(looked_at):
                json.loads(self._checkpoint.read_text(looked_at))
            if numbers:
                looked_at = f"offsets/{max(numbers)}"
                self._end_of(max(numbers))
        except ValueError:
            raise CheckpointError(
                f"the checkpoint is damaged: {self._checkpoint.path(looked_at)}",
                "--recover makes a new one that goes on behind the last batch that was written",
            ) from None

    def _process(self, frame: DataFrame, number: int, work: Work, outcome: Outcome, others: Sequence[str]) -> None:
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
        run = Run(self.spark, self.ledger, batch)
        try:
            for name, table in work(run, only_good(observed, others)).items():
                entry.stage(name, table)
        finally:
            for kept in run.kept:
                kept.unpersist()
        counts = observation.get
        if counts["bad"]:
            entry.stage(QUARANTINE, Table(only_bad(frame, others)))
        messages = counts["rows"] - counts["bad"] - counts["others"]
        outcome.bad += counts["bad"]
        outcome.messages += messages
        outcome.others += counts["others"]
        outcome.batches += 1
        entry.commit(self._end_of(number), messages=messages, bad=counts["bad"])

    def _end_of(self, number: int) -> Mapping[str, Any] | None:
        """Where the batch ended: Spark noted it before the batch began."""
        _version, _metadata, last = self._checkpoint.read_text(f"offsets/{number}").strip().splitlines()
        found = json.loads(last)
        return found if isinstance(found, dict) else None


def translate(error: Exception) -> PenstockSparkError:
    """The sentence for people out of the many lines of a failed query."""
    text = str(error)
    ours = re.findall(r"penstock_spark\.errors\.(\w+): (.+)", text)
    if ours:
        return PenstockSparkError(ours[-1][1].strip())
    causes = re.findall(r"^(?:\S+: )?(\[[A-Z_.]+\] .+|[\w.]*(?:Error|Exception): .+)$", text, re.MULTILINE)
    lines = [line for line in text.splitlines() if line.strip()]
    return PenstockSparkError((causes[-1] if causes else lines[0] if lines else "Spark failed")[:500])
