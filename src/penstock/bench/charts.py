"""Charts of a report as inline SVG: lines over time and a histogram, without a library."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 760, 240
LEFT, RIGHT, TOP, BOTTOM = 78, 12, 30, 34
PLOT_WIDTH, PLOT_HEIGHT = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1")
TICKS = 4


@dataclass(frozen=True)
class Series:
    """A line: its values stand at the same times as those of the others."""

    name: str
    values: Sequence[float | None]


def nice_ceiling(value: float) -> float:
    """The next 1, 2, 2.5 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10 ** math.floor(math.log10(value))
    return float(next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value * 0.9999))


def short(value: float) -> str:
    """`1.5M`, `20k`, `0.25`."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _frame(title: str, x_name: str) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-label="{escape(title)}">',
        f'<text x="{LEFT}" y="18" class="title">{escape(title)}</text>',
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" text-anchor="end">{escape(x_name)}</text>',
    ]


def _y_axis(top: float, unit: Callable[[float], str]) -> list[str]:
    parts = []
    for i in range(TICKS + 1):
        y = TOP + PLOT_HEIGHT * (1 - i / TICKS)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" class="grid"/>')
        label = escape(unit(top * i / TICKS))
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    return parts


def _x_labels(labels: Sequence[tuple[float, str]]) -> list[str]:
    y = TOP + PLOT_HEIGHT + 16
    return [f'<text x="{LEFT + PLOT_WIDTH * at:.1f}" y="{y}" text-anchor="middle">{text}</text>' for at, text in labels]


def line_chart(title: str, times: Sequence[float], series: Sequence[Series], unit: Callable[[float], str]) -> str:
    """Lines over seconds."""
    values = [value for line in series for value in line.values if value is not None]
    if len(times) < 2 or not values:
        return ""
    top, end = nice_ceiling(max(values)), times[-1]
    parts = _frame(title, "seconds") + _y_axis(top, unit)
    parts += _x_labels([(i / 5, f"{end * i / 5:.3g}") for i in range(5)])
    for number, line in enumerate(series):
        points = [
            f"{LEFT + PLOT_WIDTH * at / end:.1f},{TOP + PLOT_HEIGHT * (1 - value / top):.1f}"
            for at, value in zip(times, line.values, strict=True)
            if value is not None
        ]
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        x = WIDTH - RIGHT - 110 * (len(series) - number)
        parts.append(f'<rect x="{x}" y="9" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14}" y="18">{escape(line.name)}</text>')
    return "\n".join([*parts, "</svg>"])


def merged_bins(latencies: Sequence[tuple[float, int]], per_decade: int = 12) -> list[tuple[float, float, int]]:
    """Lower and upper bound (µs) and count, on a logarithmic scale."""
    counts: dict[int, int] = {}
    for microseconds, count in latencies:
        step = math.floor(math.log10(max(microseconds, 0.1)) * per_decade)
        counts[step] = counts.get(step, 0) + count
    if not counts:
        return []
    steps = range(min(counts), max(counts) + 1)
    return [(10 ** (s / per_decade), 10 ** ((s + 1) / per_decade), counts.get(s, 0)) for s in steps]


def histogram_chart(title: str, latencies: Sequence[tuple[float, int]], unit: Callable[[float], str]) -> str:
    """How many took how long; the scale of time is logarithmic."""
    bins = merged_bins(latencies)
    if not bins:
        return ""
    top = nice_ceiling(max(count for _, _, count in bins))
    width = PLOT_WIDTH / len(bins)
    parts = _frame(title, "latency, logarithmic") + _y_axis(top, short)
    every = max(1, len(bins) // 6)
    parts += _x_labels([(i / len(bins), escape(unit(bins[i][0]))) for i in range(0, len(bins), every)])
    for i, (low, high, count) in enumerate(bins):
        height = PLOT_HEIGHT * count / top
        parts.append(
            f'<rect x="{LEFT + width * i:.1f}" y="{TOP + PLOT_HEIGHT - height:.1f}" width="{max(width - 1, 0.5):.1f}"'
            f' height="{height:.1f}" fill="{COLOURS[0]}"><title>{escape(unit(low))} to {escape(unit(high))}:'
            f" {count:,}</title></rect>"
        )
    return "\n".join([*parts, "</svg>"])
