"""`penstock top` on a terminal, and the same as plain lines."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from penstock.cli.tables import shown

Rows = list[tuple[str, str]]
MOST_ROWS = 8
LATE_SECONDS = 0.1


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


def lists(figures: Mapping[str, Any]) -> dict[str, tuple[list[str], list[list[str]]]]:
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
    text, table = import_module("rich.text").Text, import_module("rich.table").Table
    parts: list[Any] = [text(title(figures, url), style="bold")]
    grid = table.grid(padding=(1, 4, 0, 0))
    cells = [_block(name, rows, figures) for name, rows in blocks(figures).items()]
    for start in range(0, len(cells), 4):
        grid.add_row(*cells[start : start + 4])
    parts.append(grid)
    for name, (headings, entries) in lists(figures).items():
        shown_rows = table(title=name, title_justify="left", title_style="bold cyan", box=None, pad_edge=False)
        for number, heading in enumerate(headings):
            shown_rows.add_column(heading, justify="left" if number == 0 else "right", no_wrap=True)
        for entry in entries[:MOST_ROWS]:
            shown_rows.add_row(*(text(cell) for cell in entry))
        parts += [text(""), shown_rows]
    parts += [text(""), text(problem, style="bold red") if problem else text("q quits", style="dim")]
    return import_module("rich.console").Group(*parts)


def _block(name: str, rows: Rows, figures: Mapping[str, Any]) -> Any:
    text, table = import_module("rich.text").Text, import_module("rich.table").Table
    block = table(
        title=name, title_justify="left", title_style="bold cyan", box=None, pad_edge=False, show_header=False
    )
    block.add_column(no_wrap=True, style="dim")
    block.add_column(justify="right", no_wrap=True)
    is_late = figures["process"]["loop_lag_seconds"] > LATE_SECONDS
    for label, value in rows:
        is_bad = (label == "loop lag" and is_late) or (label in ("congested", "given up") and value != "0")
        block.add_row(text(label), text(value, style="bold red" if is_bad else ""))
    return block
