"""What a connection calls for everything rarer than a message; one file per packet does the work."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from penstock._ext.connection import Connection, Hub, Session
from penstock.access import AccessControl
from penstock.core.logging import RateLimited, get_logger
from penstock.core.ports import AuthExchangeFactory
from penstock.core.settings import ListenerSettings, Settings
from penstock.dispatch.persistent_clients import PersistentClients
from penstock.frontends.mqtt import handle_auth, handle_connect, handle_disconnect, handle_subscribe, handle_unsubscribe
from penstock.frontends.mqtt.admission import Admission
from penstock.frontends.mqtt.answers import DurableAnswers
from penstock.frontends.mqtt.query_topics import QueryTopics
from penstock.queues.manager import QueueManager
from penstock.session.cluster import Cluster
from penstock.session.events import SessionEvents
from penstock.session.registry import SessionRegistry

log = get_logger("penstock.mqtt")


class ListenerContext:
    """What the handlers need to know of the listener a connection came in by."""

    __slots__ = ("anonymous", "settings")

    def __init__(self, settings: ListenerSettings, anonymous: bool) -> None:
        self.settings = settings
        self.anonymous = anonymous


class MqttFrontend:
    """Shared by all MQTT connections of the process."""

    def __init__(
        self,
        *,
        settings: Settings,
        hub: Hub,
        registry: SessionRegistry,
        access: AccessControl,
        admission: Admission,
        enhanced: Mapping[str, AuthExchangeFactory],
        applications: PersistentClients | None = None,
        queues: QueueManager | None = None,
    ) -> None:
        self.settings = settings
        self.hub = hub
        self.registry = registry
        self.access = access
        self.admission = admission
        self.enhanced = enhanced
        self.applications = applications
        self.queues = queues
        self.query_topics: QueryTopics | None = None
        self.events: SessionEvents | None = None
        self.cluster: Cluster | None = None
        self.answers = DurableAnswers(hub, registry, None if applications is None else applications.delivery)
        self.is_draining = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._errors = RateLimited(interval=10.0)

    # ---- called by Connection ----

    def on_open(self, connection: Connection) -> None:
        cause = self.admission.try_admit(connection.listener.settings.name)
        if cause is not None:
            connection.listener_refused = True
            connection.shutdown(f"refused: {cause}")
        elif self.is_draining:
            connection.shutdown("the broker is shutting down")

    def on_connect(self, connection: Connection, body: bytes) -> None:
        handle_connect.handle_connect(self, connection, body)

    def on_auth(self, connection: Connection, flags: int, body: bytes) -> None:
        handle_auth.handle_auth(self, connection, flags, body)

    def on_subscribe(self, connection: Connection, flags: int, body: bytes) -> None:
        handle_subscribe.handle_subscribe(self, connection, flags, body)

    def on_unsubscribe(self, connection: Connection, flags: int, body: bytes) -> None:
        handle_unsubscribe.handle_unsubscribe(self, connection, flags, body)

    def on_disconnect(self, connection: Connection, flags: int, body: bytes) -> None:
        handle_disconnect.handle_disconnect(self, connection, flags, body)

    def on_closed(self, connection: Connection, session: Session | None) -> None:
        """Exactly once per connection, when it ends for its session."""
        if not connection.listener_refused:
            self.admission.release(connection.listener.settings.name)
        if session is None:
            if isinstance(connection.context, handle_connect.Joining):
                handle_connect.abandon(self, connection.context)
            if log.is_enabled(10):
                log.debug("connection closed before CONNECT", peer=connection.peer, reason=connection.close_reason)
            return
        if log.is_enabled(20):
            log.info(
                "client disconnected",
                client_id=session.client_id,
                reason=connection.close_reason,
            )
        if self.events is not None:
            self.events.disconnected(session, connection)
        is_clean = self.answers.close(connection) or connection.is_clean
        self.registry.leave(session, keep_will=not is_clean)

    def on_error(self, connection: Connection, error: BaseException) -> None:
        """An error of our own in a handler: told once in a while, with its traceback."""
        suppressed = self._errors.try_pass(type(error).__name__)
        if suppressed is None:
            return
        session = connection.session
        log.exception(
            "internal error, the connection is closed",
            client_id=session.client_id if session is not None else None,
            error=repr(error),
            suppressed=suppressed,
        )

    # ---- for the handlers ----

    @property
    def knows_sessions(self) -> bool:
        """Whether what was kept across a restart has been read: until then nobody is told that he has no session."""
        keeper = self.registry.keeper
        return keeper is None or keeper.is_restored

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs what an answer has to wait for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
