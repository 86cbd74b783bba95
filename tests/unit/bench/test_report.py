"""The documents drawn from a small canned result."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import report
from penstock_bench import documents
from penstock_bench.charts import position, ratio_chart
from penstock_bench.summary import summarise, summarise_figure
from penstock_bench.targets import Figure, at_least

RESULT = {
    "date": "2026-01-02T03:04:05+00:00",
    "machine": {"cpu": "Test CPU", "cores": 2, "memory_gib": 4.0, "os": "Debian", "kernel": "6.1"},
    "versions": {"penstock": "0.1.0", "mosquitto": "2.0.11", "python": "3.11.2", "uvloop": "0.22"},
    "settings": {"reps": 3, "secs": 4.0, "warm": 2.0},
    "runs": [
        {
            "rep": 0,
            "test": "p2p-q0",
            "broker": "mosquitto",
            "msgs_per_cpu_s": 50_000,
            "rate": 49_000,
            "p99_us": 41_000.0,
        },
        {
            "rep": 0,
            "test": "p2p-q0",
            "broker": "penstock",
            "msgs_per_cpu_s": 2_000_000,
            "rate": 1_900_000,
            "rss_kb": 30_720,
        },
        {"rep": 0, "test": "idle-10k", "broker": "mosquitto", "bytes_per_conn": 734, "connects_per_cpu_s": 18_000},
        {"rep": 0, "test": "idle-10k", "broker": "penstock", "bytes_per_conn": 2_500, "connects_per_cpu_s": 9_000},
    ],
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    for path in (documents.README, documents.PAGE):
        (tmp_path / path).write_text(f"# Title\n\nabove\n\n{documents.START}\nold\n{documents.END}\n\nbelow\n")
    (tmp_path / "result.json").write_text(json.dumps(RESULT))
    return tmp_path


def draw(root: Path, *options: str) -> int:
    return report.main(["--root", str(root), "--result", str(root / "result.json"), *options])


def test_only_the_marked_region_changes(root: Path) -> None:
    assert draw(root) == 0
    text = (root / documents.README).read_text()
    assert text.startswith(f"# Title\n\nabove\n\n{documents.START}\n")
    assert text.endswith(f"{documents.END}\n\nbelow\n")
    assert "old" not in text
    assert "| 10 pairs, QoS 0 | messages / CPU-s | 50,000 | 2,000,000 (40.00x) | ≥ 30x | yes |" in text
    assert "| idle connection, resident memory | bytes | 734 | 2,500 (3.41x) | ≤ 3,072 | yes |" in text


def test_date_machine_and_versions_are_told(root: Path) -> None:
    draw(root)
    text = (root / documents.README).read_text()
    for part in (
        "2026-01-02",
        "2 x Test CPU",
        "Linux 6.1",
        "penstock 0.1.0",
        "mosquitto 2.0.11",
        "uvloop 0.22",
        "Medians of 3",
    ):
        assert part in text


def test_the_page_has_chart_and_details(root: Path) -> None:
    draw(root)
    text = (root / documents.PAGE).read_text()
    assert "(benchmarks.svg)" in text
    assert "| 10 pairs, QoS 0 | mosquitto | 50,000 messages / CPU-s | 0% | 49,000 | - | 41 |" in text
    assert (root / documents.CHART).exists()
    assert "(docs/benchmarks.svg)" in (root / documents.README).read_text()


def test_drawing_twice_changes_nothing_and_check_tells_what_is_stale(root: Path) -> None:
    assert draw(root, "--check") == 1
    assert "old" in (root / documents.README).read_text()
    draw(root)
    before = (root / documents.PAGE).read_text()
    assert draw(root, "--check") == 0
    draw(root)
    assert (root / documents.PAGE).read_text() == before


def test_the_committed_documents_are_what_the_newest_result_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main(["--check"]) == 0, f"{capsys.readouterr().out}run bench/report.py"
    for path, markers in ((documents.README, documents.HEADLINE), (documents.PAGE, documents.HEADROOM)):
        text = (report.ROOT / path).read_text()
        assert all(text.count(marker) == 1 for marker in markers)


def test_the_first_sentence_says_what_was_measured_and_how_far_results_disagree(root: Path) -> None:
    readme = root / documents.README
    readme.write_text("\n".join(documents.HEADLINE))
    draw(root)
    text = readme.read_text()
    assert "handles 40 times the messages per CPU-second of mosquitto at QoS 0 (2026-01-02, Test CPU,\n" in text
    assert "64-byte payloads" in text
    assert "results that are kept" not in text, "there is one"
    slower = json.loads((root / "result.json").read_text())
    slower["runs"][1]["msgs_per_cpu_s"] = 1_049_999
    slower["machine"]["cpu"] = "Another CPU"
    (root / "earlier.json").write_text(json.dumps(slower))
    draw(root)
    assert "handles 40 times" in readme.read_text()
    assert "the 2 results that are kept, of Another CPU and Test CPU, have 20 to 40 at QoS 0" in readme.read_text()


def test_the_headroom_is_the_newest_of_each_scenario(tmp_path: Path) -> None:
    folder = tmp_path / "headroom"
    folder.mkdir()
    for number, provider, values in (
        (1, "log", {"p2p, QoS 0": 3.04, "p2p, QoS 1": 2.5}),
        (2, "no-log", {"p2p, QoS 0": 2.2, "p2p, QoS 1": 1.9}),
        (3, "log", {"p2p, QoS 1": 4.5}),
    ):
        document = {
            "date": f"2026-01-0{number}",
            "provider": provider,
            "settings": {"reps": 1, "secs": 2.0, "ratios": {f"{name}, 1 threads": [v] for name, v in values.items()}},
            "summary": [
                {"title": f"{name}, 1 threads", "brokers": {"penstock": {"value": v}}} for name, v in values.items()
            ],
        }
        (folder / f"{number}-{provider}.json").write_text(json.dumps(document))
    text = documents.render_headroom(tmp_path)
    assert "| p2p, QoS 0 / 1 | 3.0 / 4.5 | 2.2 / 1.9 |" in text
    assert "lowest single run is 1.9" in text
    assert "python bench/headroom.py" in documents.render_headroom(tmp_path / "nothing")


def test_a_document_without_markers_is_left_alone() -> None:
    assert documents.replace_region("no markers", "content") == "no markers"
    assert documents.replace_region(f"{documents.START} only", "content") == f"{documents.START} only"


def test_the_newest_result_is_the_last_by_name(tmp_path: Path) -> None:
    assert documents.newest_result(tmp_path) is None
    for name in ("2026-01-02T0304", "2026-01-10T0000", "2025-12-31T2359"):
        (tmp_path / f"{name}.json").write_text("{}")
    newest = documents.newest_result(tmp_path)
    assert newest is not None
    assert newest.stem == "2026-01-10T0000"


def test_the_chart_is_well_formed_and_shows_only_what_more_is_better_for() -> None:
    svg = ratio_chart(summarise(RESULT["runs"]), "a < b")  # type: ignore[arg-type]  # the canned result is heterogeneous
    texts = [element.text for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert "10 pairs, QoS 0" in texts
    assert "40.0x" in texts
    assert "0.5x" in texts
    assert "a < b" in texts
    assert not any("resident memory" in (text or "") for text in texts)


def test_chart_positions_are_logarithmic_and_clamped() -> None:
    one, ten, hundred = (position(value, 1, 100) for value in (1, 10, 100))
    assert ten - one == hundred - ten
    assert position(1_000, 1, 100) == hundred


def kept(date: str, scenario: str, value: float, **run: float) -> dict[str, object]:
    figure = Figure("delivered", "rate", "messages / s", at_least(100))
    runs = [{"test": scenario, "broker": "penstock", "rate": value, **run}]
    return {
        "date": date,
        "machine": {"cpu": "Test CPU"},
        "versions": {"penstock": "0.1.0"},
        "settings": {"reps": 1, "secs": 4},
        "summary": [summarise_figure(scenario, figure, {"penstock": runs})],
        "runs": runs,
    }


def test_the_page_of_what_is_kept_has_the_newest_result_of_each_scenario(tmp_path: Path) -> None:
    folder = tmp_path / "queue"
    folder.mkdir()
    results = (kept("2026-01-01", "append", 50), kept("2026-01-02", "append", 150), kept("2026-01-03", "replay", 250))
    for number, result in enumerate(results):
        (folder / f"2026-01-0{number + 1}-embedded.json").write_text(json.dumps(result))
    text = documents.render_kept(tmp_path)
    assert "## Durable queues and streams: embedded log\n\nMeasured 2026-01-02 on Test CPU, 0.1.0, 1 x 4 s;" in text
    assert "| delivered | messages / s | 150 | ≥ 100 | yes |" in text
    assert "| delivered | messages / s | 250 | ≥ 100 | yes |" in text
    assert "| 50 |" not in text


def test_kafka_that_the_broker_uses_is_no_disturbance(tmp_path: Path) -> None:
    folder = tmp_path / "device"
    folder.mkdir()
    result = kept("2026-01-01", "pairs", 150, other_cores=0.9, kafka_cores=0.6, redis_cores=0.1)
    (folder / "2026-01-01-kafka.json").write_text(json.dumps(result))
    assert "busy" not in documents.render_kept(tmp_path)
    result = kept("2026-01-02", "pairs", 150, other_cores=0.9)
    (folder / "2026-01-02-kafka.json").write_text(json.dumps(result))
    assert "0.9 other cores busy" in documents.render_kept(tmp_path)
