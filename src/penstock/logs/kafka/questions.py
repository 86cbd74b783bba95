"""What a Kafka consumer asks the brokers. Every call waits for an answer: in the consumer's thread."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import confluent_kafka
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException

from penstock.logs.base import EARLIEST, LATEST, Committed, LogUnavailable, TopicPartition, Watermarks
from penstock.logs.kafka.errors import is_passing

Answer = TypeVar("Answer")

QUERY_SECONDS = 5.0
COMMIT_SECONDS = 10.0
LOOK_UP_SECONDS = 1.0
MOST_LOOKED_UP = 8
GROUP_CHANGES = (KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION)


def named(
    partition: TopicPartition, offset: int = OFFSET_INVALID, metadata: str = ""
) -> confluent_kafka.TopicPartition:
    return confluent_kafka.TopicPartition(partition.topic, partition.partition, offset, metadata)


def text(partition: TopicPartition) -> str:
    return f"{partition.topic}[{partition.partition}]"


def check(error: KafkaError | None) -> None:
    if error is not None:
        raise KafkaException(error)


def _patiently(ask: Callable[[], Answer]) -> Answer:
    """librdkafka does not look for the new leader of a partition by itself in questions."""
    deadline = time.monotonic() + QUERY_SECONDS
    while True:
        try:
            return ask()
        except KafkaException as error:
            if not is_passing(error.args[0]) or time.monotonic() > deadline:
                raise
        time.sleep(0.02)


class Questions:
    def __init__(self, client: confluent_kafka.Consumer, group: str, auto_offset_reset: str) -> None:
        self._client = client
        self._group = group
        self._reset = auto_offset_reset

    def look_up(self, topics: set[str]) -> None:
        """librdkafka looks for the leaders of topics it does not know once a second; asked for, it knows them at once.
        Many topics at a time come with a restart, where a second does not matter and so many questions would."""
        if len(topics) > MOST_LOOKED_UP:
            return
        for topic in topics:
            with contextlib.suppress(KafkaException):  # who reads it hears of what is wrong
                self._client.list_topics(topic, LOOK_UP_SECONDS)

    def commit(self, asked: list[confluent_kafka.TopicPartition]) -> None:
        """While the group changes Kafka takes no offsets. It soon does again, and until we have agreed to give a
        partition back nobody else can have it, so trying again is safe."""
        deadline = time.monotonic() + COMMIT_SECONDS
        while True:
            try:
                for written in self._client.commit(offsets=asked, asynchronous=False) or ():
                    check(written.error)
                return
            except KafkaException as error:
                if error.args[0].code() not in GROUP_CHANGES or time.monotonic() > deadline:
                    raise
            time.sleep(0.02)

    def committed(self, partitions: list[TopicPartition]) -> dict[TopicPartition, Committed | None]:
        answer: dict[TopicPartition, Committed | None] = {}
        for one in self._client.committed([named(each) for each in partitions], timeout=QUERY_SECONDS):
            check(one.error)
            known = Committed(one.offset, one.metadata or "") if one.offset >= 0 else None
            answer[TopicPartition(one.topic, one.partition)] = known
        return answer

    def watermarks(self, partition: TopicPartition) -> Watermarks:
        marks = _patiently(lambda: self._client.get_watermark_offsets(named(partition), timeout=QUERY_SECONDS))
        if marks is None:
            raise LogUnavailable(f"Kafka does not say where {text(partition)} ends")
        return Watermarks(*marks)

    def offsets(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The offset at a time of each, or of EARLIEST or LATEST, with one question per broker."""
        asked = [named(partition, timestamp) for partition, timestamp in times.items()]

        def ask() -> dict[TopicPartition, int]:
            answer: dict[TopicPartition, int] = {}
            for one in self._client.offsets_for_times(asked, timeout=QUERY_SECONDS):
                check(one.error)
                answer[TopicPartition(one.topic, one.partition)] = int(one.offset)
            return answer

        return _patiently(ask) if asked else {}

    def offset_at(self, partition: TopicPartition, timestamp_ms: int) -> int:
        """Of the first record at or after the time, or the end."""
        found = self.offsets({partition: timestamp_ms})[partition]
        return found if found >= 0 else self.watermarks(partition).end

    def lag(self, positions: Mapping[TopicPartition, int | None]) -> dict[TopicPartition, int]:
        """Records between each position (None: where reading will start) and the end."""
        known = self.locate([partition for partition, position in positions.items() if position is None])
        known |= {partition: position for partition, position in positions.items() if position is not None}
        return {one: end - known[one] for one, end in self.offsets(dict.fromkeys(known, LATEST)).items()}

    def locate(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where reading will start, of partitions of which nothing was read."""
        asked = list(partitions)
        committed = self.committed(asked) if asked and self._group else {}
        found = {partition: known.offset for partition, known in committed.items() if known is not None}
        start = LATEST if self._reset == "latest" else EARLIEST
        return found | self.offsets({partition: start for partition in asked if partition not in found})
