"""How a command over HTTP is read and answered: queries, bodies, and failures in words."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from penstock.core.errors import ConflictError, NotFoundError, PenstockError, UsageError
from penstock.core.logging import get_logger
from penstock.storage.log.base import LogUnavailable
from penstock.subscribers.queue.definitions import QueueError

LARGEST_BODY = 64 * 1024
BODY_SECONDS = 10.0
STATUSES: dict[type[PenstockError], int] = {
    NotFoundError: 404,
    ConflictError: 409,
    UsageError: 400,
    LogUnavailable: 503,
    QueueError: 409,
}

log = get_logger("penstock.admin")


class BadRequestError(PenstockError):
    """The request makes no sense; `status` says how."""

    def __init__(self, message: str, hint: str = "", *, status: int = 400) -> None:
        super().__init__(message, hint)
        self.status = status


def answering(work: Callable[[Request], Awaitable[object]]) -> Callable[[Request], Awaitable[Response]]:
    """A handler that gives the result of `work` as JSON, and its failure in words."""

    async def handle(request: Request) -> Response:
        try:
            return JSONResponse(await work(request), headers={"Cache-Control": "no-store"})
        except PenstockError as error:
            return failure(_status_of(error), error.message, error.hint)
        except ClientDisconnect:  # nobody is left to be answered
            return Response(status_code=400)
        except Exception:
            log.exception("a command of the admin address failed", path=request.url.path)
            return failure(500, "the broker failed to do this", "Its log says more.")

    return handle


def _status_of(error: PenstockError) -> int:
    if isinstance(error, BadRequestError):
        return error.status
    for kind, status in STATUSES.items():
        if isinstance(error, kind):
            return status
    return 500


def failure(status: int, error: str, hint: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse(
        {"error": error, "hint": hint}, status_code=status, headers={"Cache-Control": "no-store", **(headers or {})}
    )


def read_query(request: Request, *known: str) -> dict[str, str]:
    """What stands behind the question mark; raises BadRequestError for what is not known."""
    asked = dict(request.query_params)
    unknown = sorted(set(asked) - set(known))
    if unknown:
        raise BadRequestError(f"{unknown[0][:100]!r} is not known here", f"Known are {', '.join(known)}.")
    return asked


def read_number(asked: dict[str, str], name: str, default: int, most: int) -> int:
    text = asked.get(name, str(default))
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(most))
    if not is_number or not 1 <= int(text) <= most:
        raise BadRequestError(f"{name} is a number from 1 to {most}, not {text[:100]!r}")
    return int(text)


async def read_json(request: Request, largest: int = 0) -> dict[str, Any]:
    """The body as an object; raises BadRequestError when it is none, too large, or does not come."""
    largest = largest or LARGEST_BODY
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > largest:
                    raise BadRequestError(f"the body is larger than {largest} bytes", status=413)
    except TimeoutError:
        raise BadRequestError("the body did not come in time", status=408) from None
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise BadRequestError("the body is not a JSON object")
    return document
