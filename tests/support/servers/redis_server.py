"""Real Redis servers on free ports of 127.0.0.1: one, a cluster of three masters, or a master with Sentinel."""

from __future__ import annotations

import atexit
import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machine.ports import free_pair, free_port

START_SECONDS = 120.0
BUS = 10_000  # the port of a cluster's bus is so much higher


def require_redis() -> None:
    if shutil.which("redis-server") is None or shutil.which("redis-cli") is None:
        pytest.fail("these tests need redis-server and redis-cli (Debian: apt-get install redis-server)")


class RedisServer:
    """A process of its own; what it keeps in memory ends with it, unless it appends to a file."""

    def __init__(
        self,
        *options: str,
        is_durable: bool = False,
        in_cluster: bool = False,
        password: str = "",
        speaks_tls: bool = False,
    ) -> None:
        require_redis()
        self.port = free_pair(BUS) if in_cluster else free_port()
        self.directory = Path(tempfile.mkdtemp(prefix="penstock-redis-"))
        self.password = password
        self._speaks_tls = speaks_tls
        durable = ("--appendonly", "yes", "--appendfsync", "always") if is_durable else ("--appendonly", "no")
        clustered = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000") if in_cluster else ()
        self._options = ("--save", "", "--repl-diskless-sync-delay", "0", *durable, *clustered, *options)
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.stop)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> RedisServer:
        ports = ("--port", "0", "--tls-port", str(self.port)) if self._speaks_tls else ("--port", str(self.port))
        command = ["redis-server", *ports, "--bind", "127.0.0.1", "--dir", str(self.directory), *self._options]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self._process.poll() is None, (self.directory / "log").read_text()[-2000:]
            assert time.monotonic() < deadline, "redis-server did not start"
            time.sleep(0.02)
        return self

    def _answers(self) -> bool:
        if self._speaks_tls:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return True
            return False
        return self.cli("PING").strip() in ("PONG", "NOAUTH Authentication required.")

    def cli(self, *words: str) -> str:
        """The answer of redis-cli, errors and all."""
        login = ("-a", self.password, "--no-auth-warning") if self.password else ()
        command = ["redis-cli", "-h", "127.0.0.1", "-p", str(self.port), *login, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout + done.stderr

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


class RedisCluster:
    """Three masters, each with a share of the slots; with `replicas`, each has a replica that takes over."""

    def __init__(self, replicas: int = 0) -> None:
        self.servers = [RedisServer(in_cluster=True) for _ in range(3 * (1 + replicas))]
        self._replicas = replicas

    @property
    def addresses(self) -> str:
        return ",".join(server.address for server in self.servers)

    def start(self) -> RedisCluster:
        for server in self.servers:
            server.start()
        command = ["redis-cli", "--cluster", "create", *(server.address for server in self.servers)]
        command += ["--cluster-replicas", str(self._replicas), "--cluster-yes"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        deadline = time.monotonic() + START_SECONDS
        while not all(self._is_up(server) for server in self.servers):
            assert time.monotonic() < deadline, "the cluster did not come up"
            time.sleep(0.05)
        return self

    @staticmethod
    def _is_up(server: RedisServer) -> bool:
        # A replica that has nothing yet would never take over.
        replication = server.cli("INFO", "replication")
        is_synced = "role:master" in replication or "master_link_status:up" in replication
        return is_synced and "cluster_state:ok" in server.cli("CLUSTER", "INFO")

    def owner_of(self, slot: int) -> RedisServer:
        for server in self.servers:
            for line in server.cli("CLUSTER", "NODES").splitlines():
                fields = line.split()
                if "myself" in fields[2] and any(_covers(part, slot) for part in fields[8:]):
                    return server
        raise AssertionError(f"nobody has slot {slot}")

    def stop(self) -> None:
        for server in self.servers:
            server.stop()


def _covers(part: str, slot: int) -> bool:
    if part.startswith("["):
        return False
    first, _, last = part.partition("-")
    return int(first) <= slot <= int(last or first)


class RedisWithSentinel:
    """A master, a replica and one sentinel that decides alone."""

    def __init__(self) -> None:
        self.master = RedisServer()
        self.replica = RedisServer()
        self.sentinel_port = free_port()
        self._directory = Path(tempfile.mkdtemp(prefix="penstock-sentinel-"))
        self._sentinel: subprocess.Popen[bytes] | None = None
        atexit.register(self.stop)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.sentinel_port}"

    def start(self) -> RedisWithSentinel:
        self.master.start()
        self.replica.start()
        self.replica.cli("REPLICAOF", "127.0.0.1", str(self.master.port))
        deadline = time.monotonic() + START_SECONDS
        while "master_link_status:up" not in self.replica.cli("INFO", "replication"):
            assert time.monotonic() < deadline, "the replica did not connect"
            time.sleep(0.05)
        file = self._directory / "sentinel.conf"
        file.write_text(
            f"port {self.sentinel_port}\nbind 127.0.0.1\ndir {self._directory}\n"
            f"sentinel monitor mymaster 127.0.0.1 {self.master.port} 1\n"
            "sentinel down-after-milliseconds mymaster 500\nsentinel failover-timeout mymaster 3000\n"
        )
        with (self._directory / "log").open("ab") as log:
            self._sentinel = subprocess.Popen(["redis-server", str(file), "--sentinel"], stdout=log, stderr=log)
        while f"port={self.replica.port}" not in self._ask("INFO", "sentinel") + self._ask(
            "SENTINEL", "replicas", "mymaster"
        ).replace("port\n", "port="):
            assert time.monotonic() < deadline, "the sentinel does not see the replica"
            time.sleep(0.1)
        return self

    def _ask(self, *words: str) -> str:
        command = ["redis-cli", "-p", str(self.sentinel_port), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout

    def stop(self) -> None:
        if self._sentinel is not None:
            self._sentinel.kill()
            self._sentinel.wait()
            self._sentinel = None
        self.master.stop()
        self.replica.stop()
        shutil.rmtree(self._directory, ignore_errors=True)


_SHARED: dict[str, RedisServer | RedisCluster] = {}


def shared_redis() -> RedisServer:
    """One server for the whole session; tests use prefixes or clients of their own."""
    if "server" not in _SHARED:
        _SHARED["server"] = RedisServer().start()
    server = _SHARED["server"]
    assert isinstance(server, RedisServer)
    return server


def shared_redis_cluster() -> RedisCluster:
    if "cluster" not in _SHARED:
        _SHARED["cluster"] = RedisCluster().start()
    cluster = _SHARED["cluster"]
    assert isinstance(cluster, RedisCluster)
    return cluster


@contextlib.contextmanager
def own_redis(
    *options: str, is_durable: bool = False, password: str = "", speaks_tls: bool = False
) -> Iterator[RedisServer]:
    """A server that the test may stop, fill and break."""
    server = RedisServer(*options, is_durable=is_durable, password=password, speaks_tls=speaks_tls)
    try:
        yield server.start()
    finally:
        server.stop()
