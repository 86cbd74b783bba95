"""`traffic`: messages, bytes and distinct clients per topic prefix and minute, hour, day; sizes; top talkers.

Each batch leaves counts that can be added up (per client and minute, and per size and minute). The tables that people
read are made of all of them, so that a run costs what is new and the distinct clients and percentiles are still right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock_spark.jobs.base import IncrementalJob, JobOutcome, MessageSource, Notify, Run, alone
from penstock_spark.ledger import TABLES, Ledger, Table
from penstock_spark.report import Chart, Rows, utc, with_zeros, write_report
from penstock_spark.transforms import with_prefix, with_size

CLIENTS, SIZES = "counts_by_client", "counts_by_size"
TOP = "top_talkers"
WINDOWS = ("minute", "hour", "day")
PERCENTILES = (0.5, 0.95, 0.99)
ADD_UP_FROM = 24
STEPS = {"minute": timedelta(minutes=1), "hour": timedelta(hours=1), "day": timedelta(days=1)}
MOST_WINDOWS = 240


@dataclass(frozen=True)
class TrafficOptions:
    levels: int = 2
    top: int = 20


def rounded_size(size: Column) -> Column:
    """Exact up to 999, then three digits: a percentile is off by half a percent at most."""
    digits = F.floor(F.log10(F.greatest(size, F.lit(1)))) - 2
    step = F.pow(F.lit(10), F.greatest(digits, F.lit(0)))
    return (F.round(size / step) * step).cast("long")


def with_minute(messages: DataFrame) -> DataFrame:
    return messages.withColumn("minute", F.date_trunc("minute", "received_at"))


def per_client(counted: DataFrame) -> DataFrame:
    """Messages and bytes per minute, prefix and client."""
    return counted.groupBy("minute", "prefix", "client_id").agg(
        F.count("*").alias("messages"), F.sum("size").alias("bytes")
    )


def per_size(counted: DataFrame) -> DataFrame:
    """Messages per minute, prefix and (rounded) size."""
    sized = counted.withColumn("size", rounded_size(F.col("size")))
    return sized.groupBy("minute", "prefix", "size").agg(F.count("*").alias("messages"))


def add_up_clients(partial: DataFrame) -> DataFrame:
    return partial.groupBy("minute", "prefix", "client_id").agg(
        F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes")
    )


def add_up_sizes(partial: DataFrame) -> DataFrame:
    return partial.groupBy("minute", "prefix", "size").agg(F.sum("messages").alias("messages"))


def per_window(clients: DataFrame, sizes: DataFrame, window: str) -> DataFrame:
    """The table of one length of window: messages, bytes, distinct clients, percentiles of the payload's size."""
    at = F.date_trunc(window, "minute").alias("window_start")
    counts = clients.groupBy(at, "prefix").agg(
        F.sum("messages").alias("messages"),
        F.sum("bytes").alias("bytes"),
        F.countDistinct("client_id").alias("clients"),
    )
    wanted = ", ".join(map(str, PERCENTILES))
    quantiles = sizes.groupBy(at, "prefix").agg(
        F.expr(f"percentile(size, array({wanted}), messages)").alias("p"), F.max("size").alias("size_max")
    )
    names = [F.col("p")[number].alias(f"size_p{value * 100:g}") for number, value in enumerate(PERCENTILES)]
    quantiles = quantiles.select("window_start", "prefix", *names, "size_max")
    return counts.join(quantiles, ["window_start", "prefix"]).orderBy("window_start", "prefix")


