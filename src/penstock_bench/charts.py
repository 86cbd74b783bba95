"""Charts as SVG without a library: lines over time and a histogram for a report, bars of ratios for the documents."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from penstock_bench.targets import BASE, SUBJECT

WIDTH, HEIGHT = 760, 254
LEFT, RIGHT, TOP, BOTTOM = 78, 24, 44, 34  # at the right is room for half of the last label
PLOT_WIDTH, PLOT_HEIGHT = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1")
TICKS = 4
LEAST_BINS = 12

# of the chart of ratios
BAR_LABELS = 320
BAR_PLOT = 420
BAR_VALUES = 80
BAR_ROW = 26
BAR_HEIGHT = 14
BAR_TOP = 64
BAR_BOTTOM = 34
DECADES = (0.1, 1, 10, 100, 1_000)


@dataclass(frozen=True)
class Series:
    """A line: its values stand at the same times as those of the others."""

    name: str
    values: Sequence[float | None]
    is_under: bool = False  # wider, to be seen where another line runs over it


@dataclass(frozen=True)
class Span:
    """A time that is set apart, in seconds, and why."""

    begin: float
    end: float
    name: str
    why: str = "not in the figures"


def ticks_to(value: float, most: int) -> list[float]:
    """Return round numbers from 0 on in at most `most` steps, the last of them at the value or the next above it."""
    if value <= 0:
        return [0.0, 1.0]
    power = 10 ** math.floor(math.log10(value / most))
    step = next(each * power for each in (1, 2, 2.5, 5, 10, 20) if each * power * most >= value * 0.9999)
    return [step * i for i in range(math.ceil(value / step * 0.9999) + 1)]


def round_within(low: float, high: float) -> list[float]:
    """Numbers that begin with 1, 2 or 5 between two, for a logarithmic axis; 1 alone where those would be many."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = (1, 2, 5) if len(decades) <= 6 else (1,)
    found = [digit * 10.0**decade for decade in decades for digit in digits]
    return [value for value in found if low <= value <= high]


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


def _y_axis(ticks: Sequence[float], unit: Callable[[float], str]) -> list[str]:
    parts = []
    for tick in ticks:
        y = TOP + PLOT_HEIGHT * (1 - tick / ticks[-1])
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" class="grid"/>')
        label = escape(unit(tick))
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    return parts


def _x_labels(labels: Sequence[tuple[float, str]]) -> list[str]:
    y = TOP + PLOT_HEIGHT + 16
    return [f'<text x="{LEFT + PLOT_WIDTH * at:.1f}" y="{y}" text-anchor="middle">{text}</text>' for at, text in labels]


def _aside(spans: Sequence[Span], end: float) -> list[str]:
    parts = []
    for span in spans:
        x, width = LEFT + PLOT_WIDTH * span.begin / end, PLOT_WIDTH * (span.end - span.begin) / end
        parts.append(
            f'<rect x="{x:.1f}" y="{TOP}" width="{width:.1f}" height="{PLOT_HEIGHT}" class="aside">'
            f"<title>{escape(span.name)}: {escape(span.why)}</title></rect>"
        )
        # above the lines, which it would cover, and where it may be longer than a short time is wide
        place = f'x="{x:.1f}"' if span.begin == 0 else f'x="{x + width:.1f}" text-anchor="end"'
        parts.append(f'<text {place} y="{TOP - 5}">{escape(span.name)}</text>')
    return parts


def line_chart(
    title: str,
    times: Sequence[float],
    series: Sequence[Series],
    unit: Callable[[float], str],
    aside: Sequence[Span] = (),
) -> str:
    """Lines over seconds; what is aside is shaded."""
    values = [value for line in series for value in line.values if value is not None]
    if len(times) < 2 or not values:
        return ""
    ticks, end = ticks_to(max(values), TICKS), times[-1]
    top = ticks[-1]
    parts = _frame(title, "seconds") + _y_axis(ticks, unit) + _aside(aside, end)
    parts += _x_labels([(tick / end, f"{tick:g}") for tick in ticks_to(end, 8) if tick <= end])
    for number, line in enumerate(series):
        points = [
            f"{LEFT + PLOT_WIDTH * at / end:.1f},{TOP + PLOT_HEIGHT * (1 - value / top):.1f}"
            for at, value in zip(times, line.values, strict=True)
            if value is not None
        ]
        colour = COLOURS[number % len(COLOURS)]
        width = 4 if line.is_under else 1.8
        parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="{width}"/>')
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
    # a single bar as wide as the page would look like a mistake
    around = max(0, LEAST_BINS - (max(counts) - min(counts) + 1) + 1) // 2
    steps = range(min(counts) - around, max(counts) + 1 + around)
    return [(10 ** (s / per_decade), 10 ** ((s + 1) / per_decade), counts.get(s, 0)) for s in steps]


