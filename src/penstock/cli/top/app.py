"""`penstock top`: a running broker at a glance, again every second."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Annotated, Any

import typer

from penstock.cli.admin_options import Broker, with_broker
from penstock.cli.app import make_app
from penstock.cli.cleaning_up import cleaning_up
from penstock.cli.tables import print_json
from penstock.cli.top.figures import Figures, Reading
from penstock.cli.top.view import MOST_ROWS, as_screen, as_text
from penstock.core.errors import PenstockError

app = make_app()

# Lists of queues and clients cost the broker more than counters do, so they are asked for less often.
LIST_SECONDS = 5.0
LOOK_SECONDS = 10.0  # a person waits
LONGEST_INTERVAL = 86_400.0
ENDS = b"qQ\x03\x04"
ESCAPE = b"\x1b"
# Of TERM: those that cannot move the cursor; rich would show nothing at all.
WITHOUT_SCREEN = ("dumb", "unknown")


@app.command()
@with_broker
def top(
    *,
    interval: Annotated[
        float, typer.Option("-d", "--interval", min=0.1, max=LONGEST_INTERVAL, help="Seconds between updates.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print once after one interval, and exit.")] = False,
    broker: Broker,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; without --once one object per line.")] = False,
) -> None:
    """Watch a running broker: clients, rates, what waits and what is lost. q ends it.

    Without a terminal, or on one with TERM=dumb, it prints once, as with --once.
    """
    watcher = Watcher(broker)
    watcher.look()
    try:
        if as_json and not once:
            while True:
                time.sleep(interval)
                print(json.dumps(watcher.look()), flush=True)
        elif once or not sys.stdout.isatty() or os.environ.get("TERM", "").lower() in WITHOUT_SCREEN:
            time.sleep(interval)
            figures = watcher.look()
            print_json(figures) if as_json else print(as_text(figures, watcher.url))
        else:
            _show(watcher, interval)
    except (KeyboardInterrupt, BrokenPipeError):
        sys.stdout = None  # nothing is left to be flushed at the exit


class Watcher:
    """Asks a broker; raises PenstockError."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._admin = broker()
        self._last: Reading | None = None
        self._lists: dict[str, Any] = {}
        self._listed_at = float("-inf")

    @property
    def url(self) -> str:
        return self._admin.url

    def find_again(self) -> None:
        """Every start of a broker has a new token, and perhaps another address."""
        with contextlib.suppress(PenstockError):  # not yet
            self._admin = self._broker()

    def look(self) -> dict[str, Any]:
        """The figures since the last look; the first time, since the broker's start."""
        reading = Reading(self._admin.get("/overview", LOOK_SECONDS))
        figures = Figures(reading, self._last).describe()
        self._last = reading
        if time.monotonic() - self._listed_at >= LIST_SECONDS:
            self._listed_at = time.monotonic()
            self._lists = {
                "deepest_queues": self._deepest_queues(figures["queues"]["count"]),
                "furthest_behind": self._furthest_behind(figures["applications"]["clients"]),
            }
        return figures | self._lists

    def _deepest_queues(self, there_are: int) -> list[dict[str, Any]]:
        if not there_are:
            return []
        queues: list[dict[str, Any]] = self._admin.get(f"/queues?order=depth&limit={MOST_ROWS}")["queues"]
        return [queue for queue in queues if queue["depth"] or queue["pending"] or queue["dead"]]

    def _furthest_behind(self, there_are: int) -> list[dict[str, Any]]:
        if not there_are:
            return []
        clients: list[dict[str, Any]] = self._admin.get("/applications")
        return sorted(clients, key=lambda client: (-client["lag"], client["client_id"]))[:MOST_ROWS]


def _show(watcher: Watcher, interval: float) -> None:
    # rich is slow to import and only wanted here.
    live = import_module("rich.live").Live(screen=True, auto_refresh=False, transient=True)
    figures: dict[str, Any] = watcher.look()
    problem = ""
    with cleaning_up(), _keys() as wait_for_key, live:
        while True:
            live.update(as_screen(figures, watcher.url, problem), refresh=True)
            if _ends(wait_for_key(interval)):
                return
            try:
                figures, problem = watcher.look(), ""
            except PenstockError as error:
                problem = error.message  # it may come back: the last figures stay
                watcher.find_again()


def _ends(keys: bytes | None) -> bool:
    """Escape ends it, arrows and other keys that begin with it do not."""
    return keys is not None and (keys in (b"", ESCAPE) or any(key in ENDS for key in keys))


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], bytes | None]]:
    """Waits so long for keys, which are not shown; none without a keyboard, nothing when it is gone."""
    if not sys.stdin.isatty():

        def sleep(seconds: float) -> None:
            time.sleep(seconds)

        yield sleep
        return
    termios, tty = import_module("termios"), import_module("tty")
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def wait(seconds: float) -> bytes | None:
        ready, _, _ = select.select([descriptor], [], [], seconds)
        # Not through sys.stdin: select does not see what that has read ahead.
        return os.read(descriptor, 1_024) if ready else None

    try:
        tty.setcbreak(descriptor)
        yield wait
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
