"""Reports of refusals: denied topics, failed logins, failed TLS handshakes.

Each report is a warning in the log and an event. Both are limited: a client, or an address, is reported once per action
and interval, and all together at a bounded rate. A report says how many were held back before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from penstock.core.logging import RateLimited, get_logger

log = get_logger("penstock.access")

INTERVAL_SECONDS = 10.0
REPORTS_PER_SECOND = 20
MOST_TOPIC = 256


class Record(Protocol):
    """Record a report as an event."""

    def __call__(
        self, client_id: str, *, username: str | None, address: str, topic: str, cause: str, reason: int, count: int
    ) -> None: ...


class Refusals:
    """`denied` and `refused` record the two kinds of reports as events."""

    def __init__(self, denied: Record, refused: Record, clock: Callable[[], float] = time.monotonic) -> None:
        self._denied = denied
        self._refused = refused
        self._clock = clock
        self._limited = RateLimited(INTERVAL_SECONDS, clock=clock)
        self._second = 0
        self._reports = 0
        self.held_back = 0

    def denied(
        self,
        action: str,
        topic: bytes,
        rule: Callable[[], str],
        *,
        client_id: str,
        username: str | None,
        address: str | None,
        held: int = 0,
    ) -> None:
        """Report a publish, subscription or data request that is not allowed; `held` is the number of earlier ones that
        were not reported."""
        # Consumers at the data listener need no client id.
        suppressed = self.try_pass(("denied", client_id or f"user {username}", action), held)
        if suppressed is None:
            return
        shown = topic.decode(errors="replace")[:MOST_TOPIC]
        because = rule()
        log.warning(
            "access denied",
            action=action,
            topic=shown,
            rule=because,
            client_id=client_id,
            username=username,
            peer=address,
            suppressed=suppressed,
        )
        self._denied(
            client_id,
            username=username,
            address=address or "",
            topic=shown,
            cause=f"{action}: {because}",
            reason=0x87,
            count=1 + suppressed,
        )

    def refused(
        self,
        cause: str,
        *,
        client_id: str | None = None,
        username: str | None = None,
        address: str | None = None,
        reason: int = 0,
        listener: str | None = None,
    ) -> None:
        """Report a refused client, or a connection that failed before CONNECT."""
        # An attacker changes the client id and the port with each attempt, but not the address.
        host = (address or "").rpartition(":")[0]
        suppressed = self.try_pass(("refused", host or client_id, cause))
        if suppressed is None:
            return
        log.warning(
            "connection refused" if client_id is None else "client refused",
            client_id=client_id,
            username=username,
            peer=address,
            listener=listener,
            reason=cause,
            suppressed=suppressed,
        )
        self._refused(
            client_id or "",
            username=username,
            address=address or "",
            topic="",
            cause=cause,
            reason=reason,
            count=1 + suppressed,
        )

    def try_pass(self, key: tuple[str, str | None, str], held: int = 0) -> int | None:
        """Return how many reports of the key were held back before this one, with `held` others; None if this one is
        held back as well."""
        now = int(self._clock())
        if now != self._second:
            self._second, self._reports = now, 0
        if self._reports >= REPORTS_PER_SECOND:
            self._limited.hold_back(key, 1 + held)
            self.held_back += 1 + held
            return None
        suppressed = self._limited.try_pass(key)
        if suppressed is None:
            self._limited.hold_back(key, held)
            self.held_back += 1 + held
            return None
        self._reports += 1
        return suppressed + held
