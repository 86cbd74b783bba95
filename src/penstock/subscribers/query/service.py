"""Data subscription for front-ends: statements, and the requests of consumers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from penstock.subscribers.query.catalogue import Catalogue, QueryTopic
from penstock.subscribers.query.ports import Coordinator, Fetcher, Identity, Source
from penstock.subscribers.query.privileges import Privileges
from penstock.subscribers.query.stored import Stored
from penstock_client import wire
from penstock_client.errors import BadRequest, NotFound, StaleEpoch, Unavailable

MOST_POSITIONS = 10_000


class Executor(Protocol):
    """Runs statements: execution.py at this node, or where the catalogue is changed in a cluster."""

    async def execute(self, sql: str, who: Identity) -> wire.Table: ...


class DataService:
    """Made by making.py; `hello` is the listener's own matter."""

    def __init__(
        self,
        *,
        stored: Stored,
        catalogue: Catalogue,
        privileges: Privileges,
        coordinator: Coordinator,
        executor: Executor,
        source: Source,
        fetcher: Fetcher,
    ) -> None:
        self.catalogue = catalogue
        self.coordinator = coordinator
        self._stored = stored
        self._privileges = privileges
        self._executor = executor
        self._source = source
        self._fetcher = fetcher
        self._is_started = False
        self._handlers: dict[str, Callable[[Identity, Any], Awaitable[Any]]] = {
            "execute": self._execute,
            "subscribe": self._subscribe,
            "ask": coordinator.ask,
            "heartbeat": coordinator.heartbeat,
            "fetch": self._fetch,
            "commit": coordinator.commit,
            "committed": self._committed,
            "watermarks": self._watermarks,
            "times": self._times,
            "leave": coordinator.leave,
        }
        catalogue.on_dropped.listen(coordinator.topic_dropped)
        catalogue.on_reloaded.listen(coordinator.topic_reloaded)
        privileges.on_changed.listen(coordinator.access_changed)
        coordinator.on_changed.listen(fetcher.wake)

    async def start(self) -> None:
        """Everything is as it was left. Raises StoreError, LogError."""
        await self._stored.start()
        await self.coordinator.start()
        self._is_started = True

    async def stop(self) -> None:
        await self.coordinator.stop()
        await self._stored.stop()

    def access_changed(self) -> None:
        """The ACL file was read again: consumers that may no longer subscribe are told."""
        self.coordinator.access_changed()

    async def execute(self, sql: str, who: Identity) -> wire.Table:
        """One statement. Raises DataError."""
        self._check_started()
        return await self._executor.execute(sql, who)

    async def handle(self, who: Identity, method: str, params: msgspec.Struct) -> Any:
        """`params` is the structure of wire.METHODS; so is the answer. Raises DataError."""
        self._check_started()
        handler = self._handlers.get(method)
        if handler is None:
            raise BadRequest(f"there is no method {method}")
        return await handler(who, params)

    def _check_started(self) -> None:
        """Before that nothing is known of topics and groups: who asks must not be told that they are gone."""
        if not self._is_started:
            raise Unavailable("data subscription is not ready yet: the log or the store cannot be read")

    def topic(self, name: str) -> QueryTopic | None:
        """From memory."""
        return self.catalogue.topic(name)

    async def ends(self) -> dict[int, int]:
        """Where each partition of the source ends now. Raises Unavailable."""
        return {number: (await self._source.watermarks(number))[1] for number in await self._source.partitions()}

    async def _execute(self, who: Identity, params: wire.Execute) -> wire.Table:
        return await self.execute(params.sql, who)

    async def _subscribe(self, who: Identity, params: wire.Subscribe) -> wire.Assignment:
        if ":" in params.consumer and who.surface == "data":
            raise BadRequest("unknown consumer id: use the one returned by subscribe")
        return await self.coordinator.subscribe(who, params)

    async def _fetch(self, who: Identity, params: wire.Fetch) -> wire.Fetched:
        await self.coordinator.check_fetch(who, params)
        topic = self.catalogue.topic(params.topic)
        if topic is None:
            raise NotFound(f"there is no topic {params.topic}")
        fetched = await self._fetcher.fetch(params, topic)
        # While it was parked the partition may have got another owner, who has these rows now.
        await self.coordinator.check_fetch(who, params)
        now = self.catalogue.topic(params.topic)
        if now is None:
            raise NotFound(f"topic {params.topic} was dropped")
        if now.version != topic.version or now.created != topic.created:
            raise StaleEpoch(f"topic {params.topic} is another query now: ask for the assignment")
        return fetched

    async def _committed(self, who: Identity, params: wire.Positions) -> list[int | None]:
        await self._check_positions(who, params)
        return await self.coordinator.committed(params)

    async def _watermarks(self, who: Identity, params: wire.Positions) -> list[tuple[int, int]]:
        await self._check_positions(who, params)
        numbers = [number for _, number in params.partitions]
        found = {number: await self._source.watermarks(number) for number in set(numbers)}
        return [found[number] for number in numbers]

    async def _times(self, who: Identity, params: wire.Positions) -> list[int]:
        await self._check_positions(who, params)
        if len(params.times) != len(params.partitions):
            raise BadRequest("there must be as many times as partitions")
        places = [(number, ms) for (_, number), ms in zip(params.partitions, params.times, strict=True)]
        found = await self._source.offsets_at(set(places))
        return [found[place] for place in places]

    async def _check_positions(self, who: Identity, params: wire.Positions) -> None:
        if len(params.partitions) > MOST_POSITIONS:
            raise BadRequest(f"{len(params.partitions)} partitions at once: ask for {MOST_POSITIONS} at most")
        known = set(await self._source.partitions())
        for name, number in set(params.partitions):
            topic = await self.catalogue.look_for(name)
            owner = None if topic is None else topic.owner
            self._privileges.check_there(who, "subscribe", name, owner, is_there=topic is not None)
            if number not in known:
                raise NotFound(f"topic {name} has no partition {number}")
