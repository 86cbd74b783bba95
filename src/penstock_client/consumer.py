"""`AsyncConsumer`: a consumer for programs with an event loop."""

from __future__ import annotations

import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from penstock_client.config import read_consumer
from penstock_client.engine import Engine, Offsets, Rebalance
from penstock_client.errors import BadRequest, OutOfRange
from penstock_client.messages import Message
from penstock_client.owned import Owned
from penstock_client.partitions import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    TopicPartition,
)
from penstock_client.wire import Execute, Positions, Table

Callback = Callable[[Any, list[TopicPartition]], Any]
_SECONDS = 30.0


class Callbacks:
    """What the application wants to be told of, while it polls."""

    def __init__(self, on_assign: Callback | None, on_revoke: Callback | None, on_lost: Callback | None) -> None:
        self.on_assign = on_assign
        self.on_revoke = on_revoke
        self.on_lost = on_lost or on_revoke

    @property
    def may_discard(self) -> bool:
        """Whether the application could throw away what it got and has not committed."""
        return self.on_revoke is not None or self.on_lost is not None

    def choose(self, event: Rebalance) -> Callback | None:
        if event.is_assigned:
            return self.on_assign
        return self.on_lost if event.is_lost else self.on_revoke


class Wait:
    """A time that callbacks in between do not make longer."""

    def __init__(self, seconds: float | None) -> None:
        self._until = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float | None:
        return None if self._until is None else max(0.0, self._until - time.monotonic())


