"""Commands over HTTP, under /api/v1: who sends the token may look at and change what the broker keeps.

GET     /api/v1/applications                    all persistent APPLICATION clients
GET     /api/v1/applications/<client id>        one of them
POST    /api/v1/applications/<client id>/reset  {"to": "begin" | "end" | OFFSET | "2026-11-16T12:30:00+00:00"}
DELETE  /api/v1/applications/<client id>        its session, topic and offsets

GET     /api/v1/sessions?filter=GLOB&limit=N    sessions, of DEVICE and APPLICATION clients
GET     /api/v1/sessions/<client id>            one of them, with its subscriptions
POST    /api/v1/sessions/<client id>/kick       disconnects the client, the session stays
DELETE  /api/v1/sessions/<client id>            disconnects the client and ends the session

GET     /api/v1/retained?filter=FILTER&limit=N  retained messages, the beginning of each
GET     /api/v1/retained/<topic>?bytes=N        one of them, with its properties
DELETE  /api/v1/retained/<topic>

        /api/v1/queues…                         durable queues, see queue_api.py

GET     /api/v1/overview                        every counter, with the time it was read, and the process
POST    /api/v1/backup/cut                      how far every topic of the embedded log is written, at one moment

A client id or topic is percent-encoded; slashes in it may stay as they are. Answers are JSON; those of a failure are
{"error": "what is wrong", "hint": "what to do"}.
"""

from __future__ import annotations

import hmac
import json
import re
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.core.errors import ConflictError
from penstock.operate import retained as retained_control
from penstock.operate import sessions as sessions_control
from penstock.operate.http.commands import (
    BadRequestError,
    answering,
    failure,
    read_json,
    read_number,
    read_query,
)
from penstock.operate.http.overview import Overview, ReadCut, overview_routes
from penstock.operate.http.queue_api import queue_routes
from penstock.operate.retained import RetainedControl
from penstock.operate.sessions import SessionControl
from penstock.subscribers.queue.control import QueueControl

PATH = "/api/v1"
# Larger than any offset there is: Kafka's are signed 64 bits.
BEYOND_OFFSETS = 1 << 63
LISTED = 100
PAYLOAD_BYTES = 64 * 1024

ResetTo = Literal["begin", "end"] | int | datetime
"""Where reading goes on: an offset (negative: so many before the end), or the first message at or after a time."""


class ApplicationControl(Protocol):
    """What commands ask of the part that serves APPLICATION clients.

    Unknown clients are a NotFoundError, what their state does not allow is a ConflictError. An entry has the fields
    client_id, topic, connected, session_expiry, subscriptions, lag, end_offset, committed_offset, in_flight,
    packs_in_flight, retries, expired, delivered, acknowledged and shared, a list of entries with share, filter, topic,
    group, partitions and lag.
    """

    async def list(self) -> list[dict[str, Any]]: ...
    async def show(self, client_id: str) -> dict[str, Any]: ...
    async def reset(self, client_id: str, to: ResetTo) -> dict[str, Any]:
        """Moves the client's committed offset; the entry afterwards."""
        ...

    async def delete(self, client_id: str) -> dict[str, Any]:
        """Ends the session and removes the topic and its offsets; the entry as it was."""
        ...


