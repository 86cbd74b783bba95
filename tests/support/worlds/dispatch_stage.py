"""Dispatch over a memory log that fails when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from penstock._ext.application.feed import Feed
from penstock._ext.hub.connection import Hub, Session
from penstock._ext.record.envelope import decode, encode
from penstock._ext.record.segment import RecordPack
from penstock.core.clock import now_ms
from penstock.dispatch.dispatcher import Dispatcher
from penstock.services.log_names import DISPATCH_GROUP
from penstock.storage.log.base import Appended, Committed, LogError, TopicPartition
from penstock.storage.log.memory import MemoryLog
from penstock.storage.log.sending import send

INGEST = "tbmq.msg.all"
PARTITIONS = 2
OF_ANOTHER_BROKER = bytes([10 << 3 | 5]) + (2).to_bytes(4, "little")  # a field behind a record, see put_origin


class FailingLog(MemoryLog):
    """Appends to a topic, or commits, fail as long as a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: dict[str, LogError] = {}
        self.commit_failure: LogError | None = None
        self.create_failure: LogError | None = None
        self.attempts = 0
        self.commits: list[dict[TopicPartition, int]] = []
        take = self._producer.append

        def append(topic: str, partition: int, pack: RecordPack, on_done: Callable | None = None) -> None:
            self.attempts += 1
            if topic in self.failures:
                if on_done is not None:
                    asyncio.get_running_loop().call_soon(on_done, self.failures[topic])
                return
            take(topic, partition, pack, on_done)

        async def send_pack(topic: str, partition: int, pack: RecordPack) -> Appended:
            return await send(self._producer, topic, partition, pack)

        self._producer.append = append  # the fault this is about
        self._producer.send = send_pack

    async def commit(self, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
        if self.commit_failure is not None:
            raise self.commit_failure
        self.commits.append({place: committed.offset for place, committed in offsets.items()})
        await super().commit(group, offsets)


class Stage:
    def __init__(self, log: FailingLog) -> None:
        self.log = log
        self.hub = Hub(asyncio.get_running_loop())
        self.sessions: dict[str, Session] = {}
        self.missing: list[str] = []
        self.is_wanted = True
        self.dispatcher = Dispatcher(self.hub, log, INGEST, self.make_topic)

    async def start(self, *, from_now: bool = False) -> None:
        self.dispatcher.start()
        await self.dispatcher.activate(from_now=from_now)

    async def make_topic(self, topic: str) -> bool:
        self.missing.append(topic)
        if self.log.create_failure is not None:
            raise self.log.create_failure
        if self.is_wanted:
            await self.log.admin.create(topic)
        return self.is_wanted

    async def client(self, name: str, topic_filter: bytes = b"#", options: int = 2) -> Session:
        session = self.sessions[name] = Session(self.hub, name)
        topic = f"app.{name}"
        await self.log.admin.create(topic)
        session.intake = Feed(topic)
        self.hub.trie.subscribe(session, topic_filter, options)
        return session

    async def publish(self, topic: str, *payloads: bytes, qos: int = 1, partition: int = 0) -> None:
        pack = RecordPack()
        for payload in payloads:
            pack.append(encode(topic, payload, qos, received_at=now_ms()))
        self.log.topics[INGEST].partitions[partition].add(pack)
        self.log.watchers.wake(INGEST, [partition])

    def payloads(self, name: str) -> list[bytes]:
        """What is in the client's log."""
        return [
            decode(value).payload
            for pack in self.log.topics[f"app.{name}"].partitions[0].run
            for value in pack.values()
        ]

    def committed(self, partition: int = 0) -> int:
        found = self.log.get_committed(DISPATCH_GROUP, TopicPartition(INGEST, partition))
        return -1 if found is None else found.offset

    async def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - there is no event for what is in a log
                await asyncio.sleep(0.005)


@asynccontextmanager
async def staged() -> AsyncIterator[Stage]:
    log = FailingLog()
    await log.start()
    await log.admin.create(INGEST, PARTITIONS)
    stage = Stage(log)
    try:
        async with asyncio.timeout(60):
            yield stage
    finally:
        await stage.dispatcher.stop()
        await log.close()


def run(scenario: Callable[[Stage], Awaitable[None]]) -> None:
    async def main() -> None:
        async with staged() as stage:
            await scenario(stage)

    asyncio.run(main())


def numbers(*values: int) -> list[bytes]:
    return [str(value).encode() for value in values]
