"""Limits of request/response; those of each use are in services/channels.py."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.services.channels import RequestLimits

MIB = 1_048_576


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """Of the side that asks."""

    max_pending_requests: int = 10_000
    max_request_timeout: float = 60.0
    """Seconds a call waits unless it says otherwise."""
    max_message_bytes: int = MIB
    poll_seconds: float = 1.0
    """The longest wait of one poll. Answers wake it at once; only a provider without long poll needs it short."""
    poll_records: int = 5_000
    retry_seconds: float = 0.5
    """Pause before the log is asked again after it failed."""
    commit_seconds: float = 1.0
    """How often the position is committed. It is for monitoring: a new start does not want the old answers."""

    @classmethod
    def of(cls, limits: RequestLimits) -> RequestSettings:
        return cls(max_pending_requests=limits.max_pending, max_request_timeout=limits.timeout)


@dataclass(frozen=True, slots=True)
class ResponderSettings:
    """Of the side that answers."""

    max_pending_requests: int = 10_000
    """Handled, or answered and not yet durable, at the same time."""
    handler_timeout: float = 60.0
    max_message_bytes: int = MIB
    poll_seconds: float = 1.0
    poll_records: int = 5_000
    retry_seconds: float = 0.5
    commit_seconds: float = 0.1
    """Commits come no faster than this; what is committed was answered before."""

    @classmethod
    def of(cls, limits: RequestLimits) -> ResponderSettings:
        return cls(max_pending_requests=limits.max_pending)
