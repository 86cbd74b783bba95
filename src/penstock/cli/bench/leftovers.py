"""Removes the queue that `penstock bench queue` has created, over the admin address."""

from __future__ import annotations

from penstock.cli.admin_options import find_admin
from penstock.cli.queue.options import path_of
from penstock.core.errors import NotFoundError, PenstockError
from penstock.operate.client import AdminClient
from penstock.settings.address import is_loopback
from penstock_bench.scenarios import Request


def remove_leftovers(request: Request) -> str | None:
    """Remove the queue the test has created; return a message if that failed, None if nothing is left."""
    if request.queue is None or not request.is_own_queue:
        return None
    try:
        if not is_loopback(request.host):
            raise PenstockError("the broker is on another machine")
        admin = find_admin()
        _check_is_this_broker(admin, request.queue)
        admin.delete(path_of(request.queue))
    except PenstockError as error:
        return (
            f"the queue {request.queue} is left in the broker: `penstock queue delete {request.queue}` removes it"
            f" (not done here: {error.message})"
        )
    return None


def _check_is_this_broker(admin: AdminClient, queue: str) -> None:
    """The random name of the queue exists only in the broker of the test."""
    try:
        admin.get(path_of(queue))
    except NotFoundError:
        raise PenstockError(f"the broker at {admin.url} is another one: it has no queue {queue}") from None
