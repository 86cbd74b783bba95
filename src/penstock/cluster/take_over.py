"""A client id is connected at one broker of a cluster at a time, and its session is where the client is.

    CONNECT at B ── asks every other broker, through its notification topic ──▶ A
                                                                               A: disconnects the client (0x8E),
                                                                                  stores what it knows, lets go
    B: reads the stored state to its end ◀── answer: how far A has dispatched ─┘
       takes the session up, repeats for it what A has not dispatched, then CONNACK

A broker that does not answer in time is taken for dead: B goes on with what is stored, from A's last commit on. Should
A live after all, it learns that another has it, and lets go: see departures.py. Of two brokers that ask each other for
the same client at the same time, the later one gets it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from penstock._ext.hub.connection import Hub, Session
from penstock._ext.match.acl import AclProgram
from penstock.access.base import Subject
from penstock.cluster.claims import NOT_KNOWN, Answer, Ask, Claim
from penstock.cluster.departures import Departures
from penstock.core.logging import get_logger
from penstock.core.tasks import TaskSet
from penstock.dispatch.persistent_clients import PersistentClients
from penstock.ingest import received
from penstock.services.factory import QueueFactory
from penstock.services.housekeeper import CLIENT, JOIN, SHARE, Task, Undecided, Use
from penstock.services.log_names import dispatch_group
from penstock.services.rpc.errors import RequestTimeout, RpcError, TooManyPending
from penstock.services.rpc.instances import InstanceCalls
from penstock.services.rpc.wire import Request
from penstock.sessions.ownership import ForeignSession, Ownership
from penstock.sessions.records import (
    SESSIONS,
    SUBSCRIPTIONS,
    WILLS,
    RecordError,
    SessionRecord,
    decode_session,
    decode_subscriptions,
    decode_will,
    node_of_will,
    will_key,
)
from penstock.sessions.registry import SessionRegistry
from penstock.storage.log.base import Log, LogError, LogUnavailable
from penstock.storage.state.base import StoreError
from penstock.storage.state.topic_tail import StateTail
from penstock.subscribers.application import contexts

log = get_logger("penstock.cluster")

ASK_SECONDS = 2.0
ASKED_AT_MOST = 3  # while a topic of the client is being deleted
ROOM_SECONDS = 0.05
MOST_QUESTIONS = 100  # about what is to be removed, to each broker
CATCH_UP_SECONDS = 3.0
STORE_SECONDS = 5.0
POLL_SECONDS = 0.005
BATCH_SECONDS = 0.02
MOST_REMEMBERED = 10_000
ADOPTED_AT_ONCE = 10_000
WILLS_AT_ONCE = 1_000

K = TypeVar("K")
V = TypeVar("V")


@dataclass(slots=True, eq=False)
class _Batch:
    """Sessions of a dead broker that are taken up together."""

    records: dict[str, SessionRecord] = field(default_factory=dict)
    done: asyncio.Task[None] | None = None


class Holders(Generic[K]):
    """Which broker has what, and which brokers have anything: both are asked often, of very many."""

    def __init__(self) -> None:
        self.by_key: dict[K, str] = {}
        self.counts: Counter[str] = Counter()

    def put(self, key: K, node: str | None) -> None:
        """That broker has it or, with None, nobody."""
        before = self.by_key.pop(key, None)
        if before is not None:
            self.counts[before] -= 1
            if not self.counts[before]:
                del self.counts[before]
        if node is not None:
            self.by_key[key] = node
            self.counts[node] += 1


class TakeOver:
    """`queues` makes what brokers tell each other through; `others`: the brokers alive, without this one; `heard_at`:
    when one of them was heard last, on the monotonic clock."""

    def __init__(
        self,
        log_provider: Log,
        hub: Hub,
        registry: SessionRegistry,
        applications: PersistentClients,
        *,
        node: str,
        prefix: str,
        queues: QueueFactory,
        others: Callable[[], Iterable[str]],
        heard_at: Callable[[str], float],
        ownership: Ownership,
        program_for: Callable[[Subject], AclProgram | None],
    ) -> None:
        self._log = log_provider
        self._hub = hub
        self._registry = registry
        assert registry.keeper is not None
        self._keeper = registry.keeper
        self._applications = applications
        self._node = node
        self._prefix = prefix
        self._others = others
        self._heard_at = heard_at
        self._ownership = ownership
        self._program_for = program_for
        self._sessions: Holders[str] = Holders()
        self._owners = self._sessions.by_key
        self._wills: Holders[bytes] = Holders()
        tables = [SESSIONS, SUBSCRIPTIONS, WILLS, received.TABLE, contexts.TABLE]
        self._tail = StateTail(log_provider, tables, f"sessions of {node}", self._on_change, prefix=prefix)
        self._calls = InstanceCalls(log_provider, queues.calls("sessions"), self._answer)
        self._departures = Departures(
            queues,
            registry,
            applications,
            node=node,
            owner_of=self._owners.get,
            catch_up=self._read_own,
            is_claimed=lambda client_id: client_id in self._claims,
        )
        self._claims: dict[str, Claim] = {}
        self._given: dict[str, dict[int, int]] = {}  # sessions given away lately: how far they were dispatched
        self._void: dict[tuple[str, str], int] = {}  # claims of other brokers that were given up for ours
        self._silent: dict[str, float] = {}  # brokers that did not answer, since when
        self._batches: dict[str, _Batch] = {}
        self._questions = asyncio.Semaphore(MOST_QUESTIONS)
        self._catch_up: asyncio.Task[None] | None = None
        self._next_catch_up: asyncio.Task[None] | None = None
        self._tasks = TaskSet()
        self.is_open = False
        self.asked = self.adopted = self.given_away = 0

    # ---- life ----

    async def start(self) -> None:
        """Raises LogError."""
        await self._tail.start()
        await self._calls.start()
        self._departures.start()
        self.is_open = True
        for session in self._registry.sessions():
            self._check_owner(session.client_id, self._owners.get(session.client_id, ""))

    async def stop(self) -> None:
        self.is_open = False
        self._tasks.cancel()
        await self._departures.stop()
        await self._calls.stop()
        await self._tail.stop()

    # ---- a client comes ----

    def came(self, client_id: str) -> None:
        """A client connects here."""
        self._departures.came(client_id)

    def must_claim(self, client_id: str) -> bool:
        """Whether another broker may have the client, or may have had it."""
        if any(True for _ in self._others()):
            return True
        if self._left_wills_of(client_id, set()):
            return True
        return client_id in self._owners and self._registry.get(client_id) is None

    def is_elsewhere(self, client_id: str) -> bool:
        """Whether another broker has stored a session of the client."""
        return self._owners.get(client_id, "") not in ("", self._node)

    async def claim(self, client_id: str, username: str | None) -> Claim:
        """The session is here, if there is one, and nobody else has the client: until `settle`, unless it is lost to a
        later claim. Raises ForeignSession, LogError, RecordError and StoreError."""
        claim = self._claims[client_id] = Claim(client_id, time.time_ns(), username)
        try:
            others = list(self._others())
            answers = await asyncio.gather(*(self._ask(name, claim) for name in others))
            if any(answer is not None and answer.is_foreign for answer in answers):
                raise ForeignSession(f"the session of {client_id!r} belongs to another user")
            if not claim.is_lost and self._registry.get(client_id) is None:
                given = next((answer for answer in answers if answer is not None and answer.had), None)
                # Who has not answered may have written something that is not read here yet.
                if given is not None or None in answers or client_id in self._owners:
                    await self._take_up(client_id, given)
            answered = {name for name, answer in zip(others, answers, strict=True) if answer is not None}
            for name in others:
                if name not in answered and not claim.is_lost:
                    self._departures.tell(name, client_id, claim.at)
            # Due since that broker went, and not after what the client is going to say.
            if left := self._left_wills_of(client_id, answered):
                self._publish_wills(left)
        except BaseException:
            self.settle(claim)
            raise
        return claim

    def settle(self, claim: Claim) -> None:
        """The session is open, or nobody is to have it."""
        if self._claims.get(claim.client_id) is claim:
            del self._claims[claim.client_id]

    async def _ask(self, name: str, claim: Claim) -> Answer | None:
        """None: it did not answer."""
        if self._is_silent(name):
            return None
        self.asked += 1
        data = msgspec.msgpack.encode(Ask(claim.client_id, claim.at, self._node, claim.username, True))
        try:
            for _ in range(ASKED_AT_MOST):
                answer = msgspec.msgpack.decode(await self._send_claim(name, data), type=Answer)
                if answer.yielded:
                    _put_bounded(self._void, (claim.client_id, name), answer.yielded)
                if not answer.is_removing:
                    break
        except (RpcError, LogError) as error:
            if isinstance(error, TooManyPending):
                raise LogUnavailable("too many questions to other brokers wait for their answers") from error
            if isinstance(error, RequestTimeout):
                self._silent[name] = time.monotonic()
                # It reads later than it should that this claim is there, and gives up an earlier one of its own then:
                # what it asks for that is void, or nobody would have the client.
                _put_bounded(self._void, (claim.client_id, name), claim.at)
            log.warning("a broker does not answer, clients go on without it", node=name, error=str(error))
            return None
        self._silent.pop(name, None)
        return answer

    async def _send(self, name: str, data: bytes) -> bytes:
        return await self._calls.ask(name, data, ASK_SECONDS)

    async def _send_claim(self, name: str, data: bytes) -> bytes:
        """Where there is no room for the question it waits: that says nothing of the other broker."""
        give_up_at = time.monotonic() + ASK_SECONDS
        while True:
            try:
                return await self._send(name, data)
            except TooManyPending:
                if time.monotonic() > give_up_at:
                    raise
            await asyncio.sleep(ROOM_SECONDS)

    def _is_silent(self, name: str) -> bool:
        """Not a word since it did not answer the last time."""
        return self._silent.get(name, 0.0) > self._heard_at(name)

    async def _take_up(self, client_id: str, given: Answer | None) -> None:
        async with asyncio.timeout(CATCH_UP_SECONDS):
            await self._tail.catch_up()
        value = self._tail.get(SESSIONS, client_id.encode())
        if value is None or self._registry.get(client_id) is not None:
            return
        record = decode_session(client_id, value)
        if given is not None:
            await self._adopt([record], given.positions)
        elif record.node == self._node:
            if client_id in self._given:
                await self._adopt([record], self._given.pop(client_id))
        else:
            await self._adopt_with_others(record)

    async def _adopt_with_others(self, record: SessionRecord) -> None:
        """Clients of a dead broker come all at once: what it has not dispatched is read once for many of them."""
        batch = self._batches.get(record.node)
        if batch is None:
            batch = self._batches[record.node] = _Batch()
            batch.done = self._tasks.spawn(self._adopt_batch(record.node, batch), is_awaited=True)
        batch.records[record.client_id] = record
        assert batch.done is not None
        await asyncio.shield(batch.done)

    async def _adopt_batch(self, node: str, batch: _Batch) -> None:
        await asyncio.sleep(BATCH_SECONDS)
        del self._batches[node]
        await self._adopt(list(batch.records.values()), await self._committed_by(node))

    async def _committed_by(self, node: str) -> dict[int, int]:
        return await self._applications.dispatched_by(dispatch_group(node, self._prefix))

    async def adopt_all(self, node: str) -> int:
        """Every session of a broker that is gone. Raises LogError."""
        await self._tail.catch_up()
        records = []
        for client_id, owner in list(self._owners.items()):
            value = self._tail.get(SESSIONS, client_id.encode())
            is_taken = client_id in self._claims or self._registry.get(client_id) is not None
            if owner == node and value is not None and not is_taken:
                records.append(decode_session(client_id, value))
        starts = await self._committed_by(node)
        for first in range(0, len(records), ADOPTED_AT_ONCE):
            await self._adopt(records[first : first + ADOPTED_AT_ONCE], starts)
        left = [key for key, owner in self._wills.by_key.items() if owner == node]
        for first in range(0, len(left), WILLS_AT_ONCE):
            self._publish_wills(left[first : first + WILLS_AT_ONCE])
            await self._published()
        return len(records)

    def owners(self) -> set[str]:
        """Brokers that have sessions or wills, as far as is written down."""
        return {*self._sessions.counts, *self._wills.counts}

    def has_sessions(self, node: str) -> bool:
        return node in self._sessions.counts

    # ---- what sessions have left behind ----

    async def use_of(self, task: Task) -> Use:
        """By any broker: all are asked, and for what nobody serves now there are the records. Raises PenstockError
        where one does not answer: it may be about to use it."""
        async with self._questions:  # clients that connect have questions, too
            return await self._use_of(task)

    async def _use_of(self, task: Task) -> Use:
        if not self.is_open or (task.kind == CLIENT and task.name in self._claims):
            raise Undecided(f"it is not known yet who has {task.name!r}")
        if task.kind == SHARE and (lost := self._sessions.counts.keys() - {self._node, "", *self._others()}):
            raise Undecided(f"sessions of {', '.join(lost)} may share it, and nobody has them yet")
        data = msgspec.msgpack.encode(task)
        others = list(self._others())
        if silent := [name for name in others if self._is_silent(name)]:
            raise Undecided(f"{', '.join(silent)} may use it, and does not answer")
        told = await asyncio.gather(*(self._send(name, data) for name in others))
        answers = [msgspec.msgpack.decode(answer, type=int) for answer in told]
        if NOT_KNOWN in answers and Use.ALL not in answers:
            raise Undecided(f"a broker cannot tell yet whether {task.name!r} is in use")
        use = Use(max(answers, default=Use.NONE))
        if use is Use.ALL or task.kind != CLIENT:
            return use
        async with asyncio.timeout(CATCH_UP_SECONDS):
            await self._caught_up()
        value = self._tail.get(SESSIONS, task.name.encode())
        if value is None:
            return use
        record = decode_session(task.name, value)
        if not self._applications.delivery.serves(task.name, record.client_type, record.expiry_interval):
            return use
        if record.node in (self._node, *others):
            # It says that it has no such client: the end of the session is not in the records yet, or its new type.
            raise Undecided(f"the session of {task.name!r} is still in the records of {record.node}")
        return Use.ALL

    async def before_joining(self, topics: Sequence[str]) -> None:
        """Other brokers do not remove these topics of shares, or have done it. Who does not answer is not waited for
        any longer than that."""
        data = msgspec.msgpack.encode(Task(JOIN, "", " ".join(topics)))
        await asyncio.gather(*(self._tell(name, data) for name in self._others() if not self._is_silent(name)))

    async def _tell(self, name: str, data: bytes) -> None:
        try:
            await self._send(name, data)
        except (RpcError, LogError) as error:  # it is not taken for dead: it may delete a topic, and that takes long
            log.warning("a broker does not answer, a share begins without it", node=name, error=str(error))

    async def _caught_up(self) -> None:
        """As `catch_up`, once for all that come while another one is under way."""
        if self._next_catch_up is None:
            self._next_catch_up = self._tasks.spawn(self._catch_up_after(self._catch_up), is_awaited=True)
        await asyncio.shield(self._next_catch_up)

    async def _catch_up_after(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._catch_up, self._next_catch_up = self._next_catch_up, None
        async with asyncio.timeout(CATCH_UP_SECONDS):  # all that come later wait for it
            await self._tail.catch_up()

    async def _tell_use(self, task: Task) -> int:
        try:
            use = await self._applications.delivery.use_of(task)
        except Undecided:
            return NOT_KNOWN
        return int(Use.ALL if task.kind == CLIENT and task.name in self._claims else use)

    # ---- wills of sessions that ended with their connection to a broker that is gone ----

    def _left_wills_of(self, client_id: str, alive: set[str]) -> list[bytes]:
        keys = [will_key(client_id, node) for node in self._wills.counts if node != self._node and node not in alive]
        return [key for key in keys if key in self._wills.by_key]

    def _publish_wills(self, keys: list[bytes]) -> None:
        """They leave their records when they are in the log: whoever is killed in between, they are published rather
        twice than never."""
        for key in keys:
            self._wills.put(key, None)
            try:
                record = decode_will(key, self._tail.get(WILLS, key) or b"")
            except RecordError as error:
                log.error("a stored will is left alone", error=str(error))
            else:
                self._registry.publish_left_will(record, self._program_for(record.to_subject()))
        self._tasks.spawn(self._forget_wills(keys))

    async def _forget_wills(self, keys: list[bytes]) -> None:
        await self._published()
        try:
            await self._keeper.remove_wills(keys)
        except StoreError as error:
            log.warning("wills that were published are still in their records", wills=len(keys), error=str(error))

    async def _adopt(self, records: list[SessionRecord], starts: dict[int, int]) -> None:
        stored = {record.client_id: self._tail.get(SUBSCRIPTIONS, record.client_id.encode()) for record in records}
        filters = [
            topic_filter
            for record in records
            if (value := stored[record.client_id]) is not None
            and self._applications.delivery.serves(record.client_id, record.client_type, record.expiry_interval)
            for topic_filter, _, _ in decode_subscriptions(record.client_id, value)
        ]
        sessions: list[tuple[Session, int]] = []

        def insert() -> None:
            for record in records:
                if self._registry.get(record.client_id) is None:
                    sessions.append((self._insert(record, stored[record.client_id]), record.disconnected_at))

        repeated = await self._applications.adopt(filters, starts, insert)
        for session, left in sessions:
            session.is_adopted = False
            self._registry.await_return(session, left or self._keeper.now_ms())
        self.adopted += len(sessions)
        log.info("sessions were taken up from another broker", sessions=len(sessions), messages_looked_at=repeated)

    def _insert(self, record: SessionRecord, subscriptions: bytes | None) -> Session:
        client_id = record.client_id
        session = self._registry.adopt(record, self._program_for(record.to_subject()), subscriptions)
        session.is_adopted = True
        unreleased = self._tail.get(received.TABLE, client_id.encode())
        if unreleased is not None:
            session.restore_received(unreleased)
        delivery = self._applications.delivery
        for key in delivery.contexts_of(client_id):
            context = self._tail.get(contexts.TABLE, key)
            if context is not None:
                delivery.contexts.adopt(key, context)
        if subscriptions is not None:
            filters = [name for name, _, _ in decode_subscriptions(client_id, subscriptions)]
            shares = [name for name in filters if name.startswith(b"$share/")]
            delivery.shared.adopt(client_id, shares, lambda key: self._tail.get(contexts.TABLE, key))
        self._applications.inserted(session, record.disconnected_at or self._keeper.now_ms())
        return session

    # ---- a client goes ----

    async def _answer(self, request: Request) -> bytes:
        # Two kinds of requests, distinguished by their number of fields; a claim must never have as many as a Task.
        fields = msgspec.msgpack.decode(request.data)
        if len(fields) == len(Task.__struct_fields__):
            return msgspec.msgpack.encode(await self._tell_use(msgspec.convert(fields, Task)))
        ask = msgspec.convert(fields, Ask)
        # Long before the other one would take this broker for dead.
        seconds = min(request.expire_ts / 1_000 - time.time(), ASK_SECONDS) / 2
        give_up_at = asyncio.get_running_loop().time() + seconds
        await self._removed(ask.client_id, give_up_at)
        answer = await self._answer_claim(ask)
        if not answer.had:  # it may have ended meanwhile
            answer.is_removing = not await self._removed(ask.client_id, give_up_at)
        return msgspec.msgpack.encode(answer)

    async def _removed(self, client_id: str, give_up_at: float) -> bool:
        """Or the topic of the earlier session would go when the client has it again. False: it still may."""
        try:
            async with asyncio.timeout_at(give_up_at):
                await self._applications.delivery.called_off(client_id)
        except TimeoutError:
            return False
        return True

    async def _answer_claim(self, ask: Ask) -> Answer:
        mine = self._claims.get(ask.client_id)
        answer = Answer()
        is_later = mine is not None and (mine.at, self._node) > (ask.at, ask.node)
        if is_later or self._void.get((ask.client_id, ask.node), 0) >= ask.at:
            return answer  # that one has to let go, and is asked to
        session = self._registry.get(ask.client_id)
        if ask.is_identified and self._ownership.is_protected(session, ask.username):
            return Answer(is_foreign=True)
        if ask.is_identified:
            self._ownership.note_lost(session, ask.username, ask.node)
        if mine is not None:
            mine.is_lost = True
        if session is not None:
            answer = await self._give_away(session)
        if mine is not None:
            answer.yielded = mine.at
        return answer

    async def _give_away(self, session: Session) -> Answer:
        """The client is disconnected; a session that outlives that is stored and let go."""
        client_id = session.client_id
        self._registry.disconnect(session)
        await self._published()
        self._keeper.let_go(session)
        if self._registry.get(client_id) is not session:
            return Answer()
        await self._stored()
        if session.connection is not None or self._registry.get(client_id) is not session:
            return Answer()  # it came back, which is later
        positions = await self._applications.give_away(session, lambda: self._registry.give_away(session))
        _put_bounded(self._given, client_id, positions)
        self.given_away += 1
        log.info("a session went to another broker", client_id=client_id)
        return Answer(True, positions)

    async def _published(self) -> None:
        """What the client had published is in the log, and its will, which knows of its packet ids."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        ticket = self._hub.ticket
        deadline = time.monotonic() + STORE_SECONDS
        while self._hub.committed < ticket and time.monotonic() < deadline:  # noqa: ASYNC110  # no events there
            await asyncio.sleep(POLL_SECONDS)

    async def _read_own(self) -> None:
        """What is stored was read, up to what this broker has written itself."""
        await self._stored()
        await self._tail.catch_up()

    async def _stored(self) -> None:
        stored: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
        self._keeper.wait(stored.set_result)
        error = await stored
        if error is not None:
            raise error

    def _on_change(self, table: str, key: bytes, value: bytes | None) -> None:
        """Another broker may have taken a session up while this one was thought to be dead."""
        if table == WILLS:
            self._wills.put(key, None if value is None else node_of_will(key))
        if table != SESSIONS:
            return
        client_id = key.decode(errors="replace")
        if value is None:
            self._sessions.put(client_id, None)
            return
        try:
            owner = decode_session(client_id, value).node
        except RecordError:
            return  # of a newer broker, and told at the start
        self._sessions.put(client_id, owner)
        self._check_owner(client_id, owner)

    def _check_owner(self, client_id: str, owner: str) -> None:
        if not self.is_open or owner in ("", self._node) or client_id in self._claims:
            return
        session = self._registry.get(client_id)
        if session is not None and session.expiry_interval:
            self._departures.read(client_id, owner)

    def counters(self) -> dict[str, int | float]:
        calls = self._calls.counters("sessions")
        return {
            "take_over_asked": self.asked,
            "take_over_adopted": self.adopted,
            "take_over_given_away": self.given_away,
            "take_over_told": self._departures.told,
            "take_over_lost": self._departures.lost,
            "take_over_pending": calls["pending_requests_count_sessions"],
            "take_over_timeouts": calls["request_timeout_count_sessions"],
            **calls,
        }


def _put_bounded(known: dict[K, V], key: K, value: V) -> None:
    """Those that were put first go when there are too many."""
    known.pop(key, None)
    while len(known) >= MOST_REMEMBERED:
        del known[next(iter(known))]
    known[key] = value
