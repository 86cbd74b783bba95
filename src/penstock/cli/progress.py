"""A bar on standard error for what takes longer than two seconds, when a person is there to see it."""

from __future__ import annotations

import sys
import time
from importlib import import_module
from types import TracebackType
from typing import Any, Self

PATIENCE_SECONDS = 2.0
LOOK_EVERY = 256


class Progress:
    """`advance` costs next to nothing until the time is over; without a terminal nothing is ever shown."""

    def __init__(self, doing: str, total: int | None = None, unit: str = "records") -> None:
        self._doing = doing
        self._total = total
        self._unit = unit
        self._started = time.monotonic()
        self._done = 0
        self._bar: Any = None
        self._task: Any = None
        self._is_wanted = sys.stderr.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def advance(self, count: int = 1) -> None:
        before, self._done = self._done, self._done + count
        if self._is_wanted and before // LOOK_EVERY != self._done // LOOK_EVERY:
            self.look()

    def step(self) -> None:
        """Advance by one that may have taken long."""
        self.advance()
        self.look()

    def look(self) -> None:
        """Starts the bar when the time for it has come, and moves it."""
        if self._bar is None and self._is_wanted and time.monotonic() - self._started >= PATIENCE_SECONDS:
            self._start()
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done)

    def _start(self) -> None:
        # rich is slow to import and only wanted here.
        parts, console = import_module("rich.progress"), import_module("rich.console")
        columns = [parts.TextColumn("{task.description}")]
        if self._total is not None:
            columns += [parts.BarColumn(), parts.TaskProgressColumn(), parts.TimeRemainingColumn()]
        else:
            columns += [parts.SpinnerColumn(), parts.TimeElapsedColumn()]
        columns.append(parts.TextColumn(f"{{task.completed:,}} {self._unit}"))
        # What is printed meanwhile goes above the bar (rich takes sys.stdout over while both are the same terminal).
        self._bar = parts.Progress(
            *columns,
            console=console.Console(stderr=True),
            transient=True,
            redirect_stdout=sys.stdout.isatty(),
            refresh_per_second=5,
        )
        self._bar.start()
        self._task = self._bar.add_task(self._doing, total=self._total)
