"""A bar chart of ratios as SVG, written by hand: no plotting library, the same bytes for the same result."""

from __future__ import annotations

import math
from html import escape
from typing import Any

from bench.scenarios import BASE, SUBJECT

LABEL_WIDTH = 320
PLOT_WIDTH = 420
VALUE_WIDTH = 80
ROW = 26
BAR = 14
TOP = 64
BOTTOM = 34
DECADES = (0.1, 1, 10, 100, 1_000)


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
    return round(LABEL_WIDTH + PLOT_WIDTH * min(1.0, max(0.0, share)), 1)


def draw_chart(summary: list[dict[str, Any]], subtitle: str) -> str:
    rows = chart_rows(summary)
    low, high = scale(rows)
    width = LABEL_WIDTH + PLOT_WIDTH + VALUE_WIDTH
    height = TOP + ROW * len(rows) + BOTTOM
    bottom = TOP + ROW * len(rows)
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
            parts.append(f'<line x1="{x}" y1="{TOP - 8}" x2="{x}" y2="{bottom}" stroke="{colour}"/>')
            parts.append(f'<text x="{x}" y="{bottom + 18}" text-anchor="middle" fill="#52606d">{decade:g}x</text>')
    for i, (label, ratio, target) in enumerate(rows):
        parts += draw_bar(TOP + ROW * i, label, ratio, target, (low, high))
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def draw_bar(y: int, label: str, ratio: float, target: float | None, span: tuple[float, float]) -> list[str]:
    one, end = position(1, *span), position(ratio, *span)
    left, length = min(one, end), max(abs(end - one), 1)
    text_y = y + BAR - 3
    colour = "#2b6cb0" if ratio >= 1 else "#b7791f"
    parts = [
        f'<text x="{LABEL_WIDTH - 10}" y="{text_y}" text-anchor="end" fill="#1f2933">{escape(label)}</text>',
        f'<rect x="{left}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{colour}"/>',
        f'<text x="{max(one, end) + 6}" y="{text_y}" fill="#1f2933">{ratio:.1f}x</text>',
    ]
    if target:
        x = position(target, *span)
        parts.append(f'<line x1="{x}" y1="{y - 3}" x2="{x}" y2="{y + BAR + 3}" stroke="#c53030" stroke-width="2"/>')
    return parts
