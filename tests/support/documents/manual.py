"""A broker in which everything is there that the commands of the documents speak of, and a shell to run them in.

Names and places of the documents (`/var/lib/penstock`, `broker.example.org`, 1883) stand for those of this broker. What
goes on until Ctrl-C gets it as soon as it has shown something; what asks first is told yes.
"""

from __future__ import annotations

import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import paho.mqtt.client as mqtt

from penstock.access import PasswordFile
from penstock.access.passwords import hash_password
from tests.support.brokers.broker import Listener, free_port
from tests.support.brokers.deployment import DOCKER
from tests.support.brokers.file_broker import FileBroker
from tests.support.brokers.forked import write_command
from tests.support.servers.certificates import Authority

SECONDS = 60
QUESTION = re.compile(r"(?:^(?:Password of .*|Again):|\[y/N\]) ", re.M)
TOKEN = "0123456789abcdef"  # that of docs/cli.md
TYPES = """
[[types]]
type = "application"
clients = ["billing"]

[[rules]]
effect = "allow"
topics = ["#", "$queue/#", "$dlq/#", "$sql/#"]

[[data]]
effect = "allow"
topics = ["*"]
"""
# What is published while a command waits for something to show.
NEWS = (
    ("demo/hello", b"hi"),
    ("a/1", b"1"),
    ("b/1", b"2"),
    ("jobs", b"job"),
    ("$queue/orders", b"order"),
    ("sensors/1/data", b'{"temp": 35.5}'),
    ("plant/4/temp", b"21.5"),
)
# What a page supposes to have happened before one of its commands.
GROUP = "penstock sub -q 1 -V mqttv5 -t '$queue/{}' -D subscribe user-property consumer-group {} "
BEFORE = {
    "penstock subscribe hot": [
        "penstock sql 'CREATE TOPIC hot AS SELECT ts, payload.temp AS t FROM \"sensors/+/data\"'"
    ],
    "penstock queue create orders": ["penstock queue delete orders --yes"],
    "penstock queue groups orders": [GROUP.format("orders", "workers") + "-C 1"],
    "penstock queue truncate orders": ["penstock queue append orders --message 'a chair'"] * 3,
    "penstock queue seek events": [GROUP.format("events", "readers") + "-E"],
    "penstock queue replay '$dlq/orders'": [
        "penstock queue append orders --key eu/2 --message 'a table without legs'",
        GROUP.format("orders", "workers") + "-C 1 --settle reject",
    ],
}
# What a reader leaves out is the usual port, which is another one here; a load test is short.
CHANGES = """
given = {{word.split("=")[0] for word in arguments}}
if arguments[:1] in (["pub"], ["sub"]) and not given & {{"-p", "--port", "-L", "--url", "--unix"}}:
    arguments += ["-p", "{tls_port}" if "--cafile" in given else "{port}"]
if arguments[:1] == ["bench"]:
    arguments += ["--warmup", "0", "-d", "0.2"]
if arguments[:1] == ["serve"] and not given & {{"--port", "--listen"}}:
    arguments += ["--listen", "127.0.0.1:0"]
"""


