"""Topics that are created or deleted at the same time are one request to Kafka, which takes little longer for a hundred
than for one: when many clients come at once, so do their topics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, Generic, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._metadata import ClusterMetadata
from confluent_kafka.cimpl import NewTopic

from penstock.storage.log.base import LogError, LogUnavailable
from penstock.storage.log.kafka.errors import to_log_error

Item = TypeVar("Item")
Name = TypeVar("Name")
Outcome = dict[str, LogError | None]

MOST_AT_ONCE = 100
REQUEST_SECONDS = 10.0
# What a topic more adds to the time that a request may take.
TOPIC_SECONDS = 0.2
VISIBLE_SECONDS = 10.0


class TopicExists(LogError):
    """There is a topic of this name already."""


class Together(Generic[Item]):
    """Collects what is asked for while a request is under way; the next one asks for all of it."""

    def __init__(self, send: Callable[[dict[str, Item]], Awaitable[Outcome]]) -> None:
        self._send = send
        self._waiting: list[tuple[str, Item, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def ask(self, name: str, item: Item) -> None:
        """Raises LogError."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((name, item, done))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        await done

    async def _run(self) -> None:
        while self._waiting:
            chosen: dict[str, tuple[Item, asyncio.Future[None]]] = {}
            left = []
            for name, item, done in self._waiting:
                if name in chosen or len(chosen) >= MOST_AT_ONCE:
                    left.append((name, item, done))
                else:
                    chosen[name] = (item, done)
            self._waiting = left
            try:
                outcome = await self._send({name: item for name, (item, _) in chosen.items()})
            except Exception as error:
                outcome = dict.fromkeys(chosen, to_log_error(error, "change topics"))
            for name, (_, done) in chosen.items():
                _finish(done, outcome.get(name))
        self._task = None


def _finish(done: asyncio.Future[None], error: LogError | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


class TopicChanges:
    def __init__(
        self, client: AdminClient, executor: Executor, metadata: Callable[[str | None], Awaitable[ClusterMetadata]]
    ) -> None:
        """`metadata` is asked for one topic or, without a name, for all."""
        self._client = client
        self._executor = executor
        self._metadata = metadata
        self._creations: Together[NewTopic] = Together(self._create)
        self._deletions: Together[None] = Together(self._delete)

    def forget_client(self) -> None:
        """It is about to end."""
        del self._client

    async def create(self, topic: NewTopic) -> None:
        """Returns when the topic can be used. Raises TopicExists, then too."""
        await self._creations.ask(topic.topic, topic)

    async def delete(self, topic: str) -> None:
        """Returns when nobody sees the topic any more."""
        await self._deletions.ask(topic, None)

    async def _create(self, topics: dict[str, NewTopic]) -> Outcome:
        seconds = REQUEST_SECONDS + TOPIC_SECONDS * len(topics)
        outcome = await self._ask(
            "create", lambda: self._client.create_topics(list(topics.values()), request_timeout=seconds)
        )
        good = [name for name, error in outcome.items() if error is None or isinstance(error, TopicExists)]
        unseen = await self._wait_until(good, are_there=True)
        await self._wait_until_served([topics[name] for name in good if name not in unseen and outcome[name] is None])
        return outcome | {name: LogUnavailable(f"Kafka is slow to create topic {name!r}") for name in unseen}

    async def _delete(self, topics: dict[str, None]) -> Outcome:
        seconds = REQUEST_SECONDS + TOPIC_SECONDS * len(topics)
        outcome = await self._ask("delete", lambda: self._client.delete_topics(list(topics), request_timeout=seconds))
        good = [name for name, error in outcome.items() if error is None]
        unseen = await self._wait_until(good, are_there=False)
        return outcome | {name: LogUnavailable(f"Kafka is slow to delete topic {name!r}") for name in unseen}

    async def _ask(self, doing: str, start: Callable[[], Mapping[str, Future[Any]]]) -> Outcome:
        answers = await self._gather(start)
        return {name: _explain(doing, name, answer) for name, answer in answers.items()}

    async def _gather(self, start: Callable[[], Mapping[Name, Future[Any]]]) -> dict[Name, Any]:
        """Answers and exceptions."""
        pending = await asyncio.get_running_loop().run_in_executor(self._executor, start)
        answers = await asyncio.gather(*map(asyncio.wrap_future, pending.values()), return_exceptions=True)
        return dict(zip(pending, answers, strict=True))

    async def _wait_until(self, names: list[str], *, are_there: bool) -> set[str]:
        """The broker that answered knows; the one that will be asked next may not yet. Those for which it takes too
        long."""
        unseen = set(names)
        deadline = time.monotonic() + VISIBLE_SECONDS + TOPIC_SECONDS * len(names)
        while unseen and time.monotonic() < deadline:
            try:
                known = (await self._metadata(next(iter(unseen)) if len(unseen) == 1 else None)).topics
            except LogUnavailable:
                continue  # it has waited already
            there = {name: topic for name, topic in known.items() if topic.error is None and topic.partitions}
            led = {name for name, topic in there.items() if all(one.leader >= 0 for one in topic.partitions.values())}
            unseen = unseen - led if are_there else unseen & there.keys()
            if unseen:
                await asyncio.sleep(0.02)
        return unseen

    async def _wait_until_served(self, topics: list[NewTopic]) -> None:
        """A leader that was chosen has yet to open its partitions: until then it says that it is none. Who reads or
        writes next asks again by himself if this takes too long."""
        left = [TopicPartition(topic.topic, number) for topic in topics for number in range(topic.num_partitions)]
        deadline = time.monotonic() + VISIBLE_SECONDS
        while left and time.monotonic() < deadline:
            asked = {place: OffsetSpec.latest() for place in left}  # type: ignore[no-untyped-call] # it has no types
            answers = await self._gather(partial(self._client.list_offsets, asked, request_timeout=REQUEST_SECONDS))
            left = [place for place, answer in answers.items() if isinstance(answer, BaseException)]
            if left:
                await asyncio.sleep(0.02)


def _explain(doing: str, name: str, answer: object) -> LogError | None:
    if isinstance(answer, KafkaException) and answer.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
        return TopicExists(f"topic {name!r} exists already")
    return to_log_error(answer, f"{doing} topic {name!r}") if isinstance(answer, BaseException) else None
