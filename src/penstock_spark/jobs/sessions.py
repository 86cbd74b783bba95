"""`sessions`: telemetry cut into sessions by silence, and a table of features for machine learning.

A session is a stretch of a device's messages without a silence longer than the gap. One that may still go on at the end
of a batch is carried into the next. The features are means over the last messages and minutes before each reading.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from penstock_spark.errors import OptionError
from penstock_spark.jobs.base import IncrementalJob, JobOutcome, MessageSource, Notify, Run, alone
from penstock_spark.ledger import Ledger, Table
from penstock_spark.report import MOMENT, Chart, Rows, utc, write_report
from penstock_spark.transforms import json_field, utc_date, with_size

SESSIONS, OPEN, FEATURES, CARRIED = "sessions", "open_sessions", "features", "carried_readings"
EMPTY_OPEN = "client_id string, started_at timestamp, ended_at timestamp, messages long, bytes long, topics long"
EMPTY_READINGS = "client_id string, topic string, at timestamp, value double, log_partition int, log_offset long"
ROLLING_ROWS = 10
ROLLING_SECONDS = (60, 300, 3600)
MOST_COLUMNS = 240


@dataclass(frozen=True)
class SessionOptions:
    gap_seconds: float = 1800.0
    value: str = ""  # a number in the JSON payload: makes the table of features


def per_burst(messages: DataFrame, gap_seconds: float) -> DataFrame:
    """The sessions of these messages alone."""
    sized = with_size(messages)
    order = Window.partitionBy("client_id").orderBy("received_at", "log_partition", "log_offset")
    gap = F.col("received_at").cast("double") - F.lag("received_at").over(order).cast("double")
    numbered = sized.withColumn("new", F.coalesce((gap > gap_seconds).cast("int"), F.lit(0))).withColumn(
        "number", F.sum("new").over(order)
    )
    return (
        numbered.groupBy("client_id", "number")
        .agg(
            F.min("received_at").alias("started_at"),
            F.max("received_at").alias("ended_at"),
            F.count("*").alias("messages"),
            F.sum("size").alias("bytes"),
            F.countDistinct("topic").alias("topics"),
        )
        .drop("number")
    )


def joined(bursts: DataFrame, gap_seconds: float) -> DataFrame:
    """Sessions that are no further apart than the gap become one; late ones find their place in time."""
    order = Window.partitionBy("client_id").orderBy("started_at", "ended_at")
    before = F.max("ended_at").over(order.rowsBetween(Window.unboundedPreceding, -1))
    gap = F.col("started_at").cast("double") - before.cast("double")
    numbered = bursts.withColumn("new", F.coalesce((gap > gap_seconds).cast("int"), F.lit(0))).withColumn(
        "number", F.sum("new").over(order)
    )
    return (
        numbered.groupBy("client_id", "number")
        .agg(
            F.min("started_at").alias("started_at"),
            F.max("ended_at").alias("ended_at"),
            F.sum("messages").alias("messages"),
            F.sum("bytes").alias("bytes"),
            # of parts that were counted apart only the larger count is known to be right
            F.max("topics").alias("topics"),
        )
        .drop("number")
    )


def with_open(sessions: DataFrame, gap_seconds: float) -> DataFrame:
    """Adds `is_open`: it may still go on, seen from the newest message of all."""
    newest = sessions.agg(F.max("ended_at").alias("newest"))
    age = F.col("newest").cast("double") - F.col("ended_at").cast("double")
    return sessions.crossJoin(F.broadcast(newest)).withColumn("is_open", age <= gap_seconds).drop("newest")


def readings(messages: DataFrame, value: str) -> DataFrame:
    """The numbers that are in the payloads."""
    number = json_field(value or "none").try_cast("double")
    found = messages.select(
        "client_id", "topic", F.col("received_at").alias("at"), number.alias("value"), "log_partition", "log_offset"
    )
    return found.filter(F.col("value").isNotNull())


def with_features(found: DataFrame) -> DataFrame:
    """Adds rolling means, extremes and the change since the last reading, per device and topic."""
    device = Window.partitionBy("client_id", "topic")
    order = device.orderBy("at", "log_partition", "log_offset")
    rows = order.rowsBetween(-ROLLING_ROWS + 1, 0)
    seconds = device.orderBy(F.col("at").cast("long"))
    result = (
        found.withColumn(f"mean_{ROLLING_ROWS}", F.avg("value").over(rows))
        .withColumn(f"stddev_{ROLLING_ROWS}", F.stddev_pop("value").over(rows))
        .withColumn("change", F.col("value") - F.lag("value").over(order))
        .withColumn("interval", F.col("at").cast("double") - F.lag("at").over(order).cast("double"))
    )
    for length in ROLLING_SECONDS:
        span = seconds.rangeBetween(-length + 1, 0)
        result = result.withColumn(f"mean_{length}s", F.avg("value").over(span))
        result = result.withColumn(f"min_{length}s", F.min("value").over(span))
        result = result.withColumn(f"max_{length}s", F.max("value").over(span))
    return result


def only_recent(found: DataFrame) -> DataFrame:
    """What the features of later readings need: the last hour of each device, and at least its last ten."""
    device = Window.partitionBy("client_id", "topic")
    place = F.row_number().over(device.orderBy(F.desc("at"), F.desc("log_partition"), F.desc("log_offset")))
    age = F.max("at").over(device).cast("double") - F.col("at").cast("double")
    kept = found.withColumn("place", place).withColumn("age", age)
    return kept.filter((F.col("age") <= max(ROLLING_SECONDS)) | (F.col("place") <= ROLLING_ROWS)).drop("place", "age")


def _feature_tables(batch: Run, messages: DataFrame, value: str) -> dict[str, Table]:
    carried = batch.ledger.read(CARRIED, EMPTY_READINGS)
    assert carried is not None
    fresh = readings(messages, value).withColumn("is_new", F.lit(True))
    both = fresh.unionByName(carried.withColumn("is_new", F.lit(False))).persist()
    batch.kept.append(both)
    made = with_features(both).filter("is_new").drop("is_new")
    day = made.withColumn("date", utc_date(F.col("at")))
    return {
        FEATURES: Table(day, ["date"]),
        CARRIED: Table(only_recent(both.drop("is_new")), files=1, replaces=True),
    }


@alone
def run(
    spark: SparkSession,
    source: MessageSource,
    output: str,
    options: SessionOptions | None = None,
    *,
    checkpoint: str | None = None,
    recover: bool = False,
    notify: Notify | None = None,
) -> JobOutcome:
    options = options or SessionOptions()
    if options.gap_seconds <= 0:
        raise OptionError("--gap is above 0 seconds")
    job = IncrementalJob(spark, "sessions", output, checkpoint)

    def work(batch: Run, messages: DataFrame) -> Mapping[str, Table]:
        named = messages.filter(F.col("client_id") != "")
        earlier = batch.ledger.read(OPEN, EMPTY_OPEN)
        assert earlier is not None
        bursts = per_burst(named, options.gap_seconds).unionByName(earlier)
        found = with_open(joined(bursts, options.gap_seconds), options.gap_seconds).persist()
        batch.kept.append(found)
        tables = {
            SESSIONS: Table(found.filter("NOT is_open").drop("is_open"), files=1),
            OPEN: Table(found.filter("is_open").drop("is_open"), files=1, replaces=True),
        }
        return {**tables, **(_feature_tables(batch, named, options.value) if options.value else {})}

    columns = "topic,payload,payload_text,client_id,received_at"
    outcome = job.run(source, work, recover=recover, notify=notify, columns=columns)
    return _finish(job.ledger, outcome)


def read_sessions(ledger: Ledger) -> DataFrame | None:
    """All sessions, ended and open."""
    ended, still = ledger.read(SESSIONS), ledger.read(OPEN)
    if ended is None and still is None:
        return None
    known = ended if ended is not None else ledger.read(SESSIONS, EMPTY_OPEN)
    assert known is not None
    result = known.withColumn("is_open", F.lit(False))
    return result if still is None else result.unionByName(still.withColumn("is_open", F.lit(True)))


def _finish(ledger: Ledger, outcome: JobOutcome) -> JobOutcome:
    ledger.say("making the report")
    found = read_sessions(ledger)
    if found is None:
        return outcome
    length = (F.col("ended_at").cast("double") - F.col("started_at").cast("double")).alias("seconds")
    total = found.select("*", length).agg(
        F.count("*"), F.count_if("is_open"), F.avg("messages"), F.avg("seconds"), F.max("seconds")
    )
    names = ("sessions", "open", "messages each", "mean seconds", "longest seconds")
    outcome.facts |= {name: round(value or 0, 1) for name, value in zip(names, total.collect()[0], strict=True)}
    features = ledger.read(FEATURES)
    if features is not None:
        outcome.facts["rows of features"] = features.count()
    longest = found.select("client_id", "started_at", "messages", length).orderBy(F.desc("seconds")).limit(20).collect()
    rows = [(row.client_id, f"{utc(row.started_at):{MOMENT}}", row.messages, row.seconds) for row in longest]
    outcome.report = write_report(
        ledger.files,
        "Sessions",
        outcome.facts,
        [_chart(found)],
        [Rows("Longest", ("client", "began", "messages", "seconds"), rows)],
    )
    return outcome


def _chart(found: DataFrame) -> Chart:
    """Of hours, or where they would be too many of days; those without a session have their place too."""
    first, last = found.agg(F.min("started_at"), F.max("started_at")).collect()[0]
    window, step, form = ("hour", timedelta(hours=1), "%d %b %H:00")
    if first is not None and (last - first) / step > MOST_COLUMNS:
        window, step, form = ("day", timedelta(days=1), "%d %b %Y")
    starts = found.groupBy(F.date_trunc(window, "started_at").alias("at")).count().collect()
    counts = {utc(row["at"]): float(row["count"]) for row in starts}
    times = sorted(counts)
    if times and (times[-1] - times[0]) / step <= MOST_COLUMNS:
        times = [times[0] + step * number for number in range(round((times[-1] - times[0]) / step) + 1)]
    return Chart(
        f"Sessions begun {'an' if window == 'hour' else 'a'} {window}",
        "columns",
        [(f"{at:{form}}", counts.get(at, 0.0)) for at in times],
    )
