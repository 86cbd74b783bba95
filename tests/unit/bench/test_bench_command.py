"""`penstock bench` against live brokers: every scenario, the files it writes, what it says about what is not there."""

import contextlib
import json
import os
import pty
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from penstock.__main__ import main
from penstock.cli.bench.view import describe
from penstock_bench.charts import round_within, ticks_to
from penstock_bench.html_report import render_report
from penstock_bench.machine import package_version
from penstock_bench.neighbours import Neighbours
from penstock_bench.result import document_of, remarks_of
from penstock_bench.runner import Moment, run_scenario
from penstock_bench.scenarios import SCENARIOS, Request
from penstock_bench.system import cpu_seconds, listening_processes
from penstock_bench.units import round_latency
from tests.support.brokers.broker import Broker, Listener
from tests.support.servers.certificates import Authority
from tests.unit.bench.faulty_broker import FaultyBroker, Packets
from tests.unit.bench.test_load import lose_one, repeat_one, swap_two

BRIEF = ["-d", "0.3", "--warmup", "0.1"]
NOT_RUN = 3
IN_BRIEF = {"idle": ["-c", "50"], "connect-storm": ["-c", "8"], "device": ["-c", "10", "--messages", "20"]}
IN_BRIEF |= {"fan-out": ["-c", "20"], "retained": ["-c", "3", "--messages", "200"], "fan-in": ["-c", "10"]}
IN_BRIEF |= {"shared": ["-c", "10"], "application": ["-c", "10", "--subscribers", "2"], "queue": ["-c", "10"]}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker for everybody, with a listener that speaks TLS and wants a password."""
    folder = tmp_path_factory.mktemp("broker")
    authority = Authority(folder)
    identity = authority.issue("localhost")
    passwords = folder / "passwords"
    assert main(["passwd", "-b", "-c", str(passwords), "alice", "secret"]) == 0
    tls = Listener("tls", {"certificate": str(identity.certificate), "key": str(identity.key)})
    settings = {"access.password_file": str(passwords), "access.anonymous": "allow", "logging.level": "error"}
    broker = Broker(folder, settings, [tls])
    try:
        broker.wait_until_listening()
        yield broker
    finally:
        broker.stop()


def bench(scenario: str, port: int, *options: str) -> int:
    lacks = SCENARIOS[scenario].lacks
    brief = [] if "duration" in lacks else BRIEF[:2] if "warmup" in lacks else BRIEF
    return main(["bench", scenario, "-h", "127.0.0.1", "-p", str(port), *brief, *options])


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_scenario_against_a_live_broker(
    places: Broker, scenario: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "result.json"
    # Little under way at once: on a machine that stands still for seconds nothing runs into a limit of the broker.
    options = [] if "undelivered" in SCENARIOS[scenario].lacks else ["--undelivered", "20"]
    code = bench(scenario, places.port, *options, *IN_BRIEF.get(scenario, []), "--json", str(target))
    output = capsys.readouterr().out
    assert code == 0, output
    document = json.loads(target.read_text())
    assert document["scenario"] == scenario
    assert document["faults"] == []
    assert places.process.pid in document["broker"]["pids"], "the process that listens is found"
    figures = document["figures"]
    assert document["timeline"]
    assert document["timeline"][-1]["rss_mb"] > 1
    if SCENARIOS[scenario].is_traffic:
        assert figures["received"] == figures["expected"] > 0
        assert (figures["lost"], figures["duplicates"], figures["corrupt"]) == (0, 0, 0)
        assert sum(count for _, count in document["latency_us"]) == figures["measured"]
        assert (
            f"ok: every message arrived once{'' if scenario in ('shared', 'retained') else ', in order'} and" in output
        )
    else:
        assert figures["connects_per_s"] > 0
        assert "ok: every connection was served" in output


def test_nothing_is_left_behind(places: Broker) -> None:
    """Sessions that stay and retained messages are removed again."""
    seen: list[Request] = []
    for scenario in ("device", "retained"):
        request = Request(scenario, port=places.port, clients=3, messages=20)
        seen.append(request)
        assert run_scenario(request).faults() == []
    retained = places.client(4)
    retained.connect("looks-for-retained")
    retained.subscribe(f"bench-{seen[1].token}/retained/#")
    retained.publish(f"bench-{seen[1].token}/retained/now", b"fresh")
    assert retained.expect_publish().payload == b"fresh"
    returned = places.client(4)
    assert not returned.connect(f"bench-{seen[0].token}-device0", clean_start=False).session_present


def test_tls_and_a_password(places: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    port = places.listeners[0].host_and_port[1]
    trusted = ["--cafile", str(next(places.directory.glob("Test-Authority.pem")))]
    login = ["-u", "alice", "-P", "secret"]
    options = ["-q", "2", "-V", "mqttv5", "-s", "4000", "--undelivered", "20", "--threads", "2"]
    assert bench("p2p", port, *trusted, *login, *options) == 0
    assert "MQTT 5 over TLS" in capsys.readouterr().out
    assert bench("connect-storm", port, *trusted, *login, "-c", "4", "--quiet") == 0
    assert bench("p2p", port, "--tls-use-os-certs") == NOT_RUN
    assert "certificate is not trusted" in capsys.readouterr().err
    assert bench("p2p", places.port, *trusted) == NOT_RUN
    assert "no TLS at" in capsys.readouterr().err
    assert bench("p2p", port) == NOT_RUN, "plain MQTT where TLS is spoken"
    assert bench("p2p", port, *trusted, "-u", "alice", "-P", "wrong") == NOT_RUN
    assert "refused the connection" in capsys.readouterr().err


@contextmanager
def server_that_answers(answer: bytes) -> Iterator[int]:
    """Says the same to everybody."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            held = []
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                held.append(connection)
                connection.recv(1_000)
                connection.sendall(answer)
                if not answer:
                    connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield int(server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("answer", "options", "said"),
    [
        (b"\x20\x02\x00\x01", [], r"unacceptable protocol version \(1\)"),
        (b"\x20\x02\x00\x05", [], r"not authorised \(5\)"),
        (b"\x20\x03\x00\x84\x00", ["-V", "mqttv5"], r"\(132\)"),
        (b"\x20\x05\x00\x00\x02\x24\x00", ["-V", "mqttv5", "-q", "1"], "takes QoS 0 at most, not 1"),
        (b"\x20\x02\x00\x00\x90\x03\x00\x01\x00", ["-q", "1"], "grants QoS 0 instead of 1"),
        (b"\x20\x02\x00\x00\x90\x03\x00\x01\x80", [], "refuses the subscription"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", [], "does not speak MQTT|closed|not ready|were ready"),
        (b"", [], "closed a connection while CONNACK was awaited"),
    ],
    ids=["version", "authorisation", "version of 5", "maximum QoS", "granted QoS", "subscription", "http", "close"],
)
def test_a_broker_that_refuses(
    answer: bytes, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if answer.startswith(b"HTTP"):
        answer = b"\x20\xff\xff\xff\xff\xff" + answer
    with server_that_answers(answer) as port:
        assert bench("p2p", port, *options) == NOT_RUN
    errors = capsys.readouterr().err
    assert re.search(said, errors), errors
    assert "Traceback" not in errors


def test_a_broker_that_refuses_several_threads(capsys: pytest.CaptureFixture[str]) -> None:
    """Whichever is refused first, all end, and it is told once."""
    with server_that_answers(b"\x20\x02\x00\x05") as port:
        assert bench("fan-in", port, "-c", "1", "--threads", "3") == NOT_RUN
    assert "not authorised (5)" in capsys.readouterr().err


def test_a_broker_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("p2p", 1) == NOT_RUN
    assert "cannot connect to 127.0.0.1:1: connection refused\nis the broker running?" in capsys.readouterr().err
    assert main(["bench", "p2p", "-h", "nowhere.invalid", "-p", "1"]) == NOT_RUN
    assert "cannot find nowhere.invalid" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["device", "-q", "0"], "device needs -q 1 or more"),
        (["queue", "-V", "mqttv311"], "queue needs -V mqttv5"),
        (["p2p", "--queue", "x"], "--queue has no meaning in p2p"),
        (["p2p", "--messages", "5"], "--messages has no meaning in p2p"),
        (["fan-out", "--subscribers", "5"], "--subscribers has no meaning in fan-out"),
        (["idle", "-q", "1"], "--qos has no meaning in idle\npenstock bench idle --help"),
        (["connect-storm", "-w", "1"], "--window has no meaning in connect-storm"),
        (["device", "-d", "1"], "--duration has no meaning in device"),
        (["p2p", "--html", "-"], "write the name of a file"),
        (["p2p", "--html", "/nonexistent/report.html"], "/nonexistent is not a writable directory"),
        (["p2p", "--json", "/"], "--json /: it cannot be written"),
        (["p2p", "-V", "mqttv31"], "use mqttv311 or mqttv5"),
        (["p2p", "--broker-pid", "4194999"], "no such process"),
        (["idle", "-c", "100000000"], "not between"),
        (["compare", "--broker", "unheard-of"], "write NAME=COMMAND"),
        (["compare", "--broker", "x="], "write NAME=COMMAND"),
        (["compare", "--broker", "odd=echo {prt}"], "the command lacks {port}"),
        (["compare", "--broker", "odd=echo 'a {port}"], "No closing quotation"),
        (["compare", "--scenario", "queue"], "mosquitto has no durable queues"),
        (["compare", "--broker", "mosquitto", "--broker", "mosquitto"], "a name of its own"),
        (["compare", "--scenario", "unheard-of"], "there are p2p"),
        (["compare", "-V", "mqttv31"], "use mqttv311 or mqttv5"),
    ],
)
def test_what_makes_no_sense(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *options]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("mistreat", "qos", "code", "said"),
    [
        (lose_one, 1, 1, "NOT OK: lost 1$"),
        (swap_two, 1, 1, "NOT OK: disordered 1$"),
        (repeat_one, 0, 1, "NOT OK: duplicates 1$"),
        (repeat_one, 1, 0, "^ok: 1 messages arrived again, as QoS 1 allows; "),
        (repeat_one, 2, 1, "NOT OK: duplicates 1$"),
        (lose_one, 2, 1, "NOT OK: lost 1$"),
    ],
)
def test_a_lying_broker_is_found_out(
    mistreat: Callable[[Packets], Packets], qos: int, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with FaultyBroker(mistreat, lies=1) as faulty:
        options = ["-c", "1", "-q", str(qos), "-w", "50", "--undelivered", "50", "--drain", "2"]
        assert bench("p2p", faulty.port, *options) == code
    output = capsys.readouterr().out
    assert re.search(said, output, re.MULTILINE), output


def test_the_report_shows_everything_and_needs_nothing(places: Broker, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    assert bench("p2p", places.port, "-q", "1", "-d", "1", "--undelivered", "20", "--html", str(target), "--quiet") == 0
    page = target.read_text()
    for title in (
        "Throughput, messages/s", "Latency over time", "Latency histogram", "Broker memory", "CPU, cores",
    ):  # fmt: skip
        assert f">{title}" in page
    assert "ok: every message arrived once" in page
    assert page.count("<svg") == page.count("</svg>") == 5
    without_namespaces = page.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?://|<script|<link|src=", without_namespaces)
    assert "nan" not in page.lower().replace("tenant", "")


def test_the_broker_is_named_with_its_version(
    places: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    html, json_file = tmp_path / "report.html", tmp_path / "result.json"
    assert bench("p2p", places.port, "--undelivered", "20", "--html", str(html), "--json", str(json_file)) == 0
    version = json.loads(json_file.read_text())["broker"]["version"]
    assert version == f"penstock version {package_version('penstock')}"
    assert f"<h1>p2p at 127.0.0.1:{places.port} ({version})</h1>" in html.read_text()
    assert capsys.readouterr().out.startswith(f"p2p at 127.0.0.1:{places.port} ({version}): ")


def test_a_broker_without_a_version_is_named_by_its_address(capsys: pytest.CaptureFixture[str]) -> None:
    with FaultyBroker(list) as other:
        assert bench("p2p", other.port, "-c", "1", "--undelivered", "50") == 0
    assert capsys.readouterr().out.startswith(f"p2p at 127.0.0.1:{other.port}: ")


@pytest.mark.parametrize("busy", [0.2, 0.8])
def test_a_busy_machine_is_told(
    busy: float, places: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a comparison tells it."""
    html, json_file = tmp_path / "report.html", tmp_path / "result.json"
    monkeypatch.setattr("penstock_bench.neighbours.Neighbours.cores", lambda self: busy)
    options = ["--undelivered", "20", "--html", str(html), "--json", str(json_file)]
    assert bench("p2p", places.port, *options) == 0, "it is no fault of the broker"
    assert json.loads(json_file.read_text())["other_cores"] == busy
    told = "! other programs were busy, doubt the figures (0.8 cores)\n"
    assert capsys.readouterr().out.endswith(told) == (busy > 0.5)
    assert (told.strip() in html.read_text()) == (busy > 0.5)


def test_what_others_use_is_neither_the_broker_nor_the_generator() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            began = time.monotonic()
            watched, unseen = Neighbours([other.pid]), Neighbours([])
            while (used := cpu_seconds([other.pid])) < 1:
                time.sleep(0.05)
            all_cores, without = unseen.cores(), watched.cores()
            took = time.monotonic() - began
        finally:
            other.kill()
    assert all_cores is not None
    assert without is not None
    assert (all_cores - without) * took == pytest.approx(used, abs=0.3)
    assert watched.cores() is None, "what it used is gone with it"


def test_a_file_that_cannot_be_written_is_told_before_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("idle", 1, "-c", "1", "--json", "/nonexistent/result.json") == 2, "nobody was asked for a connection"
    assert "--json /nonexistent/result.json: /nonexistent is not a writable directory" in capsys.readouterr().err


def test_a_file_that_vanishes_meanwhile_does_not_take_the_table_with_it(
    places: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    monkeypatch.setattr("penstock.cli.bench.app.check_target", lambda *_: None)
    assert bench("idle", places.port, "-c", "1", "--json", str(folder / "result.json")) == 1
    shown = capsys.readouterr()
    assert "connects/s" in shown.out
    assert f"cannot write {folder}" in shown.err


def test_json_to_standard_output_is_alone_there(places: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("idle", places.port, "-c", "2", "--json", "-") == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["scenario"] == "idle"
    assert "ok: every connection was served" in shown.err
    assert not Path("-").exists()


def test_a_rate_that_is_not_reached_is_a_failure(
    places: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "report.html"
    slow = ["-q", "1", "-r", "1000000", "-w", "1", "--undelivered", "1", "-c", "2"]
    assert bench("p2p", places.port, *slow, "--html", str(target)) == 1
    output = capsys.readouterr().out
    told = r"asked 1,000,000/s, sent [\d,]+/s, late by up to [\d.]+ m?s"
    assert re.search(rf"^rate +{told}$", output, re.M), output
    assert re.search(rf"^NOT OK: {told}$", output, re.M), output
    assert len(re.findall(told, target.read_text())) == 2
    assert bench("p2p", places.port, "-r", "200", "-c", "2", "--undelivered", "1000", "-d", "1") == 0
    assert "asked 200/s, sent" in capsys.readouterr().out


def test_all_settings_are_told(places: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("p2p", places.port, "-q", "1", "-c", "2", "--undelivered", "7", "-w", "9", "--threads", "2") == 0
    (line, *_) = capsys.readouterr().out.splitlines()
    for part in ("2 pairs", "window 9", "undelivered 7", "2 threads", "0.3 s after 0.1 s of warm-up", "drain 3 s"):
        assert part in line


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_help_has_the_scenarios_own_options_and_defaults(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", scenario, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.partition("Exit codes")[0].split())
    known = SCENARIOS[scenario]
    assert f"{known.clients_are.capitalize()}. [default: {known.clients};" in text
    for name in ("qos", "payload", "rate", "window", "undelivered", "drain", "messages", "subscribers", "queue"):
        assert (f"--{name} " in text) == (name not in known.lacks)
    for wrong in ("WebSocket", "mqttv31,", "-D and -x"):
        assert wrong not in text


@pytest.mark.parametrize(("scenario", "files"), [("p2p", 201), ("fan-in", 101), ("idle", 101)])
def test_open_files_are_asked_for_as_many_as_there_are_connections(
    scenario: str, files: int, places: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr("penstock_bench.runner.allow_open_files", asked.append)
    run_scenario(Request(scenario, port=places.port, clients=100, duration=0.1, warmup=0, undelivered=5))
    assert asked == [files]


def test_a_queue_of_its_own_with_messages_that_go_by_themselves(places: Broker) -> None:
    """The built-in queue `mqtt` takes a copy of everything: what nobody reads there must not stay."""
    outcome = run_scenario(Request("queue", port=places.port, clients=5, duration=0.2, warmup=0.0))
    assert outcome.faults() == []
    assert outcome.request.queue == f"bench-{outcome.request.token}"
    (stage,) = SCENARIOS["queue"].stages(outcome.request)
    assert 60 <= stage.options.expiry <= 120


def test_reports_of_stages_that_are_over_soon_have_charts(places: Broker, tmp_path: Path) -> None:
    for scenario in ("device", "retained"):
        target = tmp_path / f"{scenario}.html"
        assert bench(scenario, places.port, "--html", str(target), "--quiet") == 0
        page = target.read_text()
        for title in ("Throughput", "Broker memory", "CPU, cores"):
            assert page.count(f">{title}") == 2, (scenario, title)
        assert ">Latency over time" in page
        assert ">Latency histogram, since connecting" in page


def test_the_warm_up_is_shaded(places: Broker, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    assert bench("p2p", places.port, "-d", "1", "--undelivered", "20", "--html", str(target), "--quiet") == 0
    assert "<title>warm-up: not in the figures</title>" in target.read_text()


def test_axes_have_round_numbers() -> None:
    assert ticks_to(0.97, 4) == [0, 0.25, 0.5, 0.75, 1]
    assert ticks_to(4_100, 4) == [0, 2_000, 4_000, 6_000]
    assert ticks_to(16, 8) == [0, 2, 4, 6, 8, 10, 12, 14, 16]
    assert ticks_to(0, 4) == [0, 1]
    assert round_within(80, 3_000) == [100, 200, 500, 1_000, 2_000]
    assert round_latency(2_500) == "2.5 ms"


def on_a_terminal(*arguments: str) -> str:
    """What a command shows there, without its colours."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-m", "penstock", *arguments], os.environ | {"COLUMNS": "80"})
    shown = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while data := os.read(terminal, 65_536):
            shown += data
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)
    return re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", shown.decode())


def test_progress_on_a_terminal(places: Broker) -> None:
    text = on_a_terminal("bench", "p2p", "-h", "127.0.0.1", "-p", str(places.port), "-d", "1.5", "--undelivered", "20")
    assert re.search(r"messages/s +published [1-9][\d,]*, received [1-9][\d,]*", text), text
    assert re.search(r"latency +p50 [\d.]+ .?s, p90 [\d.]+ .?s, p99 [\d.]+ .?s", text), text


def test_the_table_of_several_stages_fits_a_terminal(places: Broker) -> None:
    text = on_a_terminal("bench", "device", "-h", "127.0.0.1", "-p", str(places.port), *IN_BRIEF["device"])
    lines = text[text.index("device at") :].split("\r\n")
    assert max(len(line) for line in lines) <= 80, text
    assert all(title in lines for title in ("published while away", "received on return")), text
    assert sum(line.startswith("latency p50 / p90 / p99 ") for line in lines) == 1, text
    assert all(line.endswith("since connecting") for line in lines if line.startswith("latency")), text


def test_progress_elsewhere_is_a_line_now_and_then(
    places: Broker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cli.bench.view.LINE_EVERY", 0.3)
    assert bench("p2p", places.port, "-d", "1.5", "--undelivered", "20") == 0
    lines = capsys.readouterr().err.splitlines()
    assert 2 <= len(lines) <= 8
    line = r"pairs: .* s, 20 connections; messages/s published [\d,]+, received [\d,]+; "
    assert all(re.match(line, each) for each in lines), lines
    assert any(re.match(f"{line}latency p50", each) for each in lines), "the last may be of a moment without messages"
    assert bench("p2p", places.port, "-d", "1", "--undelivered", "20", "--quiet") == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("threads", [1, 3])
def test_ctrl_c_ends_the_load_and_tells_what_there_is(places: Broker, threads: int) -> None:
    seen: list[Moment] = []

    def interrupt(moment: Moment) -> None:
        if moment.phase == "measuring" and not seen:
            seen.append(moment)
            raise KeyboardInterrupt

    request = Request("fan-in", port=places.port, duration=60, warmup=0.1, qos=1, undelivered=20, threads=threads)
    outcome = run_scenario(request, interrupt)
    assert outcome.is_interrupted
    assert outcome.figures["received"] == outcome.figures["expected"] > 0
    assert outcome.faults() == []
    document = document_of(outcome)
    assert remarks_of(document)[0] == f"! ended early, after {outcome.figures['secs']:.1f} of 60 s"
    assert "ended early" in render_report(document)


def test_what_is_shown_meanwhile(places: Broker) -> None:
    moments: list[Moment] = []
    pids = tuple(listening_processes("127.0.0.1", places.port))
    request = Request("p2p", port=places.port, duration=0.5, warmup=0.0, undelivered=20, pids=pids)
    while not any(moment.count for moment in moments):
        run_scenario(request, moments.append)
    measured = next(moment for moment in moments if moment.count)
    shown = dict(describe(measured, is_traffic=True))
    assert "20 connections" in shown["pairs"]
    assert re.search(r"published [\d,]+, received [\d,]+", shown["messages/s"])
    assert re.fullmatch(r"p50 .*s, p90 .*s, p99 .*s", shown["latency"])
    assert "cores" in shown["broker"]


def test_no_moment_is_too_short_for_a_rate(places: Broker) -> None:
    """The last one ends with the load, whenever that is."""
    for _ in range(10):
        moments: list[Moment] = []
        run_scenario(Request("retained", port=places.port, clients=2, messages=200), moments.append)
        for stage in {moment.stage for moment in moments}:
            times = [moment.at for moment in moments if moment.stage == stage]
            assert all(later - earlier >= 0.001 for earlier, later in pairwise(times)), times


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_idle_connections_cost_the_generator_little(places: Broker) -> None:
    run_scenario(Request("idle", port=places.port, clients=100, duration=0.1))
    before, grown = resident_bytes(), 0

    def measure(_: Moment) -> None:
        nonlocal grown
        grown = max(grown, resident_bytes() - before)

    outcome = run_scenario(Request("idle", port=places.port, clients=3_000, duration=0.3), measure)
    assert outcome.faults() == []
    assert grown < 3_000 * 2_048


@pytest.mark.skipif(not shutil.which("mosquitto"), reason="mosquitto is not installed")
def test_a_comparison_of_two_brokers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "compared.json"
    brokers = ["--broker", "mosquitto", "--broker", "again=mosquitto -c {dir}/mosquitto.conf"]
    options = [
        "--reps",
        "2",
        "-d",
        "0.5",
        "--warmup",
        "0",
        "--quiet-wait",
        "0",
        "-q",
        "1",
        "-c",
        "2",
        "--undelivered",
        "20",
    ]
    assert main(["bench", "compare", *brokers, *options, "--json", str(target), "--save", str(tmp_path / "all")]) == 0
    document: dict[str, Any] = json.loads(target.read_text())
    assert [(run["rep"], run["broker"]) for run in document["runs"]] == [
        (0, "mosquitto"), (0, "again"), (1, "mosquitto"), (1, "again"),
    ]  # fmt: skip
    assert document["machine"].keys() >= {"cpu", "cores", "kernel"}
    assert document["versions"].keys() >= {"penstock", "mosquitto"}
    (saved,) = (tmp_path / "all").iterdir()
    assert json.loads(saved.read_text()) == document
    table = capsys.readouterr().out
    load, broker, *_ = table.splitlines()
    assert load.startswith("p2p: 2 pairs, MQTT 3.1.1, QoS 1, 64 bytes, as fast as it goes, 0.5 s after 0 s of warm-up")
    assert broker.startswith("mosquitto ")
    assert "nothing kept on the disk" in table
    assert re.search(r"^p2p +messages/CPU-s +[\d,]+ +[\d,]+ \(\d+\.\d\dx\)$", table, re.M), table


@pytest.mark.skipif(not shutil.which("mosquitto"), reason="mosquitto is not installed")
def test_comparisons_are_written_where_they_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To standard output alone, and never over another one of the same minute."""
    monkeypatch.chdir(tmp_path)
    compare = ["bench", "compare", "--broker", "mosquitto", "--reps", "1", "--quiet-wait", "0", "-c", "2", *BRIEF]
    for _ in range(2):
        second = int(time.time())
        assert main([*compare, "--json", "-", "--save", "all"]) == 0
        shown = capsys.readouterr()
        assert json.loads(shown.out)["runs"]
        assert "messages/CPU-s" in shown.err
        while int(time.time()) == second:  # names have seconds, and a comparison takes longer
            time.sleep(0.05)
    assert len(list(Path("all").iterdir())) == 2
    assert main([*compare, "--json", "missing/x.json"]) == 2
    assert capsys.readouterr().err.startswith("penstock: --json missing/x.json: missing is not a writable directory"), (
        "said before the runs"
    )


@pytest.mark.skipif(not shutil.which("mosquitto"), reason="mosquitto is not installed")
def test_a_comparison_has_the_limits_and_failures_of_a_single_test(capsys: pytest.CaptureFixture[str]) -> None:
    """Payloads up to 1 MiB; a rate that is not reached is a fault."""
    brief = ["--broker", "mosquitto", "--reps", "1", "--quiet-wait", "0", "-c", "2", "-q", "1", *BRIEF]
    assert main(["bench", "compare", *brief, "-s", "1048576", "--undelivered", "2"]) == 0
    assert "1,048,576 bytes" in capsys.readouterr().out
    assert main(["bench", "compare", *brief, "-r", "1000000", "-w", "1", "--undelivered", "1"]) == 1
    shown = capsys.readouterr()
    assert re.search(r"^! p2p, mosquitto, run 1: asked 1,000,000/s, sent [\d,]+/s", shown.out, re.M), shown.out
    assert "NOT OK: mosquitto" in shown.err
    for limits in (["-s", "1048577"], ["-w", "32769"], ["--threads", "65"], ["-s", "15"]):
        told = []
        for command in (["p2p"], ["compare", *brief]):
            assert main(["bench", *command, *limits]) == 2
            told.append(capsys.readouterr().err.splitlines()[-1])
        assert told[0] == told[1]


def test_a_comparison_with_a_broker_that_does_not_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "compare", "--broker", "gone=false {port}", "--quiet-wait", "0"]) == 1
    assert "gone did not start" in capsys.readouterr().err
    assert main(["bench", "compare", "--broker", "odd=echo {port} {prt}", "--quiet-wait", "0"]) == 1
    assert "{port}" in capsys.readouterr().err