class Manual:
    """A directory for one page."""

    def __init__(self, directory: Path) -> None:
        self.place = directory / "place"
        self.elsewhere = directory / "elsewhere"  # where a broker of its own is started
        for path in (self.place, self.elsewhere, directory / "home", directory / "etc", directory / "backup"):
            path.mkdir()
        authority = Authority(directory)
        identity = authority.issue("localhost")
        tls = {"certificate": str(identity.certificate), "key": str(identity.key)}
        self._access = self._write_access(directory)
        self.listeners = {
            "ws": Listener("ws"),
            "tls": Listener("tls", {**tls}),
            "unix": Listener("unix"),
        }
        self.data_dir = directory / "data"
        admin_port = free_port()
        tables = {
            "server": {"data_dir": str(self.data_dir)},
            "admin": {"address": f"127.0.0.1:{admin_port}", "token": TOKEN},
            "access": self._access,
        }
        (directory / "broker").mkdir()
        self.broker = FileBroker(directory / "broker", tables, tuple(self.listeners.values()))
        self._tls_data = {**tls, "transport": "tls"}
        self._second: FileBroker | None = None
        self._clients: list[mqtt.Client] = []
        self._directory = directory
        self.broker.wait_until_listening()
        tls_port = self.listeners["tls"].host_and_port[1]
        self._ports = {
            "1883": self.broker.port,
            "9883": admin_port,
            "6030": data_port(self.broker),
            "8083": self.listeners["ws"].host_and_port[1],
            "8883": tls_port,
        }
        self._names = {
            "broker.example.org": "localhost",
            "/var/lib/penstock": str(self.data_dir),
            "/tmp/penstock-data": str(directory / "other-data"),
            "/etc/penstock/": f"{directory}/etc/",
            "/etc/ssl/certs/ca-certificates.crt": str(authority.path),
            "/run/penstock.sock": self.listeners["unix"].address,
            "/backup/": f"{directory}/backup/",
        }
        self._write_files(authority)
        (directory / "bin").mkdir()
        write_command(directory / "bin/penstock", CHANGES.format(port=self.broker.port, tls_port=tls_port))
        self._arrange()

    @staticmethod
    def _write_access(directory: Path) -> dict[str, str]:
        passwords, rules = directory / "passwords", directory / "rules.toml"
        PasswordFile({"alice": hash_password(b"secret")}).save(passwords)
        rules.write_text(TYPES)
        return {"anonymous": "allow", "password_file": str(passwords), "acl_file": str(rules)}

    def _write_files(self, authority: Authority) -> None:
        settings = self.broker.settings_path.read_text()
        given = {
            "penstock.toml": settings,
            "ca.pem": authority.path.read_text(),
            "password.txt": "secret\n",
            "password": "secret\n",
            "topics.sql": 'CREATE TOPIC cold AS SELECT ts FROM "sensors/+/data";\n',
            "config/.here": "",
        }
        for name, text in given.items():
            (self.place / name).parent.mkdir(exist_ok=True)
            (self.place / name).write_text(text)
        for name in ("password.txt", "password"):
            (self.place / name).chmod(0o600)
        # What docs/operations.md puts there, with the names and ports of this broker, and the token of docs/cli.md.
        # tests/dist/test_service.py gives the same commands with nothing changed.
        shipped = (DOCKER / "systemd/penstock.toml").read_text()
        assert shipped.count("[admin]\n") == 1
        own = self.translate(shipped).replace("[admin]\n", f'[admin]\ntoken = "{TOKEN}"\n')
        (self._directory / "etc/penstock.toml").write_text(own)
        (self.elsewhere / "penstock.toml").write_text('[admin]\naddress = ""\n')

    def _arrange(self) -> None:
        """An APPLICATION client that is behind, a pump that is connected, retained messages, queues, query topics."""
        self._client("billing", "orders/#").disconnect()
        self._clients.pop().loop_stop()
        pump = self._client("pump-1", "pumps/1/commands")
        for number in range(30):
            pump.publish(f"orders/{number}", b"order", qos=1)
        pump.publish("pumps/1/speed", b"1500", qos=1, retain=True).wait_for_publish(SECONDS)
        for line in (
            "penstock queue create archive",
            "penstock sql 'CREATE TOPIC cold AS SELECT ts FROM \"sensors/+/data\"'",
        ):
            code, said = self.run(line)
            assert code == 0, said

    def _client(self, name: str, topic: str) -> mqtt.Client:
        client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, name, clean_session=False)
        ready: list[object] = []
        client.on_subscribe = lambda *answer: ready.append(answer)
        client.connect("127.0.0.1", self.broker.port)
        client.loop_start()
        self._clients.append(client)
        client.subscribe(topic, 1)
        deadline = time.monotonic() + SECONDS
        while not ready:
            assert time.monotonic() < deadline, f"{name} is not subscribed"
            time.sleep(0.02)
        return client

    def translate(self, line: str) -> str:
        for name, ours in self._names.items():
            line = line.replace(name, ours)
        # A broker that is started beside the first one cannot have its ports.
        ports = {name: free_port() for name in (*self._ports, "1884")} if is_serve(line) else self._ports
        return re.sub(rf"\b(?:{'|'.join(ports)})\b", lambda found: str(ports[found[0]]), line)

    def run(self, line: str) -> tuple[int, str]:
        """Exit code, and what was printed."""
        for start, lines in BEFORE.items():
            if line.startswith(start):
                for earlier in lines:
                    self.run(earlier)
        if "broker.example.org:6030" in line and self._second is None:
            (self._directory / "second").mkdir()
            tables = {"data_subscription": self._tls_data, "access": self._access}
            self._second = FileBroker(self._directory / "second", tables)
            self._second.wait_until_listening()
            self._names = {"broker.example.org:6030": f"localhost:{data_port(self._second)}", **self._names}
        if " restore " in line:
            self._stop_broker()
        ours, theirs = pty.openpty()
        output = self._directory / "output"
        with output.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-o", "pipefail", "-c", self.translate(line)],
                cwd=self.elsewhere if is_serve(line) else self.place,
                env=self._environment(),
                stdin=theirs,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        os.close(theirs)
        try:
            code = self._await_end(process, output, line, ours)
        finally:
            os.close(ours)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return code, output.read_text(errors="replace")

    def _await_end(self, process: subprocess.Popen[bytes], output: Path, line: str, terminal: int) -> int:
        answered = 0
        deadline = time.monotonic() + SECONDS
        sign = "listening" if is_serve(line) else ""
        while process.poll() is None:
            said = output.read_text(errors="replace")
            assert time.monotonic() < deadline, f"{line}\nhas not ended, nor shown what it should:\n{said}"
            if len(QUESTION.findall(said)) > answered:
                os.write(terminal, b"secret\n" if "passwd" in line else b"y\n")
                answered += 1
            if goes_on(line) and said and sign in said:
                os.killpg(process.pid, signal.SIGINT)
                process.wait(SECONDS)
                break
            if goes_on(line) or line.startswith(("penstock sub ", "penstock subscribe ")):
                for topic, payload in NEWS:
                    self._clients[-1].publish(topic, payload, qos=1)
            time.sleep(0.1)
        return process.returncode

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        return {
            **kept,
            "HOME": str(self._directory / "home"),
            "PATH": os.pathsep.join(
                [str(self._directory / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
            ),
            "PYTHONPATH": str(Path(__file__).parents[3] / "src"),
            "PYTHONUNBUFFERED": "1",
            "PENSTOCK_DATA_SUBSCRIPTION__ADDRESS": "127.0.0.1:0",
            "PENSTOCK_DATA_SERVER": f"127.0.0.1:{self._ports['6030']}",
        }

    def _stop_broker(self) -> None:
        for client in self._clients:
            client.disconnect()
            client.loop_stop()
        self._clients.clear()
        if self.broker.is_alive:
            self.broker.stop()

    def stop(self) -> None:
        self._stop_broker()
        if self._second is not None:
            self._second.stop()


def data_port(broker: FileBroker) -> int:
    """Where it says that it listens for consumers of query topics."""
    deadline = time.monotonic() + SECONDS
    while not (said := [event for event in broker.events("listening") if event["listener"] == "data"]):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return int(said[0]["address"].rpartition(":")[2])


def is_serve(line: str) -> bool:
    return line.startswith("penstock serve")


def goes_on(line: str) -> bool:
    """Until Ctrl-C."""
    words = shlex.split(line)
    if words[:2] == ["penstock", "sub"]:
        return "-C" not in words
    if words[:2] == ["penstock", "subscribe"]:
        return "--count" not in words
    if words[:2] == ["penstock", "top"]:
        return "--json" in words and "--once" not in words
    return is_serve(line) or (words[:3] == ["penstock", "log", "read"] and "-f" in words)
