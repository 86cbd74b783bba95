"""The data source `penstock`: spark.read and spark.readStream over the broker's log, embedded or in Kafka."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa  # type: ignore[import-untyped] # it has no types of its own
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from penstock_spark import kafka, options, schema, segments
from penstock_spark.arrow import batch_of_rows
from penstock_spark.embedded import EmbeddedReader, EmbeddedTask, Lost
from penstock_spark.embedded_plan import EmbeddedTopic
from penstock_spark.errors import CheckpointError, OptionError, TopicMissing
from penstock_spark.kafka import KafkaTask, KafkaTopics
from penstock_spark.options import SourceOptions

Offsets = dict[str, dict[str, int]]


class GapTask(InputPartition):
    """Records that were gone before the read began: a task so that they are rows and counted."""

    def __init__(self, topic: str, lost: Sequence[Lost]) -> None:
        self.topic = topic
        self.lost = lost


class Planner:
    """Topics, offsets and tasks of either kind of log."""

    def __init__(self, chosen: SourceOptions) -> None:
        self.options = chosen
        self._kafka: KafkaTopics | None = None
        self._embedded: dict[str, EmbeddedTopic] = {}

    def _topics(self) -> dict[str, int]:
        if self.options.bootstrap is not None:
            if self._kafka is None:
                self._kafka = KafkaTopics(self.options)
            return self._kafka.partitions()
        assert self.options.path is not None
        names = list(self.options.topics)
        if self.options.topic_pattern is not None:
            there = segments.list_topics(self.options.path)
            names = [name for name in there if self.options.wants_topic(name)]
            if not names:
                raise TopicMissing(
                    f"no topic in {self.options.path} matches {self.options.topic_pattern!r}",
                    f"Topics there: {', '.join(there) or 'none at all'}",
                )
        for name in names:
            if name in self._embedded:
                self._embedded[name].refresh()
            else:
                self._embedded[name] = EmbeddedTopic(self.options.path, name)
        return {name: self._embedded[name].partitions for name in names}

    def resolve(self, bound: options.Bound) -> Offsets:
        """The bound in the topics that there are now."""
        found: Offsets = {}
        for name, partitions in self._topics().items():
            if self._kafka is not None:
                offsets = self._kafka.resolve(name, partitions, bound)
            else:
                offsets = self._embedded[name].resolve(bound)
            found[name] = {str(number): offset for number, offset in enumerate(offsets)}
        return found

    def close(self) -> None:
        if self._kafka is not None:
            self._kafka.close()

    def firsts(self) -> Offsets:
        return self.resolve(options.Bound(options.EARLIEST))

    def tasks(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        """Of topics that the start does not know (they are new) everything is read."""
        firsts = self.firsts()
        tasks: list[InputPartition] = []
        for topic, ends in end.items():
            if topic not in firsts:
                raise TopicMissing(f"topic {topic!r} is not there any more", "Take another checkpoint or other topics")
            starts = start.get(topic) or firsts[topic]
            if not set(ends) <= set(firsts[topic]):
                raise CheckpointError(
                    f"the checkpoint knows {len(ends)} partitions of {topic!r}, the log has {len(firsts[topic])}",
                    "The topic was recreated: start with a new checkpoint",
                )
            numbers = range(len(firsts[topic]))
            lows = [starts.get(str(number), firsts[topic][str(number)]) for number in numbers]
            highs = [ends.get(str(number), lows[number]) for number in numbers]
            chosen = [self.options.wants_partition(number) for number in numbers]
            highs = [high if wanted else low for low, high, wanted in zip(lows, highs, chosen, strict=True)]
            tasks += self._tasks_of(topic, lows, highs)
        return tasks

    def _tasks_of(self, topic: str, lows: list[int], highs: list[int]) -> list[InputPartition]:
        strict = self.options.fail_on_data_loss
        tasks: list[InputPartition]
        if self._kafka is not None:
            asked = [KafkaTask(topic, number, *pair) for number, pair in enumerate(zip(lows, highs, strict=True))]
            clipped = [kafka.clip(self._kafka, one, strict) for one in asked if one.start < one.end]
            ranges = {one.partition: (one.start, one.end) for one in clipped}
            tasks = [one for one in clipped if one.start < one.end]
        else:
            found = self._embedded[topic].check_range(lows, highs, strict)
            ranges = dict(enumerate(found))
            tasks = list(self._embedded_tasks(topic, found))
        lost = [
            Lost(number, lows[number], min(start, highs[number]), "were removed by retention before the read")
            for number, (start, _) in ranges.items()
            if lows[number] < min(start, highs[number])
        ]
        return [*tasks, GapTask(topic, lost)] if lost else tasks

    def _embedded_tasks(self, topic: str, ranges: list[tuple[int, int]]) -> Iterator[EmbeddedTask]:
        source, per_task = self._embedded[topic], self.options.partitions_per_task
        if not per_task:
            for pieces in source.plan(ranges, self.options.bytes_per_task, self.options.fail_on_data_loss):
                yield EmbeddedTask(topic, ranges, pieces)
            return
        wanted = [number for number, (start, end) in enumerate(ranges) if start < end]
        for first in range(0, len(wanted), per_task):
            group = set(wanted[first : first + per_task])
            only = [one if number in group else (one[0], one[0]) for number, one in enumerate(ranges)]
            pieces = [piece for task in source.plan(only, self.options.bytes_per_task, False) for piece in task]
            yield EmbeddedTask(topic, only, pieces)


def ends_now(chosen: SourceOptions) -> Offsets | None:
    """Where the topics end; None where nobody can be asked: without confluent-kafka, or with settings of Kafka that
    only Java understands."""
    if chosen.client:
        return None
    planner = Planner(chosen)
    try:
        return planner.resolve(options.Bound(options.LATEST))
    except OptionError:
        return None
    finally:
        planner.close()


def read_task(chosen: SourceOptions, task: InputPartition | None) -> Iterator[pa.RecordBatch]:
    """The rows of a task, in Spark's worker."""
    if isinstance(task, GapTask):
        yield batch_of_rows([one.row(task.topic) for one in task.lost], chosen.columns)
    elif isinstance(task, KafkaTask):
        yield from kafka.read_task(chosen, task)
    elif isinstance(task, EmbeddedTask):
        yield from EmbeddedReader(chosen, task).read()


