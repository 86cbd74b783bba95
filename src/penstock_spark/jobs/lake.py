"""`lake`: messages to partitioned Parquet, each exactly once, across kills, restarts and re-runs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock_spark.errors import OptionError
from penstock_spark.jobs import json_columns
from penstock_spark.jobs.base import IncrementalJob, Notify, Outcome, Run, Source, only_good
from penstock_spark.ledger import HOME, Ledger, Table
from penstock_spark.report import Chart, write_report

MESSAGES = "messages"
JSON_SCHEMA = f"{HOME}/json-schema.json"
MOST_LEVELS = 8


@dataclass(frozen=True)
class LakeOptions:
    levels: int = 1
    json: str = ""  # "", "infer" or a schema
    event_time: str = ""  # a field of the JSON payload that the date is taken from
    compact_below: int = 33_554_432  # bytes; files smaller than this are put together, 0 = never
    compact_from: int = 32  # files of a partition


def with_partitions(messages: DataFrame, levels: int, event_time: str = "") -> DataFrame:
    """Adds `date` and `level1` … of the topic; a topic with fewer levels has nulls there.

    The date is that of the receive time, or of a field in the JSON payload where it has one that is a time.
    """
    at = F.col("received_at")
    if event_time:
        text = F.get_json_object("payload_text", f"$.{event_time}")
        seconds = F.expr(f"try_cast(get_json_object(payload_text, '$.{event_time}') AS DOUBLE)")
        # numbers of milliseconds are as frequent as numbers of seconds; no year 5138 is meant
        number = F.timestamp_seconds(F.when(F.abs(seconds) > 1e11, seconds / 1000).otherwise(seconds))
        at = F.coalesce(F.when(seconds.isNull(), F.try_to_timestamp(text)).otherwise(number), at)
    parts = F.split("topic", "/")
    found = messages.withColumn("date", F.to_date(at))
    for level in range(1, levels + 1):
        found = found.withColumn(f"level{level}", F.get(parts, level - 1))
    return found


def partition_columns(levels: int) -> list[str]:
    return ["date", *(f"level{level}" for level in range(1, levels + 1))]


def run(
    spark: SparkSession,
    source: Source,
    output: str,
    options: LakeOptions | None = None,
    *,
    checkpoint: str | None = None,
    recover: bool = False,
    notify: Notify | None = None,
) -> Outcome:
    """Everything that has come since the last run."""
    options = options or LakeOptions()
    if not 0 <= options.levels <= MOST_LEVELS:
        raise OptionError(f"--levels {options.levels}: 0 to {MOST_LEVELS} are possible")
    job = IncrementalJob(spark, "lake", output, checkpoint)
    schema = _json_schema(spark, job.ledger, source, options)
    _check_layout(job.ledger, options)
    partitions = partition_columns(options.levels)

    def work(_: Run, messages: DataFrame) -> Mapping[str, Table]:
        found = with_partitions(messages, options.levels, options.event_time)
        if schema is not None:
            found = json_columns.with_json(found, schema)
        return {MESSAGES: Table(found.drop("error", "raw"), partitions)}

    outcome = job.run(source, work, recover=recover, notify=notify)
    if options.compact_below:
        outcome.facts["files put together"] = compact(spark, job.ledger, options)
    return _finish(spark, job.ledger, outcome)


def _json_schema(spark: SparkSession, ledger: Ledger, source: Source, options: LakeOptions) -> StructType | None:
    """The declared schema, or the one that was found at the first run: columns must not change from run to run."""
    if not options.json:
        return None
    if options.json != "infer":
        return json_columns.parse_schema(options.json)
    known = ledger.files.read_json(JSON_SCHEMA)
    if known is not None:
        return StructType.fromJson(known)
    found = json_columns.infer_schema(spark, only_good(source.read(spark, stream=False)))
    if not found.fields:
        return None  # nothing to learn from yet
    ledger.files.write_text(JSON_SCHEMA, found.json())
    return found


def _check_layout(ledger: Ledger, options: LakeOptions) -> None:
    path = f"{HOME}/layout.json"
    known = ledger.files.read_json(path)
    if known is None:
        ledger.files.write_text(path, json.dumps({"levels": options.levels}))
    elif known["levels"] != options.levels:
        raise OptionError(
            f"the lake {ledger.files.root} has {known['levels']} levels of topics, not {options.levels}",
            f"Run with --levels {known['levels']}, or write to another directory",
        )


def compact(spark: SparkSession, ledger: Ledger, options: LakeOptions) -> int:
    """Puts the small files of a partition together, as one batch of the ledger; how many were."""
    small: dict[str, list[str]] = defaultdict(list)
    for path, size in ledger.files.walk(MESSAGES):
        if size < options.compact_below:
            small[path.rpartition("/")[0]].append(path)
    count = 0
    for directory, paths in sorted(small.items()):
        if len(paths) < options.compact_from:
            continue
        frame = spark.read.option("mergeSchema", "true").option("basePath", ledger.files.path(directory))
        found = frame.parquet(*(ledger.files.path(path) for path in paths))
        entry = ledger.open(f"compact.{ledger.next_number}")
        inner = directory[len(MESSAGES) :].strip("/")
        entry.stage(f"{MESSAGES}/{inner}" if inner else MESSAGES, Table(found, files=1))
        entry.remove(paths)
        previous = ledger.last()
        entry.commit(previous.end if previous else None, compacted=len(paths))
        count += len(paths)
    return count


def _finish(spark: SparkSession, ledger: Ledger, outcome: Outcome) -> Outcome:
    sizes = [size for _, size in ledger.files.walk(MESSAGES)]
    outcome.facts |= {"files": len(sizes), "bytes": sum(sizes)}
    table = ledger.read(MESSAGES)
    if table is None:
        return outcome
    days = table.groupBy("date").count().orderBy("date").collect()
    outcome.facts["days"] = len(days)
    bars = [(str(row["date"]), float(row["count"])) for row in days]
    outcome.report = write_report(
        ledger.files,
        "Messages in the lake",
        {"messages": sum(int(value) for _, value in bars), **outcome.facts},
        [Chart("Messages a day", "columns", bars)],
    )
    return outcome
