"""What a connection calls for everything rarer than a message; one file per packet does the work."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from penstock._ext.hub.connection import Connection, Hub, Session
from penstock.access import AccessControl
from penstock.access.base import Entrance, Identity
from penstock.access.identities import rights_of, subject_of
from penstock.access.refusals import Refusals
from penstock.cluster.cluster import Alone, Cluster
from penstock.core.logging import Throttled, get_logger
from penstock.core.tasks import TaskSet
from penstock.listen.admission import MORE_DESCRIPTORS, NO_DESCRIPTORS, Admission
from penstock.mqtt import handle_auth, handle_connect, handle_disconnect, handle_subscribe, handle_unsubscribe
from penstock.mqtt.answers import DurableAnswers
from penstock.mqtt.expiry import Expiries
from penstock.mqtt.removed_users import disconnect_removed
from penstock.sessions.access_changes import apply_access
from penstock.sessions.events import SessionEvents
from penstock.sessions.ownership import Ownership
from penstock.sessions.registry import SessionRegistry
from penstock.settings import ListenerSettings, Settings
from penstock.subscribers.kinds import Kinds

log = get_logger("penstock.mqtt")


class ListenerContext:
    """What the handlers need to know of the listener a connection came in by."""

    __slots__ = ("entrance", "settings")

    def __init__(self, settings: ListenerSettings, entrance: Entrance) -> None:
        self.settings = settings
        self.entrance = entrance


REFUSAL_ADVICE = {
    "connections": "raise limits.max_connections",
    "listener_connections": "raise max_connections of the listener",
    "rate": "raise limits.connect_rate",
    NO_DESCRIPTORS: MORE_DESCRIPTORS,
}


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
        ownership: Ownership,
        kinds: Kinds,
        events: SessionEvents,
        cluster: Cluster | Alone,
        refusals: Refusals,
    ) -> None:
        self.settings = settings
        self.hub = hub
        self.registry = registry
        self.access = access
        self.admission = admission
        self.ownership = ownership
        self.kinds = kinds
        self.events = events
        self.cluster = cluster
        self.answers = DurableAnswers(hub, registry, kinds)
        self.refusals = refusals
        self.expiries = Expiries(asyncio.get_running_loop())
        self.is_draining = False
        self.retained_turn = asyncio.Lock()
        self._tasks = TaskSet()
        self._errors = Throttled(log, interval=10.0)
        self._long_matches = Throttled(log)
        self._refusals = Throttled(log)
        self._quotas = Throttled(log)
        self._retained_full = Throttled(log)
        hub.on_retained_full = self.on_retained_full

    # ---- called by Connection ----

    def on_open(self, connection: Connection) -> None:
        sock = connection.transport.get_extra_info("socket")
        name = connection.listener.settings.name
        cause = self.admission.try_admit(name, 0 if sock is None else sock.fileno())
        if cause is not None:
            connection.listener_refused = True
            self._refusals.warning(
                "connection refused",
                per=(name, cause),
                cause=cause,
                listener=name,
                peer=connection.peer,
                connections=self.admission.connections,
                advice=REFUSAL_ADVICE.get(cause, "raise the limit"),
            )
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
        self.expiries.forget(connection)
        self.events.disconnected(session, connection)
        is_clean = self.answers.close(connection) or connection.is_clean
        self.registry.leave(session, keep_will=not is_clean)

    def on_error(self, connection: Connection, error: BaseException) -> None:
        """An error of our own in a handler: told once in a while, with its traceback."""
        session = connection.session
        self._errors.exception(
            "internal error, the connection is closed",
            per=type(error).__name__,
            client_id=session.client_id if session is not None else None,
            error=repr(error),
        )

    def on_denied(self, connection: Connection, topic: bytes, held: int) -> None:
        """Report a publish that the rules deny; `held` is the number of denied publishes of the connection since the
        last report."""
        self.denied(connection, "publish", topic, held)

    # ---- refusals ----

    def denied(
        self,
        connection: Connection,
        action: str,
        topic: bytes,
        held: int = 0,
        *,
        asked: bytes | None = None,
        why: str = "",
    ) -> None:
        """Report a publish or a subscription that is not allowed. `asked` is the filter the rules were asked about, if
        it is not `topic` itself; `why` is the reason, if it is not one of the rules."""
        session = connection.session
        self.refusals.denied(
            action,
            topic,
            lambda: why or self.access.explain(subject_of(session), action, asked or topic),
            client_id=session.client_id,
            username=session.username,
            address=connection.peer,
            held=held,
        )

    def socket_refused(self, cause: str, peer: str = "", words: str = "", listener: str = "") -> None:
        """Count a connection that ended before CONNECT, and report it if `words` explain why."""
        self.admission.count_refused(cause)
        if words:
            self.refusals.refused(words, address=peer, listener=listener)

    # ---- for the composition root ----

    def configure(self, settings: Settings) -> None:
        self.settings = settings

    def drain(self) -> None:
        """No client is let in any more."""
        self.is_draining = True

    def access_changed(self) -> None:
        """Apply a reload: give every session its new rules and disconnect removed users."""
        access = self.settings.access
        apply_access(access, self.hub, self.registry, self.access, self.ownership)
        if access.disconnect_removed_users:
            disconnect_removed(self)
        self.kinds.rules_changed()

    def identity_changed(self, session: Session, identity: Identity) -> None:
        """A connected client has authenticated again, as the same user."""
        before, session.identity = session.identity, identity
        if session.connection is not None:
            self.expiries.watch(session.connection, identity)
        if rights_of(before) != rights_of(identity):
            session.acl = self.access.program_for(subject_of(session))
            self.hub.trie.bump()
            self.hub.queues.bindings.bump()
            self.registry.identity_changed(session)
            self.kinds.rules_changed(session)

    # ---- limits ----

    def on_long_match(self, connection: Connection, topic: bytes, steps: int) -> None:
        """Log a publish whose topic was matched in slices because very many filters nearly match it."""
        session = connection.session
        if session is None:
            return
        self._long_matches.warning(
            "matching a publish took long, other clients were served in between",
            per=session.username or "",
            client_id=session.client_id,
            username=session.username,
            topic=topic.decode(errors="backslashreplace"),
            filter_nodes=steps,
            limit=self.settings.limits.match_steps,
        )

    def on_retained_full(self, session: Session | None, topic: bytes, is_share: bool) -> None:
        """Log a message that cannot be retained; the topic's old one stays."""
        username = None if session is None else session.username
        # The broker's own $SYS topics must not hold back the reports about anonymous clients.
        self._retained_full.warning(
            "retained message not stored: the user's share is used up"
            if is_share
            else "retained message not stored: the store is full",
            per=(session is None, username, is_share),
            client_id=None if session is None else session.client_id,
            username=username,
            topic=topic.decode(errors="backslashreplace"),
            advice="raise limits.max_retained_share"
            if is_share
            else "raise limits.max_retained_messages or limits.max_retained_bytes, or clear topics (penstock retained)",
        )

    # ---- for the handlers ----

    def warn_of_limit(self, session: Session, limit: str, topic_filter: bytes) -> None:
        """Log a subscription over a limit, once a minute for each user and limit."""
        self._quotas.warning(
            "subscription refused",
            per=(session.username, limit),
            client_id=session.client_id,
            username=session.username,
            filter=topic_filter,
            limit=limit,
        )

    @property
    def knows_sessions(self) -> bool:
        """Whether what was kept across a restart has been read: until then nobody is told that he has no session."""
        keeper = self.registry.keeper
        return keeper is None or keeper.is_restored

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs what an answer has to wait for."""
        self._tasks.spawn(work)