class TokenGuard:
    """Lets requests with the right token through, and nothing else."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        # Compared in full whatever it is, so that the time of the answer says nothing about the token.
        if len(given) == 1 and hmac.compare_digest(given[0], self._expected):
            await self._app(scope, receive, send)
            return
        what = "a token is missing" if not given else "this is not the broker's token"
        hint = (
            "Send Authorization: Bearer TOKEN: the setting admin.token, or what admin.token in server.data_dir holds."
        )
        headers = {"WWW-Authenticate": "Bearer"}
        await failure(401, what, hint, headers)(scope, receive, send)


def build_api(
    token: str,
    applications: ApplicationControl | None,
    sessions: SessionControl | None = None,
    retained: RetainedControl | None = None,
    queues: QueueControl | None = None,
    *,
    overview: Overview | None = None,
    read_cut: ReadCut | None = None,
) -> Mount:
    """The routes below /api/v1, with the guard before them."""

    def guarded(app: ASGIApp) -> ASGIApp:
        return TokenGuard(app, token)

    routes = _application_routes(applications)
    routes += [] if sessions is None else _session_routes(sessions)
    routes += [] if retained is None else _retained_routes(retained)
    routes += queue_routes(queues)
    routes += overview_routes(overview, read_cut)
    mount = Mount(PATH, routes=[*routes, Route("/{path:path}", _unknown)])
    for route in (mount, *mount.routes):
        _take_any_text(route)
    mount.app = guarded(mount.app)
    return mount


def _take_any_text(route: BaseRoute) -> None:
    """A client id may hold line ends, which Starlette's patterns do not match, or leave out at the end: `a` would be
    taken for `a` and a line end."""
    assert isinstance(route, Mount | Route)
    route.path_regex = re.compile(route.path_regex.pattern.removesuffix("$") + r"\Z", re.DOTALL)


def _application_routes(control: ApplicationControl | None) -> list[BaseRoute]:
    def wanted() -> ApplicationControl:
        if control is None:
            raise ConflictError(
                "this broker keeps no log, so it has no APPLICATION clients", 'Set ingest.log = "all" or "persistent".'
            )
        return control

    async def list_all(request: Request) -> object:
        return await wanted().list()

    async def show(request: Request) -> object:
        return await wanted().show(request.path_params["client"])

    async def reset(request: Request) -> object:
        return await wanted().reset(request.path_params["client"], parse_reset(await read_json(request)))

    async def delete(request: Request) -> object:
        return await wanted().delete(request.path_params["client"])

    one = "/applications/{client:path}"
    return [
        Route("/applications", answering(list_all), methods=["GET"]),
        Route(f"{one}/reset", answering(reset), methods=["POST"]),
        Route(one, answering(delete), methods=["DELETE"]),
        Route(one, answering(show), methods=["GET"]),
    ]


def _session_routes(control: SessionControl) -> list[BaseRoute]:
    async def list_some(request: Request) -> object:
        asked = read_query(request, "filter", "limit")
        limit = read_number(asked, "limit", LISTED, sessions_control.MOST_LISTED)
        return await control.list(asked.get("filter", "*"), limit)

    async def show(request: Request) -> object:
        return await control.show(request.path_params["client"])

    async def kick(request: Request) -> object:
        return await control.kick(request.path_params["client"])

    async def delete(request: Request) -> object:
        return await control.delete(request.path_params["client"])

    one = "/sessions/{client:path}"
    return [
        Route("/sessions", answering(list_some), methods=["GET"]),
        Route(f"{one}/kick", answering(kick), methods=["POST"]),
        Route(one, answering(delete), methods=["DELETE"]),
        Route(one, answering(show), methods=["GET"]),
    ]


def _retained_routes(control: RetainedControl) -> list[BaseRoute]:
    async def list_some(request: Request) -> object:
        asked = read_query(request, "filter", "limit")
        limit = read_number(asked, "limit", LISTED, retained_control.MOST_LISTED)
        return await control.list(asked.get("filter", "#"), limit)

    async def get(request: Request) -> object:
        most = read_number(read_query(request, "bytes"), "bytes", PAYLOAD_BYTES, retained_control.MOST_PAYLOAD)
        return await control.get(request.path_params["topic"], most)

    async def delete(request: Request) -> object:
        return await control.delete(request.path_params["topic"])

    one = "/retained/{topic:path}"
    return [
        Route("/retained", answering(list_some), methods=["GET"]),
        Route(one, answering(delete), methods=["DELETE"]),
        Route(one, answering(get), methods=["GET"]),
    ]


async def _unknown(request: Request) -> Response:
    return failure(404, f"{request.url.path} is not a path of this broker", "docs/monitoring.md lists them.")


def parse_reset(document: dict[str, Any]) -> ResetTo:
    """The place of {"to": …}; raises BadRequestError that says what can be written."""
    unknown = [key for key in document if key != "to"]
    to = document.get("to")
    if not unknown:
        if to == "begin":
            return "begin"
        if to == "end":
            return "end"
        if isinstance(to, int) and not isinstance(to, bool) and -BEYOND_OFFSETS < to < BEYOND_OFFSETS:
            return to
        if isinstance(to, str):
            time = _parse_time(to)
            if time is not None:
                return time
    raise BadRequestError(
        f"{json.dumps(document)[:100]} does not say where to go on reading",
        'Send {"to": "begin"}, "end", an offset, or a time with its zone as in "2026-11-16T12:30:00+00:00".',
    )


def _parse_time(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
        # The broker's zone is not the caller's: a time without one could mean another moment than was meant.
        return None if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
