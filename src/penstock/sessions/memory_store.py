"""State that ends with the process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

S = TypeVar("S")


class MemorySessionStore(Generic[S]):
    """Sessions in a dict. How many there can be is bounded by connections and by their expiry."""

    def __init__(self) -> None:
        self._sessions: dict[str, S] = {}

    def get(self, client_id: str) -> S | None:
        return self._sessions.get(client_id)

    def put(self, client_id: str, session: S) -> None:
        self._sessions[client_id] = session

    def remove(self, client_id: str) -> None:
        self._sessions.pop(client_id, None)

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[S]:
        return iter(list(self._sessions.values()))
