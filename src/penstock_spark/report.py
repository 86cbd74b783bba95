"""A report to look at: one HTML file with charts as SVG, without a library and without a network."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from penstock_spark.hadoop import Files

NAME = "report.html"
WIDTH, HEIGHT = 760, 260
LEFT, RIGHT, TOP, BOTTOM = 70, 16, 16, 46
COLOURS = ("#2563a8", "#d9822b", "#3c9d5f", "#b3408f", "#7a6ff0", "#8a8f98")
MOST_POINTS = 400

STYLE = """body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:52rem;padding:0 1rem;color:#1c2733}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse}
td,th{padding:.2rem .8rem .2rem 0;text-align:left}td.n{text-align:right;font-variant-numeric:tabular-nums}
svg{max-width:100%;height:auto}@media(prefers-color-scheme:dark){body{background:#14181d;color:#dde4ea}}"""


@dataclass(frozen=True)
class Chart:
    """Bars of (label, value), or lines: several named series of (label, value)."""

    title: str
    kind: Literal["bar", "line"]
    points: Sequence[tuple[str, float]] = ()
    series: Mapping[str, Sequence[tuple[str, float]]] = field(default_factory=dict)
    unit: str = ""


@dataclass(frozen=True)
class Rows:
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


def short_number(value: float) -> str:
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{suffix}"
    return f"{value:.3g}"


def _ticks(top: float) -> list[float]:
    step = 10 ** len(str(int(max(top, 1)))) / 10
    for factor in (0.1, 0.2, 0.5, 1, 2, 5):
        if top / (step * factor) <= 5:
            step *= factor
            break
    return [step * number for number in range(int(top / step) + 2)]


def draw(chart: Chart) -> str:
    """The chart as SVG."""
    series = dict(chart.series) or {"": chart.points}
    labels = list(dict.fromkeys(label for points in series.values() for label, _ in points))
    labels = labels[-MOST_POINTS:]
    if not labels:
        return "<p>Nothing yet.</p>"
    highest = max((value for points in series.values() for _, value in points), default=0.0)
    ticks = _ticks(highest)
    top = ticks[-1] or 1.0
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-size="11" '
        f'font-family="system-ui,sans-serif"><title>{html.escape(chart.title)}</title>'
    ]
    for tick in ticks:
        y = TOP + height * (1 - tick / top)
        parts.append(f'<path d="M{LEFT} {y:.1f}h{width}" stroke="#8884" fill="none"/>')
        text = f"{short_number(tick)}{chart.unit}"
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#888">{text}</text>')
    places = {label: LEFT + width * (number + 0.5) / len(labels) for number, label in enumerate(labels)}
    for number, (name, points) in enumerate(series.items()):
        shown = [(places[label], TOP + height * (1 - value / top), value) for label, value in points if label in places]
        parts += _bars(shown, width / len(labels)) if chart.kind == "bar" else _line(shown, number, name)
    every = max(1, len(labels) // 8)
    for label in labels[::every]:
        text = html.escape(label[:24])
        parts.append(f'<text x="{places[label]:.1f}" y="{HEIGHT - 26}" text-anchor="middle" fill="#888">{text}</text>')
    return "".join([*parts, "</svg>"])


def _bars(shown: Sequence[tuple[float, float, float]], step: float) -> list[str]:
    bottom = HEIGHT - BOTTOM
    size = max(1.0, min(48.0, step * 0.8))
    return [
        f'<rect x="{x - size / 2:.1f}" y="{y:.1f}" width="{size:.1f}" height="{bottom - y:.1f}" fill="{COLOURS[0]}">'
        f"<title>{short_number(value)}</title></rect>"
        for x, y, value in shown
    ]


def _line(shown: Sequence[tuple[float, float, float]], number: int, name: str) -> list[str]:
    colour = COLOURS[number % len(COLOURS)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in shown)
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{colour}"/>' for x, y, _ in shown[:1] if len(shown) == 1]
    legend = f'<text x="{LEFT + 4 + 120 * number}" y="{HEIGHT - 6}" fill="{colour}">■ {html.escape(name[:18])}</text>'
    return [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>', *dots, legend]


def _table(rows: Rows) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in rows.columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows.rows)
    return f"<h2>{html.escape(rows.title)}</h2><table><tr>{head}</tr>{body}</table>"


def _cell(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"<td>{html.escape('' if value is None else str(value))}</td>"
    return f'<td class="n">{value:,.2f}</td>' if isinstance(value, float) else f'<td class="n">{value:,}</td>'


def build_report(title: str, facts: Mapping[str, Any], charts: Sequence[Chart], tables: Sequence[Rows] = ()) -> str:
    facts_table = _table(Rows("In short", ("", ""), list(facts.items())))
    drawn = "".join(f"<h2>{html.escape(chart.title)}</h2>{draw(chart)}" for chart in charts)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{STYLE}</style><h1>{html.escape(title)}</h1>{facts_table}{drawn}{''.join(map(_table, tables))}</html>"
    )


def write_report(
    files: Files, title: str, facts: Mapping[str, Any], charts: Sequence[Chart], tables: Sequence[Rows] = ()
) -> str:
    """Where it is."""
    files.write_text(NAME, build_report(title, facts, charts, tables))
    return files.path(NAME)
