"""The regression guard: names, units, what a slower figure does, and one figure counted for real."""

import json
import shutil
from pathlib import Path

import pytest

from bench import check
from bench.guard.jobs import all_jobs

ONE = "codec: PUBACK"
PARTS = ("codec", "trie", "fan-out", "delivery", "pack tracker", "partitioner")


def baseline() -> dict[str, float]:
    return check.load_baseline(check.BASELINE, list(all_jobs()))["figures"]


def doctored(path: Path, factor: float) -> list[str]:
    """A baseline in which one figure is that many times what it is."""
    document = json.loads(check.BASELINE.read_text())
    document["figures"][ONE] *= factor
    path.write_text(json.dumps(document))
    return ["--baseline", str(path), "--only", ONE]


def test_baseline_and_benchmarks_have_the_same_names_and_all_parts() -> None:
    figures = baseline()
    assert all(value > 0 for value in figures.values())
    for part in PARTS:
        assert any(name.startswith(part) for name in figures), part


def test_a_figure_may_be_two_percent_worse_and_no_more() -> None:
    before = baseline()
    same = {name: value * 1.019 for name, value in before.items()}
    assert check.worse_than(before, same) == []
    assert check.worse_than(before, {**same, ONE: before[ONE] * 1.021}) == [ONE]
    assert "TOO SLOW" in "\n".join(check.compare(before, {ONE: before[ONE] * 1.021}))


def test_fifteen_percent_with_another_python() -> None:
    made = check.made_with()
    assert check.limit_for(made, made) == check.LIMIT == 0.02
    assert check.limit_for(made | {"python": "3.11.0"}, made) == 0.15


def test_the_baseline_is_for_every_release_of_its_python() -> None:
    made = {"python": "3.11.7", "compiler": "cc 12", "machine": "x86_64"}
    assert check.is_like(made, made | {"python": "3.11.2"})
    for other in ({"python": "3.12.7"}, {"compiler": "cc 13"}, {"machine": "aarch64"}):
        assert not check.is_like(made, made | other)


@pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind is not installed")
def test_a_slowed_figure_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Counted once for real; against a baseline that was faster by half it is too slow."""
    figures = check.count_instructions([ONE])
    assert figures.keys() == {ONE}
    assert figures[ONE] == pytest.approx(baseline()[ONE], rel=0.5), "of the right size with any compiler"
    check_main = pytest.MonkeyPatch()
    check_main.setattr(check, "count_instructions", lambda only: figures)
    try:
        assert check.main(doctored(tmp_path / "slow.json", 2)) == 0
        assert check.main(doctored(tmp_path / "fast.json", 0.4)) == 1
    finally:
        check_main.undo()
    assert f"worse than the baseline: {ONE}" in capsys.readouterr().err


@pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind is not installed")
@pytest.mark.timeout(check.VALGRIND_SECONDS + 60)
def test_the_hot_path_needs_no_more_instructions_than_the_baseline_allows(capsys: pytest.CaptureFixture[str]) -> None:
    """`make bench-check` itself, where Python's minor version and the compiler are those of the baseline."""
    if not check.is_like(json.loads(check.BASELINE.read_text())["made_with"], check.made_with()):
        pytest.skip("another minor version of Python, or compiler, than those the baseline was made with")
    assert check.main([]) == 0, capsys.readouterr()


def test_what_does_not_fit_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(check.BASELINE.read_text())
    path = tmp_path / "other.json"
    path.write_text(json.dumps(document | {"figures": document["figures"] | {"gone": 1.0}}))
    assert check.main(["--baseline", str(path)]) == 2
    assert "gone" in capsys.readouterr().err
    path.write_text(json.dumps(document | {"unit": "seconds"}))
    assert check.main(["--baseline", str(path)]) == 2
    assert "is in seconds" in capsys.readouterr().err
    assert check.main(["--only", "unheard-of"]) == 2
    assert "unheard-of" in capsys.readouterr().err
