"""Checks whether durable queues of the running broker are held back by a group without a consumer."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.errors import PenstockError
from penstock.operate.client import admin_of
from penstock.operate.doctor.finding import Finding, ok, warning
from penstock.settings import Settings

AREA = "queues"
LOOKED_AT = 1_000  # the deepest
NAMED = 5


def check_queues(settings: Settings, timeout: float) -> Iterator[Finding]:
    """Yield nothing if the broker does not answer this user."""
    try:
        answer = admin_of(settings).get(f"/queues?order=depth&limit={LOOKED_AT}", timeout)
        queues = [(entry["name"], entry["held_back_by"], entry["held_back_since"]) for entry in answer["queues"]]
    except (PenstockError, OSError, LookupError, TypeError, ValueError):
        return
    held = [entry for entry in queues if entry[1] is not None]
    if queues and not held:
        yield ok(AREA, "no queue is held back by a group without a consumer")
    for name, group, since in held[:NAMED]:
        yield warning(
            AREA,
            f"the queue {name} is held back by group {group}, no consumer since {since}",
            f"start a consumer of the group, or delete an unused group: penstock queue delete-group '{name}' '{group}'",
        )
    if len(held) > NAMED:
        yield warning(AREA, f"{len(held) - NAMED} more queues are held back", "`penstock queue list` names the groups")
