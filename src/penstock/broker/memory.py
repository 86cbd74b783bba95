"""Returns freed memory to the system: the allocator keeps free memory between blocks that are in use."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor

WORTH_IT = 32 * 1024 * 1024
MOST_OFTEN = 30.0  # seconds between two times


def find_trim() -> Callable[[int], int] | None:
    """Return glibc's malloc_trim. Other C libraries return memory by themselves, or not at all."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return None
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return trim  # type: ignore[no-any-return]  # ctypes has no types for it


class MemoryKeeper:
    """Watches how much memory clients use, and returns memory to the system when they have freed much of it."""

    def __init__(
        self,
        read_held: Callable[[], int],
        *,
        trim: Callable[[int], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read_held = read_held
        self._trim = trim or find_trim()
        self._clock = clock
        self._most = 0
        self._trimmed_at = -MOST_OFTEN
        self._executor: Executor | None = None
        self.trims = 0

    def look(self) -> None:
        """Trim if it is worth it; called at regular intervals. Trimming takes a while, so it runs in a thread, and
        ctypes releases the interpreter's lock."""
        held = self._read_held()
        self._most = max(self._most, held)
        now = self._clock()
        if self._trim is None or self._most - held < WORTH_IT or now - self._trimmed_at < MOST_OFTEN:
            return
        self._most, self._trimmed_at = held, now
        self.trims += 1
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "penstock-memory")
        self._executor.submit(self._trim, 0)
