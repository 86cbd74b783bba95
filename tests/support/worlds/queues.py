"""Durable queues from outside: a broker whose settings name queues, and clients that consume, settle and commit.

The queues of a test stand in marks above it, `@pytest.mark.queue(visibility_timeout="500ms")`; tests/wire/queues has
the fixtures that give a test the names of its own.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.brokers.broker import IS_MOSQUITTO
from tests.support.brokers.file_broker import toml_entry
from tests.support.clients.packets import V5, Packet, PacketType
from tests.support.clients.raw_client import RawClient
from tests.support.servers.kafka_cluster import KafkaCluster
from tests.support.servers.kafka_fixtures import shared_cluster
from tests.support.servers.kafka_topics import forget_topics
from tests.support.worlds.application import AppBroker

VERBS = ("ack", "nack", "reject")
REFUSED = 0x80
EVERYTHING = '[[rules]]\neffect = "allow"\ntopics = ["#", "$SYS/#", "$queue/#", "$queues/#"]\n'
ManyQueues = Sequence[Mapping[str, Any]]
# Streams commit soon and retention looks often; a test that is about these intervals has a broker of its own.
QUICK = {"durable_queues.auto_commit_interval": "100ms", "durable_queues.retention_interval": "200ms"}


def both_kinds() -> list[Any]:
    """Values for a parameter `kind`: the test's queue is of that type."""
    return [pytest.param(kind, marks=pytest.mark.queue(type=kind)) for kind in ("classic", "stream")]


class QueueBroker(AppBroker):
    """`queues` are the `[[queues]]` of its settings file, which `configure` writes anew."""

    def __init__(
        self,
        directory: Path,
        provider: str = "embedded",
        settings: Mapping[str, Any] | None = None,
        queues: ManyQueues = (),
        *,
        rules: str = EVERYTHING,
        cluster: KafkaCluster | None = None,
    ) -> None:
        self._rules = rules
        self.settings_path = directory / "penstock.toml"
        self.write_queues(queues)
        super().__init__(directory, provider, {**QUICK, **(settings or {})}, cluster)

    def _penstock_command(self) -> list[str]:
        return [*super()._penstock_command(), "--config", str(self.settings_path)]

    def write_types(self, applications: Sequence[str]) -> None:
        """The ACL file."""
        self.acl_path.write_text(self._rules)

    def write_queues(self, queues: ManyQueues) -> None:
        tables = ["\n".join(["[[queues]]", *(toml_entry(*entry) for entry in queue.items())]) for queue in queues]
        self.settings_path.write_text("\n\n".join(tables) + "\n")

    def reload(self, queues: ManyQueues) -> str:
        """Other queues in the settings and a SIGHUP; gives what it logged about it."""
        self.write_queues(queues)
        start = self.log_size()
        self.process.send_signal(signal.SIGHUP)
        return self.await_log("reload", start)

    # What the admin API tells

    def queue(self, name: str) -> dict[str, Any] | None:
        """What the API tells of a queue: depth, head, tail, counters."""
        found: dict[str, Any] | None = self.api(f"queues/{quote(name, safe='')}")
        return found

    def group(self, queue: str, group: str) -> dict[str, Any]:
        """What the API tells of a group, which is named `group` or `group@filter`."""
        found = self.api(f"queues/{quote(queue, safe='')}/groups") or {"groups": []}
        mine = [each for each in found["groups"] if each["id"] == group]
        assert len(mine) == 1, f"group {group} of {queue} among {found}"
        return dict(mine[0])

    def pending(self, queue: str, group: str) -> dict[int, dict[str, Any]]:
        """The pending entries of a group by offset."""
        found = self.api(f"queues/{quote(queue, safe='')}/pending?group={quote(group, safe='')}&limit=1000")
        return {entry["offset"]: entry for entry in found["entries"]}

    def progress(self, queue: str, group: str) -> tuple[int, int, int]:
        """Cursor, committed, number of pending entries."""
        found = self.group(queue, group)
        return found["cursor"], found["committed"], found["pending"]

    def await_progress(self, queue: str, group: str, **wanted: int) -> None:
        """Until these of cursor, committed, pending are so."""
        deadline = time.monotonic() + 60
        while not wanted.items() <= (found := self.group(queue, group)).items():
            assert time.monotonic() < deadline, f"{group} of {queue} at {wanted} expected, is {found}"
            time.sleep(0.02)

    def counter(self, queue: str, name: str) -> int:
        found = self.queue(queue)
        assert found is not None, f"no queue {queue}"
        return int(found[name])


