"""Everything a broker has beside its foundation: without a log that is little more than its sessions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from penstock.access.refusals import Refusals
from penstock.broker import providers
from penstock.broker.foundation import Foundation
from penstock.broker.parts import Closing, Part
from penstock.broker.restoring import Restoring, Steps
from penstock.cluster.cluster import Alone, Cluster
from penstock.core.refusal import Refusal, Refused
from penstock.mqtt.queue_subscriber import QueueNames
from penstock.mqtt.refusals import disconnect
from penstock.operate.http.server import Check, Commands, Readings
from penstock.operate.retained import RetainedControl
from penstock.operate.sessions import SessionControl
from penstock.sessions.events import NoEvents, SessionEvents
from penstock.sessions.keeper import SessionKeeper
from penstock.sessions.registry import SessionRegistry
from penstock.subscribers.base import Subscriber
from penstock.subscribers.kinds import Kinds
from penstock.subscribers.queue.manager import QueueManager


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """`queues` is empty without a log. `parts` start before the listeners, `late_parts` after them. `listening`: names
    of listeners of their own, and how to find the address of each."""

    registry: SessionRegistry
    kinds: Kinds
    events: SessionEvents
    refusals: Refusals
    parts: list[Part]
    commands: Commands
    readings: Readings
    read_hub: Callable[[], Mapping[str, int | float]]
    cluster: Cluster | Alone = field(default_factory=Alone)
    queues: tuple[QueueManager, ...] = ()
    late_parts: list[Part] = field(default_factory=list)
    listening: dict[str, Callable[[], str]] = field(default_factory=dict)
    lesser_checks: dict[str, Check] = field(default_factory=dict)


def sessions_part(restoring: Restoring) -> Part:
    return Part(
        name="sessions",
        closing=Closing.SESSIONS,
        start=restoring.start,
        stop=restoring.stop,
        health=restoring.health,
        counters=restoring.counters,
    )


def kind_part(kind: Subscriber) -> Part:
    """Kinds start when sessions are restored."""
    return Part(
        name=kind.name,
        closing=Closing.SUBSCRIBERS,
        stop=kind.stop,
        health=kind.health,
        is_remote=kind.is_remote,
        counters=kind.counters,
    )


async def _refuse_to_read() -> None:
    raise Refused(Refusal.NOT_SUPPORTED, "this broker logs no messages")


def build_without_log(base: Foundation) -> Features:
    """Nothing is logged: APPLICATION clients are served as DEVICE clients, and publishes to `$queue/` are refused."""
    settings = base.settings
    state = providers.make_local_state(settings, base.loop)
    keeper = SessionKeeper(state, base.hub.trie, base.loop)
    events = NoEvents()
    more_kinds = base.make_kinds(state, None, _refuse_to_read)
    kinds = Kinds([QueueNames(), *more_kinds])
    registry = SessionRegistry(
        base.hub, base.loop, keeper, disconnect=disconnect, followers=[kinds, events], sessions=base.sessions
    )
    restoring = Restoring(
        registry,
        keeper,
        state,
        kinds,
        program_for=base.access.program_for,
        steps=Steps(),
        drain_seconds=settings.server.drain_seconds,
    )
    return Features(
        registry=registry,
        kinds=kinds,
        events=events,
        refusals=Refusals(events.denied, events.refused),
        parts=[sessions_part(restoring), *map(kind_part, more_kinds)],
        commands=Commands(sessions=SessionControl(registry, None), retained=RetainedControl(base.hub)),
        readings=Readings(),
        read_hub=base.hub.counters_now,
    )
