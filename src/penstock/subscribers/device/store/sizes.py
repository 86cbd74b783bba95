"""Stored bytes of the queues of DEVICE clients: the total, and the size of each queue near its limit."""

from __future__ import annotations

from collections.abc import Iterable

MOST_KNOWN = 65_536


class QueueSizes:
    """`total` is exact. The size of one queue is computed when it is needed, and kept up to date from then on."""

    def __init__(self, limit: int, total_limit: int) -> None:
        """Limits of one queue and of all queues in bytes; 0 = no limit."""
        self.limit = limit
        self.total_limit = total_limit
        self.total = 0
        self.pending = 0  # added, but not yet among the written rows; slightly more than the rows will have
        self._known: dict[int, int] = {}

    def forget(self) -> None:
        """Drop what is known of queues after a failed transaction; the caller reads `total` again."""
        self._known.clear()
        self.pending = 0

    def shrink(self) -> None:
        if len(self._known) > MOST_KNOWN:
            self._known.clear()

    def note(self, number: int, change: int) -> None:
        self.total += change
        if number in self._known:
            self._known[number] += change

    def note_rows(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Count rows that were written. Their keys begin with the number of their queue."""
        self.pending = 0
        if self._known:
            for key, value in rows:
                self.note(int.from_bytes(key[:8], "big"), len(value))
        else:
            self.total += sum(len(value) for _, value in rows)

    def drop(self, number: int) -> None:
        self._known.pop(number, None)

    def is_known(self, number: int) -> bool:
        return number in self._known

    def learn(self, number: int, size: int) -> None:
        self._known[number] = size

    def size_of(self, number: int) -> int:
        """Return the bytes of a known queue."""
        return self._known[number]

    def is_near(self, number: int, size: int) -> bool:
        """Return whether adding `size` bytes may exceed a limit. The total bounds a queue of unknown size."""
        size += self.pending
        if self.limit and self._known.get(number, self.total) + size > self.limit:
            return True
        return bool(self.total_limit) and self.total + size > self.total_limit

    def find_surplus(self, number: int, size: int) -> int:
        """Return the bytes over the limits if `size` bytes are added to a known queue; 0 or less: there is room."""
        surplus = self._known[number] + size - self.limit if self.limit else 0
        if self.total_limit:
            surplus = max(surplus, self.total + size - self.total_limit)
        return surplus
