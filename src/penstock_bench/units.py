"""How figures of a load test are written."""

from __future__ import annotations


def latency(microseconds: float) -> str:
    """In the unit that reads best."""
    if microseconds < 1_000:
        return f"{microseconds:.0f} µs"
    milliseconds = microseconds / 1_000
    return f"{milliseconds:.1f} ms" if milliseconds < 1_000 else f"{milliseconds / 1_000:.2f} s"


def round_latency(microseconds: float) -> str:
    """Format a round number at an axis."""
    if not microseconds:
        return "0"
    for size, unit in ((1e6, "s"), (1e3, "ms")):
        if microseconds >= size:
            return f"{microseconds / size:g} {unit}"
    return f"{microseconds:g} µs"


def rates(asked: float, sent: float, late_us: float) -> str:
    """Compare the rate that was asked for with the one that was sent."""
    late = f", late by up to {latency(late_us)}" if late_us >= 1_000 else ""
    return f"asked {asked:,.0f}/s, sent {sent:,.0f}/s{late}"
