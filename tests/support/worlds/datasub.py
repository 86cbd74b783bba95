"""Data subscription from outside: a broker with query topics, its publishers, and what consumers got."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock_client import Admin, Consumer, DataError, Message
from penstock_client.admin import Result
from tests.support.brokers.broker import IS_MOSQUITTO, REPOSITORY
from tests.support.clients.packets import V5
from tests.support.clients.raw_client import RawClient
from tests.support.servers.kafka_fixtures import shared_cluster
from tests.support.servers.kafka_topics import forget_topics
from tests.support.worlds.application import AppBroker

EVERYTHING = """
[[rules]]
effect = "allow"
topics = ["#", "$SYS/#"]

[[data]]
effect = "allow"
"""
# These many topics are in all four partitions, some in each.
SOURCES = 24
NUMBERS = itertools.count()


class DataBroker(AppBroker):
    def __init__(
        self,
        directory: Path,
        provider: str = "embedded",
        settings: Mapping[str, Any] | None = None,
        *,
        rules: str = EVERYTHING,
        keys: Mapping[str, Any] | None = None,
    ) -> None:
        self._rules = rules
        self._keys = dict(keys or {})
        super().__init__(directory, provider, settings)

    def write_types(self, applications: Sequence[str]) -> None:
        """The ACL file."""
        self.acl_path.write_text(self._rules)

    @property
    def keys(self) -> dict[str, Any]:
        """What its clients need to connect."""
        return {"server": f"127.0.0.1:{self.data_port}", **self._keys}

    def counter(self, name: str) -> float:
        """As it is now; /metrics may be a second old."""
        return float(self.api("overview")["counters"][name])

    def wait_until_listening(self) -> None:
        super().wait_until_listening()
        # Who asks before the log and the store are there is told to come again.
        with Admin(self.keys) as admin:
            wait_for(lambda: _is_answered(admin), 60, lambda: self.log()[-4000:])


def _is_answered(admin: Admin) -> bool:
    try:
        admin.execute("SHOW TOPICS")
    except DataError as error:
        return error.code == "not-allowed"
    return True


@contextlib.contextmanager
def running_data_broker(
    directory: Path,
    provider: str = "embedded",
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> Iterator[DataBroker]:
    """Alone on its Kafka, well until its end, exit code 0."""
    if IS_MOSQUITTO:
        pytest.skip("mosquitto has no query topics")
    if provider == "kafka":
        forget_topics(shared_cluster(1).bootstrap)
    broker = DataBroker(directory, provider, settings, **options)
    try:
        broker.wait_until_listening()
        yield broker
        if broker.is_alive:
            broker.stop()
    finally:
        if broker.is_alive:
            broker.process.kill()
            broker.process.wait()


class DataWorld:
    """What one test does with a broker; names are its own, so tests share the broker."""

    def __init__(self, broker: DataBroker, stack: contextlib.ExitStack) -> None:
        self.broker = broker
        self._stack = stack
        self._publishers: dict[str, RawClient] = {}
        self._admins: dict[str, Admin] = {}
        number = next(NUMBERS)
        self.space = f"space{number}"  # the first level of its MQTT topics
        self.topic = f"topic{number}"
        self.group = f"group{number}"

    # Statements

    def execute(self, sql: str, user: str = "", password: str = "") -> Result:
        """`{space}` and `{topic}` stand for the test's own."""
        if user not in self._admins:
            config = {**self.broker.keys, "user": user, "password": password}
            self._admins[user] = self._stack.enter_context(Admin(config))
        return self._admins[user].execute(sql.replace("{space}", self.space).replace("{topic}", self.topic))

    def create_topic(self, select: str = 'SELECT payload.n AS n, partition, "offset" FROM "{space}/#"') -> str:
        self.execute(f"CREATE TOPIC {{topic}} AS {select}")
        return self.topic

    def show(self, what: str) -> list[dict[str, Any]]:
        """Rows of SHOW that are about this test."""
        rows = self.execute(f"SHOW {what}").to_pylist()
        mine = {self.topic, self.group}
        return [row for row in rows if any(str(value).startswith(tuple(mine)) for value in row.values())]

    # Messages

    def publisher(self, client_id: str) -> RawClient:
        client = self._publishers.get(client_id)
        if client is None:
            client = self._stack.enter_context(contextlib.closing(self.broker.client(V5)))
            client.connect(f"{client_id}-{self.space}")
            self._publishers[client_id] = client
        return client

    def publish(self, *payloads: Any, topic: str = "data", client: str = "one", **options: Any) -> None:
        """Each acknowledged, so durable; those of one MQTT topic are in one partition, in this order."""
        for payload in payloads:
            data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
            self.publisher(client).publish(f"{self.space}/{topic}", data, qos=1, **options)

    def spread(self, numbers: Iterable[int]) -> set[int]:
        """{"n": number} under many topics, so in all partitions."""
        wanted = set(numbers)
        for number in sorted(wanted):
            part = number % SOURCES
            self.publish({"n": number}, topic=f"data/{part}", client=f"client{part % 3}")
        return wanted

    def forget_publishers(self) -> None:
        """Their broker is gone."""
        for client in self._publishers.values():
            client.close()
        self._publishers.clear()

    # Consumers

    def config(self, **keys: Any) -> dict[str, Any]:
        """Underscores are dots: group_id="g"."""
        given = {key.replace("_", "."): value for key, value in keys.items()}
        own = {
            **self.broker.keys,
            "group.id": self.group,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6_000,
            "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 200,
        }
        return own | given

    def consumer(self, *topics: str, subscribe: Mapping[str, Any] | None = None, **keys: Any) -> Consumer:
        consumer = Consumer(self.config(**keys))
        self._stack.callback(consumer.close)
        consumer.subscribe(list(topics) or [self.topic], **(subscribe or {}))
        return consumer

    def consumer_process(self, **keys: Any) -> subprocess.Popen[str]:
        """A consumer that can be killed: prints `assigned N` and the numbers it got, a line each."""
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.worlds.datasub_process", json.dumps(self.config(**keys)), self.topic],
            env={**os.environ, "PYTHONPATH": f"{REPOSITORY / 'src'}{os.pathsep}{REPOSITORY}", "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        self._stack.callback(_end, process)
        return process


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def next_message(consumer: Consumer, seconds: float = 60.0) -> Message:
    """The next one, which has no error."""
    message = consumer.poll(seconds)
    assert message is not None, f"no message within {seconds} s"
    assert message.error() is None, message.error()
    return message


def read(consumer: Consumer, count: int, seconds: float = 60.0, column: str = "n") -> list[Any]:
    """Values of a column, at least so many."""
    found: list[Any] = []
    deadline = time.monotonic() + seconds
    while len(found) < count:
        message = consumer.poll(max(0.0, deadline - time.monotonic()))
        assert message is not None, f"{len(found)} of {count} rows within {seconds} s: {found}"
        assert message.error() is None, message.error()
        found += [row[column] for row in message]
    return found


def read_rows(consumer: Consumer, count: int, seconds: float = 60.0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    deadline = time.monotonic() + seconds
    while len(found) < count:
        message = consumer.poll(max(0.0, deadline - time.monotonic()))
        assert message is not None, f"{len(found)} of {count} rows within {seconds} s: {found}"
        assert message.error() is None, message.error()
        found += message.to_pylist()
    return found


def read_error(consumer: Consumer, seconds: float = 60.0) -> Any:
    """The next error; messages before it are passed over."""
    deadline = time.monotonic() + seconds
    while True:
        message = consumer.poll(max(0.0, deadline - time.monotonic()))
        assert message is not None, f"no error within {seconds} s"
        if message.error() is not None:
            return message.error()


def until_assigned(consumers: Sequence[Consumer], sizes: Sequence[int], seconds: float = 60.0) -> None:
    """Until they have so many partitions, in any order; polls them all."""

    def look() -> bool:
        return sorted(len(each.assignment()) for each in consumers) == sorted(sizes)

    wait_for(look, seconds, lambda: f"{sizes} partitions, not {[each.assignment() for each in consumers]}")


def wait_for(condition: Callable[[], Any], seconds: float = 60.0, what: Callable[[], str] | str = "") -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what() if callable(what) else what}"
        time.sleep(0.02)
    return value
