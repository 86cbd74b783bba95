"""Calls between the nodes of a cluster: a question goes to the node's own topic, through penstock.services.rpc."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from penstock.core.logging import get_logger
from penstock.services.model import ClusterTopologyChange
from penstock.services.node import ClusterNode
from penstock.services.rpc.errors import RpcError
from penstock.services.rpc.instances import InstanceCalls
from penstock.services.rpc.wire import Request
from penstock.storage.log.base import Log
from penstock.subscribers.query.ports import Identity
from penstock_client import errors
from penstock_client.errors import DataError, OutOfRange, SqlError, Unavailable
from penstock_client.wire import Failure

log = get_logger("penstock.datasub")

CALL_SECONDS = 3.0
PATIENCE_SECONDS = 10.0
RETRY_SECONDS = 0.2

Handler = Callable[[Identity, Any], Awaitable[Any]]
_ERRORS: dict[str, type[DataError]] = {
    kind.code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, DataError)
}


class NotTheOwner(DataError):
    """The node that was asked is not, or not yet, the coordinator of the group."""

    code = "not-owner"
    is_retryable = True


_ERRORS[NotTheOwner.code] = NotTheOwner


class NoAnswer(Unavailable):
    """The other node may be gone, or may have done it all the same."""


class _Question(msgspec.Struct, array_like=True):
    method: str
    who: Identity
    params: msgspec.Raw


class _Answer(msgspec.Struct, array_like=True):
    instance: str
    failure: Failure | None
    result: msgspec.Raw


class Peers:
    """Of one node. `instance` is another one after each start: who remembers it knows whether it was forgotten."""

    def __init__(self, log_provider: Log, node: ClusterNode, name: str) -> None:
        self._node = node
        self.name = name
        self.instance = f"{name} {os.urandom(8).hex()}"
        self._handlers: dict[str, tuple[Handler, Any]] = {}
        self._calls = InstanceCalls(log_provider, node.queues.calls("data-subscription"), self._answer)

    async def start(self) -> None:
        """Raises LogError; may then be called again."""
        await self._calls.start()

    async def stop(self) -> None:
        await self._calls.stop()

    def others(self) -> list[str]:
        return self._node.others()

    def owner_of(self, name: str) -> str:
        return self._node.owner_of(name)

    def on_owners_changed(self, callback: Callable[[], None]) -> None:
        self._node.partitions.listen(ClusterTopologyChange, lambda _: callback())

    def serve(self, method: str, handler: Handler, params: Any) -> None:
        """`params` is the type of what the handler takes."""
        self._handlers[method] = handler, params

    async def call(self, node: str, method: str, who: Identity, params: Any, result: Any = Any) -> tuple[Any, str]:
        """The result, of that type, and the instance that gave it. Raises PeerError and NoAnswer."""
        question = _Question(method, who, msgspec.Raw(msgspec.msgpack.encode(params)))
        try:
            data = await self._calls.ask(node, msgspec.msgpack.encode(question), CALL_SECONDS)
        except RpcError as error:
            raise NoAnswer(f"node {node} does not answer: {error}") from None
        answer = msgspec.msgpack.decode(data, type=_Answer)
        if answer.failure is not None:
            raise PeerError(_error_of(answer.failure), answer.instance)
        return msgspec.msgpack.decode(answer.result, type=result), answer.instance

    async def call_any(self, node: str, method: str, who: Identity, params: Any, result: Any = Any) -> tuple[Any, str]:
        """The same, without a detour if the node is this one."""
        if node != self.name:
            return await self.call(node, method, who, params, result)
        try:
            return await self._handlers[method][0](who, params), self.instance
        except DataError as error:
            raise PeerError(error, self.instance) from None

    async def call_owner(
        self, name: str, method: str, who: Identity, params: Any, result: Any = Any, *, is_repeatable: bool = True
    ) -> tuple[Any, str]:
        """The same with the node that owns the name, whichever it is by then. Raises PeerError and Unavailable."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + PATIENCE_SECONDS
        while True:
            owner = self._node.owner_of(name)
            problem = "no node has it yet"
            try:
                if owner:
                    return await self.call_any(owner, method, who, params, result)
            except PeerError as error:
                if not isinstance(error.error, NotTheOwner):
                    raise
                problem = error.error.message
            except NoAnswer as error:
                problem = error.message
                if not is_repeatable:
                    raise
            if loop.time() >= give_up_at:
                raise Unavailable(f"the node that has {name} cannot be reached: {problem}")
            await asyncio.sleep(RETRY_SECONDS)

    async def _answer(self, request: Request) -> bytes:
        question = msgspec.msgpack.decode(request.data, type=_Question)
        failure, result = None, None
        try:
            found = self._handlers.get(question.method)
            if found is None:
                raise Unavailable(f"this node does not know {question.method}: it is of another version")
            handler, params = found
            result = await handler(question.who, msgspec.msgpack.decode(question.params, type=params))
        except DataError as error:
            failure = _failure_of(error)
        return msgspec.msgpack.encode(_Answer(self.instance, failure, msgspec.Raw(msgspec.msgpack.encode(result))))

    def counters(self) -> dict[str, int | float]:
        return self._calls.counters("data-subscription")


class PeerError(Exception):
    """What another node has raised, and which instance of it. Never leaves this package."""

    def __init__(self, error: DataError, instance: str) -> None:
        super().__init__(str(error))
        self.error = error
        self.instance = instance


def _failure_of(error: DataError) -> Failure:
    failure = Failure(error.code, error.message, error.is_retryable)
    if isinstance(error, SqlError):
        failure.line, failure.column = error.line, error.column
    elif isinstance(error, OutOfRange):
        failure.begin, failure.end = error.begin, error.end
    return failure


def _error_of(failure: Failure) -> DataError:
    if failure.code == SqlError.code:
        return SqlError(failure.message, failure.line, failure.column)
    error = _ERRORS.get(failure.code, DataError)(failure.message)
    if isinstance(error, OutOfRange):
        error.begin, error.end = failure.begin, failure.end
    return error
