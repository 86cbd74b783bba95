"""The charts of the reports: everything has its name, and time runs from left to right."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta

import pytest

from penstock_spark.jobs.replay import _ms
from penstock_spark.report import Chart, Rows, build_report, draw, duration, short_number, time_marks, utc, with_zeros

T0 = datetime(2026, 9, 30, 23, 0)


def test_numbers_for_people() -> None:
    assert [duration(seconds) for seconds in (0, 59, 90, 54_000, 216_000)] == [
        "0 s",
        "59 s",
        "1.5 min",
        "15 h",
        "2.5 d",
    ]
    assert [short_number(value) for value in (0, 999, 1_500, 2e6)] == ["0", "999", "1.5k", "2M"]


def test_lines_run_in_time() -> None:
    """Also where one series has times that the other has not, and across the end of a month."""
    hours = [T0 + timedelta(hours=number) for number in range(4)]
    series = {"a": [(hours[0], 1.0), (hours[3], 2.0)], "b": [(hours[1], 5.0), (hours[2], 0.0)]}
    drawn = draw(Chart("t", "lines", series=series))
    lines = [
        [float(x) for x, _ in re.findall(r"([\d.]+),([\d.]+)", one)] for one in re.findall('points="(.*?)"', drawn)
    ]
    assert len(lines) == 2
    assert lines[0][0] < lines[1][0] < lines[1][1] < lines[0][1]
    assert drawn.index("23:00") < drawn.index("00:00") < drawn.index("02:00")


def test_round_times() -> None:
    def marks(**span: float) -> list[str]:
        return [label for _, label in time_marks(T0 + timedelta(seconds=7), T0 + timedelta(seconds=7, **span))]

    assert marks(minutes=0) == ["23:00:07"]
    assert marks(minutes=0.2) == ["23:00:08", "23:00:10", "23:00:12", "23:00:14", "23:00:16", "23:00:18"]
    assert marks(hours=2) == ["23:30", "00:00", "00:30", "01:00"]
    assert marks(days=3) == [
        "01 Oct 00:00",
        "01 Oct 12:00",
        "02 Oct 00:00",
        "02 Oct 12:00",
        "03 Oct 00:00",
        "03 Oct 12:00",
    ]
    assert marks(days=20) == ["07 Oct", "14 Oct"]
    assert len(marks(days=20_000)) <= 9


def test_windows_without_anything() -> None:
    """The line falls to nothing between them, with a few points however long that lasts."""
    hour = timedelta(hours=1)
    at = [T0 + hour * number for number in range(6)]
    assert with_zeros([(at[1], 3.0), (at[3], 4.0)], at[0], at[5], hour) == [
        (at[0], 0.0),
        (at[1], 3.0),
        (at[2], 0.0),
        (at[3], 4.0),
        (at[4], 0.0),
        (at[5], 0.0),
    ]
    wrong = [(datetime(1970, 1, 1), 1.0), (T0, 2.0)]
    assert len(with_zeros(wrong, wrong[0][0], T0, hour)) == 4


def test_times_are_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark hands out local times without a zone; in the hour that comes twice in autumn, too."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        for seconds in (1_793_509_200, 1_793_512_800):  # 2026-11-01 01:00 in summer time, and once more
            local = datetime.fromtimestamp(seconds)
            assert local.hour == 1
            assert utc(local) == datetime.fromtimestamp(seconds, UTC)
            assert _ms(local) == seconds * 1000
    finally:
        monkeypatch.undo()
        time.tzset()


def test_every_row_has_its_name() -> None:
    points = [(f"device-{number:02}", 40.0 - number) for number in range(30)] + [("<" * 50, 0.0)]
    drawn = draw(Chart("t", "rows", points, show=duration))
    assert all(f">device-{number:02}<" in drawn for number in range(30))
    assert "<<" not in drawn
    assert "40 s" in drawn


def test_nothing_yet() -> None:
    assert draw(Chart("t", "columns")) == "<p>Nothing yet.</p>"
    page = build_report("T & U", {"n": 1_000}, [Chart("c", "columns", [("a", 0.0)])], [Rows("r", ("x",), [(None,)])])
    assert "T &amp; U" in page
    assert "1,000" in page
