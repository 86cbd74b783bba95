"""The QoS 2 packet ids that publishers have not released yet, kept for sessions that outlive their connection.

They are stored after their messages are in the log, and before the sender is told. A broker that is killed in between
finds the messages in the log, each with its packet id and a sequence number of the session; those with a number above
the stored one are received as well, and are not taken once more when they come again. How far the log's ids are stored
is itself stored now and then, with the time, so that only the end of the log has to be looked at: of a partition that
only other brokers have written to for long, no more than what is newer than that time. So it is of durable queues that
were sent such messages, since they have logs of their own.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from penstock._ext.hub.connection import Hub, Session
from penstock.core.clock import now_ms
from penstock.core.logging import get_logger
from penstock.storage.log.base import Consumer, Log, TopicNotFound, TopicPartition, Watermarks
from penstock.storage.log.waiting import until_available
from penstock.storage.state.base import Change, OnStored, StateStore

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


class ReceivedRecord(NamedTuple):
    """What is stored, for who looks at it: the ids of a client, or (with a node) how far the ids of a log are stored.
    `topic` is that of a durable queue."""

    client_id: str = ""
    sequence: int | None = None
    packet_ids: Sequence[int] = ()
    node: str | None = None
    topic: str = ""
    ends: Mapping[int, int] = {}
    at: int = 0


def decode_received(key: bytes, value: bytes) -> ReceivedRecord:
    """Raises ValueError for what no broker has written."""
    if key.startswith(MARK):
        node, zero, topic = key.removeprefix(MARK).decode().partition("\0")
        if zero:
            return ReceivedRecord(node=node, topic=topic, ends={0: int(value)})
        ends = msgspec.json.decode(value, type=Ends)
        return ReceivedRecord(node=node, at=ends.pop(TIME, 0), ends=ends)
    sequence = None
    if len(value) % 2:  # as Session.restore_received reads it
        if len(value) < 5 or value[0] != 1:
            raise ValueError("these are no packet ids")
        sequence, value = int.from_bytes(value[1:5], "little"), value[5:]
    return ReceivedRecord(key.decode(), sequence, struct.unpack(f"<{len(value) // 2}H", value))


class ReceivedIds:
    """`is_shared`: other brokers keep theirs in the same store, which are left alone; `node` is this one's name."""

    def __init__(self, store: StateStore, *, is_shared: bool = False, node: str = "") -> None:
        self._store = store
        self.is_shared = is_shared
        self._key = MARK + node.encode()
        self._marked: Ends = {}
        self._is_restored = False
        self._queue_keys = self._key + b"\0"
        self._queues: dict[str, int] = {}

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

    @property
    def queues(self) -> Collection[str]:
        """Topics of the durable queues that were sent QoS 2 messages."""
        return self._queues.keys()

    def mark_queues(self, ends: Mapping[str, int]) -> None:
        """The same as `mark` for the topics of durable queues."""
        known = {} if self._is_restored else self._queues
        changed = {topic: end for topic, end in ends.items() if topic not in known and self._queues.get(topic) != end}
        self._queues.update(changed)
        if changed:
            encoded = ((self._queue_keys + topic.encode(), b"%d" % end) for topic, end in changed.items())
            self._store.store([(TABLE, key, value) for key, value in encoded])

    def _forget_queue(self, topic: str) -> None:
        del self._queues[topic]
        self._store.store([(TABLE, self._queue_keys + topic.encode(), None)])

    def detached(self, session: Session) -> None:
        """Packet ids that the client has not released are kept: its session stays."""

    def ended(self, session: Session) -> None:
        if session.left_unreleased or session.received_sequence:
            self.forget(session.client_id)

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
                elif key.startswith(self._queue_keys):
                    self._queues[key.removeprefix(self._queue_keys).decode()] = int(value)
                return
            session = find(key.decode())
            if session is not None:
                session.restore_received(value)
            elif not self.is_shared:
                self._store.store([(TABLE, key, None)])

        await self._store.load(TABLE, on_record)

    async def restore_late(self, hub: Hub, log: Log, topic: str, find: Callable[[str], Session | None]) -> int:
        """Restore the ids of messages that are in the log, but were not stored any more; return how many. Waits for a
        log that is unavailable."""
        now = now_ms()
        marks, late = await until_available(partial(self._find_late, hub, log, topic), "look for QoS 2 packet ids")
        # of all logs together: what is later than what is stored is a matter of the whole session
        added = sum(session.add_received(found) for name, found in late.items() if (session := find(name)) is not None)
        self._is_restored = True
        self.mark({place.partition: mark.end for place, mark in marks.items() if place.topic == topic}, now)
        self.mark_queues({place.topic: mark.end for place, mark in marks.items() if place.topic != topic})
        return added

    async def _find_late(self, hub: Hub, log: Log, topic: str) -> tuple[dict[TopicPartition, Watermarks], Late]:
        consumer = log.consumer(group="")
        try:
            marks = await self._look(log, consumer, topic)
            return marks, await self._read_late(hub, consumer, topic, marks)
        finally:
            await consumer.close()

    async def _look(self, log: Log, consumer: Consumer, topic: str) -> dict[TopicPartition, Watermarks]:
        marks: dict[TopicPartition, Watermarks] = {}
        try:
            for number in range((await log.admin.describe(topic)).partitions):
                place = TopicPartition(topic, number)
                marks[place] = await consumer.watermarks(place)
        except TopicNotFound:
            marks = {}  # a log that is not there yet has nothing that the store does not know
        there = set(await log.admin.list()) if self._queues else set()
        for queue in list(self._queues):
            if queue in there:
                place = TopicPartition(queue, 0)
                marks[place] = await consumer.watermarks(place)
            else:
                self._forget_queue(queue)
        return marks

    async def _read_late(
        self, hub: Hub, consumer: Consumer, topic: str, marks: dict[TopicPartition, Watermarks]
    ) -> Late:
        """What hub.find_received finds from the last mark on, by client id."""
        late: Late = {}
        starts = {place: self._start(place, topic, mark) for place, mark in marks.items()}
        unread = {place: marks[place].end for place, start in starts.items() if start < marks[place].end}
        await consumer.add({place: starts[place] for place in unread})
        for place, end in list(unread.items()):
            if place.topic == topic and end - starts[place] > RECORDS_AT_ONCE and TIME in self._marked:
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

    def _start(self, place: TopicPartition, topic: str, marks: Watermarks) -> int:
        if place.topic != topic:
            return min(max(self._queues[place.topic], marks.first), marks.end)
        if not self._marked:  # nothing is known of an earlier time, when the ids were all there was
            return marks.end
        return min(max(self._marked.get(place.partition, 0), marks.first), marks.end)
