"""The contexts of APPLICATION clients: what of their logs is committed and in flight, durable before anything is sent.

A context belongs to one partition on its way to one client (a lane). All of them are in memory and in the state store.

    c <client> <topic> <partition>   a client's own topic
    s <group> <topic> <partition>    a shared topic; the value begins with the client that has it
    q <client> <topic> <partition>   QoS 2 messages of a shared topic that a client still has to finish
    o <client> <topic> <partition>   messages of a shared topic that only this client may have, which is away;
                                     without a client: on their way back to the group, see shared/returns.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from penstock._ext.application.lane import Lane
from penstock.core.logging import Throttled, get_logger
from penstock.core.ports import Scheduler
from penstock.storage.state.base import Change, StateStore, StoreError

log = get_logger("penstock.application")

TABLE = "tbmq.client.app.context"
RETRY_SECONDS = 1.0

OWN = "c"
SHARED = "s"
CLAIMED = "q"
OFFERED = "o"


def make_key(kind: str, owner: str, topic: str, partition: int) -> bytes:
    return f"{kind}\0{owner}\0{topic}\0{partition}".encode()


def split_key(key: bytes) -> tuple[str, str, str, int]:
    kind, owner, topic, partition = key.decode().split("\0")
    return kind, owner, topic, int(partition)


class Contexts:
    """On the loop. `save` takes a snapshot of lanes and tells them when it is durable."""

    def __init__(self, store: StateStore, scheduler: Scheduler) -> None:
        self._store = store
        self._scheduler = scheduler
        self._of: dict[bytes, bytes] = {}
        self._warnings = Throttled(log, interval=10.0)
        self._pending: dict[bytes, int] = {}  # keys with a value that is not durable yet
        self._waiting: dict[bytes, list[Callable[[], None]]] = {}
        self.saves = 0
        self.failures = 0

    async def load(self) -> int:
        return await self._store.load(TABLE, self._loaded)

    def _loaded(self, key: bytes, value: bytes | None) -> None:
        if value is not None:
            self._of[key] = value

    def __len__(self) -> int:
        return len(self._of)

    def get(self, key: bytes) -> bytes | None:
        return self._of.get(key)

    def keys(self, kind: str, owner: str) -> list[bytes]:
        prefix = f"{kind}\0{owner}\0".encode()
        return [key for key in self._of if key.startswith(prefix)]

    def of_kind(self, kind: str) -> list[tuple[bytes, bytes]]:
        """Return the keys and values of a kind, of all owners."""
        prefix = f"{kind}\0".encode()
        return [(key, value) for key, value in self._of.items() if key.startswith(prefix)]

    def keys_of_topic(self, topic: str, end: str) -> list[bytes]:
        """Of everybody; `end` is what may stand behind the topic's name."""
        return [key for key in self._of if split_key(key)[2].partition(end)[0] == topic]

    def put(self, key: bytes, value: bytes) -> None:
        """Stores without anybody waiting for it."""
        self._of[key] = value
        self._store_all([(TABLE, key, value)])

    def remove(self, keys: Iterable[bytes]) -> None:
        changes: list[Change] = []
        for key in keys:
            if self._of.pop(key, None) is not None:
                changes.append((TABLE, key, None))
        self._store_all(changes)

    def clear(self, keys: Iterable[bytes]) -> None:
        """Also where only other brokers know of them: what is stored under these keys means nothing any more."""
        changes: list[Change] = [(TABLE, key, None) for key in keys]
        for _, key, _ in changes:
            self._of.pop(key, None)
        self._store_all(changes)

    def adopt(self, key: bytes, value: bytes) -> None:
        """Another broker has stored it."""
        self._of[key] = value

    def give_away(self, keys: Iterable[bytes]) -> None:
        """Another broker goes on with them as they are stored."""
        for key in keys:
            self._of.pop(key, None)

    def give_away_unless(self, is_here: Callable[[str, str], bool]) -> None:
        """Of all: the kind and whose it is are asked for."""
        self.give_away([key for key in self._of if not is_here(*split_key(key)[:2])])

    def when_durable(self, key: bytes, callback: Callable[[], None]) -> None:
        """Now, or when what was given for the key last is durable."""
        if key in self._pending:
            self._waiting.setdefault(key, []).append(callback)
        else:
            callback()

    async def durable(self, keys: Iterable[bytes]) -> None:
        """As long as that takes."""
        for key in keys:
            stored = asyncio.Event()
            self.when_durable(key, stored.set)
            await stored.wait()

    def _settle(self, changes: list[Change]) -> None:
        for _, key, _ in changes:
            left = self._pending[key] - 1
            if left:
                self._pending[key] = left
            else:
                del self._pending[key]

    def _tell_waiting(self, changes: list[Change]) -> None:
        for _, key, _ in changes:
            if key not in self._pending:
                for callback in self._waiting.pop(key, ()):
                    callback()

    def save(self, lanes: Iterable[tuple[bytes, bytes, Lane]]) -> None:
        """(key, what the value begins with, lane) each."""
        changes: list[Change] = []
        marks: list[tuple[Lane, int]] = []
        for key, prefix, lane in lanes:
            value = self._of[key] = prefix + lane.snapshot()
            changes.append((TABLE, key, value))
            marks.append((lane, lane.last_mark))
        if not changes:
            return
        self.saves += 1
        self._store_all(changes, marks)

    def _store_all(self, changes: list[Change], marks: list[tuple[Lane, int]] | None = None) -> None:
        if not changes:
            return
        for _, key, _ in changes:
            self._pending[key] = self._pending.get(key, 0) + 1
        self._try_to_store(changes, marks)

    def _try_to_store(self, changes: list[Change], marks: list[tuple[Lane, int]] | None) -> None:
        def on_done(error: StoreError | None) -> None:
            if error is not None:
                self._retry_later(changes, marks, error)  # and is pending until then
                return
            self._settle(changes)
            self._tell_waiting(changes)
            for lane, mark in marks or ():
                lane.saved(mark)

        self._store.store(changes, on_done)

    def _retry_later(self, changes: list[Change], marks: list[tuple[Lane, int]] | None, error: StoreError) -> None:
        """What clients wait for is tried until it is stored; a newer context has then taken the place of an older."""
        self.failures += 1
        self._warnings.error(
            "contexts of clients cannot be stored, deliveries wait", per=type(error).__name__, error=str(error)
        )
        self._scheduler.call_later(RETRY_SECONDS, self._store_again, changes, marks)

    def _store_again(self, changes: list[Change], marks: list[tuple[Lane, int]] | None) -> None:
        self._try_to_store([(table, key, self._of.get(key)) for table, key, _ in changes], marks)
