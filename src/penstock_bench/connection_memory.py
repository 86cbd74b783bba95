"""Memory of the broker's process per connection, and whether the growth of that process can show it.

A process gives its new connections first what it has free: of clients and messages of earlier, or of its own start.
That does not grow it, so growth by the number of connections is too low, and nothing in the second of two equal tests.
How much is free cannot be asked from outside. But it is used up first, which shows: what has nothing free grows with
each connection alike, what has something grows late. So the first half of the connections ought to have half of the
growth. CPU time would not do instead: a broker in Python has used more at its start than one in C for 10,000 clients.

Two more signs are for what was free for a part of each connection, when the rest grows evenly: that the process was
larger before, and that the kernel has room for that many open files already, in a table that only grows.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

LEAST_BYTES = 256  # no broker keeps a connection in less: what shows less shows nothing
# With a share f of the connections in memory that was free, their first half has (0.5 - f) / (1 - f) of the growth.
# This allows for a tenth of them: a figure that is so much too low still is one.
LEAST_SHARE_OF_FIRST_HALF = 0.45
NEAR_HALF = (0.4, 0.6)  # where it has to be looked at; connections that came at once show no order
USUAL_SLOTS = 256  # of open files: what a process has that never had many

FIGURE, AT_LEAST, WHY = "bytes_per_conn", "bytes_per_conn_at_least", "bytes_per_conn_remark"
REMARK = (
    "the broker had memory to spare, from its start or from earlier work;"
    " restart it and take more --clients to measure it"
)


class Opening:
    """Watches the process while connections are opened."""

    def __init__(self, pids: Iterable[int], clients: int, rss_kb: int):
        self._pids = tuple(pids)
        self._clients = clients
        self._slots = self._slots_now()
        self._seen: list[tuple[float, int]] = [(0, rss_kb)]  # connections of the broker, its resident KiB

    def _slots_now(self) -> list[int]:
        return [file_slots(pid) for pid in self._pids]

    def look(self, begun: int, accepted: int, rss_kb: int) -> None:
        """Record how many are connected, and how many of them have their CONNACK."""
        self._seen.append(((begun + accepted) / 2, rss_kb))  # the broker is somewhere between

    def had_as_many(self) -> bool:
        """Whether the process had as many connections at a time before."""
        return max(self._slots, default=0) > USUAL_SLOTS and self._slots_now() == self._slots

    def grew_evenly(self) -> bool:
        """Whether the first half of the connections took as much as the second; no, if that was not observed."""
        least, most = (share * self._clients for share in NEAR_HALF)
        near = [each for each in self._seen if least <= each[0] <= most]
        if not near or self._seen[-1][0] < self._clients:
            return False
        begin, end = self._seen[0][1], self._seen[-1][1]
        shares = [(rss_kb - begin) * self._clients / (2 * count) for count, rss_kb in near]  # at the very middle
        return sum(shares) / len(shares) >= LEAST_SHARE_OF_FIRST_HALF * (end - begin)


def judge_memory(result: dict[str, Any], opening: Opening | None) -> None:
    """Leaves the figure in the result only where it is one; else what is true of it, with the reason."""
    told = result.pop(FIGURE, None)
    if told is None or opening is None:
        return  # the broker is elsewhere
    was_larger = result["rss_kb"] <= result["rss_kb_peak_before"]
    if told >= LEAST_BYTES and not was_larger and not opening.had_as_many() and opening.grew_evenly():
        result[FIGURE] = told
        return
    if told >= LEAST_BYTES:
        result[AT_LEAST] = told
    result[WHY] = REMARK


def describe_memory(stage: dict[str, Any]) -> str:
    """Describe the memory of a connection in the broker."""
    if FIGURE in stage:
        return f"{stage[FIGURE]:,} bytes"
    known = f"at least {stage[AT_LEAST]:,} bytes" if AT_LEAST in stage else "not measurable"
    return f"{known}: {stage[WHY]}"


def file_slots(pid: int) -> int:
    """How many open files the kernel has room for, without making more, in a process; 0 if it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("FDSize:")), 0)
