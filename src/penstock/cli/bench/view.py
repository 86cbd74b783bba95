"""The live view of a load test: redrawn on a terminal, elsewhere a line every few seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module

from penstock_bench.runner import Moment
from penstock_bench.scenarios import SCENARIOS, Request
from penstock_bench.units import latency

REDRAWN_EVERY = 0.2
LINE_EVERY = 5.0


@contextmanager
def live_view(request: Request, *, quiet: bool) -> Iterator[Callable[[Moment], None]]:
    """Gives what shows a moment. Written to standard error, so that the table can be piped."""
    is_traffic = SCENARIOS[request.scenario].is_traffic
    if quiet:
        yield lambda _: None
        return
    if not sys.stderr.isatty():
        yield every_so_often(LINE_EVERY, lambda moment: print(line_of(moment, is_traffic=is_traffic), file=sys.stderr))
        return
    # rich is slow to import and only wanted here.
    live, console, table = import_module("rich.live"), import_module("rich.console"), import_module("rich.table")
    with live.Live(console=console.Console(stderr=True), transient=True, auto_refresh=False) as view:

        def show(moment: Moment) -> None:
            grid = table.Table.grid(padding=(0, 2))
            for name, value in describe(moment, is_traffic=is_traffic):
                grid.add_row(name, value)
            view.update(grid, refresh=True)

        yield every_so_often(REDRAWN_EVERY, show, is_first_shown=True)


def every_so_often(
    seconds: float, show: Callable[[Moment], None], *, is_first_shown: bool = False
) -> Callable[[Moment], None]:
    """Passes on those moments that come so long after the last one."""
    last = 0.0 if is_first_shown else time.monotonic()

    def pass_on(moment: Moment) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= seconds:
            last = now
            show(moment)

    return pass_on


def line_of(moment: Moment, *, is_traffic: bool) -> str:
    """A moment in one line, for a log."""
    (stage, progress), *others = describe(moment, is_traffic=is_traffic)
    return "; ".join([f"{stage}: {progress}", *(f"{name} {value}" for name, value in others)])


def describe(moment: Moment, *, is_traffic: bool) -> list[tuple[str, str]]:
    """What is shown of a moment."""
    rows = [(moment.stage, f"{moment.phase}, {moment.at:.1f} s, {moment.ready:,} connections")]
    if is_traffic:
        rows.append(("messages/s", f"published {moment.published:,.0f}, received {moment.received:,.0f}"))
    else:
        rows.append(("connects/s", f"{moment.connects:,.0f}"))
    if moment.count:
        values = [latency(value) for value in (moment.p50_us, moment.p90_us, moment.p99_us)]
        rows.append(("latency", f"p50 {values[0]}, p90 {values[1]}, p99 {values[2]}"))
    if moment.broker_cores is not None:
        rows.append(("broker", f"{moment.broker_cores:.2f} cores, {moment.rss_mb or 0:,.1f} MiB"))
    rows.append(("load generator", f"{moment.load_cores:.2f} cores"))
    return rows
