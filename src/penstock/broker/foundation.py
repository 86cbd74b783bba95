"""Parts that every broker has, with a log or without: the hub, access control and admission."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from penstock._ext.hub.connection import Hub, Session
from penstock.access import AccessControl
from penstock.broker.parts import Closing, Part, Reload
from penstock.core.logging import configure_logging
from penstock.listen.admission import Admission
from penstock.services.log_names import LogNames
from penstock.sessions.ownership import Ownership
from penstock.settings import Settings
from penstock.settings.hub_limits import hub_limits
from penstock.storage.log.base import Log
from penstock.storage.state.base import StateStore
from penstock.subscribers.base import Subscriber
from penstock.subscribers.surroundings import MakeKind, Surroundings


@dataclass(frozen=True, slots=True)
class Foundation:
    settings: Settings  # as at the start
    loop: asyncio.AbstractEventLoop
    hub: Hub
    access: AccessControl
    admission: Admission
    names: LogNames
    ownership: Ownership
    sessions: dict[str, Session]  # of the registry, by client id
    more_kinds: tuple[MakeKind, ...]  # beside those that the broker makes itself

    @classmethod
    def of(cls, settings: Settings, more_kinds: Iterable[MakeKind]) -> Foundation:
        loop = asyncio.get_running_loop()
        hub = Hub(loop, match_cache=settings.limits.match_cache, **hub_limits(settings))

        def check_rules() -> None:
            """A client has rules where no client had any."""
            hub.trie.checks_acl = True
            hub.trie.bump()

        access = AccessControl(settings.access, restrict=check_rules)
        hub.trie.checks_acl = access.has_rules
        return cls(
            settings,
            loop,
            hub,
            access,
            Admission(settings.limits, settings.listeners),
            LogNames(settings),
            Ownership.of(settings),
            {},
            tuple(more_kinds),
        )

    def make_kinds(
        self, state: StateStore, log: Log | None, read_log: Callable[[], Awaitable[None]]
    ) -> tuple[Subscriber, ...]:
        """Kinds beside those that the broker makes itself."""
        around = Surroundings(self.settings, self.loop, self.hub, self.sessions.get, state, log, read_log)
        return tuple(make(around) for make in self.more_kinds)

    def part(self) -> Part:
        return Part(
            name="access",
            closing=Closing.LAST,
            start=self.access.start,
            stop=self.access.stop,
            counters=self.admission.counters,
            reload=self._reload,
        )

    def _reload(self, change: Reload) -> None:
        settings = change.settings
        self.hub.configure(**hub_limits(settings))
        self.admission.configure(settings.limits, settings.listeners)
        configure_logging(settings.logging.level, settings.logging.format)
