"""The tables of data subscription as they are stored: read at the start, followed where other nodes write them too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from penstock.core.logging import get_logger
from penstock.storage.log.base import LogError
from penstock.storage.state.base import Change, StateStore, StoreError
from penstock.storage.state.topic_tail import OnChange, StateTail
from penstock_client.errors import Unavailable

log = get_logger("penstock.datasub")

TABLES = "tbmq.datasub.tables"
TOPICS = "tbmq.datasub.topics"
GRANTS = "tbmq.datasub.grants"
OFFSETS = "tbmq.datasub.offsets"
RETENTION = "tbmq.datasub.retention"
ALL = (TABLES, TOPICS, GRANTS, OFFSETS, RETENTION)

CATCH_UP_SECONDS = 10.0

Listener = Callable[[bytes, bytes | None], None]
MakeTail = Callable[[Sequence[str], OnChange], StateTail]
"""Of these tables; makes what tells of every change, of this node and of others."""


class Stored:
    """A change is heard by the listener of its table when it is durable: at a single node when it was written, else
    when it was read back, in the same order everywhere."""

    def __init__(self, store: StateStore, make_tail: MakeTail | None = None) -> None:
        self._store = store
        self._make_tail = make_tail
        self._tail: StateTail | None = None
        self._values: dict[str, dict[bytes, bytes]] = {table: {} for table in ALL}
        self._listeners: dict[str, Listener] = {}
        self._catching_up: asyncio.Task[None] | None = None

    @property
    def is_shared(self) -> bool:
        """Whether other nodes write too."""
        return self._make_tail is not None

    def listen(self, table: str, listener: Listener) -> None:
        """Before `start`: it hears what is there, then what changes."""
        self._listeners[table] = listener

    async def start(self) -> None:
        """Raises StoreError, LogError; may then be called again."""
        if self._make_tail is not None:
            if self._tail is None:
                tail = self._make_tail(ALL, self._on_change)
                try:
                    await tail.start()
                except BaseException:
                    await tail.stop()
                    raise
                self._tail = tail
            return
        for table in ALL:
            found: list[tuple[bytes, bytes | None]] = []
            await self._store.load(table, lambda key, value, found=found: found.append((key, value)))  # type: ignore[misc]  # mypy does not know the default
            for key, value in found:
                self._on_change(table, key, value)

    async def stop(self) -> None:
        if self._catching_up is not None:
            self._catching_up.cancel()
        if self._tail is not None:
            await self._tail.stop()

    def items(self, table: str) -> Mapping[bytes, bytes]:
        return self._values[table]

    async def write(self, changes: Iterable[Change], *, is_heard: bool = True) -> None:
        """Durable when it returns; with `is_heard` the listeners of this node have heard it too. Raises Unavailable."""
        changes = list(changes)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_done(error: StoreError | None) -> None:
            if error is None and not self.is_shared:
                for table, key, value in changes:
                    self._on_change(table, key, value)
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(Unavailable(f"this could not be stored: {error}"))

        self._store.store(changes, on_done)
        await done
        if is_heard:
            await self.catch_up()

    async def catch_up(self) -> None:
        """Everything that was durable before the call has been heard. Raises Unavailable."""
        if not self.is_shared:
            return
        if self._tail is None:
            raise Unavailable("what other nodes stored has not been read yet")
        if self._catching_up is not None:
            await asyncio.wait([self._catching_up])  # it may have begun before the change that is asked for
        if self._catching_up is None or self._catching_up.done():
            self._catching_up = asyncio.get_running_loop().create_task(self._read_on(self._tail))
        await asyncio.shield(self._catching_up)

    @staticmethod
    async def _read_on(tail: StateTail) -> None:
        try:
            async with asyncio.timeout(CATCH_UP_SECONDS):
                await tail.catch_up()
        except (LogError, TimeoutError) as error:
            raise Unavailable(f"what other nodes stored cannot be read: {error}") from None

    def _on_change(self, table: str, key: bytes, value: bytes | None) -> None:
        if value is None:
            self._values[table].pop(key, None)
        else:
            self._values[table][key] = value
        listener = self._listeners.get(table)
        if listener is None:
            return
        try:
            listener(key, value)
        except Exception:  # one record's trouble is not that of the others
            log.exception("a change of data subscription could not be followed", table=table)