class PenstockReader(DataSourceReader):
    def __init__(self, chosen: SourceOptions) -> None:
        self._options = chosen

    def partitions(self) -> Sequence[InputPartition]:
        planner = Planner(self._options)
        # the end first: what is appended meanwhile is not part of this read
        end = planner.resolve(self._options.end)
        start = planner.resolve(self._options.start)
        return planner.tasks(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(self._options, partition)


class PenstockStreamReader(DataSourceStreamReader):
    """Offsets are {topic: {partition: next offset}}, as those of Spark's Kafka source."""

    def __init__(self, chosen: SourceOptions) -> None:
        self._options = chosen
        self._planner = Planner(chosen)

    def initialOffset(self) -> Offsets:
        return self._planner.resolve(self._options.start)

    def latestOffset(self) -> Offsets:
        return self._planner.resolve(self._options.end)

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        return self._planner.tasks(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(self._options, partition)

    def commit(self, end: Offsets) -> None:
        """Nothing: the checkpoint is Spark's, and retention is the broker's."""


class PenstockSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "penstock"

    def _parse(self) -> SourceOptions:
        return options.parse(dict(self.options))

    def schema(self) -> StructType:
        return schema.select(self._parse().columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        return PenstockReader(self._parse())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return PenstockStreamReader(self._parse())


def register(spark: SparkSession) -> None:
    """After this, spark.read.format("penstock") works in the session."""
    spark.dataSource.register(PenstockSource)
