"""The log itself, the state store, this node and its records: all features of a broker with a log stand on them."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.broker import providers
from penstock.broker.foundation import Foundation
from penstock.broker.parts import Closing, Part
from penstock.broker.providers import OpenedLog
from penstock.ingest.received import ReceivedIds
from penstock.services.housekeeper import Housekeeper
from penstock.services.node import ClusterNode
from penstock.sessions.event_log import EventLog, EventRecorder
from penstock.sessions.events import SessionEvents
from penstock.sessions.keeper import SessionKeeper
from penstock.storage.log.base import Log
from penstock.storage.state.base import StateStore


@dataclass(frozen=True, slots=True)
class Ground:
    base: Foundation
    opened: OpenedLog
    state: StateStore
    keeper: SessionKeeper
    received: ReceivedIds
    events: SessionEvents
    node: ClusterNode
    housekeeper: Housekeeper

    @classmethod
    def of(cls, base: Foundation) -> Ground:
        settings = base.settings
        opened = providers.make_log(settings)
        state = providers.make_state_store(settings, opened.log, base.loop)
        name = settings.server.node_id if opened.log.is_shared else ""
        node = providers.make_node(settings, opened.log, base.loop)
        recorder = EventRecorder()
        if settings.ingest.events:
            recorder = EventLog(opened.log, node=settings.server.node_id, topic=base.names.events_topic)
        return cls(
            base,
            opened,
            state,
            SessionKeeper(state, base.hub.trie, base.loop, node=name),
            ReceivedIds(state, is_shared=opened.log.is_shared, node=name),
            SessionEvents(recorder, base.sessions),
            node,
            providers.make_housekeeper(settings, opened.log, node),
        )

    @property
    def log(self) -> Log:
        return self.opened.log

    def log_parts(self) -> list[Part]:
        """The log, and what it was made with, which is closed at the very end."""
        return [
            Part(name="log store", closing=Closing.LAST, stop=self._close_rest),
            Part(
                name="log",
                closing=Closing.LOG,
                start=self.log.start,
                stop=self.log.close,
                health=self.log.check,
                is_remote=self.log.is_remote,
                counters=lambda: {f"log_{name}": value for name, value in self.log.counters().items()},
            ),
        ]

    async def _close_rest(self) -> None:
        self.opened.close_rest()

    def node_part(self) -> Part:
        node = self.node
        return Part(name="node", closing=Closing.NODE, start=node.start, stop=node.stop, counters=node.counters)

    def events_parts(self) -> list[Part]:
        """None where the settings say that no events are recorded."""
        events = self.events

        async def start() -> None:
            events.start()

        part = Part(name="events", closing=Closing.EVENTS, start=start, stop=events.stop, counters=events.counters)
        return [part] if self.base.settings.ingest.events else []
