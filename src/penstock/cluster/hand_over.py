"""The side of a take-over that is asked: this node disconnects the client, stores what it knows, and lets go."""

from __future__ import annotations

import asyncio
import time

import msgspec

from penstock._ext.hub.connection import Session
from penstock.cluster.claims import NOT_KNOWN, Answer, Ask, Claims
from penstock.cluster.questions import ASK_SECONDS
from penstock.cluster.writes import Writes
from penstock.core.logging import get_logger
from penstock.dispatch.moves import SessionMoves
from penstock.services.housekeeper import CLIENT, Task, Undecided, Use
from penstock.services.rpc.wire import Request
from penstock.sessions.keeper import SessionKeeper
from penstock.sessions.ownership import Ownership
from penstock.sessions.registry import SessionRegistry
from penstock.subscribers.application.delivery import ApplicationDelivery

log = get_logger("penstock.cluster")


class HandOver:
    def __init__(
        self,
        node: str,
        *,
        registry: SessionRegistry,
        keeper: SessionKeeper,
        moves: SessionMoves,
        delivery: ApplicationDelivery,
        ownership: Ownership,
        claims: Claims,
        writes: Writes,
    ) -> None:
        self._node = node
        self._registry = registry
        self._keeper = keeper
        self._moves = moves
        self._delivery = delivery
        self._ownership = ownership
        self._claims = claims
        self._writes = writes
        self.given_away = 0

    async def answer(self, request: Request) -> bytes:
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

    async def _tell_use(self, task: Task) -> int:
        try:
            use = await self._delivery.use_of(task)
        except Undecided:
            return NOT_KNOWN
        return int(Use.ALL if task.kind == CLIENT and task.name in self._claims.current else use)

    async def _removed(self, client_id: str, give_up_at: float) -> bool:
        """Or the topic of the earlier session would go when the client has it again. False: it still may."""
        try:
            async with asyncio.timeout_at(give_up_at):
                await self._delivery.called_off(client_id)
        except TimeoutError:
            return False
        return True

    async def _answer_claim(self, ask: Ask) -> Answer:
        mine = self._claims.current.get(ask.client_id)
        answer = Answer()
        is_later = mine is not None and (mine.at, self._node) > (ask.at, ask.node)
        if is_later or self._claims.is_void(ask.client_id, ask.node, ask.at):
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
        await self._writes.published()
        self._keeper.let_go(session)
        if self._registry.get(client_id) is not session:
            return Answer()
        await self._writes.stored()
        if session.connection is not None or self._registry.get(client_id) is not session:
            return Answer()  # it came back, which is later
        positions = await self._moves.give_away(session, lambda: self._registry.give_away(session))
        self._claims.gave_away(client_id, positions)
        self.given_away += 1
        log.info("a session went to another broker", client_id=client_id)
        return Answer(True, positions)
