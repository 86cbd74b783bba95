"""One thing that was looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`advice` says what to change; what is fine needs none."""

    area: str
    state: State
    what: str
    advice: str = ""


def ok(area: str, what: str) -> Finding:
    return Finding(area, "ok", what)


def warning(area: str, what: str, advice: str) -> Finding:
    return Finding(area, "warning", what, advice)


def problem(area: str, what: str, advice: str) -> Finding:
    return Finding(area, "problem", what, advice)


def size(number: float) -> str:
    for limit, divisor, unit in ((2**20, 2**10, "KiB"), (2**30, 2**20, "MiB")):
        if number < limit:
            return f"{number / divisor:,.0f} {unit}"
    return f"{number / 2**30:,.1f} GiB"
