"""A real Kafka of one or three brokers on 127.0.0.1, from the jars of Maven, for tests and benchmarks.

python -m tests.support.servers.kafka_cluster fetch     downloads the jars once, into the user's cache
python -m tests.support.servers.kafka_cluster run       one broker until Ctrl-C, for trying things out
"""

from __future__ import annotations

import base64
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.support.machine.ports import free_port

VERSION = "4.3.0"
POM = Path(__file__).with_name("kafka") / "pom.xml"
START_SECONDS = 120.0
# Small and quick to start: a broker of a test lives for a minute.
JAVA = ("java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
# A test run that is killed takes its brokers along.
LEASH = ("setpriv", "--pdeathsig", "KILL")


def cache_directory() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "penstock" / f"kafka-{VERSION}"


def is_available() -> bool:
    return shutil.which("java") is not None and (_jars().is_dir() or shutil.which("mvn") is not None)


def fetch_jars() -> Path:
    """The directory of the jars; downloaded when it is not there yet. Half a download is never left under its name."""
    jars = _jars()
    if jars.is_dir():
        return jars
    cache_directory().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_directory()) as partly:
        target = Path(partly) / "lib"
        subprocess.run(
            ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies", f"-DoutputDirectory={target}"],
            check=True,
            timeout=600,
        )
        if not jars.is_dir():
            target.rename(jars)
    return jars


def _jars() -> Path:
    return cache_directory() / "lib"


