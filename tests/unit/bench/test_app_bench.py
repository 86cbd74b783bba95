"""The parts of the APPLICATION benchmark: sessions that stay, groups, the proxy that is far away, and the table."""

import socket
import threading
import time
from pathlib import Path

import pytest

from bench import app_bench
from penstock_bench.brokers import Broker
from penstock_bench.load import run_options
from penstock_bench.summary import missed_targets
from tests.unit.bench.test_load import run_clean, run_load

FAN_IN = "--scenario fanin --n 6 --qos 1 --size 66 --window 20"


@pytest.mark.parametrize("version", [4, 5])
def test_what_is_published_to_an_absent_session_is_received_on_its_return(broker: Broker, version: int) -> None:
    options = f"{FAN_IN} --count 50 --session away{version} --version {version}"
    run_clean(broker, f"{options} --part subscribe")
    published = run_clean(broker, f"{options} --part publish")
    assert published["received"] == 300
    received = run_clean(broker, f"{options} --part receive")
    assert received["received"] == received["expected"] == 300
    assert received["published"] == 0
    assert received["rate"] > 0


def test_a_session_that_is_not_there_is_an_error(broker: Broker) -> None:
    result = run_options(["--port", str(broker.port), *f"{FAN_IN} --count 5 --session nobody --part receive".split()])
    assert "the session of nobody0 is gone" in result["error"]


def test_groups_have_publishers_of_their_own(broker: Broker) -> None:
    result = run_clean(broker, f"{FAN_IN} --groups 3 --count 50 --session group")
    assert result["received"] == 300
    assert result["slowest_rate"] == result["fastest_rate"] > 0


@pytest.mark.parametrize(
    "options",
    ["--part receive", "--session s --part receive --e2e 5 --count 5", "--session s --part publish",
     "--groups 7", "--groups 2 --subs 2", "--session s --qos 0", "--part nothing", "--subscriber-port 70000"],
)  # fmt: skip
def test_options_that_contradict_each_other(options: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        run_options(f"--port 1 {FAN_IN} {options}".split())


@pytest.fixture
def far_echo(proxy_program: Path, monkeypatch: pytest.MonkeyPatch):
    """A connection to an echo that is 40 ms away."""
    monkeypatch.setattr(app_bench, "DELAY", proxy_program)
    monkeypatch.setattr(app_bench, "build_proxy", lambda: None)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def echo() -> None:
            connection, _ = server.accept()
            with connection:
                while data := connection.recv(65_536):
                    connection.sendall(data)

        threading.Thread(target=echo, daemon=True).start()
        with (
            app_bench.delaying_proxy(server.getsockname()[1], 20) as port,
            socket.create_connection(("127.0.0.1", port), 10) as connection,
        ):
            yield connection


def test_the_proxy_delays_and_does_not_hold_back(far_echo: socket.socket) -> None:
    """Each way takes its time, and much is under way at once: ten messages take no longer than one."""
    for _ in range(2):
        start = time.monotonic()
        for number in range(10):
            far_echo.sendall(b"%d" % number)
            time.sleep(0.001)
        received = b""
        while len(received) < 10:
            received += far_echo.recv(10)
        assert received == b"0123456789"
        assert time.monotonic() - start >= 0.04


def test_the_proxy_passes_everything_and_the_end(far_echo: socket.socket) -> None:
    data = bytes(range(256)) * 8_000

    def send() -> None:
        far_echo.sendall(data)
        far_echo.shutdown(socket.SHUT_WR)

    threading.Thread(target=send).start()
    received = bytearray()
    while more := far_echo.recv(65_536):
        received += more
    assert received == data


def test_subscribers_come_through_the_proxy(
    proxy_program: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_bench, "DELAY", proxy_program)
    monkeypatch.setattr(app_bench, "build_proxy", lambda: None)
    with app_bench.delaying_proxy(broker.port, 20) as port:
        options = f"{FAN_IN} --count 30 --session far --subscriber-port {port}"
        result = run_load(broker.port, *options.split())
    assert (result["received"], result["lost"]) == (180, 0)
    assert result["p50_us"] >= 20_000


def test_the_table_of_a_small_result() -> None:
    runs = [
        {"rep": 0, "test": "fanin", "broker": "mosquitto", "rate": 5_000, "msgs_per_cpu_s": 6_000},
        {"rep": 0, "test": "fanin", "broker": "penstock", "rate": 150_000, "msgs_per_cpu_s": 110_000},
        {"rep": 0, "test": "backlog", "broker": "penstock", "rate": 200_000, "slowdown": 1.6},
    ]
    rows = app_bench.summarise(runs, "embedded", 1_000_000)
    assert [row["title"] for row in rows if row["brokers"]["penstock"]["reached"]] == ["100 publishers → 1 client"]
    assert missed_targets(rows) == [
        "the same per CPU-second",
        "backlog of 1,000,000, time to live delivery",
    ]
    on_kafka = app_bench.summarise(runs, "kafka", 1_000_000)
    assert missed_targets(on_kafka) == ["backlog of 1,000,000, time to live delivery"]
    assert 'provider = "kafka"' in app_bench.penstock_toml("kafka", None)
