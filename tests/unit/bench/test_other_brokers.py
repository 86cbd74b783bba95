"""`penstock bench` where no Penstock listens: other brokers, other services, and a broker that does not answer."""

import contextlib
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from penstock_bench.brokers import COMMANDS
from penstock_bench.brokers import Broker as Peer
from penstock_bench.result import headroom
from penstock_bench.scenarios import SCENARIOS
from tests.support.clients.strangers import stranger
from tests.unit.bench.faulty_broker import PUBLISH, FaultyBroker, Packets, split_packets
from tests.unit.bench.test_bench_command import IN_BRIEF, NOT_RUN, bench


@pytest.fixture(scope="module")
def mosquitto() -> Iterator[Peer]:
    if not shutil.which("mosquitto"):
        pytest.skip("mosquitto is not installed")
    started = Peer("mosquitto", COMMANDS["mosquitto"])
    started.start()
    yield started
    started.stop()


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name != "queue"])
def test_each_scenario_against_another_broker(
    mosquitto: Peer, scenario: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [] if "undelivered" in SCENARIOS[scenario].lacks else ["--undelivered", "20"]
    code = bench(scenario, mosquitto.port, *options, *IN_BRIEF.get(scenario, []))
    output = capsys.readouterr().out
    assert code == 0, output
    assert "(mosquitto version " in output
    assert "\nbroker " in output or ": broker " in output, "CPU and memory of a process that is not ours"


def test_versions_and_qos_of_another_broker(mosquitto: Peer) -> None:
    for qos, version in ((0, "mqttv311"), (1, "mqttv5"), (2, "mqttv5")):
        assert bench("p2p", mosquitto.port, "-q", str(qos), "-V", version, "--quiet") == 0


def test_a_broker_without_queues_is_told_so(mosquitto: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("queue", mosquitto.port, "-c", "2", "--drain", "0.2") == 1
    output = capsys.readouterr().out
    assert "no message arrived: only Penstock has such queues" in output
    assert "penstock queue purge" not in output, "it has left nothing there"


@pytest.mark.parametrize("kind", ["hangs", "http"])
def test_a_port_of_another_service(
    kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that says nothing is not waited for as long as a broker with very many connections to open."""
    monkeypatch.setattr("penstock_bench.runner.SILENT_SECONDS", 0.3)
    with stranger(kind) as port:
        assert bench("p2p", port) == NOT_RUN
    said, hint = capsys.readouterr().err.splitlines()
    assert kind == "http" or said == f"penstock: 127.0.0.1:{port} does not answer: no CONNACK in 0.3 s"
    assert hint.startswith("does a broker listen for MQTT on this port? If it wants TLS, give --cafile FILE")


def test_where_nothing_happened_nothing_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    with stranger("hangs") as port:
        assert bench("connect-storm", port) == 1
    assert "NOT OK: no connection was accepted" in capsys.readouterr().out

    def lose_all(_: Packets) -> Packets:
        return []

    with FaultyBroker(lose_all, lies=1_000_000) as faulty:
        assert bench("p2p", faulty.port, "-c", "1", "--undelivered", "50", "--drain", "0.2") == 1
    assert "NOT OK: no message arrived" in capsys.readouterr().out


def test_ctrl_c_before_anything_happened_is_not_called_right() -> None:
    with stranger("hangs") as port:
        command = [sys.executable, "-m", "penstock", "bench", "p2p", "-h", "127.0.0.1", "-p", str(port)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        assert "opening" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "ended before anything was measured" in output
    assert "ok:" not in output


def test_a_comparison_says_what_it_is_doing_on_a_terminal() -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "penstock", "bench", "compare", "-b", "mosquitto", "--reps", "1", "-d", "0.2"]
    process = subprocess.Popen([*command, "--quiet-wait", "0.1"], stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while data := os.read(ours, 65_536):
            shown += data
    os.close(ours)
    assert process.wait() == 0
    *doing, told, end = shown.decode().split("\r\x1b[K")
    assert doing == [
        "",
        "mosquitto: waiting for an idle machine, at most 0.1 s",
        "mosquitto: starting",
        "mosquitto: waiting for an idle machine, at most 0.1 s",
        "1 of 1, p2p, mosquitto: measuring",
    ]
    assert told.startswith("1. p2p mosquitto: rate ")
    assert end == ""


class Holding(FaultyBroker):
    """Acknowledges when `window` publishes or more wait for it and no other comes meanwhile."""

    def __init__(self, window: int):
        super().__init__(lambda packets: packets)
        self._window = window
        self._ids: Packets = []
        self.acknowledged = 0
        self.most = 0

    def _serve(self, connection: socket.socket) -> None:
        rest = b""
        with contextlib.suppress(OSError):
            while data := connection.recv(65_536):
                packets, rest = split_packets(rest + data)
                for packet in packets:
                    if packet[0] >> 4 == PUBLISH:
                        id_at = 4 + int.from_bytes(packet[2:4])
                        self._ids.append(packet[id_at : id_at + 2])
                    else:
                        self._handle(connection, packet)
                if len(self._ids) >= self._window and not self._has_more(connection):
                    self.most = max(self.most, len(self._ids))
                    self.acknowledged += len(self._ids)
                    connection.sendall(b"".join(b"\x40\x02" + each for each in self._ids))
                    self._ids = []

    def _has_more(self, connection: socket.socket) -> bool:
        time.sleep(0.02)
        try:
            return bool(connection.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK))
        except BlockingIOError:
            return False


@pytest.mark.parametrize("window", [1, 7, 50])
def test_a_publisher_waits_when_its_window_is_full_and_not_before(window: int) -> None:
    with Holding(window) as broker:
        bench("p2p", broker.port, "-c", "1", "-q", "1", "-w", str(window), "--undelivered", "0", "--drain", "0.1")
    assert broker.most == window
    assert broker.acknowledged >= 2 * window


def test_who_needed_more_processor_is_said_in_words() -> None:
    stage = {"load_busiest_thread": 0.5, "rate": 1, "broker_cpu_s": 3.0, "load_cpu_s": 1.0}
    assert headroom(stage) == ", 3.0 times less than the broker"
    assert headroom(stage | {"broker_cpu_s": 0.5}) == ", 2.0 times more than the broker"
    assert headroom(stage | {"load_busiest_thread": 1.0}).startswith(", busy all the time")
    assert headroom(stage | {"broker_cpu_s": 0.0}) == ""
