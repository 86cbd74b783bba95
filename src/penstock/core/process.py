"""Memory and limits of this process."""

from __future__ import annotations

import resource
import sys
from pathlib import Path


def resident_bytes() -> int | None:
    """Return the memory of the process that is in RAM; None where there is no /proc."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    except OSError:
        return None


def descriptor_limit() -> int:
    """Return the soft limit; a very large number if there is none."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit
