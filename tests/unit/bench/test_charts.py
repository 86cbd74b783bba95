"""Charts of the report can be read: nothing is cut off, covered or in a unit of its own."""

from itertools import combinations
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

from penstock_bench.charts import (
    HEIGHT,
    LEFT,
    PLOT_HEIGHT,
    PLOT_WIDTH,
    TOP,
    WIDTH,
    Series,
    Span,
    histogram_chart,
    line_chart,
)
from penstock_bench.html_report import render_charts
from penstock_bench.units import latency, round_latency

NAME = "{http://www.w3.org/2000/svg}"
SECONDS = [number / 4 for number in range(25)]


class Box(NamedTuple):
    """Where a text stands, by the widest letters of usual fonts."""

    text: str
    left: float
    right: float
    top: float
    bottom: float


def boxes(svg: str) -> list[Box]:
    found = []
    for element in ElementTree.fromstring(svg).iter(f"{NAME}text"):
        text = element.text or ""
        width = len(text) * (7.6 if element.get("class") == "title" else 6.3)
        anchor = {"end": 1.0, "middle": 0.5}.get(element.get("text-anchor", ""), 0.0)
        left, y = float(element.get("x", "0")) - anchor * width, float(element.get("y", "0"))
        found.append(Box(text, left, left + width, y - 9, y + 2))
    return found


def names(svg: str) -> list[str]:
    return [box.text for box in boxes(svg)]


CHARTS = {
    "throughput": line_chart(
        "Throughput, messages/s",
        SECONDS,
        [Series("published", [6e5] * 25, is_under=True), Series("received", [6e5] * 25)],
        round_latency,
        [Span(0, 0.1, "warm-up"), Span(5.9, 6, "drain")],
    ),
    "latency": line_chart(
        "Latency over time", SECONDS, [Series(name, [2e5] * 25) for name in ("p50", "p90", "p99")], round_latency
    ),
    "histogram": histogram_chart(
        "Latency histogram, since connecting: number of messages",
        [(10**exponent, 5) for exponent in (2, 3, 4, 5)] + [(205_000, 9)],
        latency,
        round_latency,
    ),
}


@pytest.mark.parametrize("svg", CHARTS.values(), ids=CHARTS)
def test_no_text_is_cut_off_or_on_another(svg: str) -> None:
    for box in boxes(svg):
        assert box.left >= 0, box
        assert box.right <= WIDTH, box
        assert box.top >= 0, box
        assert box.bottom <= HEIGHT, box
    for one, other in combinations(boxes(svg), 2):
        is_apart = one.right <= other.left or other.right <= one.left
        assert is_apart or one.bottom <= other.top or other.bottom <= one.top, (one, other)


def test_lines_do_not_run_through_words() -> None:
    inside = [
        box.text for box in boxes(CHARTS["throughput"]) if box.right > LEFT and TOP < box.bottom < TOP + PLOT_HEIGHT
    ]
    assert inside == []
    assert {"warm-up", "drain"} <= set(names(CHARTS["throughput"]))


def test_a_line_under_another_is_seen() -> None:
    widths = [
        float(line.get("stroke-width", "0"))
        for line in ElementTree.fromstring(CHARTS["throughput"]).iter(f"{NAME}polyline")
    ]
    assert widths[0] > widths[1]


def test_the_end_of_an_axis_has_its_number() -> None:
    last = next(box for box in boxes(CHARTS["latency"]) if box.text == "6")
    assert (last.left + last.right) / 2 == pytest.approx(LEFT + PLOT_WIDTH, abs=0.1)
    assert "200 ms" in names(CHARTS["histogram"])


def test_nothing_is_0_in_every_unit() -> None:
    assert "0" in names(CHARTS["latency"])
    assert "0 µs" not in names(CHARTS["latency"])


def test_memory_of_idle_connections_begins_before_them() -> None:
    """They may all be there at the first look. Their connecting is what the figures are of."""
    moment = {"stage": "idle", "count": 0, "connects": 5, "load_cores": 0.1, "broker_cores": 0.2, "rss_mb": 60}
    phases = ("opening", "measuring", "measuring")
    timeline = [{**moment, "at": (n + 1) / 2, "phase": phase} for n, phase in enumerate(phases)]
    stage = {"title": "idle", "scenario": "idle", "rss_kb_before": 30 * 1024}
    document = {"stages": [stage], "timeline": timeline, "settings": {"messages": None}, "latency_us": []}
    page = render_charts(document)
    memory = next(part for part in page.split("<svg")[1:] if "Broker memory" in part)
    (points,) = [part.partition('"')[0] for part in memory.split('points="')[1:]]
    (x, low), (_, high), *_ = (map(float, point.split(",")) for point in points.split())
    assert x == LEFT
    assert low - high == pytest.approx(PLOT_HEIGHT * 30 / 60, abs=0.2)
    assert "<title>connecting: connects and memory are of this time</title>" in page
    assert "not in the figures" not in page
