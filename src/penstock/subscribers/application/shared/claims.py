"""Messages of a shared partition that one client has to receive while another client reads the partition.

Claims are QoS 2 messages that were, or may have been, sent to the client: it finishes them under their packet ids.
Offers are messages that no other member may read.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from penstock._ext.application.context import read_context
from penstock._ext.application.lane import Lane
from penstock._ext.hub.connection import Session
from penstock.storage.log.base import Log, TopicPartition
from penstock.storage.log.pack_reader import PackReader, ReaderPool
from penstock.subscribers.application.contexts import CLAIMED, OFFERED, Contexts, split_key
from penstock.subscribers.application.lane_book import LaneBook, Place
from penstock.subscribers.application.shared.contexts import IN_GROUP, claim_key, make_offer, merge_claims

NewLane = Callable[[str, Session, str, str, int], Lane]
"""Make a lane: kind of key, session, group, topic, partition."""


class ShareClaims:
    """The claims and offers of all clients. On the loop."""

    def __init__(
        self,
        log_provider: Log,
        contexts: Contexts,
        book: LaneBook,
        *,
        max_records: int,
        new_lane: NewLane,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._contexts = contexts
        self._book = book
        self._new_lane = new_lane
        self._spawn = spawn
        self._open: dict[str, list[tuple[Lane, PackReader[Lane], bytes]]] = {}  # by client
        self._readers = ReaderPool(lambda: log_provider.consumer(""), max_records, book.save)

    async def stop(self) -> None:
        await self._readers.stop()

    def keys_of(self, client_id: str) -> list[bytes]:
        return [key for kind in (CLAIMED, OFFERED) for key in self._contexts.keys(kind, client_id)]

    def offers_of(self, client_id: str, group: str) -> list[bytes]:
        return [key for key in self._contexts.keys(OFFERED, client_id) if split_key(key)[2].endswith(IN_GROUP + group)]

    def add(self, owner: str, key: bytes, claims: bytes, *, unsent: set[int], session: Session | None) -> None:
        """Add claims on a partition that another client continues with to those of an earlier absence. `session` is the
        session of a connected owner: its messages in flight were sent on this connection, except the ids `unsent`."""
        _, group, topic, partition = split_key(key)
        own = claim_key(CLAIMED, owner, group, topic, partition)
        unsent = unsent | self.retire(owner, own)
        before = self._contexts.get(own)
        self._contexts.put(own, claims if before is None else merge_claims(before, claims))
        if session is not None:
            self.open(session, own, live_without=unsent)  # its partition has moved, it has not

    def offer(self, client_id: str, group: str, lane: Lane, session: Session | None = None) -> None:
        """Keep the message that the lane waits at for a client, which gets it at once if its `session` is connected."""
        own = claim_key(OFFERED, client_id, group, lane.topic, lane.partition)
        unsent = self.retire(client_id, own)
        offer, before = make_offer(lane.position), self._contexts.get(own)
        self._contexts.put(own, offer if before is None else merge_claims(before, offer))
        if session is not None:
            self.open(session, own, live_without=unsent)

    def precede(self, group: str, lane: Lane) -> None:
        """Keep a lane from being read until its client was sent the offers of that partition: they are older."""
        client_id = lane.session.client_id
        own = claim_key(OFFERED, client_id, group, lane.topic, lane.partition)
        for offers, _, key in self._open.get(client_id, ()):
            if key == own:
                offers.precede(lane)

    def find(self, lane: Lane) -> tuple[PackReader[Lane], bytes] | None:
        """Return the reader and the key of an open lane of claims or offers."""
        claims = self._open.get(lane.session.client_id, ())
        return next(((reader, key) for one, reader, key in claims if one is lane), None)

    def open(self, session: Session, key: bytes, *, live_without: set[int] | None = None) -> None:
        """Send the messages that the client has not finished."""
        context = self._contexts.get(key)
        if context is None:
            return
        kind, _, name, partition = split_key(key)
        topic, _, group = name.partition(IN_GROUP)
        lane = self._new_lane(kind, session, group, topic, partition)
        lane.restore(context)
        lane.until = read_context(context)["end"]
        lane.is_live, lane.unsent = live_without is not None, live_without
        reader = self._readers.reader_for(TopicPartition(topic, partition))
        self._open.setdefault(session.client_id, []).append((lane, reader, key))
        self._book.open(lane, Place(key, b"", reader))

    def retire(self, client_id: str, key: bytes) -> set[int]:
        """Close the client's open claims under the key, to continue together with new ones; return the ids not sent."""
        unsent: set[int] = set()
        for claim in [one for one in self._open.get(client_id, ()) if one[2] == key]:
            self._close(claim)
            unsent |= claim[0].unsent or set()
            self._open[client_id].remove(claim)
        return unsent

    def _close(self, claim: tuple[Lane, PackReader[Lane], bytes], *, keeps_context: bool = True) -> None:
        lane, reader, _ = claim
        self._book.close(lane, keeps_context=keeps_context)
        self._spawn(self._readers.release(reader))

    def detached(self, client_id: str) -> None:
        for claim in self._open.pop(client_id, ()):
            self._close(claim)

    def forget_topic(self, topic: str) -> None:
        """Close the claims on a topic that was created again, because its offsets have changed."""
        for claims in self._open.values():
            for claim in [one for one in claims if one[0].topic == topic]:
                claims.remove(claim)
                self._close(claim, keeps_context=False)

    def sweep(self) -> None:
        """Remove claims that are finished."""
        for client_id, claims in list(self._open.items()):
            for claim in [one for one in claims if one[0].committed >= one[0].until and not one[0].packs]:
                claims.remove(claim)
                self._close(claim, keeps_context=False)
                self._contexts.remove([claim[2]])
            if not claims:
                del self._open[client_id]
