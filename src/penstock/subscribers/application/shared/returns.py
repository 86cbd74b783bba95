"""Messages of a share that their client will not take, on their way back to the group.

The client's session has ended, or it has left the share. Wherever a broker is killed, the messages are stored:

1. The claims become one record that belongs to no client (RETURNED as its owner).
2. The group's committed offset is set back to the first of the messages: a broker that starts passes over what is
   before that offset.
3. The context of the partition gets the messages, and the record goes. Both are stored together, before anybody is
   sent a message.

A broker that starts finds the records, and claims of clients without a session: the end of a session may be stored
before the claims are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from penstock.core.logging import get_logger
from penstock.storage.log.base import LogError, TopicPartition
from penstock.subscribers.application.contexts import CLAIMED, OFFERED, Contexts, split_key
from penstock.subscribers.application.shared.contexts import (
    IN_GROUP,
    Run,
    claim_key,
    make_offers,
    merge_offers,
    share_key_of,
    unsent_runs,
)
from penstock.subscribers.application.shared.shares import Share

log = get_logger("penstock.application")

RETURNED = ""  # no client has this id
RETRY_SECONDS = 1.0

PutBack = Callable[[Share, int, list[Run]], None]
"""Add the messages to what the group has to get of a partition, which this node has."""


def returned_key(group: str, topic: str, partition: int) -> bytes:
    return claim_key(OFFERED, RETURNED, group, topic, partition)


class ShareReturns:
    """Those of all shares. On the loop."""

    def __init__(
        self,
        contexts: Contexts,
        *,
        find_share: Callable[[str], Share | None],
        committed_of: Callable[[Share, int], int],
        put_back: PutBack,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """`find_share` finds a share by its group."""
        self._contexts = contexts
        self._find_share = find_share
        self._committed_of = committed_of
        self._put_back = put_back
        self._spawn = spawn
        self._under_way: set[bytes] = set()

    def add(self, claim: bytes) -> None:
        """Give back what of a claim or an offer was never sent. The caller removes the claim after this."""
        stored = self._contexts.get(claim)
        runs = [] if stored is None else unsent_runs(stored)
        if not runs:
            return
        _, group, topic, partition = split_key(share_key_of(claim))
        key, returned = returned_key(group, topic, partition), make_offers(runs)
        before = self._contexts.get(key)
        self._contexts.put(key, returned if before is None else merge_offers(before, returned))
        share = self._find_share(group)
        if share is not None:
            self._begin(share, partition)

    def find(self, has_session: Callable[[str], bool]) -> None:
        """After a start: claims of clients whose session has ended."""
        for kind in (CLAIMED, OFFERED):
            for key, _ in self._contexts.of_kind(kind):
                owner = split_key(key)[1]
                group = split_key(share_key_of(key))[1]
                if owner != RETURNED and not has_session(owner) and self._find_share(group) is not None:
                    self.add(key)
                    self._contexts.remove([key])

    def go_on(self, share: Share) -> None:
        """The share may have got partitions."""
        for partition in share.partitions:
            self._begin(share, partition)

    def forget(self, group: str) -> None:
        """The share has ended."""
        keys = self._contexts.keys(OFFERED, RETURNED)
        self._contexts.remove([key for key in keys if split_key(key)[2].endswith(IN_GROUP + group)])

    def _begin(self, share: Share, partition: int) -> None:
        key = returned_key(share.group, share.topic, partition)
        if partition in share.partitions and key not in self._under_way and self._contexts.get(key) is not None:
            self._under_way.add(key)
            self._spawn(self._return(share, partition, key))

    async def _return(self, share: Share, partition: int, key: bytes) -> None:
        place = TopicPartition(share.topic, partition)
        try:
            while (runs := self._left(share, partition, key)) is not None:
                first = runs[0][0]
                try:
                    await share.reader.commit_back(place, min(first, self._committed_of(share, partition)))
                except LogError as error:
                    log.warning("messages cannot be given back to a share yet", topic=share.topic, error=str(error))
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                runs = self._left(share, partition, key)
                if runs is not None and runs[0][0] >= first:  # or earlier ones have joined them
                    self._put_back(share, partition, runs)
                    self._contexts.remove([key])
        finally:
            share.reader.end_limit(place)
            self._under_way.discard(key)

    def _left(self, share: Share, partition: int, key: bytes) -> list[Run] | None:
        """Return what is to be given back now, None if nothing is."""
        stored = self._contexts.get(key)
        if stored is None or partition not in share.partitions or self._find_share(share.group) is not share:
            return None
        return unsent_runs(stored)