@contextlib.contextmanager
def running_queue_broker(
    directory: Path,
    provider: str = "embedded",
    settings: Mapping[str, Any] | None = None,
    queues: ManyQueues = (),
    *,
    rules: str = EVERYTHING,
) -> Iterator[QueueBroker]:
    """Alone on its Kafka, well until its end, exit code 0."""
    if IS_MOSQUITTO:
        pytest.skip("mosquitto has no durable queues")
    if provider == "kafka":
        forget_topics(shared_cluster(1).bootstrap)
    broker = QueueBroker(directory, provider, settings, queues, rules=rules)
    try:
        broker.wait_until_listening()
        yield broker
        if broker.is_alive:
            broker.stop()
    finally:
        if broker.is_alive:
            broker.process.kill()
            broker.process.wait()


@dataclass
class Delivery:
    """One PUBLISH of a queue, its user properties as a dictionary."""

    packet: Packet
    at: float  # when it was taken, by the monotonic clock

    @property
    def payload(self) -> bytes:
        return self.packet.payload or b""

    @property
    def topic(self) -> str:
        return self.packet.topic or ""

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """All user properties in their order."""
        return [(name, value) for name, value in self.packet.properties.get("user_property", [])]

    @property
    def properties(self) -> dict[str, str]:
        """Each name has to come once."""
        pairs = self.pairs
        assert len(dict(pairs)) == len(pairs), f"a user property more than once: {pairs}"
        return dict(pairs)

    def value(self, name: str) -> str:
        """Of a user property that has to come once."""
        values = [value for key, value in self.pairs if key == name]
        assert len(values) == 1, f"{name} {len(values)} times: {self.pairs}"
        return values[0]

    @property
    def message_id(self) -> str:
        return self.value("message-id")

    @property
    def group(self) -> str:
        return self.value("group-id")

    @property
    def queue(self) -> str:
        return self.value("queue")

    @property
    def offset(self) -> int:
        return int(self.value("offset"))

    @property
    def count(self) -> int:
        """Which delivery of the message to its group it is; the first does not say so."""
        return int(dict(self.pairs).get("x-delivery-count", "1"))


