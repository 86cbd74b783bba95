"""A report to look at: one HTML file with charts as SVG, without a library and without a network."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from penstock_spark.hadoop import Files

NAME = "report.html"
MOMENT = "%Y-%m-%d %H:%M:%S"
WIDTH, HEIGHT = 760, 260
LEFT, RIGHT, TOP, BOTTOM = 70, 16, 16, 46
COLOURS = ("#2563a8", "#d9822b", "#3c9d5f", "#b3408f", "#7a6ff0", "#8a8f98")
MOST_POINTS = 400
MOST_LABELS = 8
LONGEST_NAME = 32
ROW = 20
DAY = 86_400
TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, DAY, 2 * DAY, 7 * DAY)

STYLE = """body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:52rem;padding:0 1rem;color:#1c2733}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse}
td,th{padding:.2rem .8rem .2rem 0;text-align:left}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
svg{max-width:100%;height:auto}@media(prefers-color-scheme:dark){body{background:#14181d;color:#dde4ea}}"""


def short_number(value: float) -> str:
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{suffix}"
    return f"{value:.3g}"


def utc(at: datetime) -> datetime:
    """Spark hands a time out as that of this machine's zone, without saying so."""
    return at.astimezone(UTC)


def with_zeros(
    points: Sequence[tuple[datetime, float]], first: datetime, last: datetime, step: timedelta
) -> list[tuple[datetime, float]]:
    """Nothing at all in a window is a count too: the line goes down where windows are missing, and up again behind
    them. From the first to the last window, with as many points as it takes to draw that."""
    found: list[tuple[datetime, float]] = []
    before = first - step
    for at, value in [*points, (last + step, 0.0)]:
        if at - before > step * 1.5:
            found += [(before + step, 0.0), (at - step, 0.0)] if at - before > step * 2.5 else [(at - step, 0.0)]
        found.append((at, value))
        before = at
    return found[:-1]


def duration(seconds: float) -> str:
    """`3 min`, `15 h`, `2.5 d`"""
    for limit, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if abs(seconds) >= limit:
            return f"{seconds / limit:.3g} {unit}"
    return f"{seconds:.3g} s"


@dataclass(frozen=True)
class Chart:
    """`rows`: names with a bar each, the longest first or in their own order; `columns`: bars side by side, in time;
    `lines`: named series of values over time."""

    title: str
    kind: Literal["rows", "columns", "lines"]
    points: Sequence[tuple[str, float]] = ()
    series: Mapping[str, Sequence[tuple[datetime, float]]] = field(default_factory=dict)
    show: Callable[[float], str] = short_number


@dataclass(frozen=True)
class Rows:
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


def _ticks(top: float) -> list[float]:
    step = 10 ** len(str(int(max(top, 1)))) / 10
    for factor in (0.1, 0.2, 0.5, 1, 2, 5):
        if top / (step * factor) <= 5:
            step *= factor
            break
    return [step * number for number in range(int(top / step) + 2)]


def draw(chart: Chart) -> str:
    """The chart as SVG."""
    if not chart.points and not any(chart.series.values()):
        return "<p>Nothing yet.</p>"
    if chart.kind == "rows":
        return _draw_rows(chart)
    values = [value for _, value in chart.points] + [value for one in chart.series.values() for _, value in one]
    ticks = _ticks(max(values))
    parts = [_open(chart.title, HEIGHT)]
    for tick in ticks:
        y = _y(tick, ticks)
        parts.append(f'<path d="M{LEFT} {y:.1f}h{WIDTH - LEFT - RIGHT}" stroke="#8884" fill="none"/>')
        parts.append(_text(LEFT - 6, y + 4, chart.show(tick), "end"))
    parts += _columns(chart, ticks) if chart.kind == "columns" else _lines(chart, ticks)
    return "".join([*parts, "</svg>"])


def _open(title: str, height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" font-size="11" '
        f'font-family="system-ui,sans-serif"><title>{html.escape(title)}</title>'
    )


def _text(x: float, y: float, text: str, anchor: str = "middle", colour: str = "#888") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{html.escape(text)}</text>'


def _y(value: float, ticks: Sequence[float]) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / (ticks[-1] or 1.0))


def _draw_rows(chart: Chart) -> str:
    """All names are to be read, so the chart is as high as it has to be."""
    names = [name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…" for name, _ in chart.points]
    left = 16 + 6.6 * max(map(len, names))
    width = WIDTH - left - 80
    highest = max(value for _, value in chart.points) or 1.0
    parts = [_open(chart.title, len(names) * ROW + 8)]
    for number, (name, (_, value)) in enumerate(zip(names, chart.points, strict=True)):
        y = 4 + number * ROW
        size = max(1.0, width * value / highest)
        parts.append(_text(left - 8, y + 14, name, "end"))
        parts.append(f'<rect x="{left:.1f}" y="{y + 3}" width="{size:.1f}" height="{ROW - 6}" fill="{COLOURS[0]}"/>')
        parts.append(_text(left + size + 6, y + 14, chart.show(value), "start"))
    return "".join([*parts, "</svg>"])


def _columns(chart: Chart, ticks: Sequence[float]) -> list[str]:
    points = chart.points[-MOST_POINTS:]
    step = (WIDTH - LEFT - RIGHT) / len(points)
    size = max(1.0, min(48.0, step * 0.8))
    parts = []
    every = -(-len(points) // MOST_LABELS)
    for number, (label, value) in enumerate(points):
        x, y = LEFT + step * (number + 0.5), _y(value, ticks)
        parts.append(
            f'<rect x="{x - size / 2:.1f}" y="{y:.1f}" width="{size:.1f}" height="{HEIGHT - BOTTOM - y:.1f}" '
            f'fill="{COLOURS[0]}"><title>{html.escape(label)}: {chart.show(value)}</title></rect>'
        )
        if number % every == 0:
            parts.append(_text(x, HEIGHT - 26, label))
    return parts


def _lines(chart: Chart, ticks: Sequence[float]) -> list[str]:
    times = [at for one in chart.series.values() for at, _ in one]
    first, last = min(times), max(times)
    seconds = (last - first).total_seconds()
    width = WIDTH - LEFT - RIGHT

    def x(at: datetime) -> float:
        # a single moment is in the middle
        return LEFT + width * ((at - first).total_seconds() / seconds if seconds else 0.5)

    parts = []
    for number, (name, points) in enumerate(chart.series.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x(at):.1f},{_y(value, ticks):.1f}" for at, value in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        if len(points) == 1:
            at, value = points[0]
            parts.append(f'<circle cx="{x(at):.1f}" cy="{_y(value, ticks):.1f}" r="2.5" fill="{colour}"/>')
        parts.append(_text(LEFT + 4 + 136 * number, HEIGHT - 6, f"■ {name[:20]}", "start", colour))
    return [*parts, *(_text(x(at), HEIGHT - 26, label) for at, label in time_marks(first, last))]


def time_marks(first: datetime, last: datetime) -> list[tuple[datetime, str]]:
    """A few round times between the two, and how they are written."""
    span = (last - first).total_seconds()
    step = next((one for one in TIME_STEPS if span / one <= MOST_LABELS - 1), TIME_STEPS[-1])
    while span / step > MOST_LABELS - 1:
        step *= 2
    midnight = first.replace(hour=0, minute=0, second=0, microsecond=0)
    number = -(-int((first - midnight).total_seconds() * 1000) // (step * 1000))
    marks = []
    while (at := midnight + timedelta(seconds=step * number)) <= last:
        marks.append(at)
        number += 1
    if len(marks) < 2:
        marks = sorted({first, last})
    form = "%H:%M:%S" if step < 60 else "%H:%M" if span <= DAY else "%d %b %H:%M" if step < DAY else "%d %b"
    return [(at, f"{at:{'%b %Y' if span > 300 * DAY else form}}") for at in marks]


def _table(rows: Rows) -> str:
    numbers = [any(_is_number(row[place]) for row in rows.rows) for place in range(len(rows.columns))]
    names = zip(rows.columns, numbers, strict=True)
    head = "".join(f"<th{' class=n' if is_number else ''}>{html.escape(name)}</th>" for name, is_number in names)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows.rows)
    return (
        f"<h2>{html.escape(rows.title)}</h2><table>{f'<tr>{head}</tr>' if any(rows.columns) else ''}{body}</table>"
        if rows.rows
        else f"<h2>{html.escape(rows.title)}</h2><p>None.</p>"
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: Any) -> str:
    if not _is_number(value):
        return f"<td>{html.escape('' if value is None else str(value))}</td>"
    return f'<td class="n">{value:,.2f}</td>' if isinstance(value, float) else f'<td class="n">{value:,}</td>'


def build_report(title: str, facts: Mapping[str, Any], charts: Sequence[Chart], tables: Sequence[Rows] = ()) -> str:
    facts_table = _table(Rows("In short", ("", ""), list(facts.items())))
    drawn = "".join(f"<h2>{html.escape(chart.title)}</h2>{draw(chart)}" for chart in charts)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{html.escape(title)}</title>'
        f"<style>{STYLE}</style><h1>{html.escape(title)}</h1>{facts_table}{drawn}{''.join(map(_table, tables))}"
        "<p><small>All times are UTC.</small></p></html>"
    )


def write_report(
    files: Files, title: str, facts: Mapping[str, Any], charts: Sequence[Chart], tables: Sequence[Rows] = ()
) -> str:
    """Where it is."""
    files.write_text(NAME, build_report(title, facts, charts, tables))
    return files.path(NAME)
