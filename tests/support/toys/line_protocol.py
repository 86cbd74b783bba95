r"""A line protocol for durable queues, as a front-end of its own: its listener, its words, no MQTT.

    HELLO <client>                              who it is; the first line
    PUBLISH <queue>/<key> <payload>             → OK when it is durable
    CONSUME <queue> <group>                     → OK
    CREDIT <queue> <count>                      → OK, then MESSAGE <queue> <number> <delivery> <key> <payload>
    ACCEPT|RELEASE|REJECT <queue> <number>      → OK when it is durable
    NACK <queue> <number> <seconds>             → OK when it is durable

A request that the queues refuse is answered with ERROR <kind> <why>.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from penstock._ext.hub.connection import BatchConsumer, Delivered, QueueConsumer, QueueGroup
from penstock.core.refusal import Refusal, Refused
from penstock.listen.listener import Listener
from penstock.settings.model import ListenerSettings
from penstock.subscribers.queue.consumer import ConsumerTerms
from penstock.subscribers.queue.manager import QueueManager
from penstock.subscribers.queue.names import ROOT, Address
from penstock.subscribers.queue.publishing import Entry, Publisher, publish
from penstock.subscribers.queue.settling import Outcome, settle

OUTCOMES = {
    "ACCEPT": Outcome.ACCEPTED,
    "RELEASE": Outcome.RELEASED,
    "REJECT": Outcome.REJECTED,
    "NACK": Outcome.NACKED,
}


class LineClient(Publisher):
    """A connected client: it publishes, and owns consumers that end with its connection."""

    is_assigned = False
    expiry_interval = 0
    connected = True

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.username: str | None = None


@dataclass
class LineOutlet:
    """Writes the deliveries of one consumer as lines."""

    client: LineClient
    queue: str
    write: Any
    consumers: list[BatchConsumer] = field(default_factory=list)

    @property
    def stored(self) -> Mapping[str, Any]:
        return {}

    def make_consumer(self, group: QueueGroup, *, credit: int, number: int) -> QueueConsumer:
        self.consumers.append(BatchConsumer(group, self.client, self._send, prefetch=credit, number=number))
        return self.consumers[-1]

    def attached(self, consumer: QueueConsumer) -> None: ...

    def moved(self) -> None: ...

    def _send(self, consumer: BatchConsumer, batch: list[Delivered]) -> None:
        before = f"{ROOT}/{self.queue}/"
        for one in batch:
            key = one.topic.decode().removeprefix(before)
            self.write(f"MESSAGE {self.queue} {one.offset} {one.deliveries} {key} {one.payload.decode()}")


class LineConnection(asyncio.Protocol):
    def __init__(self, queues: QueueManager) -> None:
        self._queues = queues
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._client = LineClient("")
        self._outlets: dict[str, LineOutlet] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- asyncio's side ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: BaseException | None) -> None:
        self._client.connected = False
        self._queues.ended(self._client)

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            task = asyncio.get_running_loop().create_task(self._handle(line.decode()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _write(self, line: str) -> None:
        if self._transport is not None:
            self._transport.write(f"{line}\n".encode())

    # ---- requests ----

    async def _handle(self, line: str) -> None:
        verb, *words = line.split(" ", 3)
        try:
            if verb == "HELLO":
                self._client.client_id = words[0]
                self._write("OK")
            elif verb == "PUBLISH":
                self._publish(words[0], " ".join(words[1:]))
            elif verb == "CONSUME":
                await self._consume(words[0], words[1])
            elif verb == "CREDIT":
                self._consumer_of(words[0]).grant(int(words[1]))
                self._write("OK")
            elif verb in OUTCOMES:
                delay = float(words[2]) if len(words) > 2 else None
                settle(self._consumer_of(words[0]), int(words[1]), OUTCOMES[verb], delay=delay)
                self._confirm()
            else:
                raise Refused(Refusal.NOT_SUPPORTED, f"no such verb: {verb}")
        except Refused as refused:
            self._refuse(refused)

    def _publish(self, address: str, payload: str) -> None:
        [refused] = publish(self._queues.hub.queues, self._client, [Entry(f"{ROOT}/{address}", payload.encode())])
        if refused is None:
            self._confirm()
        else:
            self._refuse(refused)

    async def _consume(self, queue: str, group: str) -> None:
        outlet = LineOutlet(self._client, queue, self._write)
        terms = ConsumerTerms(group=group, credit=100)
        await self._queues.consume(self._client, queue, Address(queue, ""), terms=terms, outlet=outlet)
        self._outlets[queue] = outlet
        self._write("OK")

    def _consumer_of(self, queue: str) -> BatchConsumer:
        if queue not in self._outlets:
            raise Refused(Refusal.NOT_FOUND, f"not a consumer of {queue}")
        return self._outlets[queue].consumers[-1]

    # ---- answers ----

    def _confirm(self) -> None:
        """Answer when what was published or settled until now is durable."""
        self._queues.hub.queues.when_durable(
            lambda is_durable: self._write("OK" if is_durable else "ERROR UNAVAILABLE not stored")
        )

    def _refuse(self, refused: Refused) -> None:
        self._write(f"ERROR {refused.refusal.name} {refused}")


def make_listener(queues: QueueManager) -> Listener:
    settings = ListenerSettings(name="lines", address="127.0.0.1:0")
    return Listener(settings, partial(LineConnection, queues))