def top_talkers(clients: DataFrame, count: int) -> DataFrame:
    """The clients that sent the most, with their share of all messages."""
    totals = clients.groupBy("client_id").agg(F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes"))
    everything = clients.agg(F.sum("messages").alias("all"))
    shared = totals.crossJoin(F.broadcast(everything)).withColumn("share", F.col("messages") / F.col("all"))
    return shared.drop("all").orderBy(F.desc("messages"), "client_id").limit(count)


@alone
def run(
    spark: SparkSession,
    source: MessageSource,
    output: str,
    options: TrafficOptions | None = None,
    *,
    checkpoint: str | None = None,
    recover: bool = False,
    notify: Notify | None = None,
) -> JobOutcome:
    """Counts what has come since the last run and rebuilds the tables."""
    options = options or TrafficOptions()
    job = IncrementalJob(spark, "traffic", output, checkpoint)
    job.keep_levels(options.levels)

    def work(batch: Run, messages: DataFrame) -> Mapping[str, Table]:
        counted = messages.transform(with_prefix(options.levels)).transform(with_size).transform(with_minute)
        # twice of use, and reading it again would cost more than keeping it
        narrow = counted.select("minute", "prefix", "client_id", "size").persist()
        batch.kept.append(narrow)
        return {CLIENTS: Table(per_client(narrow), files=1), SIZES: Table(per_size(narrow), files=1)}

    outcome = job.run(source, work, recover=recover, notify=notify, columns="topic,payload,client_id,received_at")
    if job.ledger.has_old_tables:
        make_tables(spark, job.ledger, options)
    return _finish(job.ledger, outcome)


def make_tables(spark: SparkSession, ledger: Ledger, options: TrafficOptions) -> None:
    clients, sizes = ledger.read(CLIENTS), ledger.read(SIZES)
    if clients is None or sizes is None:
        return
    entry = ledger.open(f"{TABLES}{ledger.next_number}")
    for window in WINDOWS:
        entry.stage(f"per_{window}", Table(per_window(clients, sizes, window), files=1, replaces=True))
    entry.stage(TOP, Table(top_talkers(clients, options.top), files=1, replaces=True))
    if len(list(ledger.files.walk(CLIENTS))) >= ADD_UP_FROM:
        entry.stage(CLIENTS, Table(add_up_clients(clients), files=1, replaces=True))
        entry.stage(SIZES, Table(add_up_sizes(sizes), files=1, replaces=True))
    last = ledger.last()
    entry.commit(last.end if last else None)


def _finish(ledger: Ledger, outcome: JobOutcome) -> JobOutcome:
    ledger.say("making the report")
    top, minutes = ledger.read(TOP), ledger.read("per_minute")
    if top is None or minutes is None:
        return outcome
    talkers = top.orderBy(F.desc("messages")).collect()
    totals = minutes.agg(
        F.sum("messages"), F.sum("bytes"), F.countDistinct("prefix"), F.min("window_start"), F.max("window_start")
    ).collect()[0]
    outcome.facts |= {"all messages": totals[0] or 0, "all bytes": totals[1] or 0, "prefixes": totals[2]}
    charts = [Chart("Top talkers", "rows", [(row.client_id, float(row.messages)) for row in talkers[:10]])]
    if totals[3] is not None:
        charts.insert(0, _chart(ledger, totals[3], totals[4]))
    outcome.report = write_report(
        ledger.files,
        "Traffic",
        outcome.facts,
        charts,
        [
            Rows(
                "Top talkers",
                ("client", "messages", "bytes", "percent"),
                [(row.client_id, row.messages, row.bytes, 100 * row.share) for row in talkers],
            )
        ],
    )
    return outcome


def _chart(ledger: Ledger, first: datetime, last: datetime) -> Chart:
    """Of minutes, hours or days: so many points as can be told apart."""
    window, step = next(
        (one for one in STEPS.items() if (last - first) / one[1] <= MOST_WINDOWS), ("day", STEPS["day"])
    )
    table = ledger.read(f"per_{window}")
    assert table is not None
    heavy = table.groupBy("prefix").agg(F.sum("messages").alias("n")).orderBy(F.desc("n")).limit(5).collect()
    names = [row.prefix for row in heavy]
    rows = table.filter(F.col("prefix").isin(names)).select("prefix", "window_start", "messages").collect()
    points: dict[str, list[tuple[datetime, float]]] = {name: [] for name in names}
    for row in rows:
        points[row.prefix].append((utc(row.window_start), float(row.messages)))
    ends = [at for one in points.values() for at, _ in one]
    series = {name: with_zeros(sorted(one), min(ends), max(ends), step) for name, one in points.items()}
    return Chart(f"Messages a {window}, heaviest topics", "lines", series=series)
