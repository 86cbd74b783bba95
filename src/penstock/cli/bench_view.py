"""The live view of a load test: one line that is redrawn on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module

from penstock.bench.result import latency
from penstock.bench.runner import Moment
from penstock.bench.scenarios import SCENARIOS, Request


@contextmanager
def live_view(request: Request, *, quiet: bool) -> Iterator[Callable[[Moment], None]]:
    """Gives what shows a moment. Written to standard error, so that the table can be piped."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    # rich is slow to import and only wanted here.
    live, console, table = import_module("rich.live"), import_module("rich.console"), import_module("rich.table")
    is_traffic = SCENARIOS[request.scenario].is_traffic
    with live.Live(console=console.Console(stderr=True), transient=True, auto_refresh=False) as view:

        def show(moment: Moment) -> None:
            grid = table.Table.grid(padding=(0, 2))
            for name, value in describe(moment, is_traffic=is_traffic):
                grid.add_row(name, value)
            view.update(grid, refresh=True)

        yield show


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
