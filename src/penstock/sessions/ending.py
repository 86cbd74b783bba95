"""Why the broker ends a connection, in words that belong to no protocol; each front-end has its own code for them."""

from __future__ import annotations

import enum
from collections.abc import Callable

from penstock._ext.hub.connection import Connection


class Ending(enum.Enum):
    TAKEN_OVER = enum.auto()  # the same client id has connected again, here or at another node
    BY_OPERATOR = enum.auto()


Disconnect = Callable[[Connection, Ending, str], None]
"""Ends a connection; the text is for the log."""
