"""Messages that are stored for a share group of DEVICE clients, on their way to a member that has connected.

The member gets those that it may read. The others stay for another member who may, connected or not; messages that no
member may read are dropped and counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock._ext.device.outlet import FOR_CLIENT, FOR_NOBODY, share_stored
from penstock._ext.hub.connection import Hub, count_denied, count_trimmed
from penstock.storage.state.base import StoreError
from penstock.subscribers.device.store.base import DeviceStore, Moved, Page, Queue, group_queue
from penstock.subscribers.device.waiting import Backlog
from penstock_schema.topic_filter import split_share

RETRY_SECONDS = 0.5
MOVED_AT_ONCE = 500


def group_of(share_filter: bytes) -> Queue:
    name, plain = split_share(share_filter)
    return group_queue((name or b"").decode(), plain.decode())


@dataclass(slots=True, eq=False)
class _Drain:
    backlog: Backlog
    share_filter: bytes
    delivery: bytes
    group: Queue
    score: int = -1  # messages up to this one were looked at


class GroupDrains:
    """All drains of this node. On the loop. A backlog counts its own as `moving`."""

    def __init__(
        self,
        hub: Hub,
        store: DeviceStore,
        *,
        is_current: Callable[[Backlog], bool],
        on_moved: Callable[[Backlog], None],
        on_error: Callable[[str, StoreError], None],
    ) -> None:
        self._hub = hub
        self._store = store
        self._is_current = is_current
        self._on_moved = on_moved
        self._on_error = on_error

    def begin(self, backlog: Backlog, share_filter: bytes, delivery: bytes) -> None:
        """Give the client what is stored for one of its groups."""
        backlog.moving += 1
        self._go_on(_Drain(backlog, share_filter, delivery, group_of(share_filter)))

    def _go_on(self, drain: _Drain) -> None:
        backlog = drain.backlog
        if not self._is_current(backlog):
            return
        acl = backlog.session.acl
        if acl is None or acl.may_receive_all(split_share(drain.share_filter)[1]):

            def on_moved(result: Moved | StoreError) -> None:
                if isinstance(result, StoreError):
                    self._retry(drain, result)
                    return
                self._count(drain, result)
                if any(result):
                    self._go_on(drain)
                else:
                    backlog.moving -= 1
                self._on_moved(backlog)

            self._store.move(drain.group, backlog.queue, drain.delivery, MOVED_AT_ONCE, on_moved)
        else:
            self._store.fetch(drain.group, drain.score, MOVED_AT_ONCE, lambda page: self._on_page(drain, page))

    def _on_page(self, drain: _Drain, page: Page | StoreError) -> None:
        if isinstance(page, StoreError):
            self._retry(drain, page)
            return
        backlog = drain.backlog
        if page.expired:
            backlog.session.count_expired(page.expired)
        if not self._is_current(backlog):
            return
        whose = share_stored(backlog.session, drain.share_filter, page.values)
        self._drop(drain, [one for one, to in zip(page.packet_ids, whose, strict=True) if to == FOR_NOBODY])
        placed = zip(page.packet_ids, page.scores, whose, strict=True)
        chosen = [(packet_id, score) for packet_id, score, to in placed if to == FOR_CLIENT]

        def on_moved(result: Moved | StoreError) -> None:
            if isinstance(result, StoreError):
                self._retry(drain, result)
                return
            self._count(drain, result)
            self._after(drain, page)

        if chosen:
            self._store.move_some(drain.group, backlog.queue, drain.delivery, chosen, on_moved)
        else:
            self._after(drain, page)

    def _after(self, drain: _Drain, page: Page) -> None:
        drain.score = page.next_score
        if page.is_last:
            drain.backlog.moving -= 1
        else:
            self._go_on(drain)
        self._on_moved(drain.backlog)

    def _drop(self, drain: _Drain, packet_ids: list[int]) -> None:
        def on_removed(results: Sequence[int | StoreError]) -> None:
            if isinstance(results[0], StoreError):
                self._on_error("messages of a share group that no member may read stay in the store", results[0])
            else:
                count_denied(drain.backlog.session, results[0])

        if packet_ids:
            self._store.remove([(drain.group, packet_ids)], on_removed)

    def _count(self, drain: _Drain, moved: Moved) -> None:
        session = drain.backlog.session
        if moved.expired:
            session.count_expired(moved.expired)
        count_trimmed(self._hub, session, moved.trimmed)
        if any(moved):
            drain.backlog.is_last = False

    def _retry(self, drain: _Drain, error: StoreError) -> None:
        self._on_error("messages of a share group cannot be read", error)
        asyncio.get_running_loop().call_later(RETRY_SECONDS, self._go_on, drain)
