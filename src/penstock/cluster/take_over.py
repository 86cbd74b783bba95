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
from dataclasses import dataclass, field

import msgspec

from penstock.cluster.adoption import Adoption, LeftWills
from penstock.cluster.claims import Answer, Ask, Claim, Claims
from penstock.cluster.departures import Departures
from penstock.cluster.hand_over import HandOver
from penstock.cluster.owners import CATCH_UP_SECONDS, Owners
from penstock.cluster.questions import Questions
from penstock.core.logging import get_logger
from penstock.core.tasks import TaskSet
from penstock.dispatch.moves import SessionMoves
from penstock.services.log_names import dispatch_group
from penstock.services.rpc.errors import RequestTimeout, RpcError, TooManyPending
from penstock.sessions.ownership import ForeignSession
from penstock.sessions.records import SESSIONS, SessionRecord, decode_session
from penstock.sessions.registry import SessionRegistry
from penstock.storage.log.base import LogError, LogUnavailable

log = get_logger("penstock.cluster")

ASKED_AT_MOST = 3  # while a topic of the client is being deleted
BATCH_SECONDS = 0.02
ADOPTED_AT_ONCE = 10_000


@dataclass(slots=True, eq=False)
class _Batch:
    """Sessions of a dead broker that are taken up together."""

    records: dict[str, SessionRecord] = field(default_factory=dict)
    done: asyncio.Task[None] | None = None


