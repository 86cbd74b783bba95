"""The end of shared subscriptions of APPLICATION clients: the group goes, and the topic with the last group of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from penstock.core.errors import PenstockError
from penstock.core.logging import get_logger
from penstock.core.tasks import TaskSet
from penstock.services.housekeeper import SHARE, Note, Task, Undecided, Use
from penstock.settings.application import ApplicationSettings
from penstock.storage.log.base import Log, TopicNotFound
from penstock.subscribers.application.elsewhere import Elsewhere
from penstock.subscribers.application.names import ApplicationNames
from penstock_schema.topic_filter import split_share

log = get_logger("penstock.application")

REMOVE_AGAIN_SECONDS = 10.0
MOVE_SECONDS = 10.0  # a session that went to another broker is surely there by then

UseHere = Callable[[bytes, str], Use]
"""By the shares of this node, of a shared filter and its topic."""


class ShareRemovals:
    """`on_deleted` is told the group and the topic that it read."""

    def __init__(
        self,
        log_provider: Log,
        names: ApplicationNames,
        settings: ApplicationSettings,
        use_here: UseHere,
        on_deleted: Callable[[str, str], None],
        *,
        elsewhere: Elsewhere,
        note: Note,
    ) -> None:
        self._log = log_provider
        self._names = names
        self._settings = settings
        self._use_here = use_here
        self._on_deleted = on_deleted
        self._removals: dict[str, asyncio.Task[None]] = {}  # by topic, the last one of each
        self._asking: dict[str, bool] = {}  # topics, while other brokers are asked: whether it may still go on
        self._deleting: set[str] = set()
        self._moved: dict[bytes, float] = {}  # filters, until when; those that went first are in front
        self._tasks = TaskSet()
        self._elsewhere = elsewhere
        self._note = note

    def stop(self) -> None:
        self._tasks.cancel()

    async def done(self, topic: str) -> None:
        """Nothing that is being removed there is left."""
        while topic in self._removals:
            await asyncio.wait([self._removals[topic]])

    async def tell_use(self, share_filter: bytes, topic: str) -> Use:
        """To a broker that wants to remove it. What is being removed here is gone first, but for what that broker is
        asked for at the same time. Raises Undecided."""
        if topic not in self._asking:
            await self.done(topic)
        return self._use_by_those_who_move(share_filter, topic, self._use_here(share_filter, topic))

    def _use_by_those_who_move(self, share_filter: bytes, topic: str, use: Use) -> Use:
        """Whether they still share it is known by the other broker, which may not have them yet. Raises Undecided."""
        moving = self.moving()
        if use < Use.ALL and share_filter in moving:
            raise Undecided("a session that shares it is on its way to another broker")
        is_moving = any(self._names.is_shared_topic(topic, split_share(name)[1]) for name in moving)
        return max(use, Use.TOPIC) if is_moving else use

    def moved_away(self, share_filter: bytes) -> None:
        """The last member here went to another broker, which does not have it yet."""
        self.moving().pop(share_filter, None)
        self._moved[share_filter] = asyncio.get_running_loop().time() + MOVE_SECONDS

    def moving(self) -> dict[bytes, float]:
        now = asyncio.get_running_loop().time()
        while self._moved and next(iter(self._moved.values())) <= now:
            del self._moved[next(iter(self._moved))]
        return self._moved

    async def called_off(self, topics: Iterable[str]) -> None:
        """Another broker is about to share them: what is not being deleted yet stays for now, or asks that broker."""
        for topic in topics:
            if topic in self._asking:
                self._asking[topic] = False
            elif topic in self._deleting:
                await self.done(topic)

    def begin(self, share_filter: bytes, topic: str, stop_reader: Coroutine[Any, Any, None] | None) -> None:
        """Nobody shares the filter under this name any more."""
        self.leave(share_filter, topic)
        self._begin(share_filter, topic, stop_reader)

    def leave(self, share_filter: bytes, topic: str) -> None:
        """To the housekeeper, who finds out whether anybody else shares it."""
        if self._settings.remove_topics == "session-end":
            self._note(SHARE, share_filter.decode(), topic)

    def _begin(self, share_filter: bytes, topic: str, stop_reader: Coroutine[Any, Any, None] | None) -> None:
        # As it is now: who shares the filter again meanwhile waits, and gets a new group.
        use = min(self._use_here(share_filter, topic), Use.TOPIC)
        before = self._removals.get(topic)
        self._removals[topic] = self._tasks.spawn(self._remove(share_filter, topic, stop_reader, before, use))

    def _begin_again(self, share_filter: bytes, topic: str) -> None:
        if self._use_here(share_filter, topic) < Use.ALL:
            self._begin(share_filter, topic, None)

    async def _remove(
        self,
        share_filter: bytes,
        topic: str,
        stop_reader: Coroutine[Any, Any, None] | None,
        before: asyncio.Task[None] | None,
        use: Use,
    ) -> None:
        try:
            if before is not None:
                await asyncio.wait([before])
            if stop_reader is not None:
                await stop_reader
            if self._settings.remove_topics == "session-end":
                await self._delete_unused(share_filter, topic, use)
        except (PenstockError, TimeoutError) as error:
            if not self._elsewhere.is_alone:
                log.debug("the topic of a share is left to the housekeeper", topic=topic, error=str(error))
                return
            log.warning(
                "the topic of a shared subscription cannot be removed, it is tried again", topic=topic, error=str(error)
            )
            asyncio.get_running_loop().call_later(REMOVE_AGAIN_SECONDS, self._begin_again, share_filter, topic)
        finally:
            self._forget(topic)

    async def _delete_unused(self, share_filter: bytes, topic: str, use: Use) -> None:
        """`use` is that of this broker. Raises PenstockError and TimeoutError."""
        use = self._use_by_those_who_move(share_filter, topic, use)
        if use < Use.ALL:
            use = max(use, await self._ask_others(share_filter, topic))
        if use < Use.ALL:
            await self._delete(share_filter, topic, keeps_topic=use > Use.NONE)

    async def _delete(self, share_filter: bytes, topic: str, *, keeps_topic: bool) -> None:
        name, plain = split_share(share_filter)
        self._deleting.add(topic)
        try:
            group = self._names.shared_group(name or b"", plain)
            await self._log.admin.delete_group(group)
            self._on_deleted(group, topic)
            if not keeps_topic:
                await self._log.admin.delete(topic)
                log.info("the topic of a shared subscription was removed", topic=topic)
        except TopicNotFound:
            pass
        finally:
            self._deleting.discard(topic)

    async def tidy(self, share_filter: bytes, topic: str) -> None:
        """The housekeeper's turn, with what ended here or at another broker. Raises PenstockError: not now."""
        if not self._names.is_shared_topic(topic, split_share(share_filter)[1]):
            log.warning("not the topic of this filter, it stays", filter=share_filter.decode(), topic=topic)
            return
        await self.done(topic)
        if self._use_here(share_filter, topic) is Use.ALL:
            return
        removal = self._removals[topic] = self._tasks.spawn(self._tidy(share_filter, topic), is_awaited=True)
        await asyncio.shield(removal)

    async def _tidy(self, share_filter: bytes, topic: str) -> None:
        try:
            await self._delete_unused(share_filter, topic, self._use_here(share_filter, topic))
        finally:
            self._forget(topic)

    async def _ask_others(self, share_filter: bytes, topic: str) -> Use:
        """Who comes here meanwhile waits. Raises PenstockError: not known, or another broker is about to share it."""
        if self._elsewhere.is_alone:
            return Use.NONE
        self._asking[topic] = True
        try:
            use = await self._elsewhere.use_of(Task(SHARE, share_filter.decode(), topic))
        finally:
            may_go_on = self._asking.pop(topic)
        if not may_go_on:
            raise Undecided("another broker is about to share it")
        return use

    def _forget(self, topic: str) -> None:
        if self._removals.get(topic) is asyncio.current_task():
            del self._removals[topic]
