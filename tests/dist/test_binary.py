"""The single-file executable, run where there is nothing else: no Python, no environment, an empty directory."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt import publish, subscribe

from penstock.cli.app import COMMANDS
from penstock_bench.system import cpu_seconds
from tests.support.brokers.broker import free_port
from tests.support.brokers.deployment import ROOT, VERSION
from tests.support.brokers.executable import BUILD_SECONDS, FREE_PORT, SECONDS, Alone
from tests.support.brokers.notify_socket import NotifySocket
from tests.support.servers.redis_server import RedisServer

START_SECONDS = 1.5

# The first test builds it if it has to.
pytestmark = pytest.mark.timeout(BUILD_SECONDS + 60)


def test_it_is_one_file_without_symbols(binary: Path) -> None:
    assert binary.read_bytes()[:4] == b"\x7fELF"
    assert os.access(binary, os.X_OK)
    sections = subprocess.run(
        ["readelf", "--sections", "--wide", str(binary)], capture_output=True, text=True, check=True
    )
    assert ".symtab" not in sections.stdout
    assert ".debug_info" not in sections.stdout


def test_version_and_commands(alone: Alone) -> None:
    """Every command is inside, and says what it does."""
    assert alone.run("--version").stdout == f"penstock {VERSION}\n"
    listed = alone.run("--help").stdout
    for command in COMMANDS:
        assert f" {command} " in listed
    assert not list((alone.directory / "unpacked").iterdir()), "it leaves nothing behind"


def test_every_command_can_be_imported(unpacked: Alone) -> None:
    for command in COMMANDS:
        done = unpacked.run(command, "--help")
        assert done.returncode == 0, done.stderr
        assert "Usage: penstock" in done.stdout


def test_it_starts_fast_enough(unpacked: Alone, capsys: pytest.CaptureFixture[str]) -> None:
    """Until it listens, the best of three. What is bounded is the processor's time, which on an idle machine is the
    time that passes, and on a busy one does not depend on the others."""
    passed, used = [], []
    for _ in range(3):
        began = time.monotonic()
        unpacked.serve()
        passed.append(time.monotonic() - began)
        used.append(cpu_seconds([unpacked.started[-1].pid]))
        assert unpacked.stop() == 0
    with capsys.disabled():
        print(f"\nstart to listening, unpacked: {min(passed):.2f} s, {min(used):.2f} s of the processor")
    assert min(used) <= START_SECONDS


def test_archive_is_the_unpacked_one(binary: Path, tmp_path: Path) -> None:
    """As docs/operations.md installs it: unpacked by tar, found by a link."""
    command = [sys.executable, str(ROOT / "docker/binary/build.py"), "archive"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = re.findall(r"^tar .*$", (ROOT / "docs/operations.md").read_text(), re.M)
    subprocess.run(["bash", "-c", line.replace("/opt", str(tmp_path))], cwd=ROOT, timeout=SECONDS, check=True)
    started = Alone(tmp_path / "penstock/penstock", tmp_path)
    assert started.run("--version").stdout == f"penstock {VERSION}\n"


def test_bad_settings_are_named(unpacked: Alone) -> None:
    (unpacked.directory / "penstock.toml").write_text("[limits]\nmax_paket_size = 1\n")
    done = unpacked.run("serve")
    assert done.returncode == 78
    assert "max_packet_size" in done.stderr
    assert "Traceback" not in done.stderr


def test_spark_is_not_inside_and_says_so(unpacked: Alone) -> None:
    done = unpacked.run("spark", "sql", "SELECT 1")
    assert done.returncode == 1
    assert ".whl[spark]'" in done.stderr


def test_real_clients(alone: Alone) -> None:
    """paho, mosquitto's clients and its own talk through it; what was published is in its log; it drains."""
    port = alone.serve()
    publish.single("demo/state", "on", qos=1, retain=True, hostname="127.0.0.1", port=port, protocol=mqtt.MQTTv5)
    message = subscribe.simple("demo/state", hostname="127.0.0.1", port=port, protocol=mqtt.MQTTv5)
    assert (message.topic, message.payload, message.retain) == ("demo/state", b"on", True)
    where = ["-h", "127.0.0.1", "-p", str(port)]
    subprocess.run(["mosquitto_pub", *where, "-q", "2", "-r", "-t", "demo/m", "-m", "two"], timeout=SECONDS, check=True)
    heard = subprocess.run(
        ["mosquitto_sub", *where, "-t", "demo/m", "-C", "1", "-W", "60"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    assert heard.stdout == "two\n"
    assert alone.run("pub", *where, "-t", "demo/own", "-m", "one", "-q", "1", "-r").returncode == 0
    assert alone.stop() == 0
    logged = alone.run("log", "read", "tbmq.msg.all", "--json")
    assert logged.returncode == 0, logged.stderr
    assert {json.loads(line)["topic"] for line in logged.stdout.splitlines()} >= {"demo/state", "demo/m", "demo/own"}


def test_what_operators_do(unpacked: Alone) -> None:
    """Load, a look at the broker and its machine, a backup while it runs, and a broker on what was restored."""
    admin = f"127.0.0.1:{free_port()}"
    port = unpacked.serve("--admin", admin)
    short = ["--warmup", "0", "-d", "0.3", "--json", "result.json", "--html", "report.html"]
    load = unpacked.run("bench", "p2p", "-p", str(port), "-q", "1", *short)
    assert load.returncode == 0, load.stderr
    result = json.loads((unpacked.directory / "result.json").read_text())
    assert "<svg" in (unpacked.directory / "report.html").read_text()
    watched = unpacked.run("top", "--once", "-d", "0.1", "--json")
    assert watched.returncode == 0, watched.stderr
    received = json.loads(watched.stdout)["messages"]["received"]
    assert received > 0, result
    places = ["--port", str(port), "--set", f"admin.address={admin}", *FREE_PORT]
    examined = unpacked.run("doctor", *places)
    assert examined.returncode in (0, 1), examined.stderr  # 1: its disk is slow
    assert f"127.0.0.1:{port} is in use by the broker that runs here" in examined.stdout
    saved = unpacked.run("backup", "saved.tar.gz", "--json")
    assert saved.returncode == 0, saved.stderr
    assert json.loads(saved.stdout)["records"] >= received
    assert unpacked.stop() == 0
    restored = unpacked.run("restore", "saved.tar.gz", "--data-dir", "again")
    assert restored.returncode == 0, restored.stderr
    assert unpacked.run("log", "verify", "--data-dir", "again").returncode == 0
    unpacked.serve("--data-dir", "again")
    assert unpacked.stop() == 0


def test_argon2_is_inside(unpacked: Alone) -> None:
    """For passwords: compiled, and loaded by name."""
    done = subprocess.run(
        [str(unpacked.binary), "passwd", "-c", "passwords", "alice"],
        cwd=unpacked.directory,
        env=unpacked.environment(),
        input="secret\n",
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    port = unpacked.serve("--set", "access.password_file=passwords", "--set", "access.anonymous=deny")
    where = ["-h", "127.0.0.1", "-p", str(port), "-t", "a", "-m", "b", "-q", "1"]
    assert unpacked.run("pub", *where, "-u", "alice", "-P", "secret").returncode == 0


def test_redis_client_is_inside(unpacked: Alone) -> None:
    """With its scripts: a message waits in Redis for a client that is away."""
    redis = RedisServer().start()
    try:
        port = unpacked.serve("--set", "device.store=redis", "--set", f"redis.addresses={redis.address}")
        where = ["-h", "127.0.0.1", "-p", str(port)]
        held = [*where, "-i", "away", "-c", "-q", "1", "-t", "demo/away"]
        assert unpacked.run("sub", *held, "-E").returncode == 0
        assert unpacked.run("pub", *where, "-t", "demo/away", "-m", "later", "-q", "1").returncode == 0
        assert unpacked.run("sub", *held, "-C", "1", "-W", "60").stdout == "later\n"
        assert unpacked.stop() == 0
    finally:
        redis.stop()


def test_kafka_client_is_inside(unpacked: Alone) -> None:
    """It is loaded and asks; here nobody answers."""
    kafka = ["--set", "log.provider=kafka", "--set", f"kafka.bootstrap_servers=127.0.0.1:{free_port()}"]
    done = unpacked.run("check-config", *kafka)
    assert done.returncode == 0, done.stderr
    done = unpacked.run("log", "topics", *kafka, "--set", "kafka.request_timeout_ms=1000")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "kafka" in done.stderr.lower()


def test_query_topics_are_inside(unpacked: Alone) -> None:
    """The parser of SQL, and the compiled evaluation."""
    data_port = free_port()
    unpacked.serve("--set", f"data_subscription.address=127.0.0.1:{data_port}")
    made = unpacked.run(
        "sql", "--server", f"127.0.0.1:{data_port}", 'CREATE TOPIC hot AS SELECT ts FROM "a/+" WHERE payload.t > 30'
    )
    assert made.returncode == 0, made.stderr + unpacked.log()


def test_it_compares_brokers(unpacked: Alone) -> None:
    """It starts itself, and describes machine and versions without its sources."""
    brief = ["-d", "0.3", "--warmup", "0", "--reps", "1", "--quiet-wait", "0", "-q", "1", "--undelivered", "20"]
    done = unpacked.run("bench", "compare", *brief, "--json", "compared.json")
    assert done.returncode == 0, done.stdout + done.stderr
    compared = json.loads((unpacked.directory / "compared.json").read_text())
    assert compared["versions"]["penstock"] == VERSION
    assert [each["broker"] for each in compared["runs"]] == ["mosquitto", "penstock"]


def test_systemd_hears_the_child(alone: Alone) -> None:
    """The single file is two processes: the one that is started passes signals and the exit code on."""
    systemd = NotifySocket(alone.directory / "notify")
    alone.serve(NOTIFY_SOCKET=systemd.name)
    systemd.wait_for(lambda said: said.get("READY") == "1")
    alone.started[-1].send_signal(signal.SIGHUP)
    systemd.wait_for(lambda said: said.get("RELOADING") == "1")
    assert alone.stop() == 0
    systemd.wait_for(lambda said: said.get("STOPPING") == "1")
    systemd.close()
