"""Durable queues over HTTP.

GET     /api/v1/queues?filter=GLOB&limit=N&offset=N     a page of them, by name; order=depth: the deepest first
POST    /api/v1/queues                                  {"name": "orders", "limits": {"max_depth": 5}}: makes one
GET     /api/v1/queues/<queue>                          one of them, with its settings and groups
PATCH   /api/v1/queues/<queue>                          {"limits": {"max_depth": 5}}: changes these settings
DELETE  /api/v1/queues/<queue>?if_empty=1&if_unused=1   with its messages and groups
POST    /api/v1/queues/<queue>/purge                    removes all messages
POST    /api/v1/queues/<queue>/pause, …/resume          stops and starts delivery
GET     /api/v1/queues/<queue>/messages?from=N&group=G&limit=N&bytes=N      looks at messages
POST    /api/v1/queues/<queue>/messages                 {"key": "eu/1", "payload": "text"}: appends one
POST    /api/v1/queues/<queue>/move                     {"to": "other", "count": 10, "filter": "eu/#"}
POST    /api/v1/queues/<queue>/replay                   {"count": 10, "filter": "eu/#"}: dead letters, to their queues
GET     /api/v1/queues/<queue>/groups                   with their consumers
GET     /api/v1/queues/<queue>/pending?group=G&limit=N  deliveries of a group that are not settled
POST    /api/v1/queues/<queue>/ack, nack, reject, claim     {"group": "G", "offsets": [7]}: settles deliveries
POST    /api/v1/queues/<queue>/truncate                 {"before": 7}: removes messages before the offset
POST    /api/v1/queues/<queue>/seek                     {"group": "G", "to": "first"}
DELETE  /api/v1/queues/<queue>/groups?group=G

<queue> is percent-encoded; that of dead letters is $dlq/<queue>.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from penstock.core.errors import ConflictError
from penstock.operate.http.commands import BadRequestError, answering, read_json, read_number, read_query
from penstock.subscribers.queue import control as queues_control
from penstock.subscribers.queue import transfers
from penstock.subscribers.queue.control import QueueControl

LISTED = 100
ORDERS = ("name", "depth")
SHOWN = 10
PAYLOAD_BYTES = 4 * 1024
LARGEST_OFFSET = 10**18 - 1
# In JSON a payload takes up to four thirds of its size as base64.
LARGEST_MESSAGE = 24 * 1024 * 1024
ONE = "/queues/{queue:queue}"
VERBS = ("ack", "nack", "reject", "claim")


class _QueueName(Convertor[str]):
    """One level of a path, or two when the first is $dlq."""

    regex = r"\$dlq/[^/]+|(?!\$dlq/)[^/]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("queue", _QueueName())


def queue_routes(control: QueueControl | None) -> list[BaseRoute]:
    commands = _QueueCommands(control)
    return [
        Route("/queues", answering(commands.list), methods=["GET"]),
        Route("/queues", answering(commands.create), methods=["POST"]),
        Route(f"{ONE}/purge", answering(commands.purge), methods=["POST"]),
        Route(f"{ONE}/pause", answering(commands.pause), methods=["POST"]),
        Route(f"{ONE}/resume", answering(commands.resume), methods=["POST"]),
        Route(f"{ONE}/messages", answering(commands.peek), methods=["GET"]),
        Route(f"{ONE}/messages", answering(commands.append), methods=["POST"]),
        Route(f"{ONE}/move", answering(commands.move), methods=["POST"]),
        Route(f"{ONE}/replay", answering(commands.replay), methods=["POST"]),
        Route(f"{ONE}/groups", answering(commands.groups), methods=["GET"]),
        Route(f"{ONE}/groups", answering(commands.delete_group), methods=["DELETE"]),
        Route(f"{ONE}/pending", answering(commands.pending), methods=["GET"]),
        *(Route(f"{ONE}/{verb}", answering(commands.settling(verb)), methods=["POST"]) for verb in VERBS),
        Route(f"{ONE}/truncate", answering(commands.truncate), methods=["POST"]),
        Route(f"{ONE}/seek", answering(commands.seek), methods=["POST"]),
        Route(ONE, answering(commands.show), methods=["GET"]),
        Route(ONE, answering(commands.update), methods=["PATCH"]),
        Route(ONE, answering(commands.delete), methods=["DELETE"]),
    ]


class _QueueCommands:
    """Requests read, and put to the control."""

    def __init__(self, control: QueueControl | None) -> None:
        self._given = control

    @property
    def _control(self) -> QueueControl:
        if self._given is None:
            raise ConflictError(
                "this broker keeps no log, so it has no durable queues", 'Set ingest.log = "all" or "persistent".'
            )
        return self._given

    async def list(self, request: Request) -> object:
        asked = read_query(request, "filter", "limit", "offset", "order", "ages")
        limit = read_number(asked, "limit", LISTED, queues_control.MOST_LISTED)
        offset = _read_offset(asked, "offset")
        order = asked.get("order", ORDERS[0])
        if order not in ORDERS:
            raise BadRequestError(f"order is {' or '.join(ORDERS)}, not {order[:100]!r}")
        with_ages = _read_flag(asked, "ages")
        pattern, is_by_depth = asked.get("filter", "*"), order == "depth"
        return await self._control.list(pattern, limit, offset or 0, is_by_depth=is_by_depth, with_ages=with_ages)

    async def create(self, request: Request) -> object:
        return await self._control.create(await read_json(request))

    async def show(self, request: Request) -> object:
        return await self._control.show(_queue(request))

    async def update(self, request: Request) -> object:
        return await self._control.update(_queue(request), await read_json(request))

    async def delete(self, request: Request) -> object:
        asked = read_query(request, "if_empty", "if_unused")
        flags = {name: _read_flag(asked, name) for name in ("if_empty", "if_unused")}
        return await self._control.delete(_queue(request), **flags)

    async def purge(self, request: Request) -> object:
        return await self._control.purge(_queue(request))

    async def pause(self, request: Request) -> object:
        return await self._control.pause(_queue(request), paused=True)

    async def resume(self, request: Request) -> object:
        return await self._control.pause(_queue(request), paused=False)

    async def peek(self, request: Request) -> object:
        asked = read_query(request, "from", "group", "limit", "bytes")
        return await transfers.peek(
            self._control,
            _queue(request),
            start=_read_offset(asked, "from", is_signed=True),
            group=asked.get("group"),
            count=read_number(asked, "limit", SHOWN, transfers.MOST_SHOWN),
            most_bytes=read_number(asked, "bytes", PAYLOAD_BYTES, transfers.MOST_BYTES),
        )

    async def append(self, request: Request) -> object:
        return await transfers.append(self._control, _queue(request), await read_json(request, LARGEST_MESSAGE))

    async def move(self, request: Request) -> object:
        document = _known(await read_json(request), "to", "count", "filter")
        target = _text(document, "to")
        count, topic_filter = _read_selection(document)
        return await transfers.move(self._control, _queue(request), target, count=count, topic_filter=topic_filter)

    async def replay(self, request: Request) -> object:
        count, topic_filter = _read_selection(_known(await read_json(request), "count", "filter"))
        return await transfers.replay(self._control, _queue(request), count=count, topic_filter=topic_filter)

    async def groups(self, request: Request) -> object:
        return await self._control.groups(_queue(request))

    async def delete_group(self, request: Request) -> object:
        return await self._control.delete_group(_queue(request), _read_group(read_query(request, "group")))

    async def pending(self, request: Request) -> object:
        asked = read_query(request, "group", "limit")
        limit = read_number(asked, "limit", LISTED, queues_control.MOST_PENDING)
        return await self._control.pending(_queue(request), _read_group(asked), limit)

    def settling(self, verb: str) -> Callable[[Request], Awaitable[object]]:
        async def settle(request: Request) -> object:
            document = _known(await read_json(request), "group", "offsets")
            return await self._control.settle(_queue(request), _text(document, "group"), verb, _read_offsets(document))

        return settle

    async def truncate(self, request: Request) -> object:
        document = _known(await read_json(request), "before")
        if not _is_offset(document.get("before")):
            raise BadRequestError("before is an offset")
        return await self._control.truncate(_queue(request), document["before"])

    async def seek(self, request: Request) -> object:
        document = _known(await read_json(request), "group", "to")
        to = document.get("to")
        text = str(to) if isinstance(to, int) and not isinstance(to, bool) else _text(document, "to")
        return await self._control.seek(_queue(request), _text(document, "group"), text)


def _queue(request: Request) -> str:
    name: str = request.path_params["queue"]
    return name


def _known(document: dict[str, Any], *names: str) -> dict[str, Any]:
    unknown = sorted(set(document) - set(names))
    if unknown:
        raise BadRequestError(f"{unknown[0][:100]!r} is not known here", f"Known are {', '.join(names)}.")
    return document


def _text(document: dict[str, Any], name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str) or not value:
        raise BadRequestError(f"{name} is missing, or not a text")
    return value


def _read_selection(document: dict[str, Any]) -> tuple[int | None, str]:
    count = document.get("count")
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
        raise BadRequestError("count is a number from 1")
    topic_filter = document.get("filter", "")
    if not isinstance(topic_filter, str):
        raise BadRequestError("filter is not a text")
    return count, topic_filter


def _is_offset(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_OFFSET


def _read_offsets(document: dict[str, Any]) -> list[int]:
    offsets = document.get("offsets")
    if not isinstance(offsets, list) or not offsets or not all(_is_offset(offset) for offset in offsets):
        raise BadRequestError("offsets is a list of offsets")
    return offsets


def _read_group(asked: dict[str, str]) -> str:
    if not asked.get("group"):
        raise BadRequestError("group is missing", "Say which one: ?group=NAME")
    return asked["group"]


def _read_flag(asked: dict[str, str], name: str) -> bool:
    text = asked.get(name, "0")
    if text not in ("0", "1"):
        raise BadRequestError(f"{name} is 0 or 1, not {text[:100]!r}")
    return text == "1"


def _read_offset(asked: dict[str, str], name: str, *, is_signed: bool = False) -> int | None:
    if name not in asked:
        return None
    text = asked[name]
    digits = text.removeprefix("-") if is_signed else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise BadRequestError(f"{name} is an offset, not {text[:100]!r}")
    return int(text)
