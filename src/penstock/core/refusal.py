"""Why a part of the broker refuses a request, in words that belong to no protocol.

The core raises `Refused`; each front-end translates the refusal into its own code: MQTT into a reason code, AMQP into a
reply code or an error condition, the data protocol into an error name.
"""

from __future__ import annotations

import enum

from penstock.core.errors import PenstockError


class Refusal(enum.Enum):
    """The kinds of refusal that callers handle differently."""

    NOT_AUTHORISED = enum.auto()
    NOT_FOUND = enum.auto()
    ALREADY_EXISTS = enum.auto()
    IN_USE = enum.auto()  # exclusive, locked, or in a state that does not allow the request
    INVALID_NAME = enum.auto()  # of a topic, a filter, a queue
    INVALID_ARGUMENT = enum.auto()
    NOT_SUPPORTED = enum.auto()
    TOO_LARGE = enum.auto()
    BAD_CREDENTIALS = enum.auto()  # user name, password or another proof is wrong
    BUSY = enum.auto()  # too many are waiting: try again later
    QUOTA_EXCEEDED = enum.auto()
    UNAVAILABLE = enum.auto()  # the log, the store or another node cannot be reached now
    INTERNAL = enum.auto()


class Refused(PenstockError):
    """A request that the core does not grant; `message` is for the client, and may be empty."""

    def __init__(self, refusal: Refusal, message: str = "", hint: str = "") -> None:
        super().__init__(message, hint)
        self.refusal = refusal
