"""What a Kafka consumer asks the brokers. Every call waits for an answer: in the consumer's thread."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

from penstock._ext.kafka.client import PackConsumer
from penstock.storage.log.base import EARLIEST, LATEST, Committed, TopicPartition, Watermarks
from penstock.storage.log.kafka.errors import is_missing, is_passing

Answer = TypeVar("Answer")

QUERY_SECONDS = 5.0
COMMIT_SECONDS = 10.0
LOOK_UP_SECONDS = 1.0
MOST_LOOKED_UP = 8
GROUP_CHANGES = (KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION)


def text(partition: TopicPartition) -> str:
    return f"{partition.topic}[{partition.partition}]"


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
    def __init__(self, client: PackConsumer, group: str, auto_offset_reset: str) -> None:
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
                self._client.look_up(topic, LOOK_UP_SECONDS)

    def commit(self, asked: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """While the group changes Kafka takes no offsets. It soon does again, and until we have agreed to give a
        partition back nobody else can have it, so trying again is safe."""
        deadline = time.monotonic() + COMMIT_SECONDS
        while True:
            try:
                self._client.commit(asked)
                return
            except KafkaException as error:
                if error.args[0].code() not in GROUP_CHANGES or time.monotonic() > deadline:
                    raise
            time.sleep(0.02)

    def committed(self, partitions: list[TopicPartition]) -> dict[TopicPartition, Committed | None]:
        found = self._client.committed(partitions, QUERY_SECONDS)
        return {one: Committed(*found[one]) if one in found else None for one in partitions}

    def watermarks(self, partition: TopicPartition) -> Watermarks:
        def ask() -> Watermarks:
            return Watermarks(*_patiently(lambda: self._client.watermarks(*partition, QUERY_SECONDS)))

        try:
            return ask()
        except KafkaException as error:
            if not is_missing(error.args[0]):
                raise
        # librdkafka remembers a missing topic for metadata.max.age.ms, also after the topic was created.
        self.look_up({partition.topic})
        return ask()

    def offsets(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The offset at a time of each, or of EARLIEST or LATEST, with one question per broker."""
        found = _patiently(lambda: self._client.offsets_for_times(times, QUERY_SECONDS)) if times else {}
        return {TopicPartition(*place): offset for place, offset in found.items()}

    def offset_at(self, partition: TopicPartition, timestamp_ms: int) -> int:
        """Of the first record at or after the time, or the end."""
        # a negative number is no time there, but stands for the end or the beginning
        found = self.offsets({partition: max(0, timestamp_ms)})[partition]
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