class TakeOver:
    """The side that asks: a client connects here, and its session comes from the node that has it."""

    def __init__(
        self,
        node: str,
        prefix: str,
        *,
        registry: SessionRegistry,
        owners: Owners,
        questions: Questions,
        claims: Claims,
        moves: SessionMoves,
        adoption: Adoption,
        wills: LeftWills,
        hand_over: HandOver,
        departures: Departures,
    ) -> None:
        self._node = node
        self._prefix = prefix
        self._registry = registry
        self._owners = owners
        self._questions = questions
        self._claims = claims
        self._moves = moves
        self._adoption = adoption
        self._wills = wills
        self._hand_over = hand_over
        self._departures = departures
        self._batches: dict[str, _Batch] = {}
        self._tasks = TaskSet()
        self._is_open = False
        self.asked = 0

    # ---- life ----

    async def start(self) -> None:
        """Raises LogError."""
        await self._adoption.start(self._check_owner)
        await self._questions.start(self._hand_over.answer)
        self._departures.start()
        self._is_open = True
        for session in self._registry.sessions():
            self._check_owner(session.client_id, self._owners.owner_of(session.client_id) or "")

    async def stop(self) -> None:
        self._is_open = False
        self._tasks.cancel()
        self._wills.stop()
        await self._departures.stop()
        await self._questions.stop()
        await self._owners.stop()

    def _check_owner(self, client_id: str, owner: str) -> None:
        """Another node may have taken a session up while this one was thought to be dead."""
        if not self._is_open or owner in ("", self._node) or client_id in self._claims.current:
            return
        session = self._registry.get(client_id)
        if session is not None and session.expiry_interval:
            self._departures.read(client_id, owner)

    # ---- a client comes ----

    def came(self, client_id: str) -> None:
        """A client connects here."""
        self._departures.came(client_id)

    def must_claim(self, client_id: str) -> bool:
        """Return whether another node may have the client, or may have had it."""
        if self._questions.others() or self._owners.wills_of_client(client_id, set()):
            return True
        return self._owners.owner_of(client_id) is not None and self._registry.get(client_id) is None

    async def claim(self, client_id: str, username: str | None) -> Claim:
        """The session is here, if there is one, and nobody else has the client: until `settle`, unless it is lost to a
        later claim. Raises ForeignSession, LogError, RecordError and StoreError."""
        claim = Claim(client_id, time.time_ns(), username)
        self._claims.begin(claim)
        try:
            others = self._questions.others()
            answers = await asyncio.gather(*(self._ask(name, claim) for name in others))
            if any(answer is not None and answer.is_foreign for answer in answers):
                raise ForeignSession(f"the session of {client_id!r} belongs to another user")
            if not claim.is_lost and self._registry.get(client_id) is None:
                given = next((answer for answer in answers if answer is not None and answer.had), None)
                # Who has not answered may have written something that is not read here yet.
                if given is not None or None in answers or self._owners.owner_of(client_id) is not None:
                    await self._take_up(client_id, given)
            answered = {name for name, answer in zip(others, answers, strict=True) if answer is not None}
            for name in others:
                if name not in answered and not claim.is_lost:
                    self._departures.tell(name, client_id, claim.at)
            # Due since that broker went, and not after what the client is going to say.
            if left := self._owners.wills_of_client(client_id, answered):
                self._wills.publish(left)
        except BaseException:
            self._claims.settle(claim)
            raise
        return claim

    def settle(self, claim: Claim) -> None:
        """The session is open, or the client is not to have it."""
        self._claims.settle(claim)

    async def _ask(self, name: str, claim: Claim) -> Answer | None:
        """Return None if the node did not answer."""
        if self._questions.is_silent(name):
            return None
        self.asked += 1
        data = msgspec.msgpack.encode(Ask(claim.client_id, claim.at, self._node, claim.username, True))
        try:
            for _ in range(ASKED_AT_MOST):
                answer = msgspec.msgpack.decode(await self._questions.ask_patiently(name, data), type=Answer)
                if answer.yielded:
                    self._claims.make_void(claim.client_id, name, answer.yielded)
                if not answer.is_removing:
                    break
        except (RpcError, LogError) as error:
            if isinstance(error, TooManyPending):
                raise LogUnavailable("too many questions to other brokers wait for their answers") from error
            if isinstance(error, RequestTimeout):
                self._questions.did_not_answer(name)
                # It reads later than it should that this claim is there, and gives up an earlier one of its own then:
                # what it asks for that is void, or no node would have the client.
                self._claims.make_void(claim.client_id, name, claim.at)
            log.warning("a broker does not answer, clients go on without it", node=name, error=str(error))
            return None
        self._questions.did_answer(name)
        return answer

    async def _take_up(self, client_id: str, given: Answer | None) -> None:
        async with asyncio.timeout(CATCH_UP_SECONDS):
            await self._owners.catch_up()
        value = self._owners.read(SESSIONS, client_id.encode())
        if value is None or self._registry.get(client_id) is not None:
            return
        record = decode_session(client_id, value)
        if given is not None:
            await self._adoption.adopt([record], given.positions)
        elif record.node == self._node:
            if (positions := self._claims.take_given(client_id)) is not None:
                await self._adoption.adopt([record], positions)
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
        await self._adoption.adopt(list(batch.records.values()), await self._committed_by(node))

    async def _committed_by(self, node: str) -> dict[int, int]:
        return await self._moves.dispatched_by(dispatch_group(node, self._prefix))

    async def adopt_all(self, node: str) -> int:
        """Every session of a broker that is gone. Raises LogError."""
        await self._owners.catch_up()
        records = []
        for client_id in self._owners.sessions_of(node):
            value = self._owners.read(SESSIONS, client_id.encode())
            is_taken = client_id in self._claims.current or self._registry.get(client_id) is not None
            if value is not None and not is_taken:
                records.append(decode_session(client_id, value))
        starts = await self._committed_by(node)
        for first in range(0, len(records), ADOPTED_AT_ONCE):
            await self._adoption.adopt(records[first : first + ADOPTED_AT_ONCE], starts)
        await self._wills.publish_all(node)
        return len(records)

    def counters(self) -> dict[str, int | float]:
        calls = self._questions.counters()
        return {
            "take_over_asked": self.asked,
            "take_over_adopted": self._adoption.count,
            "take_over_given_away": self._hand_over.given_away,
            "take_over_told": self._departures.told,
            "take_over_lost": self._departures.lost,
            "take_over_pending": calls["pending_requests_count_sessions"],
            "take_over_timeouts": calls["request_timeout_count_sessions"],
            **calls,
        }
