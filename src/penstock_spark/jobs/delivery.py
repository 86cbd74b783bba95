"""`delivery`: what was published against what became of it, per client and topic.

What a client should have got is found from the messages and from when it was subscribed to what (its SUBSCRIBED,
UNSUBSCRIBED and SESSION_ENDED events); what it did get, or did not and why, is in the other events. Shared
subscriptions are left out of what is expected: which member gets a message is the broker's choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from penstock_schema.event import TOPIC
from penstock_spark.errors import OptionError
from penstock_spark.events import events_of
from penstock_spark.jobs.base import IncrementalJob, JobOutcome, MessageSource, Notify, Run, alone
from penstock_spark.ledger import TABLES, Ledger, Table
from penstock_spark.options import ALL_MESSAGES
from penstock_spark.report import Chart, Rows, write_report
from penstock_spark.topic_filter import to_regex

COUNTS, SPANS, CONNECTIONS = "counts", "open_subscriptions", "connections"
BY_BOTH, BY_CLIENT, BY_TOPIC, CAUSES = "by_client_and_topic", "by_client", "by_topic", "causes"
EMPTY_SPANS = "client_id string, filter string, start timestamp"
KINDS = ("expected", "delivered", "expired", "dropped", "dead_lettered")
# What became of a message that a client expected. A dead letter is of a queue, and those are not expected by anybody.
FATES = ("delivered", "expired", "dropped")
ADD_UP_FROM = 24


@dataclass(frozen=True)
class DeliveryOptions:
    messages: str = ALL_MESSAGES
    events: str = TOPIC


def subscription_spans(events: DataFrame, carried: DataFrame) -> DataFrame:
    """When each client was subscribed to each filter: (client_id, filter, start, end); no end = still."""
    accepted = (F.col("kind") == "subscribed") & (F.col("reason") < 0x80) & ~F.startswith("topic", F.lit("$share/"))
    opened = events.filter(accepted).select("client_id", F.col("topic").alias("filter"), F.col("at").alias("start"))
    starts = opened.unionByName(carried)
    closed = events.filter(F.col("kind") == "unsubscribed").select("client_id", "topic", "at")
    ended = events.filter(F.col("kind") == "session_ended").select("client_id", F.lit(None).cast("string"), "at")
    stops = closed.union(ended).toDF("stop_client", "stop_filter", "stop")
    is_stop = (
        (F.col("client_id") == F.col("stop_client"))
        & (F.col("stop_filter").isNull() | (F.col("stop_filter") == F.col("filter")))
        & (F.col("stop") >= F.col("start"))
    )
    spans = starts.join(stops, is_stop, "left").groupBy("client_id", "filter", "start").agg(F.min("stop").alias("end"))
    # who subscribes again without an end in between has one span, from the first time on
    return spans.groupBy("client_id", "filter", "end").agg(F.min("start").alias("start"))


def expected_deliveries(messages: DataFrame, spans: DataFrame) -> DataFrame:
    """How many messages of each topic each client was subscribed to when they came: (client_id, topic, count)."""
    pattern = F.udf(to_regex, "string")
    filters = spans.select("filter").distinct().withColumn("pattern", pattern("filter"))
    topics = messages.select("topic").distinct()
    pairs = topics.join(filters, F.expr("topic RLIKE pattern")).select(F.col("topic").alias("pair_topic"), "filter")
    within = (F.col("received_at") >= F.col("start")) & (F.col("end").isNull() | (F.col("received_at") <= F.col("end")))
    reached = (
        messages.select("topic", "received_at", "log_topic", "log_partition", "log_offset")
        .join(pairs, F.col("topic") == F.col("pair_topic"))
        .join(spans, "filter")
        .filter(within)
        # two filters of a client that both match are one message to it
        .dropDuplicates(["client_id", "log_topic", "log_partition", "log_offset"])
    )
    return reached.groupBy("client_id", "topic").agg(F.count("*").alias("count"))


def outcomes(events: DataFrame) -> DataFrame:
    """What the broker says became of messages: (client_id, topic, kind, cause, count)."""
    found = events.filter(F.col("kind").isin(*KINDS[1:]))
    return found.groupBy("client_id", "topic", "kind", "cause").agg(F.sum("count").alias("count"))


def published(messages: DataFrame) -> DataFrame:
    """(publisher, topic, count), in the columns of `outcomes`."""
    found = messages.groupBy("client_id", "topic").agg(F.count("*").alias("count"))
    return found.select("client_id", "topic", F.lit("published").alias("kind"), F.lit("").alias("cause"), "count")


def with_topics(counts: DataFrame) -> DataFrame:
    """The broker tells what became of messages per client, seldom per topic. A count without a topic is put to the
    client's topics where there is no doubt: it expected only one, or it was delivered all that it expected. Else it
    stays without one, and a row of the kind `unsaid` stands at each topic that it may belong to."""
    is_unsaid = (F.col("topic") == "") & F.col("kind").isin(*KINDS[1:])
    is_expected = F.col("kind") == "expected"
    client = Window.partitionBy("client_id")
    topic = F.when(is_expected, F.col("topic"))
    known = counts.withColumns(
        {
            "only": F.min(topic).over(client),
            "is_one": F.coalesce(F.min(topic).over(client) == F.max(topic).over(client), F.lit(False)),
            "due": F.sum(F.when(is_expected, F.col("count"))).over(client),
            "told": F.sum(F.when(is_unsaid, F.col("count"))).over(client),
            "troubles": F.count_if(is_unsaid & (F.col("kind") != "delivered")).over(client),
        }
    )
    came = F.coalesce((F.col("told") == F.col("due")) & (F.col("troubles") == 0), F.lit(False)) & ~F.col("is_one")
    in_doubt = F.col("told").isNotNull() & ~F.col("is_one") & ~came

    def row(topic: Column, kind: Column) -> Column:
        return F.struct(topic.alias("topic"), kind.alias("kind"))

    itself = row(F.col("topic"), F.col("kind"))
    rows = F.array(
        F.when(~is_unsaid | in_doubt, itself),
        F.when(is_unsaid & F.col("is_one"), row(F.col("only"), F.col("kind"))),
        F.when(is_expected & came, row(F.col("topic"), F.lit("delivered"))),
        F.when(is_expected & in_doubt, row(F.col("topic"), F.lit("unsaid"))),
    )
    made = known.withColumn("row", F.explode(F.filter(rows, lambda one: one.isNotNull())))
    return made.select("client_id", "row.topic", "row.kind", "cause", "count")


def per_key(counts: DataFrame, *keys: str) -> DataFrame:
    """One row for each key, one column for each kind, what is not accounted for, and what was told of more than was
    expected: null for a topic of which that cannot be said."""
    kinds = ("published", *KINDS, "unsaid")
    columns = [F.sum(F.when(F.col("kind") == kind, F.col("count")).otherwise(0)).alias(kind) for kind in kinds]
    known = reduce(lambda left, right: left + right, [F.col(kind) for kind in FATES])
    is_known = (F.col("unsaid") == 0) & (F.col("topic") != "") if "topic" in keys else F.lit(True)
    # apart from each other: what one client got besides must not hide what another one missed
    rest = {"unaccounted": F.col("expected") - known, "unexpected": known - F.col("expected")}
    above = {name: F.when(is_known, F.greatest(value, F.lit(0))) for name, value in rest.items()}
    return counts.groupBy(*keys).agg(*columns).withColumns(above).drop("unsaid")


def connections(events: DataFrame) -> DataFrame:
    """Comings and goings as they are, with the reasons."""
    kinds = ("connected", "disconnected", "subscribed", "unsubscribed", "session_ended")
    return events.filter(F.col("kind").isin(*kinds)).drop("event_error", "count")


@alone
def run(
    spark: SparkSession,
    source: MessageSource,
    output: str,
    options: DeliveryOptions | None = None,
    *,
    checkpoint: str | None = None,
    recover: bool = False,
    notify: Notify | None = None,
) -> JobOutcome:
    options = options or DeliveryOptions()
    if options.messages == options.events:
        raise OptionError("messages and events are two topics")
    job = IncrementalJob(spark, "delivery", output, checkpoint)
    both = MessageSource(
        source.path, source.kafka, {**source.options, "topics": f"{options.messages},{options.events}"}
    )

    def work(batch: Run, records: DataFrame) -> Mapping[str, Table]:
        messages = records.filter((F.col("log_topic") == options.messages) & F.col("error").isNull()).persist()
        decoded = events_of(records, options.events).persist()
        batch.kept += [messages, decoded]
        events = decoded.filter(F.col("event_error").isNull())
        carried = batch.ledger.read(SPANS, EMPTY_SPANS)
        assert carried is not None
        spans = subscription_spans(events, carried).persist()
        batch.kept.append(spans)
        expected = expected_deliveries(messages, spans).withColumns({"kind": F.lit("expected"), "cause": F.lit("")})
        counts = published(messages).unionByName(expected).unionByName(outcomes(events))
        refused = decoded.filter(F.col("event_error").isNotNull()).withColumn("log_topic", F.lit(options.events))
        batch.refused = refused.select("log_topic", "log_partition", "log_offset", F.col("event_error").alias("reason"))
        return {
            COUNTS: Table(counts, files=1),
            SPANS: Table(spans.filter(F.col("end").isNull()).drop("end"), files=1, replaces=True),
            CONNECTIONS: Table(connections(events), files=1),
        }

    columns = "topic,client_id,received_at"
    outcome = job.run(both, work, recover=recover, notify=notify, columns=columns, others=(options.events,))
    outcome.facts["events"] = outcome.others
    if job.ledger.has_old_tables:
        _make_tables(job.ledger)
    return _finish(job.ledger, outcome)


def _make_tables(ledger: Ledger) -> None:
    counts = ledger.read(COUNTS)
    if counts is None:
        return
    summed = counts.groupBy("client_id", "topic", "kind", "cause").agg(F.sum("count").alias("count")).persist()
    placed = with_topics(summed).persist()
    entry = ledger.open(f"{TABLES}{ledger.next_number}")
    tables = {
        BY_BOTH: per_key(placed, "client_id", "topic"),
        BY_CLIENT: per_key(placed, "client_id"),
        BY_TOPIC: per_key(placed, "topic"),
        CAUSES: summed.filter("cause <> ''").groupBy("kind", "cause").agg(F.sum("count").alias("count")),
    }
    for name, frame in tables.items():
        entry.stage(name, Table(frame, files=1, replaces=True))
    if len(list(ledger.files.walk(COUNTS))) >= ADD_UP_FROM:
        entry.stage(COUNTS, Table(summed, files=1, replaces=True))
    last = ledger.last()
    entry.commit(last.end if last else None)
    placed.unpersist()
    summed.unpersist()


def _finish(ledger: Ledger, outcome: JobOutcome) -> JobOutcome:
    ledger.say("making the report")
    clients, causes = ledger.read(BY_CLIENT), ledger.read(CAUSES)
    if clients is None:
        return outcome
    kinds = ("published", *KINDS, "unaccounted", "unexpected")
    total = clients.agg(*(F.sum(kind).alias(kind) for kind in kinds)).collect()[0]
    outcome.facts |= {kind.replace("_", "-"): total[kind] or 0 for kind in kinds}
    why = causes.orderBy(F.desc("count")).limit(15).collect() if causes is not None else []
    trouble = F.col("dropped") + F.col("expired") + F.col("dead_lettered")
    worst = clients.withColumn("n", trouble).filter("n > 0").orderBy(F.desc("n")).limit(20).collect()
    outcome.report = write_report(
        ledger.files,
        "Delivery",
        outcome.facts,
        [
            Chart(
                "What became of what was expected",
                "rows",
                [(kind.replace("_", "-"), float(total[kind] or 0)) for kind in (*KINDS[1:], "unaccounted")],
            ),
            Chart("Not delivered, by cause", "rows", [(row.cause, float(row["count"])) for row in why]),
        ],
        [
            Rows(
                "Clients that miss the most",
                ("client", *KINDS),
                [(row.client_id, *(row[kind] for kind in KINDS)) for row in worst],
            )
        ],
    )
    return outcome
