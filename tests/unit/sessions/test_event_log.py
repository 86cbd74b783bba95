"""Events of the broker: packs of many, bounded, and readable by the other side."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, json_format, message_factory
from google.protobuf.descriptor_pool import DescriptorPool

from penstock.sessions.event_log import MOST_TOGETHER, TOPIC, EventKind, EventLog
from penstock.storage.log.base import Appended, LogError, TopicPartition
from penstock_schema.decode import SchemaError
from penstock_schema.encode import encode_fields
from penstock_schema.event import EVENT_FIELDS, Event, decode_event, encode_event
from tests.support.worlds.embedded import opened, read_all

SCHEMA = Path(__file__).resolve().parents[3] / "src/penstock_schema"
FULL = Event(1, EventKind.DROPPED, 1_790_000_000_123, "dev", "eve", "a/b", 1, 0x97, "queue_full", 3, "n1", 5, "[::1]:1")


def test_what_is_recorded_is_in_the_log(tmp_path: Path) -> None:
    asyncio.run(_recorded_is_in_the_log(tmp_path))


async def _recorded_is_in_the_log(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        events = EventLog(log, node="n1", clock=lambda: 1_790_000_000.5)
        await events.start()
        for number in range(5):
            events.record(EventKind.CONNECTED, f"c{number}", protocol=5, address="127.0.0.1:1")
        await asyncio.sleep(0)
        events.record(EventKind.DROPPED, "c1", topic="a/b", cause="queue_full", count=7)
        async with asyncio.timeout(60):
            while events.pending:  # noqa: ASYNC110 - the log calls back, there is no event to wait for
                await asyncio.sleep(0.005)
        records = await read_all(log, TOPIC)
        found = [decode_event(record.value or b"") for record in records]
        assert [event.client_id for event in found] == ["c0", "c1", "c2", "c3", "c4", "c1"]
        assert found[0] == Event(
            kind=1, at=1_790_000_000_500, client_id="c0", node="n1", protocol=5, address="127.0.0.1:1"
        )
        assert (found[-1].kind, found[-1].cause, found[-1].count) == (EventKind.DROPPED, "queue_full", 7)
        assert (events.recorded, events.lost) == (6, 0)
        assert log.watermarks(TopicPartition(TOPIC, 0)).end == 6


class SlowProducer:
    """Takes packs and answers when it is told to."""

    def __init__(self) -> None:
        self.waiting: list[tuple[int, Any]] = []

    def append(self, topic: str, partition: int, pack: Any, on_done: Any, *, can_wait: bool = False) -> None:
        self.waiting.append((pack.count, on_done))


class SlowLog:
    def __init__(self) -> None:
        self.producer = SlowProducer()
        self.admin = self
        self.may_create = asyncio.Event()

    async def create(self, topic: str, partitions: int, properties: object) -> None:
        await self.may_create.wait()


async def handed_over(log: SlowLog, packs: int) -> None:
    async with asyncio.timeout(60):
        while len(log.producer.waiting) < packs:  # noqa: ASYNC110 - a stand-in has no event to wait for
            await asyncio.sleep(0.005)


def test_events_of_several_iterations_leave_together_and_many_do_not_wait() -> None:
    asyncio.run(_events_leave_together())


async def _events_leave_together() -> None:
    log = SlowLog()
    log.may_create.set()
    events = EventLog(log)  # type: ignore[arg-type] # producer and admin are enough here
    await events.start()
    for _ in range(3):
        events.record(EventKind.CONNECTED, "c")
        await asyncio.sleep(0)
    assert log.producer.waiting == []
    events.flush()
    assert [count for count, _ in log.producer.waiting] == [3]
    for _ in range(MOST_TOGETHER + 1):
        events.record(EventKind.CONNECTED, "c")
    assert [count for count, _ in log.producer.waiting] == [3, MOST_TOGETHER]
    await handed_over(log, 3)
    assert [count for count, _ in log.producer.waiting] == [3, MOST_TOGETHER, 1]


@pytest.mark.parametrize("length", [0, 1, 127, 128, 20_000])
def test_strings_of_any_length_and_numbers_of_any_size(length: int) -> None:
    for number in (0, 1, 127, 128, 2**40, 2**63 - 1):
        event = Event(1, 77, number, "é" * length, "u" * length, count=number)
        assert encode_event(event) == encode_fields(EVENT_FIELDS, event)
        assert decode_event(encode_event(event)) == event


def test_events_wait_for_their_topic() -> None:
    """Clients may come before it is made."""
    asyncio.run(_events_wait_for_their_topic())


async def _events_wait_for_their_topic() -> None:
    log = SlowLog()
    events = EventLog(log)  # type: ignore[arg-type] # producer and admin are enough here
    starting = asyncio.create_task(events.start())
    events.record(EventKind.CONNECTED, "c")
    await asyncio.sleep(0.01)
    events.record(EventKind.SUBSCRIBED, "c", topic="t")
    await asyncio.sleep(0.01)
    assert (events.pending, log.producer.waiting) == (2, [])
    log.may_create.set()
    await starting
    assert [count for count, _ in log.producer.waiting] == [2]
    events.record(EventKind.DISCONNECTED, "c")
    await handed_over(log, 2)
    assert [count for count, _ in log.producer.waiting] == [2, 1]


def test_bounded_and_counted() -> None:
    asyncio.run(_bounded_and_counted())


async def _bounded_and_counted() -> None:
    log = SlowLog()
    log.may_create.set()
    events = EventLog(log, max_pending=3)  # type: ignore[arg-type] # producer and admin are enough here
    await events.start()
    for _ in range(5):
        events.record(EventKind.CONNECTED, "c")
    await handed_over(log, 1)
    assert (events.pending, events.lost, len(log.producer.waiting)) == (3, 2, 1)
    count, on_done = log.producer.waiting[0]
    on_done(LogError("the disk is full"))
    assert (count, events.pending, events.lost, events.recorded) == (3, 0, 5, 0)
    events.record(EventKind.CONNECTED, "c")
    await handed_over(log, 2)
    log.producer.waiting[1][1](Appended(TOPIC, 0, 0, 1))
    assert (events.recorded, events.pending) == (1, 0)


def test_the_bytes_are_those_of_the_schema(tmp_path: Path) -> None:
    """protoc's own reading of event.proto agrees with the fields in Python, and Google's library with the bytes."""
    target = tmp_path / "event.pb"
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        f"-I{SCHEMA}",
        f"--descriptor_set_out={target}",
        "event.proto",
    ]
    subprocess.run(command, check=True, timeout=60)
    file = descriptor_pb2.FileDescriptorSet.FromString(target.read_bytes()).file[0]
    pool = DescriptorPool()
    pool.Add(file)
    described = pool.FindMessageTypeByName("penstock.v1.Event")
    assert {field.name: field.number for field in described.fields} == {
        field.name: field.number for field in EVENT_FIELDS
    }
    kinds = pool.FindEnumTypeByName("penstock.v1.EventKind").values_by_number
    assert sorted(kinds) == [kind.value for kind in EventKind]
    message = message_factory.GetMessageClass(described).FromString(encode_event(FULL))
    shown = json_format.MessageToDict(message, preserving_proto_field_name=True, use_integers_for_enums=True)
    assert {name: int(value) if name in ("at", "count") else value for name, value in shown.items()} == FULL._asdict()
    assert message.SerializeToString() == encode_event(FULL)
    assert decode_event(message.SerializeToString()) == FULL


def test_what_is_no_event() -> None:
    with pytest.raises(SchemaError, match="version 0"):
        decode_event(b"")
    with pytest.raises(SchemaError, match="without a kind"):
        decode_event(b"\x08\x01")
    assert decode_event(b"\x08\x01\x10\x63").kind == 99
