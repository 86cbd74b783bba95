"""The QoS 2 packet ids that publishers have not released yet, kept for sessions that outlive their connection.

They are stored after their messages are in the log, and before the sender is told. A broker that is killed in between
finds the messages in the log, each with its packet id and a sequence number of the session; those with a number above
the stored one are received as well, and are not taken once more when they come again. How far the log's ids are stored
is itself stored now and then, so that only the end of the log has to be looked at.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock._ext.connection import Hub, Session
from penstock.logs.base import Log, TopicPartition, Watermarks
from penstock.stores.base import Change, OnStored, StateStore

TABLE = "tbmq.client.received"
MARK = b"\0mark "  # no client id begins with a zero
RECORDS_AT_ONCE = 10_000
READ_SECONDS = 30.0

Ends = dict[int, int]


class ReceivedIds:
    """`is_shared`: other brokers keep theirs in the same store, which are left alone; `node` is this one's name."""

    def __init__(self, store: StateStore, *, is_shared: bool = False, node: str = "") -> None:
        self._store = store
        self._is_shared = is_shared
        self._key = MARK + node.encode()
        self._marked: Ends = {}

    def store(self, changes: list[tuple[Session, bytes]], on_done: OnStored) -> None:
        """All ids of each session, as they were; none removes the record."""
        stored: list[Change] = [(TABLE, session.client_id.encode(), ids or None) for session, ids in changes]
        self._store.store(stored, on_done)

    def mark(self, ends: Ends) -> None:
        """The ids of everything before these offsets of the log are stored."""
        # Of a partition that nobody has written to since the start nothing is said: what was known of it stays.
        marked = {**self._marked, **ends}
        if marked != self._marked:
            self._marked = marked
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
            elif not self._is_shared:
                self._store.store([(TABLE, key, None)])

        await self._store.load(TABLE, on_record)

    async def restore_late(self, hub: Hub, log: Log, topic: str, find: Callable[[str], Session | None]) -> int:
        """Ids of messages that are in the log, but were not stored any more; how many. Raises LogError."""
        consumer = log.consumer(group="")
        try:
            places = [TopicPartition(topic, number) for number in range((await log.admin.describe(topic)).partitions)]
            marks = {place: await consumer.watermarks(place) for place in places}
            ends = {place: mark.end for place, mark in marks.items()}
            late: dict[str, list[tuple[int, int, int]]] = {}
            if self._marked:  # else nothing is known of an earlier time, when the ids were all there was
                starts = {place: self._start(place, marks[place]) for place in places}
                unread = {place: start for place, start in starts.items() if start < ends[place]}
                await consumer.add(unread)
                while unread:
                    for fetched in await consumer.poll(RECORDS_AT_ONCE, READ_SECONDS):
                        for client_id, *message in hub.find_received(fetched.pack):
                            late.setdefault(client_id, []).append((message[0], message[1], message[2]))
                        place = TopicPartition(fetched.topic, fetched.partition)
                        if fetched.next_offset >= ends[place]:
                            unread.pop(place, None)
        finally:
            await consumer.close()
        added = sum(session.add_received(found) for name, found in late.items() if (session := find(name)) is not None)
        self.mark({place.partition: end for place, end in ends.items()})
        return added

    def _start(self, place: TopicPartition, marks: Watermarks) -> int:
        return min(max(self._marked.get(place.partition, 0), marks.first), marks.end)
