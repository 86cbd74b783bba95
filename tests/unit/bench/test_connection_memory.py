"""Memory per idle connection is told as a figure only where the growth of the broker's process is that."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.__main__ import main
from penstock_bench import connection_memory
from penstock_bench.brokers import Broker
from penstock_bench.connection_memory import Opening, describe_memory, file_slots, judge_memory
from penstock_bench.contest import remarks_of
from penstock_bench.runner import run_scenario
from penstock_bench.scenarios import Request

CLIENTS, BEFORE_KB, EACH_KB = 1_000, 10_000, 2
SPARED = "the broker had memory to spare, from its start or from earlier work; restart it and take more --clients"


def judged(
    free_for: int = 0,
    counts: range | list[int] = range(20, CLIENTS + 1, 20),
    peak_before: int = BEFORE_KB,
    each_kb: float = EACH_KB,
) -> dict[str, Any]:
    """Of connections for the first of which there was memory."""

    def resident(count: int) -> int:
        return BEFORE_KB + round(max(0, count - free_for) * each_kb)

    opening = Opening([], CLIENTS, BEFORE_KB)
    for count in counts:
        opening.look(count, count, resident(count))
    after = resident(CLIENTS)
    growth = round((after - BEFORE_KB) * 1024 / CLIENTS)
    result = {"bytes_per_conn": growth, "rss_kb": after, "rss_kb_peak_before": peak_before}
    judge_memory(result, opening)
    return result


@pytest.mark.parametrize("free_for", [0, 50])
def test_even_growth_is_a_figure(free_for: int) -> None:
    result = judged(free_for)
    assert describe_memory(result) == f"{(CLIENTS - free_for) * EACH_KB * 1024 / CLIENTS:,.0f} bytes"
    assert not {"bytes_per_conn_at_least", "bytes_per_conn_remark"} & result.keys()


@pytest.mark.parametrize(
    "result",
    [
        judged(free_for=150),
        judged(free_for=500),
        judged(peak_before=BEFORE_KB + CLIENTS * EACH_KB),
        judged(counts=[CLIENTS]),
        judged(counts=[20, 500, 900]),
    ],
    ids=["some were free", "half was free", "had more once", "all came at once", "ended early"],
)
def test_other_growth_is_the_least_it_can_be(result: dict[str, Any]) -> None:
    assert "bytes_per_conn" not in result
    assert describe_memory(result).startswith(f"at least {result['bytes_per_conn_at_least']:,} bytes: {SPARED}")
    runs = [{"test": "idle", "broker": "x", "rep": 0, **result}]
    (remark,) = remarks_of({"runs": runs})
    assert remark.startswith(f"! idle, x: memory of a connection: at least {result['bytes_per_conn_at_least']:,} bytes")


def test_hardly_any_growth_is_none() -> None:
    result = judged(each_kb=0.1)
    assert not {"bytes_per_conn", "bytes_per_conn_at_least"} & result.keys()
    assert describe_memory(result).startswith(f"not measurable: {SPARED}")


@pytest.mark.parametrize(
    ("slots", "is_told"),
    [((256, 256), True), ((256, 1_024), True), ((1_024, 2_048), True), ((2_048, 2_048), False)],
    ids=["few connections", "fresh", "had fewer", "had as many"],
)
def test_a_process_that_had_as_many_connections_once(
    slots: tuple[int, int], is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = slots
    told = iter([before, after])
    monkeypatch.setattr(connection_memory, "file_slots", lambda _: next(told))
    opening = Opening([1], CLIENTS, BEFORE_KB)
    for count in range(20, CLIENTS + 1, 20):
        opening.look(count, count, BEFORE_KB + count)
    result = {"bytes_per_conn": 1_024, "rss_kb": BEFORE_KB + CLIENTS, "rss_kb_peak_before": BEFORE_KB}
    judge_memory(result, opening)
    assert ("bytes_per_conn" in result) == is_told


def test_room_for_open_files_stays() -> None:
    """What the criterion above relies on, in the kernel that runs this."""
    code = (
        "import os; files = [os.open('/dev/null', os.O_RDONLY) for _ in range(900)]; "
        "[os.close(file) for file in files]; print(flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert file_slots(process.pid) > 900
        process.communicate(b"\n")
    assert file_slots(process.pid) == 0


def test_a_broker_elsewhere_has_no_memory_to_tell_of() -> None:
    result = {"bytes_per_conn": 0, "rss_kb": 0, "rss_kb_peak_before": 0}
    judge_memory(result, None)
    assert "bytes_per_conn" not in result
    assert "bytes_per_conn_remark" not in result


@pytest.fixture
def fresh(broker: Broker) -> Broker:
    """Nobody was connected to it but who started it."""
    broker.stop()
    broker.start()
    return broker


def test_a_broker_that_has_worked_is_never_told_as_a_fresh_one(
    fresh: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same number again finds all of it free, and more find some of it free."""

    def idle(clients: int) -> tuple[dict[str, Any], str, str]:
        files = ["--json", str(tmp_path / "idle.json"), "--html", str(tmp_path / "idle.html")]
        assert main(["bench", "idle", "-p", str(fresh.port), "-c", str(clients), "-d", "0.2", *files]) == 0
        fresh.settle()
        figures = json.loads((tmp_path / "idle.json").read_text())["figures"]
        return figures, capsys.readouterr().out, (tmp_path / "idle.html").read_text()

    first, *_ = idle(2_000)
    least = first.get("bytes_per_conn", first.get("bytes_per_conn_at_least", 0))
    assert least >= 256, "a fresh process grows"
    for clients in (2_000, 5_000):
        figures, table, page = idle(clients)
        assert "bytes_per_conn" not in figures
        assert figures["bytes_per_conn_remark"].startswith("the broker had memory to spare")
        shown = re.search(r"^broker memory per connection +(.*)$", table, re.M)
        assert shown
        assert re.match(rf"(at least [\d,]+ bytes|not measurable): {re.escape(SPARED)}", shown[1]), shown[1]
        assert shown[1] in page


def test_work_of_another_kind_counts_too(fresh: Broker) -> None:
    """What was published and delivered left memory behind."""
    run_scenario(Request("p2p", port=fresh.port, clients=100, duration=0.5, warmup=0, pids=tuple(fresh.pids())))
    fresh.settle()
    outcome = run_scenario(Request("idle", port=fresh.port, duration=0.2, pids=tuple(fresh.pids())))
    assert "bytes_per_conn" not in outcome.figures
