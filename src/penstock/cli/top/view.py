"""`penstock top` on a terminal, and the same as plain lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from penstock.cli.tables import shown

Rows = list[tuple[str, str]]
Lists = dict[str, tuple[list[str], list[list[str]]]]
MOST_ROWS = 8
LATE_SECONDS = 0.1
# On a terminal: blocks beside each other, what is between them, and the width of 722.6 KiB.
MOST_IN_A_ROW, GAP, USUAL_VALUE = 4, 2, 9
MIN_NAME = 8
QUIT = "   q quits"
# Blocks of which many brokers have nothing: then the first figure is one of these.
READERS = ("applications", "queues", "query topics")
UNUSED = ("0", "0 of 0")


def count(number: float) -> str:
    """Up to five characters or so: 999, 12.3k, 4.5M."""
    for limit, divisor, unit in ((10_000, 1, ""), (1_000_000, 1e3, "k"), (1e9, 1e6, "M"), (1e12, 1e9, "G")):
        if number < limit:
            return f"{number:,.0f}" if divisor == 1 else f"{number / divisor:,.1f}{unit}"
    return f"{number / 1e12:,.1f}T"


def size(number: float) -> str:
    for limit, divisor, unit in ((2**20, 2**10, "KiB"), (2**30, 2**20, "MiB")):
        if number < limit:
            return f"{number / divisor:,.1f} {unit}"
    return f"{number / 2**30:,.1f} GiB"


def duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days}d {hours:02}:{minutes:02}:{rest:02}" if days else f"{hours:02}:{minutes:02}:{rest:02}"


def blocks(figures: Mapping[str, Any]) -> dict[str, Rows]:
    """Titles with their rows, as they stand beside each other."""
    clients, messages, waiting = figures["clients"], figures["messages"], figures["waiting"]
    log, process = figures["log"], figures["process"]
    return {
        "clients": [
            ("connections", count(clients["connections"])),
            ("new /s", count(clients["connects_per_second"])),
            ("sessions", count(clients["sessions"])),
            ("subscriptions", count(clients["subscriptions"])),
            ("retained", count(messages["retained"])),
        ],
        "messages": [
            ("in /s", count(messages["received_per_second"])),
            ("out /s", count(messages["sent_per_second"])),
            ("bytes in /s", size(figures["bytes"]["received_per_second"])),
            ("bytes out /s", size(figures["bytes"]["sent_per_second"])),
            ("unmatched /s", count(messages["unmatched_per_second"])),
        ],
        "waiting": [
            ("queued", count(waiting["queued_messages"])),
            ("queued bytes", size(waiting["queued_bytes"])),
            ("in flight", count(waiting["in_flight"])),
            ("congested", count(waiting["congested_subscribers"])),
            ("to store", count(waiting["device_waiting"])),
        ],
        "log": [
            ("records /s", count(log["records_per_second"])),
            ("bytes /s", size(log["bytes_per_second"])),
            ("commit", f"{log['commit_milliseconds']:.1f} ms"),
            ("pending", size(log["pending_bytes"])),
            ("on disk", size(log["bytes"])),
        ],
        **_reader_blocks(figures),
        "process": [
            ("memory", size(process["resident_bytes"])),
            ("CPU", f"{process['cpu_percent']:.0f} %"),
            ("loop lag", f"{1000 * process['loop_lag_seconds']:.1f} ms"),
            ("files", f"{count(process['open_files'])} of {count(process['most_files'])}"),
        ],
    }


def _reader_blocks(figures: Mapping[str, Any]) -> dict[str, Rows]:
    """Those who get messages from the log."""
    apps, queues, queries = figures["applications"], figures["queues"], figures["query_topics"]
    return {
        "applications": [
            ("connected", f"{count(apps['connected'])} of {count(apps['clients'])}"),
            ("lag", count(apps["lag"])),
            ("in flight", count(apps["in_flight"])),
            ("out /s", count(apps["delivered_per_second"])),
            ("given up", count(apps["given_up"])),
        ],
        "queues": [
            ("queues", count(queues["count"])),
            ("consumers", count(queues["consumers"])),
            ("in /s", count(queues["published_per_second"])),
            ("out /s", count(queues["delivered_per_second"])),
            ("pending", count(queues["pending"])),
        ],
        "query topics": [
            ("topics", count(queries["count"])),
            ("consumers", f"{count(queries['consumers'])} in {count(queries['groups'])} groups"),
            ("rows /s", count(queries["rows_per_second"])),
            ("lag", count(queries["lag"])),
            ("largest lag", count(queries["largest_lag"])),
        ],
    }


def lists(figures: Mapping[str, Any]) -> Lists:
    """Titles with headings and rows; those without rows are left out."""
    drops = [
        [f"{what} {shown(cause)}", count(numbers["total"]), count(numbers["per_second"])]
        for what, causes in (("dropped", figures["messages"]["dropped"]), ("refused", figures["clients"]["refused"]))
        for cause, numbers in causes.items()
    ]
    queues = [
        [shown(one["name"]), count(one["depth"]), count(one["pending"]), count(one["consumers"]), count(one["dead"])]
        for one in figures.get("deepest_queues", [])
    ]
    clients = [
        [shown(one["client_id"]), "yes" if one["connected"] else "no", count(one["lag"]), count(one["in_flight"])]
        for one in figures.get("furthest_behind", [])
    ]
    found = {
        "lost": (["cause", "total", "/s"], drops),
        "deepest queues": (["queue", "depth", "pending", "consumers", "dead"], queues),
        "furthest behind": (["application", "connected", "lag", "in flight"], clients),
    }
    return {title: table for title, table in found.items() if table[1]}


def title(figures: Mapping[str, Any], url: str) -> str:
    return f"penstock {figures['version']} at {url}, up {duration(figures['uptime'])}"


def as_text(figures: Mapping[str, Any], url: str) -> str:
    """Plain lines, for who has no terminal."""
    lines = [title(figures, url)]
    for name, rows in blocks(figures).items():
        lines.append(f"{name:<13} " + "  ".join(f"{label} {value}" for label, value in rows))
    for name, (headings, entries) in lists(figures).items():
        lines.append(f"{name}: {', '.join(headings)}")
        lines += [f"  {'  '.join(entry)}" for entry in entries[:MOST_ROWS]]
    return "\n".join(lines)


def as_screen(figures: Mapping[str, Any], url: str, problem: str = "") -> Any:
    """For rich; which is slow to import and only wanted here."""
    return _Screen(figures, url, problem)


class _Screen:
    """What fits on the terminal, as large as it is now: figures are left out or stand lower, but are never cut."""

    def __init__(self, figures: Mapping[str, Any], url: str, problem: str) -> None:
        self._figures = figures
        self._title = title(figures, url)
        self._problem = problem

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        width, height = options.max_width, console.size.height
        text = import_module("rich.text").Text
        head = text(self._title, style="bold", no_wrap=True, overflow="crop")
        if len(self._title) + len(QUIT) <= width:
            head.append(QUIT, style="not bold dim")
        yield head
        if self._problem:
            yield text(self._problem, style="bold red", no_wrap=True, overflow="ellipsis")
        left = height - 1 - bool(self._problem)
        shown_lists = lists(self._figures)
        named, per_row, is_loose = self._arrange(width, left, shown_lists)
        yield self._grid(named, per_row, width, is_loose=is_loose)
        left -= _lines_of(named, per_row, is_loose=is_loose)
        for name, (headings, entries) in shown_lists.items():
            rows = min(len(entries), MOST_ROWS, left - 1 - is_loose)
            if rows <= 0:
                break
            if is_loose:
                yield text("")
            yield _list([name, *headings[1:]], entries[:rows], width)
            left -= rows + 1 + is_loose

    def _arrange(self, width: int, height: int, shown_lists: Lists) -> tuple[dict[str, Rows], int, bool]:
        """The blocks, how many of them in a row, and whether there is room for empty lines."""
        all_blocks = blocks(self._figures)
        per_row = _blocks_per_row(all_blocks, width)
        wanted = sum(2 + min(len(entries), MOST_ROWS) for _, entries in shown_lists.values())
        if _lines_of(all_blocks, per_row, is_loose=True) + wanted <= height:
            return all_blocks, per_row, True
        # What is lost is more than that nobody uses queues.
        lost = 1 + min(len(shown_lists["lost"][1]), MOST_ROWS) if "lost" in shown_lists else 0
        if _lines_of(all_blocks, per_row, is_loose=False) + lost <= height:
            return all_blocks, per_row, False
        used = {name: rows for name, rows in all_blocks.items() if name not in READERS or rows[0][1] not in UNUSED}
        return used, _blocks_per_row(used, width), False

    def _grid(self, named: Mapping[str, Rows], per_row: int, width: int, *, is_loose: bool) -> Any:
        grid = import_module("rich.table").Table.grid(padding=(0, GAP, 0, 0), pad_edge=False)
        cells = [_block(name, rows, self._figures, width - GAP) for name, rows in named.items()]
        for start in range(0, len(cells), per_row):
            if is_loose:
                grid.add_row()
            grid.add_row(*cells[start : start + per_row])
        return grid


def _width_of(name: str, rows: Rows) -> int:
    """At least that of usual figures, so that blocks do not change places with every digit."""
    labels, values = max(len(label) for label, _ in rows), max(len(value) for _, value in rows)
    return max(len(name), labels + 2 + max(values, USUAL_VALUE))


def _blocks_per_row(named: Mapping[str, Rows], width: int) -> int:
    widths = [_width_of(name, rows) for name, rows in named.items()]
    for number in range(MOST_IN_A_ROW, 1, -1):
        columns = [max(widths[start::number], default=0) for start in range(number)]
        if sum(columns) + GAP * (number - 1) <= width:
            return number
    return 1


def _lines_of(named: Mapping[str, Rows], per_row: int, *, is_loose: bool) -> int:
    heights = [1 + len(rows) for rows in named.values()]
    starts = range(0, len(heights), per_row)
    return sum(max(heights[start : start + per_row]) for start in starts) + is_loose * len(starts)


def _list(headings: list[str], entries: list[list[str]], width: int) -> Any:
    """Names give way to numbers where there is no room for both."""
    text, table = import_module("rich.text").Text, import_module("rich.table").Table
    shown_rows = table(box=None, pad_edge=False, header_style="dim")
    numbers = [max(len(cell) for cell in column) for column in zip(headings, *entries, strict=True)][1:]
    longest_name = max(MIN_NAME, width - sum(numbers) - 2 * len(numbers))
    shown_rows.add_column(text(headings[0], style="bold cyan"), no_wrap=True, max_width=longest_name)
    for heading, needed in zip(headings[1:], numbers, strict=True):
        shown_rows.add_column(heading, justify="right", no_wrap=True, min_width=needed)
    for entry in entries:
        shown_rows.add_row(*(text(cell) for cell in entry))
    return shown_rows


def _block(name: str, rows: Rows, figures: Mapping[str, Any], width: int) -> Any:
    text, table = import_module("rich.text").Text, import_module("rich.table").Table
    block = table(
        title=name, title_justify="left", title_style="bold cyan", box=None, pad_edge=False, show_header=False
    )
    labels, values = max(len(label) for label, _ in rows), max(len(value) for _, value in rows)
    if labels + 1 + max(values, USUAL_VALUE) > width:  # labels give way to figures
        labels = max(1, min(labels, width - 1 - values))
    else:
        values = max(values, USUAL_VALUE)
    block.add_column(no_wrap=True, style="dim", min_width=labels, max_width=labels)
    block.add_column(justify="right", no_wrap=True, min_width=values)
    is_late = figures["process"]["loop_lag_seconds"] > LATE_SECONDS
    for label, value in rows:
        is_bad = (label == "loop lag" and is_late) or (label in ("congested", "given up") and value != "0")
        block.add_row(text(label), text(value, style="bold red" if is_bad else ""))
    return block
