"""Reading for many groups of many queues with few consumers of the log."""

from __future__ import annotations

from penstock.storage.log.base import Log
from penstock.storage.log.pack_reader import PackReader
from penstock.subscribers.queue.group import Lane

# What bounds a read is its bytes: a part of a pack has to be rebuilt, record by record.
RECORDS_AT_ONCE = 10_000


class Readers:
    """A consumer reads a topic at one place, so groups of the same queue are with different consumers: there are as
    many as the queue with the most active groups has."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._readers: list[tuple[PackReader[Lane], set[str]]] = []
        self._places: dict[Lane, PackReader[Lane]] = {}

    def add(self, lane: Lane) -> None:
        found = next((pair for pair in self._readers if lane.topic not in pair[1]), None)
        if found is None:
            found = PackReader(self._log.consumer(group=""), RECORDS_AT_ONCE, _ignore), set()
            found[0].start()
            self._readers.append(found)
        reader, topics = found
        topics.add(lane.topic)
        self._places[lane] = reader
        reader.add(lane)

    def remove(self, lane: Lane) -> None:
        reader = self._places.pop(lane, None)
        if reader is None:
            return
        reader.remove(lane)
        for other, topics in self._readers:
            if other is reader:
                topics.discard(lane.topic)

    def go_on(self, lane: Lane) -> None:
        self._places[lane].go_on(lane)

    async def close(self) -> None:
        readers, self._readers = self._readers, []
        for reader, _ in readers:
            await reader.stop()


def _ignore(lanes: object) -> None:
    """The groups see for themselves."""
