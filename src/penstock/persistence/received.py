"""The QoS 2 packet ids that publishers have not released yet, kept for sessions that outlive their connection.

They are stored after their messages are in the log, and before the sender is told. A broker that is killed in between
finds the messages in the log, each with its packet id and a sequence number of the session; those with a number above
the stored one are received as well, and are not taken once more when they come again. How far the log's ids are stored
is itself stored now and then, with the time, so that only the end of the log has to be looked at: of a partition that
only other brokers have written to for long, no more than what is newer than that time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from penstock._ext.connection import Hub, Session
from penstock.core.logging import get_logger
from penstock.logs.base import Consumer, Log, TopicNotFound, TopicPartition, Watermarks
from penstock.stores.base import Change, OnStored, StateStore

logger = get_logger("penstock.sessions")

TABLE = "tbmq.client.received"
MARK = b"\0mark "  # no client id begins with a zero
RECORDS_AT_ONCE = 10_000
READ_SECONDS = 30.0
# A record may lie behind newer ones: clocks differ, and an append is tried for a while.
SLACK_MS = 5 * 60 * 1000
TIME = -1  # beside the partitions in a mark: when it was so, in ms

Ends = dict[int, int]
Late = dict[str, list[tuple[int, int, int]]]


class ReceivedIds:
    """`is_shared`: other brokers keep theirs in the same store, which are left alone; `node` is this one's name."""

    def __init__(self, store: StateStore, *, is_shared: bool = False, node: str = "") -> None:
        self._store = store
        self.is_shared = is_shared
        self._key = MARK + node.encode()
        self._marked: Ends = {}
        self._is_restored = False

    def store(self, changes: list[tuple[Session, bytes]], on_done: OnStored) -> None:
        """All ids of each session, as they were; none removes the record."""
        stored: list[Change] = [(TABLE, session.client_id.encode(), ids or None) for session, ids in changes]
        self._store.store(stored, on_done)

    def mark(self, ends: Ends, at: int) -> None:
        """The ids of everything before these offsets of the log are stored, and of everything that was given to it
        before this time (ms)."""
        if not self._is_restored:
            return  # what an earlier process has left is not looked at yet
        # Of a partition that nobody has written to since the start nothing is said: what was known of it stays.
        self._marked = {**self._marked, **ends, TIME: at}
        self._store.store([(TABLE, self._key, msgspec.json.encode(self._marked))])

    def forget(self, client_id: str) -> None:
        self._store.store([(TABLE, client_id.encode(), None)])

    async def restore(self, find: Callable[[str], Session | None]) -> None:
        """Gives the sessions that were restored their ids back."""

        def on_record(key: bytes, value: bytes | None) -> None:
            if value is None:
                return
            if key.startswith(MARK):
                if key == self._key:
                    self._marked = msgspec.json.decode(value, type=Ends)
                return
            session = find(key.decode())
            if session is not None:
                session.restore_received(value)
            elif not self.is_shared:
                self._store.store([(TABLE, key, None)])

        await self._store.load(TABLE, on_record)

    async def restore_late(self, hub: Hub, log: Log, topic: str, find: Callable[[str], Session | None]) -> int:
        """Ids of messages that are in the log, but were not stored any more; how many. Raises LogError."""
        now = round(time.time() * 1000)
        try:
            partitions = (await log.admin.describe(topic)).partitions
        except TopicNotFound:  # a log that is not there yet has nothing that the store does not know
            self._is_restored = True
            return 0
        consumer = log.consumer(group="")
        try:
            places = [TopicPartition(topic, number) for number in range(partitions)]
            marks = {place: await consumer.watermarks(place) for place in places}
            # Where nothing is known of an earlier time, the ids were all there was.
            late = await self._read_late(hub, consumer, marks) if self._marked else {}
        finally:
            await consumer.close()
        added = sum(session.add_received(found) for name, found in late.items() if (session := find(name)) is not None)
        self._is_restored = True
        self.mark({place.partition: mark.end for place, mark in marks.items()}, now)
        return added

    async def _read_late(self, hub: Hub, consumer: Consumer, marks: dict[TopicPartition, Watermarks]) -> Late:
        """What hub.find_received finds from the last mark on, by client id."""
        late: Late = {}
        starts = {place: self._start(place, mark) for place, mark in marks.items()}
        unread = {place: marks[place].end for place, start in starts.items() if start < marks[place].end}
        await consumer.add({place: starts[place] for place in unread})
        for place, end in list(unread.items()):
            if end - starts[place] > RECORDS_AT_ONCE and TIME in self._marked:
                newer = await consumer.seek_to_time(place, self._marked[TIME] - SLACK_MS)
                if newer < starts[place]:
                    await consumer.seek(place, starts[place])
                elif newer >= end:
                    del unread[place]
        while unread:
            fetched = await consumer.poll(RECORDS_AT_ONCE, READ_SECONDS)
            if not fetched:
                logger.warning("the end of the log cannot be read, the QoS 2 messages in it are waited for")
            for item in fetched:
                for client_id, *message in hub.find_received(item.pack):
                    late.setdefault(client_id, []).append((message[0], message[1], message[2]))
                place = TopicPartition(item.topic, item.partition)
                if item.next_offset >= unread.get(place, 0):
                    unread.pop(place, None)
        return late

    def _start(self, place: TopicPartition, marks: Watermarks) -> int:
        return min(max(self._marked.get(place.partition, 0), marks.first), marks.end)
