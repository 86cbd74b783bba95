"""The parts of the benchmark of queues: publishing to one, consuming it in a group, settling, and the table."""

from argparse import Namespace
from collections.abc import Iterator

import pytest

from bench import queue_bench
from bench.frame import Bench, summarise_runs
from penstock_bench.brokers import Broker
from penstock_bench.load import run_options
from penstock_bench.summary import missed_targets
from tests.unit.bench.test_load import run_clean, run_load

FAN_IN = "--scenario fanin --n 4 --qos 1 --size 100 --window 20 --version 5 --count 50 --drain 10"


@pytest.fixture(scope="module")
def queues() -> Iterator[Broker]:
    started = queue_bench.broker_of(Bench(Namespace(provider="embedded", idle=0), None), "classic")
    started.start()
    yield started
    started.stop()


@pytest.mark.parametrize("settle", [0, 1])
def test_every_message_of_a_queue_is_settled_once(queues: Broker, settle: int) -> None:
    options = f"{FAN_IN} --queue work --subs 3 --prefetch 10 --settle {settle}"
    assert run_clean(queues, options)["received"] == 200
    # Nothing is left of it: the next consumers get what is published next and nothing else.
    assert run_clean(queues, options)["received"] == 200


def test_what_is_not_settled_does_not_make_room(queues: Broker) -> None:
    """So the runs above have settled indeed: without it a consumer gets as many as it may have, and no more."""
    options = FAN_IN.replace("--drain 10", "--drain 0.5") + " --queue unsettled --prefetch 10"
    result = run_load(queues.port, *options.split())
    assert (result["received"], result["lost"]) == (10, 190)


def test_what_was_published_before_is_received_from_the_beginning(queues: Broker) -> None:
    options = f"{FAN_IN} --queue stream"
    assert run_clean(queues, f"{options} --part publish")["received"] == 200
    for qos in (1, 0):
        received = run_clean(queues, f"{options} --part receive --start first --qos {qos}")
        assert received["received"] == received["expected"] == 200


@pytest.mark.parametrize(
    "options",
    ["--settle 1", "--prefetch 5", "--start first", "--queue q --settle 2", "--queue q --version 4 --settle 1",
     "--queue q --session s", "--queue q --groups 2", "--queue q --part subscribe",
     "--queue q --scenario p2p", f"--queue {'q' * 31}"],
)  # fmt: skip
def test_options_that_contradict_each_other(options: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        run_options(f"--port 1 {FAN_IN} {options}".split())


def test_idle_queues_are_weighed_beside_a_broker_without_them() -> None:
    bench = Bench(Namespace(provider="embedded", idle=300), None)
    broker = queue_bench.broker_of(bench, "idle")
    broker.start()
    try:
        result = queue_bench.measure_idle(bench, broker)
    finally:
        broker.stop()
    assert 0 < result["disk_mb"] < 10
    assert result["idle_mb"] < 20
    assert result["start_s"] > 0


def test_the_table_of_a_small_result() -> None:
    runs = [
        {"rep": 0, "test": "append", "broker": "penstock", "rate": 350_000, "msgs_per_cpu_s": 900_000},
        {"rep": 0, "test": "classic", "broker": "penstock", "rate": 60_000, "msgs_per_cpu_s": 50_000},
        {"rep": 0, "test": "idle", "broker": "penstock", "idle_mb": 70, "again_mb": 101},
    ]
    rows = summarise_runs(runs, queue_bench.scenarios("embedded", 1_000_000, 10_000))
    assert missed_targets(rows) == ["the same per CPU-second", "the same after another start"]
    on_kafka = summarise_runs(runs, queue_bench.scenarios("kafka", 1_000_000, 10_000))
    assert missed_targets(on_kafka) == ["the same after another start"]
