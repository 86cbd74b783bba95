"""The metrics of groups: bounded in number, those furthest behind, with labels that are always accepted."""

from __future__ import annotations

from penstock.core.metrics import GroupSample
from penstock.operate.collector import MetricsPage


def render(groups: list[GroupSample], most: int) -> str:
    return MetricsPage(dict, "1", read_groups=lambda: groups, most_groups=most).render().decode()


def test_those_furthest_behind_are_shown() -> None:
    groups = [GroupSample(f"g{number}:t", number) for number in range(100)]
    lines = [line for line in render(groups, 2).splitlines() if line.startswith("penstock_datasub_group_lag")]
    assert lines == ['penstock_datasub_group_lag{group="g98:t"} 98.0', 'penstock_datasub_group_lag{group="g99:t"} 99.0']
    assert "datasub_group_lag" not in render(groups, 0)


def test_long_names_stay_apart_and_short() -> None:
    page = render([GroupSample("g" * 500 + "1:t", 1), GroupSample("g" * 500 + "2:t", 2)], 10)
    lines = [line for line in page.splitlines() if line.startswith("penstock_datasub_group_lag")]
    assert len(set(lines)) == 2
    assert all(len(line) < 200 for line in lines)
