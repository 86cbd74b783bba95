"""A partition that this consumer owns: how far the application is, and what was fetched for it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from penstock_client.messages import Message
from penstock_client.partitions import TopicPartition
from penstock_client.wire import Partition

NOWHERE = -1  # nothing committed and auto.offset.reset = none: until seek()


@dataclass(slots=True, eq=False)
class Owned:
    topic: str
    partition: int
    position: int  # the next offset that the application has not got
    begin: int
    end: int
    committed: int = -1
    started: int = -1  # where it began, or was committed since: what a new owner would have to see again
    # The position when the application polled last: what it got before that it has worked on, so this may be committed.
    finished: int = -1
    stored: int = -1  # what the application said with store_offsets(); until then where it began
    rows: int = 0  # that the application got
    waiting: Message | None = None
    is_paused: bool = False
    is_stuck: bool = False  # until seek(): there is nothing at its position, and no policy what to do
    replayed_until: float = 0.0
    task: asyncio.Task[None] | None = None
    wanted: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def key(self) -> tuple[str, int]:
        return self.topic, self.partition

    @property
    def lag(self) -> int:
        """Messages of the source that the application has not got past."""
        return max(0, self.end - self.position) if self.position != NOWHERE else max(0, self.end - self.begin)

    def shown(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition, self.position, self.begin, self.end)

    def learn(self, told: Partition) -> None:
        self.begin, self.end, self.committed = told.begin, told.end, told.committed


def take_over(told: Partition, position: int) -> Owned:
    owned = Owned(told.topic, told.partition, position, told.begin, told.end, told.committed)
    owned.finished = owned.started = owned.stored = position
    return owned
