"""What `penstock bench queue` leaves in a broker: the queue it made, and copies of its messages in the queue `mqtt`.

`mqtt` is bound to `$queue/#`, so that nothing that is published there is lost: it takes a copy of every message of the
test, whatever the queue. Other addresses are not those of a queue, and a consumer of `mqtt` would take what is others'
away, so the copies are removed over the admin address, after the run.
"""

from __future__ import annotations

from typing import Any

from penstock.bench.scenarios import Request, queue_expiry
from penstock.cli.admin_client import AdminClient, find_admin
from penstock.cli.queue_options import path_of
from penstock.core.errors import NotFoundError, PenstockError
from penstock.core.settings.address import is_loopback

COPIES = "mqtt"
MOVED_BYTES = 32 << 20  # at a time, through a queue that is in memory: half of queue_manager.ephemeral_bytes
MOST_MOVED = 10_000
MESSAGE_BYTES = 256  # at most of a message of the test, without its payload


def remove_leftovers(request: Request) -> str | None:
    """Removes what the test has left in queues; says what it could not, None if nothing is there any more."""
    if request.queue is None:
        return None
    try:
        if not is_loopback(request.host):
            raise PenstockError("the broker is on another machine")
        admin = find_admin()
        _check_is_this_broker(admin, request.queue)
        has_copies = bool(_find_copies(admin).get("depth"))
        if request.is_own_queue:
            if has_copies:
                _remove_copies(admin, request)
            admin.delete(path_of(request.queue))
            return _describe_full(_find_copies(admin))
        if has_copies:
            raise PenstockError(f"others may have published to {request.queue}, too")
    except PenstockError as error:
        return _describe(request, error.message)
    return None


def _check_is_this_broker(admin: AdminClient, queue: str) -> None:
    """Its random name says so, or that of the user's own queue does."""
    try:
        admin.get(path_of(queue))
    except NotFoundError:
        raise PenstockError(f"the broker at {admin.url} is another one: it has no queue {queue}") from None


def _find_copies(admin: AdminClient) -> dict[str, Any]:
    """The queue that takes them; empty where there is none."""
    try:
        entry: dict[str, Any] = admin.get(path_of(COPIES))
    except NotFoundError:
        return {}
    return entry


def _remove_copies(admin: AdminClient, request: Request) -> None:
    """By way of the test's own queue, which nobody else has: a filter chooses them only when they are moved."""
    queue = request.queue or ""
    count = max(1, min(MOST_MOVED, MOVED_BYTES // (MESSAGE_BYTES + request.payload)))
    asked = {"to": queue, "count": count, "filter": f"$queue/{queue}/#"}
    moved = count
    while moved == count:
        moved = admin.post(f"{path_of(COPIES)}/move", asked)["moved"]
        admin.post(f"{path_of(queue)}/purge", {})


def _describe(request: Request, reason: str) -> str:
    return (
        f"copies of the messages are left in the queue {COPIES}, if the broker has one, and expire within"
        f" {queue_expiry(request)} s: `penstock queue purge {COPIES}` removes them now, with all else in it"
        f" (not done here: {reason})"
    )


def _describe_full(copies: dict[str, Any]) -> str | None:
    """A queue gives back the room of what was removed only with all that came before it."""
    if not copies.get("depth") or copies["messages"] < copies["definition"]["limits"]["max_depth"]:
        return None
    return (
        f"the queue {COPIES} may stay full, though the copies are removed from it: older messages wait before them, as"
        f" `penstock queue peek {COPIES}` shows, and `penstock queue purge {COPIES}` removes"
    )
