"""Whether one more connection may come in: decided once per connection, in constant time, with the reason if not."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable

from penstock.core.process import descriptor_limit
from penstock.settings.model import LimitSettings, ListenerSettings

TOO_MANY = "connections"
TOO_MANY_OF_LISTENER = "listener_connections"
TOO_FAST = "rate"
NO_DESCRIPTORS = "descriptors"
MORE_DESCRIPTORS = "raise the limit of open files (ulimit -n, LimitNOFILE)"
FEW_DESCRIPTORS = f"too few descriptors are left: {MORE_DESCRIPTORS}"

# Descriptors that connections leave to the log, the stores and the admin address: this number, at most 1/4 of all.
RESERVED = 256
RESERVED_SHARE = 4


def last_descriptor() -> int:
    """Return the first descriptor that no connection may have: those from it on are for the log, the stores and the
    admin address. The system gives out the lowest free number, so a descriptor says how many are in use."""
    descriptors = descriptor_limit()
    return descriptors - min(RESERVED, descriptors // RESERVED_SHARE)


class TokenBucket:
    """At most `rate` a second on average, and as many at once; 0 = no limit."""

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._tokens = rate
        self._updated = now

    def try_take(self, now: float) -> bool:
        if not self._rate:
            return True
        self._tokens = min(self._rate, self._tokens + (now - self._updated) * self._rate)
        self._updated = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class Admission:
    """Counts the connections of all listeners. Each admitted connection is released exactly once."""

    def __init__(
        self,
        limits: LimitSettings,
        listeners: Iterable[ListenerSettings] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._per_listener: Counter[str] = Counter()
        self.connections = 0
        self.refused: Counter[str] = Counter()
        self.configure(limits, listeners)

    def configure(self, limits: LimitSettings, listeners: Iterable[ListenerSettings]) -> None:
        """New limits, for those who come from now on; nobody who is in is put out."""
        self._max_connections = limits.max_connections
        self._max_of_listener = {listener.name: listener.max_connections for listener in listeners}
        self._last_descriptor = last_descriptor()
        self._bucket = TokenBucket(limits.connect_rate, self._clock())

    def try_admit(self, listener_name: str, descriptor: int = 0) -> str | None:
        """None: it is in, and must be released. Otherwise the cause, already counted: close the socket at once."""
        cause = self._refusal(listener_name, descriptor)
        if cause is not None:
            self.refused[cause] += 1
            return cause
        self.connections += 1
        self._per_listener[listener_name] += 1
        return None

    def release(self, listener_name: str) -> None:
        self.connections -= 1
        self._per_listener[listener_name] -= 1

    def count_refused(self, cause: str) -> None:
        """For listeners: a connection that ended before it could ask (a failed handshake, a bad PROXY header)."""
        self.refused[cause] += 1

    def counters(self) -> dict[str, int]:
        """The keys core.metrics knows: connections_refused_<cause>."""
        return {f"connections_refused_{cause}": count for cause, count in self.refused.items()}

    def _refusal(self, listener_name: str, descriptor: int) -> str | None:
        if self.connections >= self._max_connections:
            return TOO_MANY
        if descriptor >= self._last_descriptor:
            return NO_DESCRIPTORS
        of_listener = self._max_of_listener.get(listener_name, 0)
        if of_listener and self._per_listener[listener_name] >= of_listener:
            return TOO_MANY_OF_LISTENER
        # Asked last: who is refused for another reason takes no token from those who could come in.
        if not self._bucket.try_take(self._clock()):
            return TOO_FAST
        return None
