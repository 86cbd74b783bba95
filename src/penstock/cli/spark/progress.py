"""How far a job of Spark is: a bar at a terminal, else a line every few seconds; on standard error, or not at all."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from types import TracebackType
from typing import Any, Self

PATIENCE_SECONDS = 2.0
BAR_SECONDS = 0.25
LINE_SECONDS = 5.0


@dataclass(frozen=True)
class Told:
    """What a job says itself: how many of what, and of how many (0 = nobody knows)."""

    what: str
    count: int
    total: int


def describe(doing: Any, told: Told | None) -> str:
    """The words for it; `doing` is a penstock_spark.watch.Doing, or None while Spark does nothing."""
    if told is not None and told.total:
        return f"{told.count:,} of {told.total:,} {told.what}"
    words = []
    if doing is not None:
        if doing.what:
            words.append(doing.what)
        words.append(f"{doing.tasks_done:,} of {doing.tasks:,} tasks")
        if doing.rows:
            words.append(f"{doing.rows:,} rows read")
    if told is not None:
        words.append(f"{told.count:,} {told.what} done")
    return ", ".join(words) or "preparing"


class SparkProgress:
    """Asks Spark now and then what it does, from a thread of its own: the job itself just waits."""

    def __init__(self, name: str, *, is_quiet: bool = False) -> None:
        self._name = name
        self._is_quiet = is_quiet
        self._is_terminal = sys.stderr.isatty()
        self._started = time.monotonic()
        self._look: Callable[[], Any] | None = None
        self._told: Told | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._show, name="progress", daemon=True)
        self._bar: Any = None

    def watch(self, look: Callable[[], Any]) -> None:
        """Spark has started: from now on it can be asked."""
        self._look = look

    def tell(self, what: str, count: int, total: int) -> None:
        """For the job, as often as it likes."""
        self._told = Told(what, count, total)

    def __enter__(self) -> Self:
        if not self._is_quiet:
            self._thread.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join(5)
        if self._bar is not None:
            self._bar.stop()

    def _show(self) -> None:
        pause = BAR_SECONDS if self._is_terminal else LINE_SECONDS
        last: Any = None
        wait = PATIENCE_SECONDS if self._is_terminal else LINE_SECONDS
        while not self._is_over.wait(wait):
            wait = pause
            doing = None
            if self._look is not None:
                # Spark may be about to end, or fail: who waits for the job will be told
                with suppress(Exception):
                    doing = self._look()
            if self._is_over.is_set():
                return
            # between two stages the words of the last one stay
            doing = last = doing if doing is not None else last
            text = describe(doing, self._told) if self._look is not None else "starting Spark"
            if self._is_terminal:
                self._draw(doing, text)
            else:
                self._say(text)

    def _say(self, text: str) -> None:
        seconds = time.monotonic() - self._started
        print(f"{self._name}: {seconds:.0f} s, {text}", file=sys.stderr, flush=True)

    def _draw(self, doing: Any, text: str) -> None:
        if self._bar is None:
            self._bar = _make_bar()
            self._bar.start()
            self._task = self._bar.add_task(self._name, total=None, text=text)
        told = self._told
        if told is not None and told.total:
            done, total = told.count, told.total
        elif doing is not None:
            done, total = doing.tasks_done, doing.tasks
        else:
            done, total = 0, None
        self._bar.update(self._task, completed=done, total=total, text=text)


def _make_bar() -> Any:
    # rich is slow to import and only wanted here
    parts, console = import_module("rich.progress"), import_module("rich.console")
    return parts.Progress(
        parts.TextColumn("{task.description}"),
        parts.BarColumn(bar_width=20),
        parts.TimeElapsedColumn(),
        parts.TextColumn("{task.fields[text]}"),
        console=console.Console(stderr=True),
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
        redirect_stderr=True,
        refresh_per_second=5,
    )
