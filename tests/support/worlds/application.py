"""A broker with APPLICATION clients on either log, and what its log holds of them, seen from outside.

Clients whose id begins with `app` are APPLICATIONs, all others are DEVICEs, unless a test says otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from penstock._ext.record.envelope import Envelope, decode
from penstock.settings.kafka import KafkaSettings
from penstock.storage.log.base import EARLIEST, TopicNotFound, TopicPartition
from penstock.storage.log.embedded import open_reader
from tests.support.brokers.broker import IS_MOSQUITTO, REPOSITORY, Broker, free_port, toml_value
from tests.support.brokers.forked import run
from tests.support.clients.packets import V5
from tests.support.servers.kafka_cluster import KafkaCluster
from tests.support.servers.kafka_fixtures import shared_cluster
from tests.support.servers.kafka_topics import forget_topics, own_topics

PREFIX = "tbmq.msg.app."
HOUSEKEEPER = "tb_housekeeper"
SHARED_PREFIX = "tbmq.msg.app.shared."
APPLICATIONS = ("app*",)
COMMON = {"sys.interval": 0, "ingest.partitions": 4}
# Kafka takes a killed member for dead after its session timeout; a test does not wait ten seconds for that.
QUICK_KAFKA = {"kafka.session_timeout_ms": 2000, "kafka.heartbeat_interval_ms": 500, "kafka.statistics_interval_ms": 0}


PlacedRecord = tuple[int, int, Envelope]
"""Partition, offset and what is stored there."""


def topic_of(client_id: str) -> str:
    """The name of a client's topic, as in TBMQ: its id where it is alphanumeric, else its SHA-256."""
    is_plain = client_id.isascii() and client_id.isalnum()
    return PREFIX + (client_id if is_plain else hashlib.sha256(client_id.encode()).hexdigest())


def persistent(version: int, seconds: int = 300, **properties: Any) -> dict[str, Any]:
    """Options of a CONNECT whose session outlives the connection."""
    if version != V5:
        return {"clean_start": False}
    return {"clean_start": False, "properties": {"session_expiry_interval": seconds, **properties}}


