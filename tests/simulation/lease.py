"""Time in the cluster: a node acts only while its lease runs, and fences another only after that one's lease has ended.

Both sides measure on their own monotonic clock. The node's lease begins when it *wrote* the beat that it has read back,
the wait of the others begins when they *read* that beat, which is later. So the lease ends for the node first,
whatever the network and the scheduler do in between.
"""

from __future__ import annotations

from tests.simulation.ledger import Life

MARGIN = 1.1  # clocks may differ in speed by less than this


class Lease:
    """This node's right to act."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._sent: list[float] = []  # when the beats were written that have not been read back
        self.until = float("-inf")

    def beat(self, now: float) -> None:
        self._sent.append(now)

    def read_back(self) -> None:
        """The oldest beat under way came back, and the ledger counts this life as a member."""
        self.until = self._sent.pop(0) + self._seconds

    def is_valid(self, now: float) -> bool:
        return now < self.until


class Watch:
    """Leases of the other nodes, as seen from here."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds * MARGIN
        self._read: dict[Life, float] = {}

    def read(self, life: Life, now: float) -> None:
        self._read[life] = now

    def forget(self, life: Life) -> None:
        self._read.pop(life, None)

    def has_lapsed(self, life: Life, now: float) -> bool:
        """Whether the lease has ended for certain. A life that was never read is waited for from now on."""
        return now >= self._read.setdefault(life, now) + self._seconds
