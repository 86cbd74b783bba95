"""The life of sessions: opened by CONNECT, taken over, left behind by a closed connection, ended by time or by wish."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock._ext.connection import Hub, Session
from penstock._ext.packets import Reason, WillPacket
from penstock.core.ports import Scheduler, SessionStore, Timer

NEVER = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Opening:
    """What a CONNECT asks of the registry."""

    client_id: str
    username: str | None
    clean_start: bool
    expiry_interval: int
    will: WillPacket | None


class SessionRegistry:
    """All sessions of the broker. Everything runs on the loop's thread, so a take-over is one step."""

    def __init__(self, hub: Hub, store: SessionStore[Session], scheduler: Scheduler) -> None:
        self._hub = hub
        self._store = store
        self._scheduler = scheduler
        self.expired_total = 0
        self.taken_over_total = 0
        self.on_end: Callable[[Session], None] | None = None

    def __len__(self) -> int:
        return len(self._store)

    def get(self, client_id: str) -> Session | None:
        return self._store.get(client_id)

    def sessions(self) -> list[Session]:
        return list(self._store)

    def open(self, opening: Opening) -> tuple[Session, bool]:
        """The session for a new connection and whether it was there before (Session Present)."""
        session = self._store.get(opening.client_id)  # [MQTT-3.1.3-2] [MQTT3-3.1.3-2] [MQTT-3.1.4-4] [MQTT3-3.1.4-3]
        if session is not None and session.connection is not None:
            self._take_over(session)
            session = self._store.get(opening.client_id)
        # A session belongs to the user who made it: another one gets a new one, not the messages of the first.
        if session is not None and (opening.clean_start or session.username != opening.username):
            self.end(session)  # [MQTT-3.1.2-4] [MQTT3-3.1.2-6]
            session = None
        present = session is not None  # [MQTT-3.1.2-5] [MQTT3-3.1.2-4]
        if session is None:
            session = Session(self._hub, opening.client_id, opening.username)  # [MQTT-3.1.2-6]
            self._store.put(opening.client_id, session)
        else:
            self._cancel(session)  # a will that waits is withdrawn [MQTT-3.1.3-9]
        session.expiry_interval = opening.expiry_interval
        session.will = opening.will  # [MQTT-3.1.2-7]
        return session, present

    def _take_over(self, session: Session) -> None:
        """The same client id again: the older connection goes [MQTT-3.1.4-3] [MQTT3-3.1.4-2]."""
        connection = session.connection
        assert connection is not None
        self.taken_over_total += 1
        connection.disconnect(Reason.SESSION_TAKEN_OVER, "session taken over")

    def leave(self, session: Session, *, keep_will: bool) -> None:
        """The session's connection has ended. `keep_will` is False after a DISCONNECT that withdraws the will."""
        will: WillPacket | None = session.will
        if not keep_will:
            session.will = will = None  # [MQTT-3.1.2-10] [MQTT3-3.1.2-10]
        if session.expiry_interval == 0:
            self.end(session)  # [MQTT-3.1.2-23]
            return
        session.detach()
        timers: list[Timer] = []
        if will is not None:
            if will.delay == 0:
                self._publish_will(session)
            elif will.delay < session.expiry_interval:
                timers.append(self._scheduler.call_later(will.delay, self._publish_will, session))
        if session.expiry_interval != NEVER:
            timers.append(self._scheduler.call_later(session.expiry_interval, self._expire, session))
        session.timer = timers

    def end(self, session: Session) -> None:
        """Ends a session now; a will that still waits is due at the latest here [MQTT-3.1.2-8] [MQTT3-3.1.2-8]."""
        self._cancel(session)
        if self._store.get(session.client_id) is session:
            self._store.remove(session.client_id)
        session.end()
        self._publish_will(session)
        if self.on_end is not None:
            self.on_end(session)

    def _expire(self, session: Session) -> None:
        self.expired_total += 1
        self.end(session)

    def _publish_will(self, session: Session) -> None:
        will: WillPacket | None = session.will
        if will is None:  # [MQTT3-3.1.2-12]
            return
        session.will = None
        # The rules may have changed since CONNECT.
        if session.acl is not None and not session.acl.may_publish(will.topic.encode()):
            return
        self._hub.publish(
            will.topic,
            will.payload,
            qos=will.qos,
            retain=will.retain,  # [MQTT-3.1.2-14] [MQTT-3.1.2-15] [MQTT3-3.1.2-16] [MQTT3-3.1.2-17]
            properties=will.props,
            expiry=will.expiry,
            origin=session,
        )

    def _cancel(self, session: Session) -> None:
        for timer in session.timer or ():
            timer.cancel()
        session.timer = None
