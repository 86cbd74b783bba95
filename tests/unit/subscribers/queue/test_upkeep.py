"""The clock of the queues."""

from __future__ import annotations

from types import SimpleNamespace

from penstock.subscribers.queue import upkeep
from penstock.subscribers.queue.upkeep import TIDY_AT_LEAST, Upkeep


class Scheduler:
    """Notes timers; they never ring."""

    def __init__(self) -> None:
        self.delays: list[float] = []

    def call_later(self, delay: float, callback: object, /, *args: object) -> SimpleNamespace:
        self.delays.append(delay)
        return SimpleNamespace(cancel=lambda: None)


def test_what_expires_at_once_does_not_put_the_timer_off(monkeypatch) -> None:
    """Groups may go idle more often than the shortest interval."""
    now = 100.0
    monkeypatch.setattr(upkeep.time, "monotonic", lambda: now)
    scheduler = Scheduler()
    queue = SimpleNamespace(definition=SimpleNamespace(durable=False, expires_after=0.0), has_consumers=False)
    queue.idle_since, queue.groups = 0.0, {}
    settings = SimpleNamespace(retention_interval=60.0, auto_commit_interval=5.0)
    manager = SimpleNamespace(settings=settings, scheduler=scheduler, queues={}, is_closing=False)
    clock = Upkeep(manager)
    clock._timers = [SimpleNamespace(cancel=lambda: None)]
    clock._tidy_later()
    manager.queues["one"] = queue
    clock.expect(0.0)
    assert scheduler.delays == [60.0, TIDY_AT_LEAST]
    for _ in range(10):
        now += TIDY_AT_LEAST / 2
        clock.expect(0.0)
    assert scheduler.delays == [60.0, TIDY_AT_LEAST]
