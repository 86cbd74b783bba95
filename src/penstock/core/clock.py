"""The wall clock in the unit of stored times."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Return the milliseconds since 1970."""
    return int(time.time() * 1000)
