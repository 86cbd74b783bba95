"""The life of sessions: opened by CONNECT, taken over, left behind by a closed connection, ended by time or by wish."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from penstock._ext.hub.connection import Connection, Hub, Session
from penstock._ext.match.acl import AclProgram
from penstock.access.base import Subject
from penstock.core.ports import Scheduler, Timer
from penstock.sessions.ending import Disconnect, Ending
from penstock.sessions.keeper import SessionKeeper
from penstock.sessions.records import SessionRecord
from penstock.sessions.will import Will

NEVER = 0xFFFFFFFF


class Opening(msgspec.Struct):  # a dataclass takes three times as long to make
    """What a CONNECT asks of the registry."""

    client_id: str
    username: str | None
    clean_start: bool
    expiry_interval: int
    will: Will | None
    version: int = 5
    client_type: str = "device"


class Follower(Protocol):
    """Whatever has to know how sessions end: the kinds of subscriber, and the log of events."""

    def detached(self, session: Session) -> None:
        """The connection has ended, and the session stays."""

    def ended(self, session: Session) -> None:
        """The session has ended."""


class SessionRegistry:
    """All sessions of the broker. Everything runs on the loop's thread, so a take-over is one step.

    Those that outlive their connection are kept across restarts by the keeper, if there is one.
    """

    def __init__(
        self,
        hub: Hub,
        scheduler: Scheduler,
        keeper: SessionKeeper | None = None,
        *,
        disconnect: Disconnect,
        followers: Iterable[Follower] = (),
        sessions: dict[str, Session] | None = None,
    ) -> None:
        """`sessions` is empty, and filled here, for parts that are made before."""
        self._hub = hub
        # By client id; bounded by connections and by the expiry of sessions.
        self._sessions: dict[str, Session] = {} if sessions is None else sessions
        self._disconnect = disconnect
        self._followers = tuple(followers)
        self._scheduler = scheduler
        self.keeper = keeper
        self._joining: dict[str, Connection] = {}
        self.expired_total = 0
        self.taken_over_total = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, client_id: str) -> Session | None:
        return self._sessions.get(client_id)

    def sessions(self) -> list[Session]:
        return list(self._sessions.values())

    def open(self, opening: Opening) -> tuple[Session, bool]:
        """The session for a new connection and whether it was there before (Session Present)."""
        session = self._sessions.get(opening.client_id)  # [MQTT-3.1.3-2] [MQTT3-3.1.3-2] [MQTT-3.1.4-4] [MQTT3-3.1.4-3]
        if session is not None:
            self._take_over(session)
            session = self._sessions.get(opening.client_id)
        # A session belongs to the user who made it: another one gets a new one, not the messages of the first.
        if session is not None and (opening.clean_start or session.username != opening.username):
            self.end(session)  # [MQTT-3.1.2-4] [MQTT3-3.1.2-6]
            session = None
        present = session is not None  # [MQTT-3.1.2-5] [MQTT3-3.1.2-4]
        if session is None:
            session = Session(self._hub, opening.client_id, opening.username)  # [MQTT-3.1.2-6]
            self._sessions[opening.client_id] = session
        else:
            self._cancel(session)  # a will that waits is withdrawn [MQTT-3.1.3-9]
        # What CONNACK promises is durable before it is sent; that a client is back again need not be.
        matters = opening.will is not None or session.expiry_interval != opening.expiry_interval
        session.expiry_interval = opening.expiry_interval
        session.will = opening.will  # [MQTT-3.1.2-7]
        session.version = opening.version
        session.client_type = opening.client_type
        if self.keeper is not None:
            if opening.expiry_interval:
                self.keeper.keep(session, opening.client_type, matters=matters)
            else:
                if present:
                    self.keeper.forget(session)
                if opening.will is not None:
                    self.keeper.keep_will(session, opening.will)
        return session, present

    def _take_over(self, session: Session) -> None:
        """The same client id again: the older connection goes [MQTT-3.1.4-3] [MQTT3-3.1.4-2]."""
        connection = session.connection or self._joining.get(session.client_id)
        if connection is not None:
            self.taken_over_total += 1
            self._disconnect(connection, Ending.TAKEN_OVER, "session taken over")

    def await_joining(self, session: Session, connection: Connection) -> None:
        """The connection gets the session when that is durable; until `joined` another may take its place."""
        self._joining[session.client_id] = connection

    def joined(self, session: Session) -> None:
        self._joining.pop(session.client_id, None)

    def abandon(self, session: Session) -> None:
        """The connection that waited for the session has ended: it was never told of it, its will does not count."""
        self.joined(session)
        if self.keeper is not None and session.expiry_interval:
            self.keeper.keep(session, session.client_type, matters=False)
        self.leave(session, keep_will=False)

    def identity_changed(self, session: Session) -> None:
        """The user of a connected client has other groups or rules from now on."""
        if self.keeper is not None and session.expiry_interval:
            self.keeper.keep(session, session.client_type, matters=False)

    def leave(self, session: Session, *, keep_will: bool) -> None:
        """The session's connection has ended. `keep_will` is False after a DISCONNECT that withdraws the will."""
        if not keep_will:
            session.will = None  # [MQTT-3.1.2-10] [MQTT3-3.1.2-10]
        if session.expiry_interval == 0:
            self.end(session)  # [MQTT-3.1.2-23]
            return
        session.detach()
        for follower in self._followers:
            follower.detached(session)
        if self.keeper is not None:
            self.keeper.leave(session)
        self._await_return(session, 0.0)

    def _await_return(self, session: Session, gone: float) -> None:
        """The session has been without a connection for `gone` seconds."""
        will: Will | None = session.will
        timers: list[Timer] = []
        if session.expiry_interval != NEVER and gone >= session.expiry_interval:
            self._expire(session)
            return
        if will is not None:
            if will.delay <= gone:
                self._publish_will(session)
            elif will.delay < session.expiry_interval:
                timers.append(self._scheduler.call_later(will.delay - gone, self._publish_will, session))
        if session.expiry_interval != NEVER:
            timers.append(self._scheduler.call_later(session.expiry_interval - gone, self._expire, session))
        session.timer = timers

    def _revive(self, record: SessionRecord, acl: AclProgram | None) -> Session:
        session = Session(self._hub, record.client_id, record.username)
        session.version = record.version
        session.expiry_interval = record.expiry_interval
        session.will = None if record.will is None else record.will.to_will()
        session.identity = record.to_identity()
        session.acl = acl
        session.client_type = record.client_type
        session.since = record.created_at
        self._sessions[record.client_id] = session
        return session

    async def restore(
        self,
        program_for: Callable[[Subject], AclProgram | None],
        prepare: Callable[[Sequence[Session]], Awaitable[None]] | None = None,
    ) -> int:
        """Brings back what the keeper has: all of them first, with what `prepare` has to do for them, then the wills
        that are due, so that everybody who is to get one is there. Returns how many sessions there are."""
        assert self.keeper is not None
        revived: list[tuple[Session, int]] = []

        def revive(record: SessionRecord) -> Session | None:
            came = self._sessions.get(record.client_id)
            if came is not None and came.username != record.username:
                self._take_over(came)  # another user must not end the session by connecting before the store was read
                came = self._sessions.get(record.client_id)
            if came is not None:
                return None  # it came without a session of its own while the store could not be read
            session = self._revive(record, program_for(record.to_subject()))
            revived.append((session, record.disconnected_at))
            return session

        await self.keeper.restore(revive)
        if prepare is not None:
            await prepare([session for session, _ in revived])
        now = self.keeper.now_ms()
        for session, disconnected_at in revived:
            if self._is_waiting(session):
                gone = max(0, now - disconnected_at) / 1000 if disconnected_at else 0.0
                self._await_return(session, gone)
        for record in self.keeper.take_left_wills():
            self.publish_left_will(record, program_for(record.to_subject()))
        return len(self.keeper)

    def publish_left_will(self, record: SessionRecord, acl: AclProgram | None) -> None:
        """Of a connection that ended when its broker did, and its session with it [MQTT-3.1.2-8]."""
        assert record.will is not None
        session = Session(self._hub, record.client_id, record.username)
        session.version = record.version
        session.client_type = record.client_type
        session.identity = record.to_identity()
        session.acl = acl
        session.will = record.will.to_will()
        self._publish_will(session)
        session.end()

    # ---- sessions that move between brokers ----

    def adopt(self, record: SessionRecord, acl: AclProgram | None, subscriptions: bytes | None) -> Session:
        """Takes up a session that another broker has had, as it was left there."""
        assert self.keeper is not None
        session = self._revive(record, acl)
        self.keeper.adopt(session, record, subscriptions)
        return session

    def disconnect(self, session: Session) -> None:
        """The client is at another broker now: its connection here goes, and a session that ends with it."""
        self._take_over(session)

    def give_away(self, session: Session) -> None:
        """Another broker has the session from now on: nothing of it stays here, and nothing of it ends.

        The client may have reconnected here while its state was being stored: it is disconnected once more, and finds
        its session at the other broker.
        """
        if self.keeper is not None:
            self.keeper.give_away(session)
        self.disconnect(session)
        self._cancel(session)
        if self._sessions.get(session.client_id) is session:
            self._sessions.pop(session.client_id, None)
        if self.keeper is not None:
            # Again: a connection that waited for the session may have stored something when it ended.
            self.keeper.give_away(session)
        session.end(hand_over=False)

    def await_return(self, session: Session, disconnected_at: int) -> None:
        """Nobody has it: it ends, and its will is published, when that is due."""
        assert self.keeper is not None
        if self._is_waiting(session):
            self._await_return(session, max(0, self.keeper.now_ms() - disconnected_at) / 1000)

    def _is_waiting(self, session: Session) -> bool:
        """It was not ended by a clean start, nor taken up, while it was brought back."""
        is_alone = session.connection is None and session.client_id not in self._joining
        return is_alone and self._sessions.get(session.client_id) is session

    def kick(self, session: Session, reason: str) -> None:
        """An operator ends the session; a client that has it is disconnected first."""
        connection = session.connection or self._joining.get(session.client_id)
        if connection is not None:
            self._disconnect(connection, Ending.BY_OPERATOR, reason)
        if self._sessions.get(session.client_id) is session:
            self.end(session)

    def end(self, session: Session) -> None:
        """Ends a session now; a will that still waits is due at the latest here [MQTT-3.1.2-8] [MQTT3-3.1.2-8]."""
        self._cancel(session)
        if self._sessions.get(session.client_id) is session:
            self._sessions.pop(session.client_id, None)
        if self.keeper is not None:
            self.keeper.forget(session)
        session.end()
        self._publish_will(session)
        for follower in self._followers:
            follower.ended(session)

    def _expire(self, session: Session) -> None:
        self.expired_total += 1
        self.end(session)

    def _publish_will(self, session: Session) -> None:
        will: Will | None = session.will
        if will is None:  # [MQTT3-3.1.2-12]
            return
        session.will = None
        if self.keeper is not None:
            self.keeper.spend_will(session, will)
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
