"""A consumer of a query topic that the broker serves itself, for a client of a front-end without the data protocol.

The consumer is a member of its group like any other: it asks for the assignment, fetches the rows of its partitions,
hands them to its outlet, and commits what is acknowledged, from the lowest position on. While the client is offline the
consumer asks for nothing; after the session timeout the group gives its partitions to others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from penstock._ext.query.block import Block
from penstock.core.logging import get_logger
from penstock.subscribers.query.ports import Identity
from penstock.subscribers.query.service import DataService
from penstock_client import wire
from penstock_client.errors import DataError, NotAMember, OutOfRange, StaleEpoch

log = get_logger("penstock.datasub")

ASK_SECONDS = 0.5
HEARTBEAT_SECONDS = 1.0
RETRY_SECONDS = 1.0
FETCH_BYTES = 128 * 1024
FETCH_ROWS = 1_000
LONGEST_CLIENT = 255


class Rows(NamedTuple):
    """A block of one partition; `database` is the filter of the messages that the query reads."""

    topic: str
    database: str
    partition: int
    block: Block


class RowOutlet(Protocol):
    """Where the rows of a consumer go. It calls `on_news` after acknowledgements and when it may have room again."""

    @property
    def is_connected(self) -> bool: ...

    @property
    def has_room(self) -> bool: ...

    @property
    def acknowledges(self) -> bool:
        """Return whether the client acknowledges rows; otherwise they are done when they are sent."""

    def send(self, rows: Rows, token: int) -> bool:
        """Send a block, only with room; return False if it is larger than the client takes."""

    def take_acked(self) -> list[int]:
        """Return the tokens that were acknowledged since the last call."""

    def close(self) -> None: ...


MakeOutlet = Callable[[Callable[[], None]], RowOutlet]
"""Takes `on_news`."""


@dataclass(frozen=True, slots=True)
class QueryTerms:
    """What a consumer asks for. `offset` is earliest, latest, none or a number; `parameters` are shown to operators."""

    group: str
    topic: str
    offset: str = "latest"
    parameters: Mapping[str, str] = field(default_factory=dict)


class Part:
    """A partition the client has: where it reads, and what is under way (token, position behind it)."""

    def __init__(self, number: int, position: int) -> None:
        self.number = number
        self.position = position
        self.under_way: deque[tuple[int, int]] = deque()
        self.acked: set[int] = set()
        self.committed = self._reached = position
        self.task: asyncio.Task[None] | None = None

    def done(self) -> int:
        """The position up to which everything is acknowledged."""
        while self.under_way and self.under_way[0][0] in self.acked:
            token, self._reached = self.under_way.popleft()
            self.acked.remove(token)
        if not self.under_way:
            self._reached = max(self._reached, self.position)
        return self._reached


class Caller:
    """The identity of a consumer; `is_unknown` is set while its group knows another one."""

    def __init__(self, who: Identity) -> None:
        self.who = who
        self.is_unknown = asyncio.Event()

    def change(self, who: Identity) -> None:
        if who != self.who:
            self.who = who
            self.is_unknown.set()


class QueryConsumer:
    def __init__(
        self,
        service: DataService,
        who: Identity,
        consumer: str,
        *,
        terms: QueryTerms,
        outlet: MakeOutlet,
        on_refused: Callable[[QueryConsumer], None],
    ) -> None:
        """`consumer` is its id in the group."""
        self._service = service
        self.consumer = consumer
        self.terms = terms
        self._on_refused = on_refused
        self._caller = Caller(who)
        self._outlet = outlet(self._on_news)
        self._ends: dict[int, int] = {}
        self._parts: dict[int, Part] = {}
        self._part_of: dict[int, Part] = {}  # by token
        self._tokens = 0
        self._epoch = -1
        self._has_moved = False
        self._news = asyncio.Event()
        self._commit_soon = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # ---- life ----

    async def join(self) -> None:
        """Raises DataError when it may not, or when there is no such topic."""
        if self.terms.offset == "latest":
            # What is published after the SUBACK is for the client, however long the group takes to share out.
            self._ends = await self._service.ends()
        await self._subscribe()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"query-member-{self.terms.topic}")

    async def end(self, *, leaves: bool) -> None:
        """`leaves`: it has unsubscribed, or its session is over: its partitions go to the others at once."""
        self._outlet.close()
        tasks = [task for task in (self._task, *(part.task for part in self._parts.values())) if task is not None]
        tasks = [task for task in tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if leaves:
            try:
                await self._commit()
                await self._service.handle(self._caller.who, "leave", wire.Leave(self.consumer, self.terms.group))
            except DataError as error:
                log.info("a query consumer left without a word", client_id=self._caller.who.client_id, error=str(error))

    def wake(self) -> None:
        """The client is back."""
        self._on_news()

    def identify(self, who: Identity) -> None:
        """Use this identity from now on. If it is another one, the consumer subscribes again before it sends any more
        rows, and the subscription ends if it is refused."""
        self._caller.change(who)

    def _on_news(self) -> None:
        for token in self._outlet.take_acked():
            part = self._part_of.pop(token, None)
            if part is not None:
                part.acked.add(token)
                self._commit_soon.set()
        self._news.set()

    # ---- the group ----

    async def _subscribe(self) -> None:
        reset = self.terms.offset if self.terms.offset in ("earliest", "latest", "none") else "earliest"
        request = wire.Subscribe(
            group=self.terms.group,
            topics=[self.terms.topic],
            consumer=self.consumer,
            client_id=self._caller.who.client_id[:LONGEST_CLIENT],
            auto_offset_reset=reset,
            parameters=dict(self.terms.parameters),
        )
        self._apply(await self._service.handle(self._caller.who, "subscribe", request))

    async def _run(self) -> None:
        committing = asyncio.get_running_loop().create_task(self._commit_acked())
        try:
            while True:
                try:
                    await self._keep_up()
                except NotAMember:
                    self._let_go(self._parts)
                    await self._until_connected()
                    await self._try_subscribe()
                except DataError as error:
                    log.info("a query consumer waits", client_id=self._caller.who.client_id, error=str(error))
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            committing.cancel()

    async def _keep_up(self) -> None:
        while True:
            is_ready = bool(self._parts)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_SECONDS if is_ready else ASK_SECONDS):
                    await self._caller.is_unknown.wait()
            if not self._outlet.is_connected:
                await self._until_connected()
            if self._caller.is_unknown.is_set():
                await self._try_subscribe()
            polled = self._has_moved or self._outlet.has_room
            self._has_moved = False
            request = wire.Heartbeat(
                consumer=self.consumer,
                group=self.terms.group,
                epoch=self._epoch,
                polled=polled,
                positions=[(self.terms.topic, part.number, part.position) for part in self._parts.values()],
            )
            assignment = await self._service.handle(self._caller.who, "heartbeat", request)
            if assignment is not None:
                self._apply(assignment)

    async def _try_subscribe(self) -> None:
        who = self._caller.who
        try:
            await self._subscribe()
        except DataError as error:
            if not error.is_retryable:
                self._refused(str(error))
            raise
        if who is self._caller.who:
            self._caller.is_unknown.clear()
            self._news.set()

    def _refused(self, reason: str) -> None:
        log.warning(
            "a subscription to a query topic ends",
            client_id=self._caller.who.client_id,
            topic=self.terms.topic,
            reason=reason,
        )
        self._on_refused(self)

    async def _until_connected(self) -> None:
        while not self._outlet.is_connected:
            self._news.clear()
            await self._news.wait()

    def _apply(self, assignment: wire.Assignment) -> None:
        if self.terms.topic in assignment.refused:
            self._refused(assignment.refused[self.terms.topic])
            return
        self._epoch = assignment.epoch
        owned = {part.partition: part for part in assignment.partitions if part.topic == self.terms.topic}
        # What the group has committed beyond its place another has read, while the client was away: it goes on there.
        passed = [
            number
            for number, part in self._parts.items()
            if number in owned and owned[number].committed > part.position
        ]
        self._let_go([*passed, *(number for number in self._parts if number not in owned)])
        for number, given in owned.items():
            if number not in self._parts:
                part = self._parts[number] = Part(number, self._start_of(given))
                part.task = asyncio.get_running_loop().create_task(self._read(part))
        # A commit that was refused for a partition that is gone covered those that are left.
        self._commit_soon.set()

    def _start_of(self, given: wire.Partition) -> int:
        if given.committed < 0 and self.terms.offset.isdigit():
            return min(max(int(self.terms.offset), given.begin), given.end)
        start = given.offset if given.offset >= 0 else given.end
        if given.committed < 0 and given.partition in self._ends:
            return max(min(start, self._ends[given.partition]), given.begin)
        return start

    def _let_go(self, numbers: list[int] | dict[int, Part]) -> None:
        for number in list(numbers):
            part = self._parts.pop(number)
            if part.task is not None:
                part.task.cancel()
            for token, _ in part.under_way:
                self._part_of.pop(token, None)

    # ---- rows ----

    async def _read(self, part: Part) -> None:
        while True:
            try:
                await self._until_room()
                await self._fetch(part)
            except OutOfRange:
                await self._reset(part)
            except (StaleEpoch, NotAMember):
                await asyncio.sleep(ASK_SECONDS)  # the next heartbeat tells
            except DataError as error:
                log.info("rows cannot be fetched", client_id=self._caller.who.client_id, error=str(error))
                await asyncio.sleep(RETRY_SECONDS)

    async def _fetch(self, part: Part) -> None:
        request = wire.Fetch(
            consumer=self.consumer,
            group=self.terms.group,
            epoch=self._epoch,
            topic=self.terms.topic,
            partition=part.number,
            offset=part.position,
            min_rows=FETCH_ROWS,
            max_bytes=FETCH_BYTES,
        )
        fetched: wire.Fetched = await self._service.handle(self._caller.who, "fetch", request)
        for number, data in enumerate(fetched.blocks):
            block = Block.decode(data)
            is_last = number == len(fetched.blocks) - 1
            await self._send(part, block, fetched.next_offset if is_last else block.last_offset + 1)
        part.position = fetched.next_offset
        self._has_moved = True
        if not part.under_way and part.position > part.committed:
            self._commit_soon.set()

    async def _send(self, part: Part, block: Block, position: int) -> None:
        """In several messages where the client does not take so large ones; a row that it never takes is left out, and
        counted as a message that was too large."""
        await self._until_room()
        self._tokens += 1
        token = self._tokens
        if self._outlet.send(Rows(self.terms.topic, self._database(), part.number, block), token):
            if self._outlet.acknowledges:
                part.under_way.append((token, position))
                self._part_of[token] = part
            part.position = position
            return
        if block.rows > 1:
            middle = block.rows // 2
            half, rest = block.take(0, middle), block.take(middle, block.rows - middle)
            # a message may have several rows: it is done when the last of them is
            await self._send(part, half, rest.first_offset)
            await self._send(part, rest, position)
            return
        part.position = position

    def _database(self) -> str:
        topic = self._service.topic(self.terms.topic)
        return "" if topic is None else topic.plan.filter

    async def _until_room(self) -> None:
        while not self._outlet.has_room or self._caller.is_unknown.is_set():
            self._news.clear()
            await self._news.wait()

    async def _reset(self, part: Part) -> None:
        """The log does not have the position any more."""
        places = wire.Positions(self.terms.group, [(self.terms.topic, part.number)])
        [[begin, end]] = await self._service.handle(self._caller.who, "watermarks", places)
        goes_to = end if self.terms.offset == "latest" else begin
        log.warning(
            "a query consumer has fallen off the log",
            client_id=self._caller.who.client_id,
            topic=self.terms.topic,
            partition=part.number,
            position=part.position,
            goes_to=goes_to,
        )
        part.position = goes_to

    # ---- progress ----

    async def _commit_acked(self) -> None:
        while True:
            await self._commit_soon.wait()
            self._commit_soon.clear()
            try:
                await self._commit()
            except (StaleEpoch, NotAMember):
                continue  # the partition is another's now, who gets the rows again
            except DataError as error:
                log.info("progress cannot be stored", client_id=self._caller.who.client_id, error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
                self._commit_soon.set()

    async def _commit(self) -> None:
        reached = {part: part.done() for part in self._parts.values()}
        offsets = [(self.terms.topic, part.number, end) for part, end in reached.items() if end > part.committed]
        if offsets:
            request = wire.Commit(self.consumer, self.terms.group, self._epoch, offsets)
            await self._service.handle(self._caller.who, "commit", request)
            for part, end in reached.items():
                part.committed = max(part.committed, end)
