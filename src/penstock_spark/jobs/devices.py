"""`devices`: last seen, gaps, silence, duplicates and disorder, per client.

What is known of a client is one row that each batch carries on: the row of the batch before stands in front of the new
messages, so that a gap or a duplicate across two runs is found like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from penstock_spark.errors import OptionError
from penstock_spark.jobs.base import IncrementalJob, JobOutcome, MessageSource, Notify, Run, alone
from penstock_spark.ledger import Ledger, Table
from penstock_spark.report import MOMENT, Chart, Rows, duration, utc, write_report
from penstock_spark.transforms import json_field

STATE, DEVICES, FINDINGS = "known_clients", "devices", "findings"
EMPTY_STATE = (
    "client_id string, first_seen timestamp, last_seen timestamp, messages long, longest_gap double, gaps long, "
    "duplicates long, out_of_order long, last_payload string, last_sequence double"
)
MOST_FINDINGS = 100_000


@dataclass(frozen=True)
class DeviceOptions:
    gap_seconds: float = 300.0  # a silence between two messages that is longer is a gap
    silent_seconds: float = 3600.0  # not seen for so long before the newest message of all: silent
    duplicate_seconds: float = 60.0  # the same payload to the same topic again within this time
    sequence: str = ""  # a field of the JSON payload that rises; else the log's time is all there is


def observations(messages: DataFrame, options: DeviceOptions) -> DataFrame:
    """What the job needs of a message, in the columns of the state's last message."""
    sequence = json_field(options.sequence).try_cast("double") if options.sequence else F.lit(None).cast("double")
    fingerprint = F.sha2(F.concat_ws("\n", "topic", F.hex("payload")), 224)
    return messages.filter(F.col("client_id") != "").select(
        "client_id",
        F.col("received_at").alias("at"),
        fingerprint.alias("payload"),
        sequence.alias("sequence"),
        F.col("topic"),
        "log_partition",
        "log_offset",
    )


def with_findings(seen: DataFrame, known: DataFrame, options: DeviceOptions) -> DataFrame:
    """Each message with what it is against the one before it of the same client: `gap` in seconds, `is_duplicate`,
    `is_out_of_order`; what is known from earlier batches is the message before the first."""
    before = known.select(
        "client_id",
        F.col("last_seen").alias("at"),
        F.col("last_payload").alias("payload"),
        F.col("last_sequence").alias("sequence"),
        F.lit(None).cast("string").alias("topic"),
        F.lit(-1).alias("log_partition"),
        F.lit(-1).cast("long").alias("log_offset"),
        F.lit(True).alias("is_known"),
    )
    both = seen.withColumn("is_known", F.lit(False)).unionByName(before)
    order = Window.partitionBy("client_id").orderBy(F.desc("is_known"), "at", "log_partition", "log_offset")
    same = Window.partitionBy("client_id", "payload").orderBy(F.desc("is_known"), "at", "log_partition", "log_offset")
    highest = F.max("sequence").over(order.rowsBetween(Window.unboundedPreceding, -1))
    gap = F.col("at").cast("double") - F.lag("at").over(order).cast("double")
    since_same = F.col("at").cast("double") - F.lag("at").over(same).cast("double")
    has_sequence = F.col("sequence").isNotNull()
    found = (
        both.withColumn("gap", gap)
        .withColumn("highest", highest)
        .withColumn("is_duplicate", F.coalesce(since_same.between(0, options.duplicate_seconds), F.lit(False)))
    )
    late = F.when(has_sequence, F.col("sequence") < F.col("highest")).otherwise(F.lit(False))
    found = found.withColumn("is_out_of_order", F.coalesce(late, F.lit(False)) & ~F.col("is_duplicate"))
    return found.filter(~F.col("is_known")).drop("is_known", "highest")


def next_state(found: DataFrame, known: DataFrame, options: DeviceOptions) -> DataFrame:
    """What is known of each client after these messages."""
    fresh = found.groupBy("client_id").agg(
        F.min("at").alias("first_seen"),
        F.max("at").alias("last_seen"),
        F.count("*").alias("messages"),
        F.max("gap").alias("longest_gap"),
        F.count_if(F.col("gap") > options.gap_seconds).alias("gaps"),
        F.count_if("is_duplicate").alias("duplicates"),
        F.count_if("is_out_of_order").alias("out_of_order"),
        F.max_by("payload", F.struct("at", "log_offset")).alias("last_payload"),
        F.max("sequence").alias("last_sequence"),
    )
    both = known.withColumn("is_new", F.lit(0)).unionByName(fresh.withColumn("is_new", F.lit(1)))
    return both.groupBy("client_id").agg(
        F.min("first_seen").alias("first_seen"),
        F.max("last_seen").alias("last_seen"),
        F.sum("messages").alias("messages"),
        F.max("longest_gap").alias("longest_gap"),
        F.sum("gaps").alias("gaps"),
        F.sum("duplicates").alias("duplicates"),
        F.sum("out_of_order").alias("out_of_order"),
        F.max_by("last_payload", "is_new").alias("last_payload"),
        F.max("last_sequence").alias("last_sequence"),
    )


