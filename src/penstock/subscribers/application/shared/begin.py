"""The beginning of a share of APPLICATION clients: its group is at the end of the topic, nothing is stored of it."""

from __future__ import annotations

import asyncio
import weakref
from functools import partial

from penstock._ext.application.context import read_context
from penstock.core.logging import get_logger
from penstock.storage.log.base import Committed, Log, LogError, TopicPartition
from penstock.subscribers.application.contexts import SHARED, Contexts, make_key
from penstock.subscribers.application.patience import patiently
from penstock.subscribers.application.shared.returns import returned_key
from penstock.subscribers.application.shared.shares import Share

log = get_logger("penstock.application")

STORE_SECONDS = 10.0


class ShareBegins:
    def __init__(self, log_provider: Log, contexts: Contexts) -> None:
        self._log = log_provider
        self._contexts = contexts
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    async def begin(self, group: str, topic: str, partitions: int) -> None:
        """One after the other: the second of two that begin at once would begin behind what the first is to have.
        Raises LogError."""
        turn = self._turns.setdefault(group, asyncio.Lock())
        async with turn:
            # A topic that was made just now has no leader for a moment.
            await patiently(lambda: self._begin(group, topic, partitions))

    async def _begin(self, group: str, topic: str, partitions: int) -> None:
        consumer = self._log.consumer(group)
        try:
            places = [TopicPartition(topic, number) for number in range(partitions)]
            known = await consumer.committed(places)
            ends = {
                place: Committed((await consumer.watermarks(place)).end) for place in places if known[place] is None
            }
            if ends:
                await self._forget_earlier(
                    [
                        key(group, topic, place.partition)
                        for place in ends
                        for key in (partial(make_key, SHARED), returned_key)
                    ]
                )
                await consumer.commit(ends)
        finally:
            await consumer.close()

    async def find_start(self, share: Share, partition: int) -> int:
        """Where the group is. Never behind the end of the topic: everything before it would be passed over. Raises
        LogError."""
        place = TopicPartition(share.topic, partition)
        start = await share.reader.committed(place) or 0
        end = (await share.reader.watermarks(place)).end
        key = make_key(SHARED, share.group, share.topic, partition)
        _, _, context = (self._contexts.get(key) or b"").partition(b"\0")
        furthest = max(start, read_context(context)["committed"] if context else 0)
        if furthest > end and partition not in share.lanes:
            what = "the topic of a shared subscription was recreated, the group begins with it"
            log.warning(what, topic=share.topic, partition=partition, committed=furthest, end=end)
            self._contexts.clear([key, returned_key(share.group, share.topic, partition)])
        return start if start <= end else 0

    async def _forget_earlier(self, keys: list[bytes]) -> None:
        """A share of this name may have been before, and its topic is gone: everything up to the offsets of then would
        be passed over, at the latest after a restart. Raises LogError."""
        self._contexts.clear(keys)
        try:
            async with asyncio.timeout(STORE_SECONDS):
                await self._contexts.durable(keys)
        except TimeoutError:
            raise LogError("what is stored of an earlier share cannot be removed, the state store is away") from None
