"""Replay at original speed: one fetch gives the rows of one moment, and the time since the one before."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from penstock_client import wire

if TYPE_CHECKING:
    from penstock._ext.query.evaluator import Block
    from penstock.subscribers.query.fetching import Answer

# Consumers whose last moment is remembered; one that is forgotten does not wait once, and reads the log again.
MOST_REMEMBERED = 1_000
# Rows behind the moment that was given are kept for the next fetch, up to so many bytes.
MOST_KEPT = 256 * 1024

Key = tuple[str, str, int]


class Moment(NamedTuple):
    """Where the last answer ended, which time it had, and what was read beyond it: up to `end`, by one query."""

    offset: int
    time: int
    query: str
    rest: list[Block]
    end: int


NEVER = Moment(-1, 0, "", [], -1)


class ReplayClock:
    """Progress of a replay is stored nowhere but here, and whoever has moved elsewhere begins a new one."""

    def __init__(self) -> None:
        self._last: OrderedDict[Key, Moment] = OrderedDict()

    def go_on(self, request: wire.Fetch, answer: Answer, query: str) -> bool:
        """Whether the rows come from what was read already."""
        last = self._last.get(_key(request), NEVER)
        if last.offset != request.offset or last.query != query or not last.rest:
            return False
        answer.add(last.rest)
        answer.position = last.end
        return True

    def cut(self, request: wire.Fetch, answer: Answer, query: str) -> float:
        """Leaves the rows of the first moment in the answer; the milliseconds since the one before it."""
        last = self._last.pop(_key(request), NEVER)
        is_same = last.offset == request.offset
        if not answer.blocks:
            if is_same:
                self._remember(request, Moment(answer.position, last.time, query, [], answer.position))
            return 0.0
        whole, *others = answer.blocks
        times = whole.times()
        rows = next((number for number, one in enumerate(times) if one != times[0]), len(times))
        block = whole.slice(whole.first_offset, rows) if rows < whole.rows else whole
        rest = [whole.slice(block.last_offset + 1), *others] if rows < whole.rows else others
        end = answer.position
        answer.blocks, answer.rows = [block], rows
        if rest:
            answer.position = block.last_offset + 1
        kept = rest if sum(one.size for one in rest) <= MOST_KEPT else []
        self._remember(request, Moment(answer.position, times[0], query, kept, end))
        return max(0.0, (times[0] - last.time) / 1e6) if is_same else 0.0

    def _remember(self, request: wire.Fetch, moment: Moment) -> None:
        self._last[_key(request)] = moment
        if len(self._last) > MOST_REMEMBERED:
            self._last.popitem(last=False)


def _key(request: wire.Fetch) -> Key:
    return request.consumer, request.topic, request.partition