class QueueClient:
    """A client of queues. It sends a PUBACK for what it takes unless told otherwise; that settles nothing in MQTT 5."""

    def __init__(self, raw: RawClient) -> None:
        self.raw = raw

    @property
    def client_id(self) -> str:
        return self.raw.client_id

    def close(self) -> None:
        self.raw.close()

    # Publishing

    def publish(self, topic: str, *payloads: bytes, qos: int = 1, reason: int = 0, **options: Any) -> list[Packet]:
        """One message for each payload, whose acknowledgement must have this reason code; gives them."""
        answers = []
        for payload in payloads:
            answer = self.raw.publish(topic, payload, qos=qos, **options)
            if answer is not None:
                assert answer.reason == reason, f"{topic}: {answer}"
                answers.append(answer)
        return answers

    # Consuming

    def consume(self, address: str, group: str | None = None, *, qos: int = 1, **properties: Any) -> None:
        """SUBSCRIBE; user properties are given with `_` for `-`: prefetch=5, x_stream_offset="first"."""
        reasons = self.try_consume(address, group, qos=qos, **properties)
        assert reasons in ([qos], [min(qos, 1)]), f"SUBACK {[hex(reason) for reason in reasons]} for {address}"

    def try_consume(self, address: str, group: str | None = None, *, qos: int = 1, **properties: Any) -> list[int]:
        pairs = [("consumer-group", group)] if group is not None else []
        pairs += [(name.replace("_", "-"), str(value)) for name, value in properties.items()]
        return self.raw.subscribe(address, qos=qos, properties={"user_property": pairs} if pairs else None)

    def next(self, payload: bytes | None = None, *, puback: bool = True, timeout: float | None = None) -> Delivery:
        """The next packet, which must be a delivery, and of this payload if one is given."""
        packet = self.raw.expect(PacketType.PUBLISH, timeout)
        delivery = Delivery(packet, time.monotonic())
        if payload is not None:
            assert packet.payload == payload, f"{payload!r} expected, got {packet}"
        if puback:
            self.raw.ack(packet)
        return delivery

    def take(self, *payloads: bytes, puback: bool = True) -> list[Delivery]:
        """Deliveries of these payloads in this order."""
        return [self.next(payload, puback=puback) for payload in payloads]

    def take_any(self, count: int) -> list[Delivery]:
        return [self.next() for _ in range(count)]

    def nothing(self, seconds: float = 0.15) -> None:
        self.raw.expect_nothing(seconds)

    # Settling

    def settle(
        self,
        delivery: Delivery,
        verb: str = "ack",
        *,
        reason: str | None = None,
        group: str | None = None,
        refused: bool = False,
        qos: int = 1,
    ) -> Packet:
        """$ack, $nack or $reject of a delivery; the answer must be success, or 0x80 with a text when `refused`."""
        pairs = [("message-id", delivery.message_id), ("group-id", delivery.group if group is None else group)]
        if reason is not None:
            pairs.append(("reason", reason))
        return self.command(f"$queue/{delivery.queue}/${verb}", pairs, refused=refused, qos=qos)

    def ack(self, *deliveries: Delivery) -> None:
        for delivery in deliveries:
            self.settle(delivery, "ack")

    def nack(self, delivery: Delivery) -> float:
        """Gives the time before it, from which a back-off counts at the earliest."""
        before = time.monotonic()
        self.settle(delivery, "nack")
        return before

    def reject(self, delivery: Delivery, reason: str | None = None) -> None:
        self.settle(delivery, "reject", reason=reason)

    def take_and_ack(self, *payloads: bytes) -> list[Delivery]:
        """One by one, as a consumer does that has little room."""
        deliveries = []
        for payload in payloads:
            deliveries.append(self.next(payload))
            self.ack(deliveries[-1])
        return deliveries

    def commit(self, queue: str, group: str, offset: int | str, *, refused: bool = False) -> Packet:
        pairs = [("x-group-id", group), ("x-offset", str(offset))]
        return self.command(f"$queue/{queue}/$commit", pairs, refused=refused)

    def try_ack(self, delivery: Delivery) -> bool:
        """Whether it was in time: a busy machine may let the visibility timeout pass."""
        pairs = [("message-id", delivery.message_id), ("group-id", delivery.group)]
        properties = {"user_property": pairs}
        answer = self.raw.publish(f"$queue/{delivery.queue}/$ack", b"", qos=1, properties=properties)
        assert answer is not None
        return answer.reason == 0

    def command(self, topic: str, pairs: list[tuple[str, str]], *, refused: bool = False, qos: int = 1) -> Packet:
        """A control publish."""
        answer = self.raw.publish(topic, b"", qos=qos, properties={"user_property": pairs} if pairs else None)
        assert answer is not None
        assert answer.reason == (REFUSED if refused else 0), f"{topic} {pairs}: {answer}"
        if refused:
            assert answer.properties.get("reason_string"), f"a refusal without words: {answer}"
        return answer


def open_queue_client(broker: QueueBroker, client_id: str, version: int = V5, **options: Any) -> QueueClient:
    """For what runs beside a test; the fixtures of tests/wire/queues close theirs by themselves."""
    raw = broker.client(version)
    raw.connect(client_id, **options)
    return QueueClient(raw)
