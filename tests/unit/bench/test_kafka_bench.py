"""The bench of the Kafka log: with the settings that are shipped, and all that it was compared with in the result."""

from __future__ import annotations

from bench.kafka_bench import FIGURES, Bench, compared
from penstock.storage.log.kafka import KafkaSettings
from penstock_bench.summary import markdown_table, missed_targets, summarise_figure


def test_settings_are_those_that_are_shipped() -> None:
    assert Bench("127.0.0.1:9092", 1_000, 100).settings == KafkaSettings(bootstrap_servers="127.0.0.1:9092")


def test_both_loops_of_each_side_are_kept() -> None:
    produced = {"penstock": [90.0, 95.0, 85.0], "bare": [100.0, 100.0, 100.0], "no reports": [120.0, 120.0, 120.0]}
    consumed = {"penstock": [80.0, 85.0, 85.0], "bare": [100.0, 100.0, 100.0], "whole records": [75.0, 75.0, 75.0]}
    values = compared(produced, consumed)
    by_broker = {who: [{"rep": 0, "broker": who, **fields}] for who, fields in values.items()}
    rows = [summarise_figure("kafka", figure, by_broker) for figure in FIGURES]
    table = markdown_table(rows)
    assert "| scenario | unit | bare | bare, no reports | bare, whole records | penstock |" in table
    assert "| produced | records / CPU-s | 100 | 120 | - | 90 |" in table
    assert "| consumed | records / CPU-s | 100 | - | 75 | 85 |" in table
    assert values["penstock"]["blind_ratio"] == 0.75
    assert missed_targets(rows) == [
        "times the bare loop without delivery reports",
        "times the bare loop that takes value and offset",
    ]
