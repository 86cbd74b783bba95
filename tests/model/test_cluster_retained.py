"""Retained messages at several brokers, against the log they share: whatever the order in which each of them reads and
publishes, all have what the log says last of each topic when all have read it to its end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._ext.dispatch.desk import DispatchDesk, Round
from penstock._ext.hub.connection import Hub
from penstock._ext.record.segment import RecordPack

TOPICS = ("a", "b", "c/d")
steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(0, 1), st.sampled_from(TOPICS), st.sampled_from([b"x", b"y", b""])),
        st.tuples(st.just("append"), st.integers(0, 1)),
        st.tuples(st.just("fail"), st.integers(0, 1)),
        st.tuples(st.just("read"), st.integers(0, 1)),
    ),
    max_size=60,
)


class SharedLog:
    def __init__(self) -> None:
        self.packs: list[RecordPack] = []
        self.last: dict[str, bytes] = {}


class Broker:
    """A hub whose publishes wait here until they are appended, and which reads the log when told to."""

    def __init__(self, loop: Any, number: int, log: SharedLog) -> None:
        self.hub = Hub(loop)
        self.desk = DispatchDesk(self.hub)
        self.hub.join(number)
        self.hub.spread(True)
        self.hub.log_to(self.submit, mode="all", partitions=1)
        self.log = log
        self.waiting: list[tuple[str, bytes, RecordPack]] = []
        self.position = 0
        self._batch: list[tuple[int, RecordPack]] = []

    def submit(self, ticket: int, batch: list[tuple[int, RecordPack]], *_: Any) -> None:
        self._batch = batch

    def publish(self, topic: str, payload: bytes) -> None:
        self.hub.publish(topic, payload, qos=0, retain=True)
        self.hub._flush_all()
        ((_, pack),) = self._batch
        self.waiting.append((topic, payload, pack))

    def append(self) -> None:
        if self.waiting:
            topic, payload, pack = self.waiting.pop(0)
            pack.place(len(self.log.packs))
            self.log.packs.append(pack)
            self.log.last[topic] = payload

    def fail(self) -> None:
        """The log does not take it; what this broker shows until the topic is set again is its own affair."""
        if self.waiting:
            topic, _, pack = self.waiting.pop(0)
            self.hub.not_logged(pack)
            self.publish(topic, b"again")

    def read(self) -> None:
        if self.position < len(self.log.packs):
            self.desk.dispatch(self.log.packs[self.position], 0, Round())
            assert self.desk.position == -1
            self.position += 1

    def retained(self) -> dict[str, bytes]:
        found = {topic: self.hub.retained.get(topic.encode()) for topic in TOPICS}
        return {topic: message[0] for topic, message in found.items() if message is not None}


@pytest.fixture(scope="module")
def loop() -> Any:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@given(steps=steps)
@settings(max_examples=150, deadline=None)
def test_all_brokers_have_what_the_log_says_last(loop: Any, steps: list[tuple[Any, ...]]) -> None:
    log = SharedLog()
    brokers = [Broker(loop, number, log) for number in (7, 9)]
    for name, which, *arguments in steps:
        getattr(brokers[which], name)(*arguments)
    for broker in brokers:
        while broker.waiting:
            broker.append()
    for broker in brokers:
        while broker.position < len(log.packs):
            broker.read()
    wanted = {topic: payload for topic, payload in log.last.items() if payload}
    assert brokers[0].retained() == brokers[1].retained() == wanted
