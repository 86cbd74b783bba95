"""The partitioner reaches its targets here and now: of CPU time and by far, so that a busy machine does not matter."""

from __future__ import annotations

from bench.partition_bench import FIGURES, make_keys, measure
from penstock._ext.match import partition
from penstock_bench.summary import missed_targets, summarise_figure


def test_twenty_million_keys_per_cpu_second_and_thirty_times_python() -> None:
    values = measure(make_keys(200_000), rounds=5)
    by_broker = {who: [{"rep": 0, "broker": who, **fields}] for who, fields in values.items()}
    rows = [summarise_figure("partition", figure, by_broker) for figure in FIGURES]
    assert [row["target"] for row in rows] == ["≥ 20,000,000", "≥ 30"]
    assert missed_targets(rows) == [], values


def test_keys_are_uuids_as_text() -> None:
    keys = make_keys(1_000)
    assert keys.dtype == "S36"
    assert len(set(keys.tolist())) == 1_000
    assert all(len(key) == 36 and [key[at] for at in (8, 13, 18, 23)] == [45] * 4 for key in keys.tolist())
    assert set(partition.partitions_of(keys, 10).tolist()) == set(range(10))
