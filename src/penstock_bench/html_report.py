"""The report of a run as one HTML file that needs nothing else: figures, checks, charts."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

from penstock_bench.charts import Series, Span, histogram_chart, line_chart, short
from penstock_bench.result import broker_of, figures_of, remarks_of, settings_line, verdict
from penstock_bench.units import latency, round_latency

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933; max-width: 820px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; margin-bottom: 0; } h2 { font-size: 1.15em; margin-top: 2em; }
.sub, footer { color: #52606d; } footer { margin-top: 2em; font-size: .85em; }
.verdict { padding: .6em .9em; border-radius: 6px; background: #e6f4ea; } .bad { background: #fde8e8; }
table { border-collapse: collapse; width: 100%; } td { padding: .25em .5em; border-bottom: 1px solid #e4e7eb; }
th { padding: 1em .5em .25em; text-align: left; }
td:last-child { text-align: right; font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; margin: .6em 0; font: 11px system-ui, sans-serif; fill: #52606d; }
svg .aside { fill: #9aa5b1; fill-opacity: .16; }
svg .title { font-size: 13px; font-weight: 600; fill: #1f2933; } svg .grid { stroke: #e4e7eb; }
@media (prefers-color-scheme: dark) { body { background: #16191d; color: #e4e7eb; } .sub, footer { color: #9aa5b1; }
 .verdict { background: #1c3a28; } .bad { background: #4a1f1f; } td { border-color: #323f4b; }
 svg { fill: #9aa5b1; } svg .title { fill: #e4e7eb; } svg .grid { stroke: #323f4b; } }
"""


def render_report(document: dict[str, Any]) -> str:
    """The whole page."""
    faults = document["faults"]
    title = f"{document['scenario']} at {broker_of(document)}"
    machine = document["machine"]
    where = (
        f"{machine['cores']} x {machine['cpu']}, {machine['memory_gib']:g} GiB, {machine['os']}, {machine['kernel']}"
    )
    remarks = "".join(f"<p>{escape(remark)}</p>" for remark in remarks_of(document))
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{escape(title)}</title><style>{STYLE}</style></head><body>
<h1>{escape(title)}</h1>
<p class="sub">{escape(document["about"])}<br>{escape(settings_line(document))}</p>
<p class="verdict{" bad" if faults else ""}">{escape(verdict(document))}</p>{remarks}
<h2>Figures</h2>
<table>{render_figures(document)}</table>
{render_charts(document)}
<footer>Measured {escape(document["date"])} with penstock bench {escape(document["generator"])};
the load generator ran on {escape(where)}.</footer>
</body></html>
"""


def render_figures(document: dict[str, Any]) -> str:
    """Rows of the table; each stage of several under its title."""
    parts = []
    for title, rows in figures_of(document):
        if title:
            parts.append(f'<tr><th colspan="2">{escape(title.capitalize())}</th></tr>')
        parts += [f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in rows]
    return "\n".join(parts)


def render_charts(document: dict[str, Any]) -> str:
    """Those of each stage of which there is a timeline."""
    parts = []
    is_counted = bool(document["settings"]["messages"])
    for stage in document["stages"]:
        moments = [moment for moment in document["timeline"] if moment["stage"] == stage["title"]]
        charts = [chart for chart in _timelines(moments, stage, is_counted) if chart]
        since = ", since connecting" if is_counted else ""
        if stage is document["stages"][-1]:
            what = "messages" if "rate" in stage else "connects"
            title = f"Latency histogram{since}: number of {what}"
            charts.append(histogram_chart(title, document["latency_us"], latency, round_latency))
        if any(charts):
            parts.append(f"<h2>{escape(stage['title'].capitalize())}</h2>")
            parts += filter(None, charts)
    return "\n".join(parts)


def not_measured(moments: list[dict[str, Any]], is_counted: bool, is_opening_measured: bool = False) -> list[Span]:
    """Return the spans before and after the measured time. A stage that is over with its last message is measured to
    its end, and one that receives what was stored from its beginning."""
    phases = [moment["phase"] for moment in moments]
    if "measuring" not in phases:
        return []
    first = phases.index("measuring")
    last = len(phases) - 1 - phases[::-1].index("measuring")
    spans = []
    if first and is_opening_measured:
        spans.append(Span(0.0, moments[first - 1]["at"], "connecting", "connects and memory are of this time"))
    elif first:
        spans.append(Span(0.0, moments[first - 1]["at"], "warm-up" if "warming up" in phases else "connecting"))
    if last + 1 < len(phases) and not is_counted:
        spans.append(Span(moments[last]["at"], moments[-1]["at"], "drain"))
    return spans


def _timelines(moments: list[dict[str, Any]], stage: dict[str, Any], is_counted: bool) -> list[str]:
    times = [moment["at"] for moment in moments]
    aside = not_measured(moments, is_counted, is_opening_measured=stage["scenario"] == "idle")

    def series(label: str, name: str, **how: bool) -> Series:
        return Series(label, [moment[name] for moment in moments], **how)

    def chart(title: str, lines: list[Series], unit: Callable[[float], str] = short) -> str:
        return line_chart(title, times, lines, unit, aside)

    percentiles = ("p50", "p90", "p99")
    latencies = [Series(name, [m[f"{name}_us"] if m["count"] else None for m in moments]) for name in percentiles]
    charts = [
        chart(
            "Throughput, messages/s",
            [series("published", "published", is_under=True), series("received", "received")],
        )
        if "rate" in stage
        else chart("Connects per second", [series("connects", "connects")]),
        chart("Latency over time", latencies, round_latency),
    ]
    cores = [series("load generator", "load_cores")]
    if any(moment["broker_cores"] is not None for moment in moments):
        cores.insert(0, series("broker", "broker_cores"))
        # from what it was before the first connection
        memory = Series("resident", [stage["rss_kb_before"] / 1024, *series("", "rss_mb").values])
        charts.append(line_chart("Broker memory, MiB resident", [0.0, *times], [memory], short, aside))
    charts.append(chart("CPU, cores", cores))
    return charts
