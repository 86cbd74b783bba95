"""Notices topics that somebody deleted and made again while they are read.

librdkafka reads on at the old position: what the new topic has before it is passed over without a word, unless the new
one is still shorter. A topic has an id of its own, though, which the administrative client can ask for. It is asked for
now and then, of a few topics at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Protocol

from penstock.core.logging import get_logger
from penstock.storage.log.base import EARLIEST, LogError, TopicPartition
from penstock.storage.log.kafka.shelf import Known, ShelfPartition

log = get_logger("penstock.logs.kafka")

LOOK_SECONDS = 5.0
MOST_AT_ONCE = 200
# Of the topics that groups share out; a broker has a few dozen.
MOST_REMEMBERED = 10_000


class Ids(Protocol):
    async def topic_ids(self, names: Collection[str]) -> dict[str, str]:
        """Of those that are there. Raises LogError."""
        ...


class Reader(Protocol):
    @property
    def is_subscribed(self) -> bool: ...

    def places(self) -> list[ShelfPartition]: ...

    def has(self, place: ShelfPartition) -> bool:
        """Whether it is still read."""
        ...

    async def seek(self, partition: TopicPartition, offset: int) -> None: ...


class Recreations:
    def __init__(self, admin: Ids, copied_topic: str = "") -> None:
        """`copied_topic`: who reads copies of its records knows them by partition and offset."""
        self._admin = admin
        self._copied_topic = copied_topic
        self._last = ""
        # A member of a group loses its partitions with the topic and gets others of the same name: not by place alone.
        self._of_groups: dict[str, str] = {}
        self.count = 0

    async def look(self, readers: Iterable[Reader], *, is_due: bool = True) -> None:
        """At the topics that are new to us and, if it is time for that, at those whose turn it is."""
        found = [(reader, place) for reader in readers for place in reader.places()]
        new = {place.partition.topic for _, place in found if place.known is None}
        chosen = sorted(new)[:MOST_AT_ONCE]
        if is_due:
            chosen += self._choose(sorted({place.partition.topic for _, place in found} - new))
        if not chosen:
            return
        try:
            ids = await self._admin.topic_ids(chosen)
        except LogError as error:
            log.debug("topics are not looked at", reason=error.message)
            return
        renewed = set(self._compare_groups(found, ids))
        for reader, place in found:
            topic_id = ids.get(place.partition.topic)
            if topic_id is not None and reader.has(place) and await self._compare(reader, place, topic_id):
                renewed.add(place.partition.topic)
        for topic in sorted(renewed):
            self._tell(topic)

    def _tell(self, topic: str) -> None:
        self.count += 1
        log.error(
            "a topic was deleted and made again by somebody else: it is read from its beginning",
            topic=topic,
            advice="docs/clustering.md#a-topic-that-is-deleted says what is lost",
        )
        if topic == self._copied_topic:
            log.error(
                "persistent clients take messages of the new topic for known ones, and do not get them, until each "
                "partition is as long as it was in the old one",
                topic=topic,
            )

    def _choose(self, topics: list[str]) -> list[str]:
        """The next ones behind those of the last time."""
        if len(topics) <= MOST_AT_ONCE:
            return topics
        later = [topic for topic in topics if topic > self._last]
        chosen = (later + topics)[:MOST_AT_ONCE]
        self._last = chosen[-1]
        return chosen

    def _compare_groups(self, found: list[tuple[Reader, ShelfPartition]], ids: dict[str, str]) -> Iterator[str]:
        for topic in {place.partition.topic for reader, place in found if reader.is_subscribed} & ids.keys():
            if self._of_groups.get(topic, ids[topic]) != ids[topic]:
                yield topic
            if topic in self._of_groups or len(self._of_groups) < MOST_REMEMBERED:
                self._of_groups[topic] = ids[topic]

    @staticmethod
    async def _compare(reader: Reader, place: ShelfPartition, topic_id: str) -> bool:
        """Whether it is another topic than the last time; then it is read from its beginning."""
        known = place.known
        is_new = known is not None and known.topic_id != topic_id
        # Who has moved it since knows where to read; and librdkafka goes back itself where the new topic is shorter.
        if known is not None and is_new and known.move == place.move and (place.position or 0) >= (known.position or 0):
            try:
                await reader.seek(place.partition, EARLIEST)
            except LogError as error:
                log.warning("a topic that is new cannot be read yet", topic=place.partition.topic, reason=error.message)
                return False  # the next look tries again
        place.known = Known(topic_id, place.move, place.position)
        return is_new
