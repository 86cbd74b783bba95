"""Signals that end a load test early: it tells what there is, and leaves nothing behind."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from penstock_bench.system import process_tree
from tests.support.brokers.broker import Broker

SOON = 60.0
LONG = ["-d", "60", "--warmup", "0"]
# Whoever runs the tests may ignore signals, as nohup and a shell's & do; their children would, too.
AS_FROM_A_TERMINAL = ["env", "--default-signal=HUP,INT,TERM"]


def start(*arguments: str, by: Sequence[str] = AS_FROM_A_TERMINAL) -> subprocess.Popen[str]:
    command = [*by, sys.executable, "-m", "penstock", "bench", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_sessions_are_removed_and_the_table_is_shown(number: signal.Signals, tmp_path: Path) -> None:
    broker = Broker(tmp_path, {"logging.level": "info"})
    try:
        broker.wait_until_listening()
        bench = start("application", "-p", str(broker.port), "-r", "100", "-c", "2", *LONG)
        wait_until(lambda: broker.log().count('"client connected"') >= 3)
        bench.send_signal(number)
        shown, errors = bench.communicate(timeout=SOON)
        assert bench.returncode == 128 + number, errors
        assert "! ended early" in shown
        clients = set(re.findall(r'"(bench-[\w-]+)"', broker.log()))
        assert len(clients) >= 3
        for client in clients:
            assert not broker.client(4).connect(client, clean_start=False).session_present
    finally:
        broker.stop()


def test_under_nohup_a_closed_terminal_does_not_end_it(tmp_path: Path) -> None:
    broker = Broker(tmp_path, {"logging.level": "info"})
    try:
        broker.wait_until_listening()
        bench = start("p2p", "-p", str(broker.port), "-r", "100", "-c", "1", *LONG, by=[*AS_FROM_A_TERMINAL, "nohup"])
        wait_until(lambda: broker.log().count('"client connected"') >= 2)
        ignored = re.search(r"^SigIgn:\s*([0-9a-f]+)$", Path(f"/proc/{bench.pid}/status").read_text(), re.MULTILINE)
        bench.terminate()
        shown, errors = bench.communicate(timeout=SOON)
        assert ignored is not None
        assert int(ignored[1], 16) & 1 << signal.SIGHUP - 1
        assert bench.returncode == 128 + signal.SIGTERM, shown + errors
    finally:
        broker.stop()


def test_compared_brokers_are_stopped() -> None:
    bench = start("compare", "-b", "penstock", "--quiet-wait", "0", *LONG)
    wait_until(lambda: len(process_tree(bench.pid)) > 1)
    _, *brokers = process_tree(bench.pid)
    bench.terminate()
    bench.communicate(timeout=SOON)
    assert bench.returncode == 128 + signal.SIGTERM
    assert not any(Path(f"/proc/{pid}").exists() for pid in brokers)


def test_ctrl_c_before_there_are_figures(tmp_path: Path) -> None:
    """While the sessions of a first stage, which has none, are made."""
    broker = Broker(tmp_path, {"logging.level": "info"})
    try:
        broker.wait_until_listening()
        bench = start("device", "-p", str(broker.port), "-c", "5000")
        wait_until(lambda: broker.log().count('"client connected"') >= 10)
        bench.send_signal(signal.SIGINT)
        shown, errors = bench.communicate(timeout=SOON)
        assert (bench.returncode, errors) == (130, "")
        assert "ended before anything was measured" in shown
    finally:
        broker.stop()
