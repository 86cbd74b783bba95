"""SUBACK and UNSUBACK of clients whose session outlives the connection: sent when what they say is durable.

The subscriptions themselves are live at once. Several packets of one client may wait together, and the connection goes
on meanwhile; a DISCONNECT that comes behind them closes it after their answers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from penstock._ext.hub.connection import Connection, Hub, Session
from penstock.sessions.registry import SessionRegistry
from penstock.storage.state.base import StoreError
from penstock.subscribers.kinds import Kinds

LEFT = "disconnected by the client"
# More of them than a client needs who waits for answers: who does not is no longer read.
MOST_WAITING = 100


class SubscriptionChange:
    """What a SUBSCRIBE or UNSUBSCRIBE changes, and how it was before."""

    __slots__ = ("_before", "_current", "_trie", "_version", "session")

    def __init__(self, hub: Hub, session: Session) -> None:
        self.session = session
        self._trie = hub.trie
        self._version = hub.trie.version
        self._before: dict[bytes, tuple[int, int] | None] = {}
        self._current: dict[bytes, tuple[int, int]] | None = None

    def remember(self, topic_filter: bytes) -> None:
        """Before it is changed."""
        if topic_filter in self._before:
            return
        if not self._trie.has(self.session, topic_filter):
            self._before[topic_filter] = None
            return
        if self._current is None:
            found = self._trie.subscriptions(self.session)
            self._current = {name: (options, identifier) for name, options, identifier in found}
        self._before[topic_filter] = self._current.get(topic_filter)

    @property
    def is_any(self) -> bool:
        return self._trie.version != self._version

    def undo(self, registry: SessionRegistry, kinds: Kinds) -> None:
        if registry.get(self.session.client_id) is not self.session:
            return  # it has ended, and its subscriptions with it
        for topic_filter, before in self._before.items():
            if before is None:
                self._trie.unsubscribe(self.session, topic_filter)
                kinds.unsubscribed(self.session, topic_filter)
            else:
                self._trie.subscribe(self.session, topic_filter, *before)
                kinds.subscribed(self.session, topic_filter, *before)


class _Waiting:
    """What a connection waits for."""

    __slots__ = ("answers", "is_paused", "leaves_clean")

    def __init__(self) -> None:
        self.answers = 0
        self.is_paused = False
        self.leaves_clean: bool | None = None  # None: it has not said DISCONNECT


class DurableAnswers:
    """`kinds` learn of each subscription that is taken back."""

    def __init__(self, hub: Hub, registry: SessionRegistry, kinds: Kinds) -> None:
        self._hub = hub
        self._registry = registry
        self._kinds = kinds
        self._waiting: dict[Connection, _Waiting] = {}

    def begin(self, session: Session) -> SubscriptionChange | None:
        """None for a session that ends with its connection: nothing has to wait."""
        if session.expiry_interval == 0 or self._registry.keeper is None:
            return None
        return SubscriptionChange(self._hub, session)

    def send_when_durable(
        self, connection: Connection, change: SubscriptionChange, answer: Callable[[bool], None]
    ) -> None:
        """`answer` is told whether the change is stored; if not, it was taken back before."""
        keeper = self._registry.keeper
        assert keeper is not None
        if change.is_any:
            keeper.save_subscriptions(change.session)
        waiting = self._waiting.setdefault(connection, _Waiting())
        waiting.answers += 1
        if waiting.answers > MOST_WAITING and not waiting.is_paused:
            waiting.is_paused = True
            connection.pause_reading()
        undo = partial(change.undo, self._registry, self._kinds)
        keeper.wait(partial(self._on_done, connection, waiting, answer), undo)

    def _on_done(
        self, connection: Connection, waiting: _Waiting, answer: Callable[[bool], None], error: StoreError | None
    ) -> None:
        waiting.answers -= 1
        if not connection.is_open:
            return
        answer(error is None)
        if waiting.answers or not connection.is_open:
            return
        del self._waiting[connection]
        if waiting.leaves_clean is not None:
            connection.shutdown(LEFT, clean=waiting.leaves_clean)
        elif waiting.is_paused and connection.is_writable and not connection.is_blocked:
            connection.resume_reading()

    def hold_disconnect(self, connection: Connection, is_clean: bool) -> bool:
        """Whether the connection stays until the answers before its DISCONNECT are sent."""
        waiting = self._waiting.get(connection)
        if waiting is None:
            return False
        waiting.leaves_clean = is_clean
        connection.decide()  # nothing behind a DISCONNECT is read
        return True

    def close(self, connection: Connection) -> bool:
        """The connection has ended; whether its client had said goodbye."""
        waiting = self._waiting.pop(connection, None)
        return waiting is not None and bool(waiting.leaves_clean)
