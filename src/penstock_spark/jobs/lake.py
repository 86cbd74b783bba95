"""`lake`: messages to partitioned Parquet, each exactly once, across kills, restarts and re-runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock_spark.errors import OptionError
from penstock_spark.jobs import json_columns
from penstock_spark.jobs.base import IncrementalJob, JobOutcome, MessageSource, Notify, Run, alone, only_good
from penstock_spark.ledger import COMPACTED, HOME, Ledger, Table
from penstock_spark.report import Chart, write_report
from penstock_spark.transforms import json_field, utc_date

MESSAGES = "messages"
JSON_SCHEMA = f"{HOME}/json-schema.json"
MOST_LEVELS = 8
# of a directory, before what is special in it is written as three signs: no more than 255 after it
LONGEST_NAME = 80
FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799  # the years 1 to 9999
MOST_DAYS = 400
SAMPLE = 20_000


@dataclass(frozen=True)
class LakeOptions:
    levels: int = 1
    json: str = ""  # "", "infer" or a schema
    event_time: str = ""  # a field of the JSON payload that the date is taken from
    compact_below: int = 33_554_432  # bytes; files smaller than this are put together, 0 = never
    compact_from: int = 32  # files of a partition
    most_directories: int = 5_000  # that a batch may write to, as far as a sample of it shows


def with_partitions(messages: DataFrame, levels: int, event_time: str = "") -> DataFrame:
    """Adds `date` and `level1` … of the topic; a topic with fewer levels has nulls there.

    The date is that of the receive time, or of a field in the JSON payload where it has one that is a time.
    """
    at = F.col("received_at")
    if event_time:
        text = json_field(event_time)
        number = text.try_cast("double")
        # numbers of milliseconds are as frequent as numbers of seconds; no year 5138 is meant
        seconds = F.when(F.abs(number) > 1e11, number / 1000).otherwise(number)
        moment = F.when(seconds.between(FIRST_SECOND, LAST_SECOND), F.timestamp_seconds(seconds))
        at = F.coalesce(F.when(number.isNull(), F.try_to_timestamp(text)).otherwise(moment), at)
    parts = F.split("topic", "/")
    found = messages.withColumn("date", utc_date(at))
    for level in range(1, levels + 1):
        found = found.withColumn(f"level{level}", directory_name(F.get(parts, level - 1)))
    return found


def directory_name(level: Column) -> Column:
    """The level, or what a file system takes of a very long one: its beginning, and a checksum to tell it apart."""
    short = F.concat(F.left(level, F.lit(40)), F.lit("~"), F.left(F.sha2(level, 256), F.lit(8)))
    return F.when(F.octet_length(level) > LONGEST_NAME, short).otherwise(level)


def partition_columns(levels: int) -> list[str]:
    return ["date", *(f"level{level}" for level in range(1, levels + 1))]


@alone
def run(
    spark: SparkSession,
    source: MessageSource,
    output: str,
    options: LakeOptions | None = None,
    *,
    checkpoint: str | None = None,
    recover: bool = False,
    notify: Notify | None = None,
) -> JobOutcome:
    """Everything that has come since the last run."""
    options = options or LakeOptions()
    if not 0 <= options.levels <= MOST_LEVELS:
        raise OptionError(f"--levels {options.levels}: 0 to {MOST_LEVELS} are possible")
    job = IncrementalJob(spark, "lake", output, checkpoint)
    job.keep_levels(options.levels)
    schema = _json_schema(spark, job.ledger, source, options)
    partitions = partition_columns(options.levels)

    def work(batch: Run, messages: DataFrame) -> Mapping[str, Table]:
        if options.levels:
            job.ledger.say("looking at the topics")
            some = with_partitions(batch.plain, options.levels, options.event_time).select(*partitions)
            _check_directories(some.take(SAMPLE), options)
        found = with_partitions(messages, options.levels, options.event_time)
        if schema is not None:
            found = json_columns.with_json(found, schema)
        return {MESSAGES: Table(found.drop("error", "raw"), partitions)}

    outcome = job.run(source, work, recover=recover, notify=notify)
    if options.compact_below:
        outcome.facts["files put together"] = compact(spark, job.ledger, options)
    return _finish(spark, job.ledger, outcome)


def _json_schema(spark: SparkSession, ledger: Ledger, source: MessageSource, options: LakeOptions) -> StructType | None:
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


def _check_directories(sample: Sequence[Row], options: LakeOptions) -> None:
    """A directory for each device is quickly written down and slow for ever after."""
    count = len(set(sample))
    if count > options.most_directories:
        raise OptionError(
            f"{len(sample):,} of the messages alone would make {count:,} directories with levels={options.levels}",
            f"Write to a new output with fewer levels (--levels 0 has directories of days only), choose topics by "
            f"--filter, or allow more by --most-directories (now {options.most_directories:,})",
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
        entry = ledger.open(f"{COMPACTED}{ledger.next_number}")
        inner = directory[len(MESSAGES) :].strip("/")
        entry.stage(f"{MESSAGES}/{inner}" if inner else MESSAGES, Table(found, files=1))
        entry.remove(paths)
        previous = ledger.last()
        entry.commit(previous.end if previous else None, compacted=len(paths))
        count += len(paths)
    return count


def _finish(spark: SparkSession, ledger: Ledger, outcome: JobOutcome) -> JobOutcome:
    ledger.say("making the report")
    sizes = [size for _, size in ledger.files.walk(MESSAGES)]
    outcome.facts |= {"files": len(sizes), "bytes": sum(sizes)}
    table = ledger.read(MESSAGES)
    if table is None:
        return outcome
    days = table.groupBy("date").count().orderBy("date").collect()
    outcome.facts["days"] = len(days)
    counts = {row["date"]: float(row["count"]) for row in days}
    bars = [(str(day), counts.get(day, 0.0)) for day in _with_empty_days(sorted(counts))]
    outcome.report = write_report(
        ledger.files,
        "Messages in the lake",
        {"messages": sum(int(value) for _, value in bars), **outcome.facts},
        [Chart("Messages a day", "columns", bars)],
    )
    return outcome


def _with_empty_days(days: list[date]) -> list[date]:
    """A day without messages has its place in the chart; not all since 1970, though, if one clock was wrong."""
    if not days or (days[-1] - days[0]).days > MOST_DAYS:
        return days
    return [days[0] + timedelta(days=number) for number in range((days[-1] - days[0]).days + 1)]
