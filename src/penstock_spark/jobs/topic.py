"""`topic`: a query over many messages (GROUP BY, windows, DISTINCT), its rows published as an ordinary MQTT topic.

A query topic of the broker looks at one message at a time. What needs more runs here: SQL over the stream of messages,
with its state in a checkpoint, so that each run adds what has come since the last. The rows are JSON messages, which a
query topic over `materialised/<name>` can be subscribed to like any other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.errors.exceptions.base import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock_schema.decode import Publish
from penstock_spark import topic_filter
from penstock_spark.errors import OptionError
from penstock_spark.hadoop import Files
from penstock_spark.jobs.base import SLOW_START, STARTS, JobOutcome, MessageSource, Notify, only_good, stop, translate
from penstock_spark.jobs.replay import Sink
from penstock_spark.lock import only_run

VIEW = "messages"
MODES = ("update", "append", "complete")
COLUMNS = (
    "topic,payload,payload_text,qos,retain,client_id,username,received_at,expires_at,content_type,response_topic,"
    "user_properties,log_topic,log_partition,log_offset,error"
)
# how the types of declared tables are called here
TYPES = {"BOOLEAN": "boolean", "BIGINT": "bigint", "DOUBLE": "double", "TIMESTAMP": "timestamp"}


@dataclass(frozen=True)
class TableColumn:
    """A column of a declared table: `kind` is json (value: the path), level, property or field."""

    name: str
    type: str
    kind: str
    value: str | int


@dataclass(frozen=True)
class TableView:
    """A declared table of the broker, as a view of the same name."""

    name: str
    filter: str
    columns: tuple[TableColumn, ...]


@dataclass(frozen=True)
class TopicOptions:
    name: str
    sql: str
    state: str  # a directory: the checkpoint with what the query has to remember
    to_topic: str = ""  # empty: materialised/<name>
    mode: str = "update"  # of changed rows, append: of final rows only, complete: of all rows each time
    delay: str = "10 minutes"  # how late a message may be before its window is final
    tables: tuple[TableView, ...] = ()

    @property
    def topic(self) -> str:
        return self.to_topic or f"materialised/{self.name}"


def check(options: TopicOptions) -> None:
    if not options.name or any(sign in options.name for sign in "+#$\0"):
        raise OptionError(f"--name {options.name!r} is not a topic name", "Leave out + # and $")
    if any(sign in options.topic for sign in "+#\0"):
        raise OptionError(f"--to-topic {options.topic!r} is not a topic to publish to")
    if options.mode not in MODES:
        raise OptionError(f"--mode {options.mode!r} is not one of {', '.join(MODES)}")
    if not options.state:
        raise OptionError("--state names a directory for what the query remembers between two runs")


def table_frame(messages: DataFrame, table: TableView) -> DataFrame:
    """The messages of the table's filter with its columns, and `ts`, `topic` and `client_id` if it has none."""
    rows = messages.filter(topic_filter.matches(F.col("topic"), table.filter))
    names = {column.name.lower() for column in table.columns}
    own = [F.col(name) for name in ("ts", "topic", "client_id") if name not in names]
    return rows.select(*own, *(_value(column).alias(column.name) for column in table.columns))


def _value(column: TableColumn) -> Column:
    if column.kind == "json":
        found = F.get_json_object("payload_text", str(column.value))
    elif column.kind == "level":
        found = F.get(F.split("topic", "/"), int(column.value) - 1)
    elif column.kind == "property":
        found = F.col("user_properties")[str(column.value)]
    else:
        found = F.col(str(column.value))
    kind = TYPES.get(column.type)
    # as in the broker with the policy "null": what is of another type has no value
    return found.try_cast(kind) if kind is not None else found


def run(
    spark: SparkSession,
    source: MessageSource,
    make_sink: Callable[[], Sink],
    options: TopicOptions,
    *,
    notify: Notify | None = None,
) -> JobOutcome:
    """Takes in everything since the last run and publishes the rows that came of it, at least once."""
    check(options)
    started = time.monotonic()
    outcome = JobOutcome("topic", options.topic)
    files = Files(spark, options.state)
    with only_run(files):
        publisher = _Publisher(make_sink(), options.topic, outcome, notify)
        try:
            _run_stream(_query(spark, source, options), publisher, files.root, options)
        except PySparkException as error:
            raise translate(error) from error
        finally:
            publisher.sink.close()
    outcome.failed = publisher.sink.refused
    outcome.seconds = time.monotonic() - started
    outcome.facts["rows published"] = publisher.rows
    return outcome


def _query(spark: SparkSession, source: MessageSource, options: TopicOptions) -> DataFrame:
    start = {"start": "earliest"} if source.kafka is not None and "start" not in source.options else {}
    stream = only_good(source.read(spark, stream=True, columns=COLUMNS, **start))
    # what this job has published must not come back to it
    messages = stream.filter(F.col("topic") != options.topic).withColumn("ts", F.col("received_at"))
    messages = messages.withWatermark("ts", options.delay)
    messages.createOrReplaceTempView(VIEW)
    for table in options.tables:
        table_frame(messages, table).createOrReplaceTempView(f"`{table.name}`")
    result = spark.sql(options.sql)
    if not result.isStreaming:
        raise OptionError(f"the query does not read the view {VIEW!r} or a declared table")
    return result


def _run_stream(result: DataFrame, publisher: _Publisher, checkpoint: str, options: TopicOptions) -> None:
    for left in reversed(range(STARTS)):
        query = (
            result.writeStream.queryName(f"penstock-topic-{options.name}")
            .outputMode(options.mode)
            .foreachBatch(publisher.publish)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
            publisher.outcome.messages = sum(int(progress["numInputRows"]) for progress in query.recentProgress)
            return
        except KeyboardInterrupt:
            stop(query)
            raise
        except PySparkException as error:
            # the checkpoint knows which batch was done: another start goes on behind it
            if not left or SLOW_START not in str(error):
                raise


class _Publisher:
    """Each row of a batch as a JSON message. The next batch begins when the broker has all of them."""

    def __init__(self, sink: Sink, topic: str, outcome: JobOutcome, notify: Notify | None) -> None:
        self.sink = sink
        self.rows = 0
        self.outcome = outcome
        self._topic = topic
        self._notify = notify

    def publish(self, frame: DataFrame, number: int) -> None:
        rows = frame.select(F.to_json(F.struct("*"), {"ignoreNullFields": "false"}).alias("row"))
        for place, row in enumerate(rows.toLocalIterator()):
            self.sink.send(self._message(row.row, number, place))
            self.rows += 1
        self.sink.flush()
        self.outcome.batches += 1
        if self._notify is not None:
            self._notify("rows", self.rows, 0)

    def _message(self, row: str, batch: int, place: int) -> Publish:
        now = round(datetime.now(UTC).timestamp() * 1000)
        return Publish(
            schema_version=1,
            topic=self._topic,
            payload=row.encode(),
            qos=1,
            retain=False,
            client_id="",
            username=None,
            received_at=now,
            expires_at=0,
            payload_format=1,
            content_type="application/json",
            response_topic=None,
            correlation_data=None,
            # a batch that is repeated after a crash has the same numbers: who must not count twice can tell
            user_properties=[("batch", str(batch)), ("row", str(place))],
        )
