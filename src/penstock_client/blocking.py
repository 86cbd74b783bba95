"""`Consumer`: a consumer for programs without an event loop."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from penstock_client.config import read_consumer
from penstock_client.consumer import AsyncConsumer, Callback, Callbacks, Wait
from penstock_client.engine import Engine, Rebalance
from penstock_client.errors import BadRequest
from penstock_client.loop_thread import LoopThread
from penstock_client.messages import Message
from penstock_client.partitions import TopicPartition


class _Handover:
    """What goes from the loop's thread to the application's. An exception there, as Ctrl-C is, may come at any moment
    before the application has it: then all of it goes back, also what is still on its way."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._is_abandoned = False
        self.messages: list[Message] = []
        self.event: Rebalance | None = None

    async def gather(self, most: int, timeout: float | None, *, is_first: bool) -> None:
        """In one visit to the other thread: they are what a poll costs."""
        if is_first:
            await self._engine.begin_poll()
        try:
            messages, event = await self._engine.gather(most, timeout)
        finally:
            self._engine.end_poll()
        self.messages += messages
        self.event = event
        if self._is_abandoned:
            self.give_back()

    def give_back(self) -> None:
        """In the loop's thread."""
        self._is_abandoned = True
        messages, self.messages = self.messages, []
        event, self.event = self.event, None
        self._engine.give_back(event)
        self._engine.give_all_back(messages)


class Consumer:
    """A member of a consumer group. Heartbeats, fetching ahead and automatic commits go on in a thread of its own, also
    while the application works between polls.

    Every method may be called from any thread; polls take turns, and callbacks run in the thread that polls. A consumer
    does not survive a fork: a child process makes its own.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        read_consumer(config)  # before there is a thread
        self._thread = LoopThread("penstock-consumer")
        self._inner = self._thread.run(lambda: AsyncConsumer(config))
        self._engine = self._inner.engine
        self._callbacks = Callbacks(None, None, None)
        self._turn = threading.RLock()
        self._is_closed = False

    def subscribe(
        self,
        topics: Sequence[str],
        on_assign: Callback | None = None,
        on_revoke: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Joins the group for these topics, or changes them. The callbacks are called by poll with the consumer and the
        partitions: when they came, went to another consumer, or were lost together with the place in the group
        (on_revoke stands in for on_lost)."""
        self._callbacks = Callbacks(on_assign, on_revoke, on_lost)
        self._thread.call(self._inner.subscribe(topics, on_assign, on_revoke, on_lost))

    def unsubscribe(self) -> None:
        """Leaves the group, after a commit if that is automatic."""
        self._thread.call(self._inner.unsubscribe())

    def poll(self, timeout: float | None = None) -> Message | None:
        """Rows of one partition, or an error to look at, or None after `timeout` seconds (None waits for ever).
        What was returned before counts as done: it may be committed automatically from now on."""
        found = self.consume(1, timeout)
        return found[0] if found else None

    def consume(self, num_messages: int = 1, timeout: float | None = None) -> list[Message]:
        """Up to so many messages: waits for the first, takes what is there besides."""
        if num_messages < 1:
            raise BadRequest("consume: at least one message")
        handover = _Handover(self._engine)
        try:
            with self._turn:
                self._consume(handover, num_messages, timeout)
        except BaseException:
            self._thread.post(handover.give_back)
            raise
        return handover.messages

    def _consume(self, handover: _Handover, most: int, timeout: float | None) -> None:
        wait = Wait(timeout)
        found = handover.messages
        self._thread.call(handover.gather(most, timeout, is_first=True))
        while (event := handover.event) is not None:
            callback = self._callbacks.choose(event)
            handover.event = None
            if callback is not None:
                callback(self, event.partitions)
            if len(found) >= most:
                break
            self._thread.call(handover.gather(most - len(found), 0.0 if found else wait.left(), is_first=False))

    def commit(
        self,
        message: Message | None = None,
        offsets: Sequence[TopicPartition] | None = None,
        asynchronous: bool = False,
    ) -> list[TopicPartition]:
        """Stores progress: behind `message`; or `offsets`, which are the *next* positions; or all positions (or what
        store_offsets() said). Durable when it returns, unless `asynchronous`, where an error comes out of poll."""
        return self._thread.call(self._inner.commit(message, offsets, asynchronous))

    def store_offsets(self, message: Message | None = None, offsets: Sequence[TopicPartition] | None = None) -> None:
        """What automatic commits, and commit() without an argument, store from now on in place of everything that was
        returned: for applications that finish messages in another order than they get them."""
        self._thread.run(lambda: self._inner.store_offsets(message, offsets))

    def seek(self, partition: TopicPartition) -> None:
        """Reads on at the offset (or OFFSET_BEGINNING, OFFSET_END, OFFSET_STORED). Only this consumer's matter until
        the next commit. Raises OutOfRange when the log does not have it."""
        self._thread.call(self._inner.seek(partition))

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        self._thread.call(self._inner.seek_to_beginning(partitions))

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        self._thread.call(self._inner.seek_to_end(partitions))

    def assignment(self) -> list[TopicPartition]:
        """The partitions of this consumer: `offset` is its position, `begin` and `end` what the log has."""
        return self._thread.run(self._inner.assignment)

    def subscription(self) -> list[str]:
        return self._thread.run(self._inner.subscription)

    def position(self, partitions: Sequence[TopicPartition] | None = None) -> list[TopicPartition]:
        """The next offset that the application will get; OFFSET_INVALID for partitions of others."""
        return self._thread.run(lambda: self._inner.position(partitions))

    def committed(self, partitions: Sequence[TopicPartition] | None = None) -> list[TopicPartition]:
        """What the group has stored: the next position; OFFSET_INVALID where that is nothing."""
        return self._thread.call(self._inner.committed(partitions))

    def get_watermark_offsets(self, partition: TopicPartition) -> tuple[int, int]:
        """The first offset the log still has, and the one that the next message will get."""
        return self._thread.call(self._inner.get_watermark_offsets(partition))

    def offsets_for_times(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """The first offset received at or after a time, given in milliseconds as the offset of each partition."""
        return self._thread.call(self._inner.offsets_for_times(partitions))

    def lag(self) -> dict[TopicPartition, int]:
        """How many messages of the source are behind the position, of each assigned partition."""
        return self._thread.call(self._inner.lag())

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Nothing more of these until resume(); the rest goes on, and the consumer stays alive."""
        self._thread.run(lambda: self._inner.pause(partitions))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._thread.run(lambda: self._inner.resume(partitions))

    def list_topics(self) -> list[str]:
        """The query topics that the broker has."""
        return self._thread.call(self._inner.list_topics())

    def close(self) -> None:
        """Commits what was returned, if that is automatic, and leaves: its partitions go to others at once."""
        self._close(is_all_finished=True)

    def _close(self, *, is_all_finished: bool) -> None:
        try:
            if not self._is_closed:
                self._thread.call(self._engine.close(is_all_finished=is_all_finished))
        finally:
            # Interrupted, it does not wait for the broker any longer: what is not committed comes again. And when this
            # is interrupted, the next call does it.
            self._is_closed = True
            self._thread.stop(self._engine.link.reset)  # the engine has closed it, unless it was not even asked to

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # An exception: what was returned last may not be done, so it is not committed.
        self._close(is_all_finished=error is None)

    def __iter__(self) -> Iterator[Message]:
        """Messages until the consumer is closed; their errors are raised here."""
        while not self._engine.is_closed:
            message = self.poll()
            if message is None:
                continue
            error = message.error()
            if error is not None:
                raise error
            yield message