class AsyncConsumer:
    """A member of a consumer group. One task polls; the others may use everything else at the same time.

    Heartbeats, fetching ahead and automatic commits go on by themselves while the event loop runs: an application that
    keeps the loop busy for `session.timeout.ms` is taken for dead.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._engine = Engine(read_consumer(config))
        self._callbacks = Callbacks(None, None, None)

    @property
    def engine(self) -> Engine:
        return self._engine

    async def subscribe(
        self,
        topics: Sequence[str],
        on_assign: Callback | None = None,
        on_revoke: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Joins the group for these topics, or changes them. The callbacks, plain or asynchronous, are called by poll
        with the consumer and the partitions: when they came, went to another consumer, or were lost together with the
        place in the group (on_revoke stands in for on_lost)."""
        if isinstance(topics, str):
            raise BadRequest(f"subscribe([{topics!r}]): a list of topics")
        self._callbacks = Callbacks(on_assign, on_revoke, on_lost)
        await self._engine.subscribe(list(topics), has_callbacks=self._callbacks.may_discard)

    async def unsubscribe(self) -> None:
        """Leaves the group, after a commit if that is automatic."""
        await self._engine.unsubscribe()

    async def poll(self, timeout: float | None = None) -> Message | None:
        """Rows of one partition, or an error to look at, or None after `timeout` seconds (None waits for ever).
        What was returned before counts as done: it may be committed automatically from now on."""
        found = await self.consume(1, timeout)
        return found[0] if found else None

    async def consume(self, num_messages: int = 1, timeout: float | None = None) -> list[Message]:
        """Up to so many messages: waits for the first, takes what is there besides."""
        if num_messages < 1:
            raise BadRequest("consume: at least one message")
        await self._engine.begin_poll()
        found: list[Message] = []
        wait = Wait(timeout)
        try:
            while len(found) < num_messages:
                more, event = await self._engine.gather(num_messages - len(found), 0.0 if found else wait.left())
                found += more
                if event is None:
                    break
                await self._call(event)
        except BaseException:
            self._engine.give_all_back(found)
            raise
        finally:
            self._engine.end_poll()
        return found

    async def _call(self, event: Rebalance) -> None:
        callback = self._callbacks.choose(event)
        if callback is not None:
            result = callback(self, event.partitions)
            if inspect.isawaitable(result):
                await _awaited(result)

    async def commit(
        self,
        message: Message | None = None,
        offsets: Sequence[TopicPartition] | None = None,
        asynchronous: bool = False,
    ) -> list[TopicPartition]:
        """Stores progress: behind `message`; or `offsets`, which are the *next* positions; or all positions (or what
        store_offsets() said). Durable when it returns, unless `asynchronous`, where an error comes out of poll."""
        wanted = read_offsets(message, offsets)
        if asynchronous:
            self._engine.commit_later(wanted)
            return []
        stored = await self._engine.commit(wanted)
        return [TopicPartition(*each) for each in stored]

    def store_offsets(self, message: Message | None = None, offsets: Sequence[TopicPartition] | None = None) -> None:
        """What automatic commits, and commit() without an argument, store from now on in place of everything that was
        returned: for applications that finish messages in another order than they get them."""
        wanted = read_offsets(message, offsets)
        if wanted is None:
            raise BadRequest("store_offsets: a message or offsets")
        self._engine.store(wanted)

    # Places

    async def seek(self, partition: TopicPartition) -> None:
        """Reads on at the offset (or OFFSET_BEGINNING, OFFSET_END, OFFSET_STORED). Only this consumer's matter until
        the next commit. Raises OutOfRange when the log does not have it."""
        owned = self._engine.find(*partition.key)
        offset = partition.offset
        if offset == OFFSET_STORED:
            found = (await self.committed([partition]))[0].offset
            if found == OFFSET_INVALID:
                raise OutOfRange(f"{owned.topic}[{owned.partition}]: nothing is committed")
            offset = found
        begin, end = await self.get_watermark_offsets(partition)
        if offset == OFFSET_BEGINNING:
            offset = begin
        elif offset == OFFSET_END:
            offset = end
        elif not begin <= offset <= end:
            error = OutOfRange(f"{owned.topic}[{owned.partition}]: {offset} is not from {begin} to {end}")
            error.begin, error.end = begin, end
            raise error
        self._engine.seek(self._engine.find(*partition.key), offset)

    async def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        await self._seek_all(partitions, OFFSET_BEGINNING)

    async def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        await self._seek_all(partitions, OFFSET_END)

    async def _seek_all(self, partitions: Iterable[TopicPartition] | None, offset: int) -> None:
        for each in self.assignment() if partitions is None else partitions:
            await self.seek(TopicPartition(each.topic, each.partition, offset))

    def assignment(self) -> list[TopicPartition]:
        """The partitions of this consumer: `offset` is its position, `begin` and `end` what the log has."""
        return [self._engine.owned[key].shown() for key in sorted(self._engine.owned)]

    def subscription(self) -> list[str]:
        return self._engine.topics

    def position(self, partitions: Sequence[TopicPartition] | None = None) -> list[TopicPartition]:
        """The next offset that the application will get; OFFSET_INVALID for partitions of others."""
        wanted = self.assignment() if partitions is None else partitions
        return [TopicPartition(*each.key, self._engine.position(*each.key)) for each in wanted]

    async def committed(self, partitions: Sequence[TopicPartition] | None = None) -> list[TopicPartition]:
        """What the group has stored: the next position; OFFSET_INVALID where that is nothing."""
        wanted = self.assignment() if partitions is None else partitions
        found: list[int | None] = await self._ask("committed", wanted)
        return [
            TopicPartition(*each.key, OFFSET_INVALID if offset is None or offset < 0 else offset)
            for each, offset in zip(wanted, found, strict=True)
        ]

    async def get_watermark_offsets(self, partition: TopicPartition) -> tuple[int, int]:
        """The first offset the log still has, and the one that the next message will get."""
        begin, end = (await self._ask("watermarks", [partition]))[0]
        return begin, end

    async def offsets_for_times(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """The first offset received at or after a time, given in milliseconds as the offset of each partition."""
        found: list[int] = await self._ask("times", partitions, [each.offset for each in partitions])
        return [TopicPartition(*each.key, offset) for each, offset in zip(partitions, found, strict=True)]

    async def lag(self) -> dict[TopicPartition, int]:
        """How many messages of the source are behind the position, of each assigned partition."""
        mine = [self._engine.owned[key] for key in sorted(self._engine.owned)]
        for owned, (begin, end) in zip(
            mine, await self._ask("watermarks", [each.shown() for each in mine]), strict=True
        ):
            owned.begin, owned.end = begin, end
        return {owned.shown(): owned.lag for owned in mine}

    async def _ask(self, method: str, partitions: Sequence[TopicPartition], times: Sequence[int] = ()) -> Any:
        if not partitions:
            return []
        request = Positions(
            group=self._engine.config.group, partitions=[each.key for each in partitions], times=list(times)
        )
        return await self._engine.link.request(method, request, timeout=_SECONDS)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Nothing more of these until resume(); the rest goes on, and the consumer stays alive."""
        self._engine.pause(self._find(partitions))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._engine.resume(self._find(partitions))

    def _find(self, partitions: Iterable[TopicPartition]) -> list[Owned]:
        return [self._engine.find(*each.key) for each in partitions]

    async def list_topics(self) -> list[str]:
        """The query topics that the broker has."""
        table: Table = await self._engine.link.request("execute", Execute("SHOW TOPICS"), timeout=_SECONDS)
        return sorted(str(row[0]) for row in table.rows)

    # Its end

    async def close(self) -> None:
        """Commits what was returned, if that is automatic, and leaves: its partitions go to others at once."""
        await self._engine.close()

    async def __aenter__(self) -> AsyncConsumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # An exception: what was returned last may not be done, so it is not committed.
        await self._engine.close(is_all_finished=error is None)

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Messages until the consumer is closed; their errors are raised here."""
        while not self._engine.is_closed:
            message = await self.poll()
            if message is None:
                continue
            error = message.error()
            if error is not None:
                raise error
            yield message


async def _awaited(result: Awaitable[Any]) -> None:
    await result


def read_offsets(message: Message | None, offsets: Sequence[TopicPartition] | None) -> Offsets | None:
    """The next positions to be stored; None for all of them."""
    if message is not None and offsets is not None:
        raise BadRequest("a message or offsets, not both")
    if message is not None:
        if message.error() is not None:
            raise BadRequest("an error has no offset to commit")
        return [(message.topic(), message.partition(), message.offset() + 1)]
    if offsets is None:
        return None
    for each in offsets:
        if each.offset < 0:
            raise BadRequest(f"{each.topic}[{each.partition}]: offset {each.offset} cannot be stored")
    return [(*each.key, each.offset) for each in offsets]
