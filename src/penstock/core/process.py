"""What the system says of this process."""

from __future__ import annotations

import resource
from pathlib import Path


def resident_bytes() -> int | None:
    """Memory of the process that is in RAM; None where there is no /proc."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    except OSError:
        return None