def class_archive() -> Path | None:
    """Kafka's classes as Java has them in memory, made once by a broker that ends: with them one starts in half the
    time. None where there are none, or while another process makes them. Java ignores an archive that does not fit."""
    archive = cache_directory() / "kafka.jsa"
    with (cache_directory() / "kafka.jsa.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        if not archive.exists():
            partly = archive.with_suffix(".partly")
            cluster = KafkaCluster(1)
            try:
                process = cluster.start(f"-XX:ArchiveClassesAtExit={partly}").nodes[0].process
                assert process is not None
                process.terminate()
                process.wait(2 * START_SECONDS)
                partly.rename(archive)
            except (OSError, RuntimeError, subprocess.TimeoutExpired):
                archive.touch()  # this Java makes none: nobody need try again
            finally:
                cluster.stop()
    return archive if archive.stat().st_size else None


def _new_id() -> str:
    """As Kafka writes a UUID; a first byte of zero keeps it from starting with a dash, which Kafka does not want."""
    return base64.urlsafe_b64encode(bytes(1) + uuid.uuid4().bytes[1:]).decode().rstrip("=")


@dataclass
class Node:
    number: int
    port: int
    controller_port: int
    directory: Path
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def settings_file(self) -> Path:
        return self.directory / "server.properties"

    def log(self) -> str:
        return (self.directory / "server.log").read_text(errors="replace")


def is_listening(node: Node) -> bool:
    """True for a node that is not meant to run, too."""
    if node.process is None:
        return True
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", node.port)) == 0


class KafkaCluster:
    """Brokers in KRaft combined mode, each also a controller. Nodes are numbered from 1."""

    def __init__(self, brokers: int = 1, directory: Path | None = None) -> None:
        self._owned = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="penstock-kafka-"))
        self.nodes = [
            Node(number, free_port(), free_port(), self.directory / f"node-{number}")
            for number in range(1, brokers + 1)
        ]
        self._cluster_id = _new_id()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def start(self, *options: str) -> KafkaCluster:
        """`options` of Java; without them it shares the classes of all Kafkas of this machine."""
        jars = fetch_jars()
        self._classpath = f"{jars}/*"
        archive = None if options else class_archive()
        self._options = options or ((f"-XX:SharedArchiveFile={archive}",) if archive else ())
        for node in self.nodes:
            self._format(node)
            self._launch(node)
        self.wait_until_ready()
        return self

    def stop(self) -> None:
        """Everything here is thrown away, so nobody waits for an orderly end."""
        for node in self.nodes:
            self.kill(node.number)
        if self._owned:
            shutil.rmtree(self.directory, ignore_errors=True)

    def kill(self, number: int) -> None:
        """kill -9"""
        self._end(self._node(number), signal.SIGKILL)

    def terminate(self, number: int) -> None:
        """An orderly end: leadership moves first."""
        self._end(self._node(number), signal.SIGTERM)

    def restart(self, number: int) -> None:
        """Starts a broker that was killed or ended; does not wait for it."""
        self._launch(self._node(number))

    def wait_until_ready(self, seconds: float = START_SECONDS) -> None:
        """Until every running broker listens and is known to the cluster."""
        running = sum(node.process is not None for node in self.nodes)
        deadline = time.monotonic() + seconds
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 500})
        while True:
            try:
                if len(admin.list_topics(timeout=2).brokers) >= running and all(map(is_listening, self.nodes)):
                    return
            except KafkaException:
                pass  # not up yet, which is what this loop waits for
            for node in self.nodes:
                if node.process is not None and node.process.poll() is not None:
                    raise RuntimeError(f"Kafka node {node.number} died at its start:\n{node.log()[-4000:]}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"Kafka is not up after {seconds} s:\n{self.nodes[0].log()[-4000:]}")
            time.sleep(0.1)

    def _node(self, number: int) -> Node:
        return self.nodes[number - 1]

    def _end(self, node: Node, how: signal.Signals) -> None:
        if node.process is None:
            return
        node.process.send_signal(how)
        try:
            node.process.wait(15)
        except subprocess.TimeoutExpired:
            node.process.kill()
            node.process.wait()
        node.process = None

    def _format(self, node: Node) -> None:
        """What `kafka-storage format` writes, without the second that its Java takes to start."""
        data = node.directory / "data"
        data.mkdir(parents=True)
        node.settings_file.write_text(self._properties(node))
        lines = ["version=1", f"cluster.id={self._cluster_id}", f"node.id={node.number}", f"directory.id={_new_id()}"]
        (data / "meta.properties").write_text("\n".join(lines) + "\n")

    def _launch(self, node: Node) -> None:
        node.process = self._java(node, "kafka.Kafka")

    def _java(self, node: Node, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (node.directory / "server.log").open("ab") as output:
            return subprocess.Popen(
                [
                    *(LEASH if shutil.which(LEASH[0]) else ()),
                    *JAVA,
                    *self._options,
                    "-cp",
                    self._classpath,
                    main,
                    *arguments,
                    str(node.settings_file),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def _properties(self, node: Node) -> str:
        copies = min(3, len(self.nodes))
        voters = ",".join(f"{each.number}@127.0.0.1:{each.controller_port}" for each in self.nodes)
        properties = {
            "process.roles": "broker,controller",
            "node.id": node.number,
            "listeners": f"PLAINTEXT://127.0.0.1:{node.port},CONTROLLER://127.0.0.1:{node.controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{node.port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": voters,
            "log.dirs": node.directory / "data",
            "offsets.topic.num.partitions": 4,
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.num.partitions": 4,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": 1,
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": 0,
            "group.min.session.timeout.ms": 1000,
            "broker.session.timeout.ms": 3000,
            "broker.heartbeat.interval.ms": 500,
            "controller.quorum.election.timeout.ms": 500,
            "controller.quorum.fetch.timeout.ms": 1000,
            "replica.lag.time.max.ms": 3000,
            "log.cleaner.dedupe.buffer.size": 4 * 1024 * 1024,
            # So that a test can wait for retention; the task's first turn is half a minute after the start otherwise.
            "log.retention.check.interval.ms": 2_000,
            "log.initial.task.delay.ms": 2_000,
            # Little to do for a broker that nobody talks to.
            "metadata.max.idle.interval.ms": 10_000,
            "num.network.threads": 2,
            "num.io.threads": 4,
        }
        return "".join(f"{name}={value}\n" for name, value in properties.items())


def main() -> None:
    if sys.argv[1:] == ["fetch"]:
        print(fetch_jars())
    elif sys.argv[1:] == ["run"]:
        cluster = KafkaCluster().start()
        print(cluster.bootstrap, flush=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            cluster.stop()
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