def until(condition: Any, seconds: float = 60.0, what: Callable[[], str] | str = "") -> Any:
    """The first true value of the condition; looks again and again."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what() if callable(what) else what or condition}"
        time.sleep(0.02)
    return value


def only_penstock() -> None:
    if IS_MOSQUITTO:
        pytest.skip("the log is Penstock's own")


class AppBroker(Broker):
    """Can be killed and started again, and told other types of clients."""

    def __init__(
        self,
        directory: Path,
        provider: str = "embedded",
        settings: Mapping[str, Any] | None = None,
        cluster: KafkaCluster | None = None,
    ) -> None:
        self.provider = provider
        self.cluster = cluster or (shared_cluster(1) if provider == "kafka" else None)
        self.admin_port = free_port()
        self.data_dir = directory / "data"
        self.acl_path = directory / "acl.toml"
        self.earlier_logs = ""
        self._looker: confluent_kafka.Consumer | None = None
        self.write_types(APPLICATIONS)
        own = {**COMMON, "log.provider": provider, "access.acl_file": str(self.acl_path)}
        if self.cluster is not None:
            own |= {**QUICK_KAFKA, "kafka.bootstrap_servers": self.cluster.bootstrap}
        super().__init__(directory, {} if IS_MOSQUITTO else {**own, **(settings or {})})

    def _penstock_command(self) -> list[str]:
        return [word or f"127.0.0.1:{self.admin_port}" for word in super()._penstock_command()]

    # Types

    def write_types(self, applications: Sequence[str]) -> None:
        """The ACL file: everybody may do everything, and these client ids are APPLICATIONs."""
        rules = ['[[rules]]\neffect = "allow"\ntopics = ["#", "$SYS/#", "$queue/#"]\n', '[[data]]\neffect = "allow"\n']
        if applications:
            rules.append(f'[[types]]\ntype = "application"\nclients = {toml_value(list(applications))}\n')
        self.acl_path.write_text("\n".join(rules))

    def change_types(self, applications: Sequence[str]) -> None:
        self.write_types(applications)
        start = self.log_size()
        self.process.send_signal(signal.SIGHUP)
        self.await_log("reloaded", start)

    def await_log(self, text: str, start: int = 0, seconds: float = 60.0) -> str:
        """What was logged from `start` on, as soon as `text` is in it."""
        until(lambda: text in self.log(start), seconds, f"{text!r} in the log")
        return self.log(start)

    # Ends and beginnings

    def kill(self) -> None:
        """SIGKILL: it has no say in how it ends."""
        self.assert_healthy()
        self.process.kill()
        self.process.wait()
        self.earlier_logs += self.log()

    def end(self) -> None:
        """SIGTERM: it ends in good order."""
        assert self.terminate() == 0
        assert "Traceback" not in self.log(), self.log()[-4000:]
        self.earlier_logs += self.log()

    def stop(self) -> None:
        if self._looker is not None:
            self._looker.close()
            self._looker = None
        super().stop()

    def restart(self) -> None:
        self.process = self._start()
        self.wait_until_listening()

    # What is in its log, and what its commands say

    def topics(self) -> set[str]:
        """The topics of APPLICATION clients that exist now."""
        only_penstock()
        if self.cluster is not None:
            names = own_topics(self.cluster.bootstrap)
        else:
            names = {path.name for path in (self.data_dir / "log").iterdir() if path.is_dir()}
        return {name for name in names if name.startswith(PREFIX)}

    def await_topic(self, name: str, *, exists: bool = True) -> None:
        until(lambda: (name in self.topics()) == exists, 60.0, f"topic {name} {'there' if exists else 'gone'}")

    def records(self, topic: str) -> list[Envelope]:
        """Everything in the topic, as it is stored."""
        return [envelope for _, _, envelope in self.placed_records(topic)]

    def placed_records(self, topic: str) -> list[PlacedRecord]:
        """Everything in the topic with its partition and offset."""
        only_penstock()
        if self.cluster is not None:
            return asyncio.run(_read_kafka(self.cluster.bootstrap, topic))
        return list(_read_embedded(self.data_dir, topic))

    def end_offset(self, topic: str) -> int:
        """Of a topic of one partition, without reading it."""
        if self.cluster is None:
            reader = open_reader(self.data_dir, topic)
            try:
                return int(reader.watermarks(0).end)
            finally:
                reader.close()
        if self._looker is None:
            servers = {"bootstrap.servers": self.cluster.bootstrap}
            self._looker = confluent_kafka.Consumer({**servers, "group.id": "looker", "log_level": 0})
        place = confluent_kafka.TopicPartition(topic, 0)
        return int(self._looker.get_watermark_offsets(place, timeout=30)[1])

    def tasks(self) -> int:
        """Of the housekeeper, that were ever written down."""
        names = [f"{HOUSEKEEPER}.{number}" for number in range(10)]
        if self.cluster is not None:
            names = sorted(own_topics(self.cluster.bootstrap).intersection(names))
        count = 0
        for name in names:
            with contextlib.suppress(TopicNotFound):
                count += self.end_offset(name)
        return count

    def await_records(self, topic: str, count: int) -> list[Envelope]:
        return until(lambda: len(found := self.records(topic)) >= count and found, 60.0, f"{count} records in {topic}")

    def command(self, *words: str, options: Sequence[str] = (), fails: int | None = 0) -> str:
        """`penstock words…` with the settings of this broker; gives what it prints. `fails`: exit code, None: any."""
        settings = {"server.data_dir": str(self.data_dir), "admin.address": f"127.0.0.1:{self.admin_port}"}
        assignments: list[str] = []
        for name, value in (settings | self.settings).items():
            assignments += ["--set", f"{name}={value if isinstance(value, str) else toml_value(value)}"]
        done = run(
            [sys.executable, "-m", "penstock", *words, *assignments, *options],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src")},
            cwd=self.directory,
            timeout=60,
        )
        assert fails is None or done.returncode == fails, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stderr if fails else done.stdout

    def command_json(self, *words: str) -> Any:
        return json.loads(self.command(*words, options=["--json"]))

    def application(self, client_id: str) -> dict[str, Any]:
        """What `penstock app show` prints, without the time that a command takes to start."""
        token = (self.data_dir / "admin.token").read_text().strip()
        path = f"http://127.0.0.1:{self.admin_port}/api/v1/applications/{client_id}"
        request = urllib.request.Request(path, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found

    def api(self, path: str, method: str = "GET", body: Any = None) -> Any:
        """The answer of /api/v1/<path>; None when there is no such thing. A broker just started may not be ready."""
        deadline = time.monotonic() + 60
        while True:
            try:
                return self._ask(path, method, body)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def _ask(self, path: str, method: str, body: Any) -> Any:
        token = (self.data_dir / "admin.token").read_text().strip()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.admin_port}/api/v1/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            if error.code == 401:
                raise PermissionError("the token of the broker before this one") from None
            text = error.read().decode()
            if error.code == 409 and method == "GET" and "Try again in a moment" in text:
                raise BlockingIOError(text) from None
            raise AssertionError(f"{method} {path}: {error.code} {text}") from None

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/metrics", timeout=30) as answer:
            return str(answer.read().decode())

    # What it costs

    def threads(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/task").iterdir()))

    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))


def _read_embedded(data_dir: Path, topic: str) -> Iterator[PlacedRecord]:
    reader = open_reader(data_dir, topic)
    try:
        for partition in range(reader.partitions):
            marks = reader.watermarks(partition)
            offset = marks.first
            while offset < marks.end:
                pack = reader.read(partition, offset)
                if not pack.count:
                    break
                yield from ((partition, record.offset, decode(record.value or b"")) for record in pack)
                offset = pack.next_offset
    finally:
        reader.close()


async def _read_kafka(bootstrap: str, topic: str) -> list[PlacedRecord]:
    from penstock.storage.log.kafka import KafkaLog  # noqa: PLC0415 - who tests the embedded log does not wait for librdkafka

    log = KafkaLog(KafkaSettings(bootstrap_servers=bootstrap, statistics_interval_ms=0))
    await log.start()
    try:
        consumer = log.consumer("")
        partitions = (await log.admin.describe(topic)).partitions
        assigned = [TopicPartition(topic, number) for number in range(partitions)]
        marks = {one: await consumer.watermarks(one) for one in assigned}
        left = sum(mark.end - mark.first for mark in marks.values())
        consumer.assign(assigned)
        for one in assigned:
            await consumer.seek(one, EARLIEST)
        found: list[PlacedRecord] = []
        async with asyncio.timeout(60):
            while len(found) < left:
                for fetched in await consumer.poll(1000, 0.5):
                    at = fetched.partition
                    found += [(at, record.offset, decode(record.value or b"")) for record in fetched.pack]
        await consumer.close()
        return found
    finally:
        await log.close()


@contextlib.contextmanager
def running_app_broker(
    directory: Path, provider: str, settings: Mapping[str, Any] | None = None
) -> Iterator[AppBroker]:
    """For fixtures: alone on its Kafka, well until its end, exit code 0."""
    if IS_MOSQUITTO and provider == "kafka":
        pytest.skip("mosquitto knows no Kafka")
    if provider == "kafka":
        forget_topics(shared_cluster(1).bootstrap)
    broker = AppBroker(directory, provider, settings)
    try:
        broker.wait_until_listening()
        yield broker
        if broker.is_alive:
            broker.stop()
    finally:
        if broker.is_alive:
            broker.process.kill()
            broker.process.wait()
