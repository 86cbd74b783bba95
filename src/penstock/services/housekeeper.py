"""What is left to be removed is written down as a task before it is done: a crash, or a log that is away for a while,
leaves no topic behind that nobody would ever remove.

    a session ends ──▶ tb_housekeeper.<partition of its name> ──▶ the broker that has the partition:
                                   ▲                              is it still nobody's? then it goes
                                   │ an hour later                        │ failed again and again
                                   └──── tb_housekeeper.reprocessing ◀────┘

A task says that something may be removed, not that it must: who handles it finds out whether anybody uses it by then.
So a task may come twice, late, or for nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Awaitable, Callable, Sequence
from enum import IntEnum

import msgspec

from penstock._ext.record.segment import Record
from penstock.core.errors import PenstockError
from penstock.core.logging import Throttled, get_logger
from penstock.services.consumers import ConsumerOptions, GivenBack
from penstock.services.factory import QueueFactory
from penstock.services.messages import QueueMessage, UndecodableMessage, decode_message
from penstock.services.model import (
    HOUSEKEEPER,
    SYSTEM_TENANT,
    PartitionChange,
    QueueKey,
    ServiceType,
    TopicPartitionInfo,
)
from penstock.services.packs.message import NotYet, PackMessage
from penstock.services.packs.processor import Decoded
from penstock.services.producer import MessageTooLarge
from penstock.settings.services import HousekeeperSettings
from penstock.storage.log.base import Fetched, Log, LogError

log = get_logger("penstock.housekeeper")

CORE = ServiceType.TB_CORE
KEY = QueueKey(CORE, HOUSEKEEPER)
CLIENT, DELETED, SHARE = "client", "deleted", "share"
"""Kinds of tasks: the topic of an APPLICATION client; the same, whatever application.remove_topics says, since somebody
has deleted it; group and topic of a shared subscription."""
JOIN = "join"
"""Of a question, not of a task: a broker is about to share these topics, with blanks between them."""
SEND_AGAIN_SECONDS = 10.0
LOOK_AGAIN_SECONDS = 10.0
MOST_UNSENT = 10_000
PUT_OFF_SECONDS = 3_600.0
LOOK_SECONDS = 60.0
GIVE_UP_SECONDS = 90 * 86_400.0
STOP_SECONDS = 2.0
# One consumer for all partitions: there is little to do.
OPTIONS = ConsumerOptions(is_per_partition=False, poll_seconds=5.0, stop_seconds=STOP_SECONDS)


class Undecided(NotYet):
    """It cannot be told yet whether something is in use."""


class Use(IntEnum):
    """Of what a task is about: the higher, the less may be removed."""

    NONE = 0
    TOPIC = 1
    """The topic is read by others, the group of the task by nobody."""
    ALL = 2


class Task(msgspec.Struct, array_like=True, frozen=True):
    """`name` is that of the client, or the shared filter; `at` nanoseconds since 1970."""

    kind: str
    name: str
    topic: str
    at: int = 0


Note = Callable[[str, str, str], None]
"""Housekeeper.note"""
Handler = Callable[[Task], Awaitable[None]]
"""Raises where it is to be tried again."""


class Housekeeper:
    """On the loop. `is_alone`: nobody else writes tasks, so there is no queue before the first one."""

    def __init__(
        self, queues: QueueFactory, log_provider: Log, settings: HousekeeperSettings, *, is_alone: bool
    ) -> None:
        self._log = log_provider
        self._queues = queues
        self._partitions = queues.partitions
        self._seconds = 0.8 * settings.pack_seconds  # before the pack takes it for lost
        self._is_alone = is_alone
        self._handlers: dict[str, Handler] = {}
        self._producer = queues.producer(CORE, HOUSEKEEPER)
        self._processor = queues.processor(KEY, self._handle, _decode)
        self._tasks = queues.manager(KEY, self._process, OPTIONS)
        self._left: dict[PackMessage, Exception | None] = {}  # of the pack in hand: not done, and why
        self._former: set[TopicPartitionInfo] = set()  # of when there were more partitions: what is there is done, too
        base = f"{settings.topic}.reprocessing"
        self._put_off_to = queues.topic(base)
        one_by_one = dataclasses.replace(OPTIONS, max_records=1, retry_seconds=LOOK_SECONDS)
        self._late = queues.topic_manager(base, CORE, self._send_late, one_by_one)
        self._unsent: dict[tuple[str, str], Task] = {}
        self._retry: asyncio.TimerHandle | None = None
        self._making: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._is_started = False
        self._is_open = False
        self._is_stopped = False
        self._warnings = Throttled(log, interval=10.0)
        self.noted = self.put_off = 0
        self._partitions.listen(PartitionChange, self._on_partitions)

    def serve(self, kind: str, handler: Handler) -> None:
        """Before `start`."""
        self._handlers[kind] = handler

    async def start(self) -> None:
        """Who is asked whether something is in use knows it from here on."""
        self._is_started = True
        if not self._is_alone:
            self._open()
        if not await self._look():
            self._looking = asyncio.get_running_loop().create_task(self._look_again())

    async def _look(self) -> bool:
        """Which topics of the queue there are, also of when it had more partitions; False: not known yet."""
        try:
            topics = await self._log.admin.list()
        except LogError as error:
            log.warning("what is left to be removed is not known yet", error=str(error))
            return False
        now = self._partitions.partitions(KEY)
        self._former = {info for topic in topics if (info := _partition_of(topic, now[0].topic))} - set(now)
        mine = {info.full_topic_name for info in (*now, *self._former, self._put_off_to)}
        if self._is_open:
            self._follow()  # somebody was quicker, and did not know the former ones
        elif self.noted or not mine.isdisjoint(topics):
            self._open()
        return True

    async def _look_again(self) -> None:
        while True:
            await asyncio.sleep(LOOK_AGAIN_SECONDS)
            if await self._look():
                return

    async def stop(self) -> None:
        self._is_started = self._is_open = False
        self._is_stopped = True
        if self._retry is not None:
            self._retry.cancel()
        for task in (self._making, self._looking):
            if task is not None:
                task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * STOP_SECONDS):
                await asyncio.gather(self._tasks.stop(), self._late.stop())

    # ---- writing tasks ----

    def note(self, kind: str, name: str, topic: str) -> None:
        """It may be removed. Nobody waits for it: what cannot be written down now is written down later."""
        self.noted += 1
        self._send(Task(kind, name, topic, time.time_ns()))

    def _send(self, task: Task) -> None:
        def on_sent(error: LogError | None) -> None:
            if error is not None:
                self._keep(task, error)

        try:
            self._producer.send(self._place(task), _message(task), on_sent)
        except MessageTooLarge as error:
            self._warn("a topic that nobody uses may stay behind: it cannot be written down", task, error)
        except PenstockError as error:
            self._keep(task, error)
        self._open()

    def _place(self, task: Task) -> TopicPartitionInfo:
        return self._partitions.resolve(CORE, HOUSEKEEPER, SYSTEM_TENANT, task.name)

    def _keep(self, task: Task, error: PenstockError) -> None:
        if len(self._unsent) >= MOST_UNSENT and (task.kind, task.name) not in self._unsent:
            self._warn("a topic that nobody uses may stay behind: too many wait for the log", task, error)
            return
        self._unsent[task.kind, task.name] = task
        self._warn("what is left to be removed cannot be written down yet", task, error)
        if self._retry is None and not self._is_stopped:
            self._retry = asyncio.get_running_loop().call_later(SEND_AGAIN_SECONDS, self._send_again)

    def _send_again(self) -> None:
        self._retry = None
        unsent, self._unsent = self._unsent, {}
        for task in unsent.values():
            self._send(task)

    # ---- handling them ----

    def _open(self) -> None:
        if self._is_started and not self._is_open:
            self._is_open = True
            self._follow()
            self._making = asyncio.get_running_loop().create_task(self._make_topics())

    async def _make_topics(self) -> None:
        """A task that has to wait for its topic first may come too late."""
        with contextlib.suppress(LogError):  # then they come about with the tasks
            await self._queues.make_topics(KEY)

    def _on_partitions(self, event: PartitionChange) -> None:
        if self._is_open and KEY in event.partitions:
            self._follow()

    def _follow(self) -> None:
        mine = set(self._partitions.my_partitions(KEY))
        is_first = any(info.partition == 0 for info in mine)
        self._tasks.update(mine | self._former if is_first else mine)
        self._late.update([self._put_off_to] if is_first else [])

    async def _process(self, packs: Sequence[Fetched]) -> None:
        """What the strategy has given up is put off: no task goes before it is done. Raises LogError: all again."""
        self._left.clear()
        await self._processor.process(packs)
        for message, error in list(self._left.items()):
            await self._put_off(message.value, error or TimeoutError("it was not done in time"))

    async def _handle(self, message: PackMessage) -> None:
        task: Task = message.value
        handler = self._handlers.get(task.kind)
        self._left[message] = None
        if handler is None:
            self._left[message] = Undecided(f"this broker knows no tasks of the kind {task.kind!r}")
            return
        try:
            async with asyncio.timeout(self._seconds):
                await handler(task)
        except Exception as error:
            self._left[message] = error
            raise
        self._left.pop(message, None)

    async def _put_off(self, task: Task, error: Exception) -> None:
        now = time.time_ns()
        if now - task.at > GIVE_UP_SECONDS * 1e9:
            self._warn("a topic that nobody uses stays behind, it could not be removed for months", task, error)
            return
        self._warn("a topic that nobody uses cannot be removed, it is tried again in an hour", task, error)
        task = msgspec.structs.replace(task, at=min(task.at, now))  # or one of the future would never be given up
        await self._producer.send_and_wait(self._put_off_to, _message(task))
        self.put_off += 1

    async def _send_late(self, packs: Sequence[Fetched]) -> None:
        """A task that was put off, when its time has come."""
        for fetched in packs:
            for record in fetched.pack:
                try:
                    task = _decode(record).value
                    written = decode_message(record).ts or 0
                except (UndecodableMessage, msgspec.DecodeError) as error:
                    log.warning("no task of the housekeeper, skipped", topic=fetched.topic, error=str(error))
                    continue
                waits = written / 1000 + PUT_OFF_SECONDS - time.time()
                if 0 < waits <= PUT_OFF_SECONDS:  # more: it was written by a clock that was wrong
                    raise GivenBack
                await self._producer.send_and_wait(self._place(task), _message(task))

    def _warn(self, what: str, task: Task, error: Exception) -> None:
        self._warnings.warning(what, kind=task.kind, name=task.name, topic=task.topic, error=str(error))

    def counters(self) -> dict[str, int]:
        return {
            "housekeeper_noted": self.noted,
            "housekeeper_put_off": self.put_off,
            "housekeeper_unsent": len(self._unsent),
        }


def _partition_of(topic: str, base: str) -> TopicPartitionInfo | None:
    """What a topic is of the queue; None: nothing."""
    number = topic.removeprefix(f"{base}.")
    if number == topic or not (number.isascii() and number.isdecimal()) or str(int(number)) != number:
        return None
    return TopicPartitionInfo(base, partition=int(number))


class _Written(msgspec.Struct, frozen=True):
    """A task as it is in the log: JSON, so that `penstock log read` shows it."""

    kind: str
    name: str
    topic: str
    at: int = 0


def _message(task: Task) -> QueueMessage:
    return QueueMessage(task.name, msgspec.json.encode(_Written(*msgspec.structs.astuple(task))))


def _decode(record: Record) -> Decoded:
    """Of one client or filter one task at a time."""
    data = decode_message(record).data
    if data.startswith(b"{"):
        task = Task(*msgspec.structs.astuple(msgspec.json.decode(data, type=_Written)))
    else:  # of an earlier version
        task = msgspec.msgpack.decode(data, type=Task)
    return Decoded(task, (task.kind, task.name))