def only_findings(found: DataFrame, options: DeviceOptions) -> DataFrame:
    """The messages that something is to be said of: one row for each kind of finding."""
    kinds = F.filter(
        F.array(
            F.when(F.col("gap") > options.gap_seconds, F.lit("gap")),
            F.when(F.col("is_duplicate"), F.lit("duplicate")),
            F.when(F.col("is_out_of_order"), F.lit("out of order")),
        ),
        lambda kind: kind.isNotNull(),
    )
    return (
        found.withColumn("kind", F.explode(kinds))
        .select("kind", "client_id", "topic", "at", "gap", "sequence", "log_partition", "log_offset")
        .limit(MOST_FINDINGS)
    )


def devices_of(known: DataFrame, options: DeviceOptions) -> DataFrame:
    """The table for people: who was seen when, how often, and who is silent (against the newest message of all)."""
    newest = known.agg(F.max("last_seen").alias("newest"))
    silence = F.col("newest").cast("double") - F.col("last_seen").cast("double")
    span = F.col("last_seen").cast("double") - F.col("first_seen").cast("double")
    return (
        known.crossJoin(F.broadcast(newest))
        .withColumn("silent_for", silence)
        .withColumn("is_silent", F.col("silent_for") > options.silent_seconds)
        .withColumn("mean_interval", F.when(F.col("messages") > 1, span / (F.col("messages") - 1)))
        .drop("newest", "last_payload", "last_sequence")
    )


@alone
def run(
    spark: SparkSession,
    source: MessageSource,
    output: str,
    options: DeviceOptions | None = None,
    *,
    checkpoint: str | None = None,
    recover: bool = False,
    notify: Notify | None = None,
) -> JobOutcome:
    options = options or DeviceOptions()
    if min(options.gap_seconds, options.silent_seconds, options.duplicate_seconds) <= 0:
        raise OptionError("the times of the job devices are above 0 seconds")
    job = IncrementalJob(spark, "devices", output, checkpoint)

    def work(batch: Run, messages: DataFrame) -> Mapping[str, Table]:
        known = batch.ledger.read(STATE, EMPTY_STATE)
        assert known is not None
        found = with_findings(observations(messages, options), known, options).persist()
        batch.kept.append(found)
        state = next_state(found, known, options)
        return {
            FINDINGS: Table(only_findings(found, options), files=1),
            STATE: Table(state, files=1, replaces=True),
            DEVICES: Table(devices_of(state, options), files=1, replaces=True),
        }

    columns = "topic,payload,payload_text,client_id,received_at"
    outcome = job.run(source, work, recover=recover, notify=notify, columns=columns)
    return _finish(job.ledger, outcome)


def _finish(ledger: Ledger, outcome: JobOutcome) -> JobOutcome:
    ledger.say("making the report")
    devices = ledger.read(DEVICES)
    if devices is None:
        return outcome
    total = devices.agg(
        F.count("*"), F.count_if("is_silent"), F.sum("gaps"), F.sum("duplicates"), F.sum("out_of_order")
    ).collect()[0]
    names = ("clients", "silent", "gaps", "duplicates", "out of order")
    outcome.facts |= {name: value or 0 for name, value in zip(names, total, strict=True)}
    # each is counted with its client, and has a row unless its batch had too many
    listed = ledger.read(FINDINGS)
    left_out = sum(value or 0 for value in total[2:]) - (listed.count() if listed is not None else 0)
    if left_out > 0:
        outcome.facts["findings not listed"] = left_out
    worst = devices.orderBy(F.desc("is_silent"), F.desc("silent_for"), F.desc("gaps")).limit(20).collect()
    rows = [
        (row.client_id, f"{utc(row.last_seen):{MOMENT}}", row.messages, row.gaps, row.duplicates, row.out_of_order)
        for row in worst
    ]
    outcome.report = write_report(
        ledger.files,
        "Devices",
        outcome.facts,
        [Chart("Silent for", "rows", [(row.client_id, float(row.silent_for)) for row in worst], show=duration)],
        [Rows("Look at these first", ("client", "last seen", "messages", "gaps", "twice", "late"), rows)],
    )
    return outcome