def histogram_chart(
    title: str,
    latencies: Sequence[tuple[float, int]],
    unit: Callable[[float], str],
    round_unit: Callable[[float], str],
) -> str:
    """How many took how long; the scale of time is logarithmic."""
    bins = merged_bins(latencies)
    if not bins:
        return ""
    ticks = ticks_to(max(count for _, _, count in bins), TICKS)
    top, low, high = ticks[-1], bins[0][0], bins[-1][1]
    width = PLOT_WIDTH / len(bins)
    parts = _frame(title, "logarithmic") + _y_axis(ticks, short)
    places = [(math.log(value / low) / math.log(high / low), value) for value in round_within(low, high)]
    parts += _x_labels([(at, escape(round_unit(value))) for at, value in places])
    for i, (low, high, count) in enumerate(bins):
        height = PLOT_HEIGHT * count / top
        parts.append(
            f'<rect x="{LEFT + width * i:.1f}" y="{TOP + PLOT_HEIGHT - height:.1f}" width="{max(width - 1, 0.5):.1f}"'
            f' height="{height:.1f}" fill="{COLOURS[0]}"><title>{escape(unit(low))} to {escape(unit(high))}:'
            f" {count:,}</title></rect>"
        )
    return "\n".join([*parts, "</svg>"])


def chart_rows(summary: list[dict[str, Any]]) -> list[tuple[str, float, float | None]]:
    """Title, ratio and target ratio of the figures where more is better."""
    rows = []
    for row in summary:
        ratio = row["brokers"].get(SUBJECT, {}).get("ratio")
        if ratio and not row["less_is_better"]:
            rows.append((row["title"], ratio, row["target_ratio"]))
    return rows


def scale(rows: list[tuple[str, float, float | None]]) -> tuple[float, float]:
    """The decades the plot spans; it always contains 1, where the base broker is."""
    values = [value for _, ratio, target in rows for value in (ratio, target) if value]
    low = max((d for d in DECADES if d <= min([1, *values])), default=DECADES[0])
    high = min((d for d in DECADES if d >= max([10, *values])), default=DECADES[-1])
    return low, high


def position(value: float, low: float, high: float) -> float:
    share = math.log(value / low) / math.log(high / low)
    return round(BAR_LABELS + BAR_PLOT * min(1.0, max(0.0, share)), 1)


def ratio_chart(summary: list[dict[str, Any]], subtitle: str) -> str:
    """Draw bars of the ratios to the base broker; the same result gives the same bytes."""
    rows = chart_rows(summary)
    low, high = scale(rows)
    width = BAR_LABELS + BAR_PLOT + BAR_VALUES
    height = BAR_TOP + BAR_ROW * len(rows) + BAR_BOTTOM
    bottom = BAR_TOP + BAR_ROW * len(rows)
    title = f"{SUBJECT} against {BASE}, work per second of broker CPU"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' font-family="sans-serif" font-size="12" role="img" aria-label="{escape(title)}">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="24" font-size="15" font-weight="bold" fill="#1f2933">{escape(title)}</text>',
        f'<text x="12" y="44" fill="#52606d">{escape(subtitle)}</text>',
    ]
    for decade in DECADES:
        if low <= decade <= high:
            x = position(decade, low, high)
            colour = "#9aa5b1" if decade == 1 else "#e4e7eb"
            parts.append(f'<line x1="{x}" y1="{BAR_TOP - 8}" x2="{x}" y2="{bottom}" stroke="{colour}"/>')
            parts.append(f'<text x="{x}" y="{bottom + 18}" text-anchor="middle" fill="#52606d">{decade:g}x</text>')
    for i, (label, ratio, target) in enumerate(rows):
        parts += draw_bar(BAR_TOP + BAR_ROW * i, label, ratio, target, (low, high))
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def draw_bar(y: int, label: str, ratio: float, target: float | None, span: tuple[float, float]) -> list[str]:
    one, end = position(1, *span), position(ratio, *span)
    left, length = min(one, end), max(abs(end - one), 1)
    text_y = y + BAR_HEIGHT - 3
    colour = "#2b6cb0" if ratio >= 1 else "#b7791f"
    parts = [
        f'<text x="{BAR_LABELS - 10}" y="{text_y}" text-anchor="end" fill="#1f2933">{escape(label)}</text>',
        f'<rect x="{left}" y="{y}" width="{length:.1f}" height="{BAR_HEIGHT}" fill="{colour}"/>',
        f'<text x="{max(one, end) + 6}" y="{text_y}" fill="#1f2933">{ratio:.1f}x</text>',
    ]
    if target:
        x = position(target, *span)
        parts.append(
            f'<line x1="{x}" y1="{y - 3}" x2="{x}" y2="{y + BAR_HEIGHT + 3}" stroke="#c53030" stroke-width="2"/>'
        )
    return parts
