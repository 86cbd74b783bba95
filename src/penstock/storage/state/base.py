"""The ports of the stores: durable state by key, what every provider does in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from penstock.core.errors import PenstockError

Change = tuple[str, bytes, bytes | None]
"""Table, key, and its new value; None removes the key."""
OnStored = Callable[["StoreError | None"], None]
OnRecord = Callable[[bytes, bytes | None], None]


class StoreError(PenstockError):
    """A change was not stored."""


class StateStore(Protocol):
    """Small records by table and key: sessions, subscriptions, contexts. Called on the loop, never blocks it.

    Changes become durable in the order they were given; what is given in one loop iteration is one commit.
    """

    async def load(self, table: str, on_record: OnRecord) -> int:
        """Gives every record of the table, once, before anything else is done with it; how many there were."""
        ...

    def store(self, changes: Iterable[Change], on_done: OnStored | None = None) -> None:
        """Takes the changes; `on_done` is called on the loop, once, when all of them are durable or have failed."""
        ...

    async def flush(self) -> None:
        """Returns when everything taken so far is durable; raises StoreError."""
        ...

    @property
    def pending(self) -> int:
        """Changes taken and not yet durable."""
        ...

    def check(self) -> bool | str:
        """For readiness: True, or why it cannot store now."""
        ...

    async def close(self) -> None: ...
