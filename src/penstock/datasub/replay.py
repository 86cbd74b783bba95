"""Replay at original speed: one fetch gives the rows of one moment, and the time since the one before."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from penstock.datasub import wire

if TYPE_CHECKING:
    from penstock.datasub.fetching import Answer

# Consumers whose last moment is remembered; one that is forgotten does not wait once.
MOST_REMEMBERED = 10_000


class ReplayClock:
    """Progress of a replay is nowhere stored: only where the last answer ended and which time it had, here."""

    def __init__(self) -> None:
        self._last: OrderedDict[tuple[str, str, int], tuple[int, int]] = OrderedDict()

    def cut(self, request: wire.Fetch, answer: Answer) -> float:
        """Leaves the rows of the first moment in the answer; the milliseconds since the one before it."""
        key = (request.consumer, request.topic, request.partition)
        offset, time = self._last.pop(key, (-1, 0))
        wait = 0.0
        if answer.blocks:
            block = answer.blocks[0]
            times = block.times()
            rows = next((number for number, one in enumerate(times) if one != times[0]), len(times))
            if rows < block.rows:
                block = block.slice(block.first_offset, rows)
            if rows < answer.rows:
                answer.position = block.last_offset + 1
            answer.blocks, answer.rows = [block], rows
            # Whoever has moved elsewhere meanwhile begins a new replay.
            wait = max(0.0, (times[0] - time) / 1e6) if offset == request.offset else 0.0
            time = times[0]
        elif offset != request.offset:
            return 0.0
        self._last[key] = (answer.position, time)
        if len(self._last) > MOST_REMEMBERED:
            self._last.popitem(last=False)
        return wait
