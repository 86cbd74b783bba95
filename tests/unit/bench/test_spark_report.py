"""The table of docs/spark.md, drawn from a small canned result."""

import json
from pathlib import Path

import pytest

from bench import spark_report
from penstock_bench import documents

SMALL = {
    "messages": 1_000_000,
    "lake": {"messages": 1_000_000, "seconds": 48.2, "CPU-seconds": 60.1},
    "embedded source": {
        "seconds": 2.5,
        "rows a second": 400_000,
        "rows a CPU-second": 220_000,
        "times Python rows": 2.9,
        "times Python rows, by CPU-seconds": 4.1,
    },
    "broker": {
        "alone": {"messages a second": 50_000, "p50 ms": 1.5, "p99 ms": 9, spark_report.BROKER_CPU: 7.1},
        "while a job reads": {
            "messages a second": 49_000,
            "p50 ms": 2,
            "p99 ms": 20,
            spark_report.BROKER_CPU: 7.3,
        },
    },
    "kafka": {
        "seconds decoded": 4.0,
        "decoding adds percent": 29,
        "decoding adds percent, by CPU-seconds": 41,
        "decoding adds percent, in as few tasks": 50,
        "decoding adds percent, in as few tasks, by CPU-seconds": 63,
    },
}
LARGE = {
    "messages": 10_000_000,
    "lake": {"seconds": 410.0, "CPU-seconds": 500.0},
    "embedded source": {"seconds": 24.0, "rows a second": 416_000, "rows a CPU-second": 230_000},
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / spark_report.PAGE).write_text(f"above\n\n{documents.START}\nold\n{documents.END}\n\nbelow\n")
    machine = {"cpu": "Test CPU", "cores": 2, "memory_gib": 4.0}
    document = {"machine": machine, "date": "2026-01-02", "load before": 0.1, "runs": 3, "results": [SMALL, LARGE]}
    (tmp_path / "result.json").write_text(json.dumps(document))
    return tmp_path


def test_the_table_is_that_of_the_result(root: Path) -> None:
    def draw(*options: str) -> int:
        return spark_report.main(["--root", str(root), "--result", str(root / "result.json"), *options])

    assert draw("--check") == 1
    assert "old" in (root / spark_report.PAGE).read_text()
    assert draw() == 0
    assert draw("--check") == 0
    text = (root / spark_report.PAGE).read_text()
    assert text.startswith(f"above\n\n{documents.START}\n")
    assert text.endswith(f"{documents.END}\n\nbelow\n")
    assert "| 400,000 rows/s; 220,000 per CPU-second | 416,000 rows/s; 230,000 per CPU-second |" in text
    assert "| 2.9 times; by CPU-seconds 4.1 | - | ≥ 3 times | no |" in text
    assert "| adds 29 %; by CPU-seconds 41 % | - | ≤ 60 % | yes |" in text
    assert "| 48.2 s; 60.1 CPU-seconds | 410.0 s; 500.0 CPU-seconds | ≤ 60 s | yes |" in text
    assert "10 times the messages cost the embedded source 9.6 times, `lake` 8.5 times the time." in text
    acknowledged = "messages/s; QoS 1 acknowledged in"
    assert f"| 50,000 {acknowledged} 1.5 ms (p50), 9 ms (p99); 7.1 µs of the broker's CPU a message | - |" in text
    assert f"| 49,000 {acknowledged} 2 ms (p50), 20 ms (p99); 7.3 µs of the broker's CPU a message | - |" in text


def test_the_page_of_this_tree_has_the_newest_result() -> None:
    assert spark_report.main(["--check"]) == 0
