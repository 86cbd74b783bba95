"""Asks other nodes what they have of APPLICATION clients, before something is removed or begun that they may use."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from penstock.cluster.claims import NOT_KNOWN, Claims
from penstock.cluster.owners import CATCH_UP_SECONDS, Owners
from penstock.cluster.questions import Questions
from penstock.core.logging import get_logger
from penstock.dispatch.turns import ShareTable
from penstock.services.housekeeper import CLIENT, JOIN, SHARE, Task, Undecided, Use
from penstock.services.log_names import dispatch_group
from penstock.services.rpc.errors import RpcError
from penstock.sessions.records import SESSIONS, decode_session
from penstock.storage.log.base import LogError
from penstock.subscribers.application.elsewhere import Elsewhere
from penstock.subscribers.application.names import ApplicationNames

log = get_logger("penstock.cluster")

MOST_QUESTIONS = 100  # about what is to be removed, to each node


class Neighbours(Elsewhere):
    """Knows nothing until `open`: until then other nodes are as good as absent, but nothing is removed."""

    is_alone = False

    def __init__(
        self,
        node: str,
        prefix: str,
        *,
        names: ApplicationNames,
        owners: Owners,
        questions: Questions,
        claims: Claims,
        shares: ShareTable,
    ) -> None:
        self._node = node
        self._prefix = prefix
        self._names = names
        self._owners = owners
        self._questions = questions
        self._claims = claims
        self._shares = shares
        self._room = asyncio.Semaphore(MOST_QUESTIONS)
        self._knows_shares = False
        self._is_open = False
        self._may_ask = False

    def open_shares(self) -> None:
        """The members of share groups at other nodes are known."""
        self._knows_shares = True

    def open(self) -> None:
        """The sessions of other nodes are known."""
        self._is_open = self._may_ask = True

    def close(self) -> None:
        """This node leaves the cluster: it removes nothing any more."""
        self._may_ask = False

    def has_session(self, client_id: str) -> bool:
        return self._is_open and self._owners.has_session(client_id)

    def has_members(self, share_filter: bytes) -> bool:
        return self._knows_shares and self._shares.is_elsewhere(share_filter)

    def joined(self, share_filter: bytes) -> None:
        if self._knows_shares:
            self._shares.joined(share_filter)

    def dispatch_groups(self) -> list[str]:
        """Those of nodes that are alive, and of those that are gone while no other node has their sessions."""
        if not self._is_open:
            return []
        others = {*self._questions.others(), *self._owners.nodes()} - {self._node, ""}
        return [dispatch_group(name, self._prefix) for name in others]

    async def use_of(self, task: Task) -> Use:
        """All nodes are asked, and for what no node serves now there are the records. Raises PenstockError where one
        does not answer: it may be about to use it."""
        if not self._may_ask:
            raise Undecided("the cluster is not joined yet")
        async with self._room:  # clients that connect have questions, too
            return await self._use_of(task)

    async def _use_of(self, task: Task) -> Use:
        if not self._may_ask or (task.kind == CLIENT and task.name in self._claims.current):
            raise Undecided(f"it is not known yet who has {task.name!r}")
        others = self._questions.others()
        if task.kind == SHARE and (lost := self._owners.nodes_with_sessions() - {self._node, "", *others}):
            raise Undecided(f"sessions of {', '.join(lost)} may share it, and no broker has them yet")
        data = msgspec.msgpack.encode(task)
        if silent := [name for name in others if self._questions.is_silent(name)]:
            raise Undecided(f"{', '.join(silent)} may use it, and does not answer")
        told = await asyncio.gather(*(self._questions.ask(name, data) for name in others))
        answers = [msgspec.msgpack.decode(answer, type=int) for answer in told]
        if NOT_KNOWN in answers and Use.ALL not in answers:
            raise Undecided(f"a broker cannot tell yet whether {task.name!r} is in use")
        use = Use(max(answers, default=Use.NONE))
        if use is Use.ALL or task.kind != CLIENT:
            return use
        async with asyncio.timeout(CATCH_UP_SECONDS):
            await self._owners.catch_up_together()
        value = self._owners.read(SESSIONS, task.name.encode())
        if value is None:
            return use
        record = decode_session(task.name, value)
        if not self._names.serves(task.name, record.client_type, record.expiry_interval):
            return use
        if record.node in (self._node, *others):
            # It says that it has no such client: the end of the session is not in the records yet, or its new type.
            raise Undecided(f"the session of {task.name!r} is still in the records of {record.node}")
        return Use.ALL

    async def before_joining(self, topics: Sequence[str]) -> None:
        """Other nodes do not remove these topics of shares, or have done it. One that does not answer is not waited for
        any longer than that."""
        if not self._may_ask:
            return
        data = msgspec.msgpack.encode(Task(JOIN, "", " ".join(topics)))
        others = [name for name in self._questions.others() if not self._questions.is_silent(name)]
        await asyncio.gather(*(self._tell(name, data) for name in others))

    async def _tell(self, name: str, data: bytes) -> None:
        try:
            await self._questions.ask(name, data)
        except (RpcError, LogError) as error:  # it is not taken for dead: it may delete a topic, and that takes long
            log.warning("a broker does not answer, a share begins without it", node=name, error=str(error))
