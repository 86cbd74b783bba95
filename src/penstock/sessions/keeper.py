"""Keeps the sessions that outlive their connection, with their subscriptions and wills, in a state store; of those that
end with it, the will: its client is gone after a crash of the broker as well.

What changes in one loop iteration is written together, as it is at its end; while that is under way, what changes next
is gathered. So a client's record is written once however often it changes, and the store is never asked for more than
one commit at a time.

    subscribe → note, wait ──┐
    leave     → note ────────┼─ end of the iteration → records of all who changed → store
    connect   → note, wait ──┘                             answers ◀── durable, or undone in reverse and answered

When the store fails, everybody who waits is told after his change was taken back, newest first; what nobody waits for
(a client has left, a will was withdrawn) is owed, and paid when the store works again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from penstock._ext.hub.connection import Session
from penstock._ext.match.trie import Trie
from penstock.core.logging import get_logger
from penstock.core.ports import Timer
from penstock.sessions.records import (
    SESSIONS,
    SUBSCRIPTIONS,
    WILLS,
    RecordError,
    SessionRecord,
    decode_session,
    decode_subscriptions,
    decode_will,
    encode_session,
    encode_subscriptions,
    node_of_will,
    will_key,
)
from penstock.sessions.will import Will
from penstock.storage.state.base import Change, StateStore, StoreError

log = get_logger("penstock.sessions")

RETRY_SECONDS = 1.0
PAID_AT_ONCE = 2_000
# A published will stays in the record until the message has surely reached its log: a crash publishes it rather twice
# than never.
WILL_SECONDS = 1.0

SESSION_CHANGED = 1
SUBSCRIPTIONS_CHANGED = 2
# Whoever connects next under this client id has to wait until this is durable.
MATTERS = 4
WILL_CHANGED = 8
EVERYTHING = SESSION_CHANGED | SUBSCRIPTIONS_CHANGED


class Loop(Protocol):
    """The part of an event loop that is needed here."""

    def call_soon(self, callback: Callable[..., object], /, *args: Any) -> object: ...
    def call_later(self, delay: float, callback: Callable[..., object], /, *args: Any) -> Timer: ...


@dataclass(slots=True, eq=False)
class Kept:
    """A session that has a record, and what only the record knows of it."""

    session: Session
    client_type: str
    created_at: int
    disconnected_at: int = 0
    spent_will: Will | None = None


@dataclass(slots=True, eq=False)
class KeptWill:
    """Of a session that has no record: it ends with its connection, or has ended."""

    session: Session
    will: Will
    is_spent: bool = False


@dataclass(slots=True, eq=False)
class _Waiter:
    answer: Callable[[StoreError | None], None]
    undo: Callable[[], None] | None


class SessionKeeper:
    """`node` is the name of this broker where others keep their sessions in the same store: theirs are left alone."""

    def __init__(
        self, store: StateStore, trie: Trie, loop: Loop, *, clock: Callable[[], float] = time.time, node: str = ""
    ) -> None:
        self._store = store
        self._trie = trie
        self._loop = loop
        self._clock = clock
        self._node = node
        self._kept: dict[str, Kept] = {}
        self._spent: dict[str, Kept] = {}
        self._wills: dict[str, KeptWill] = {}
        self._left_wills: list[SessionRecord] = []
        self._changed: dict[str, int] = {}
        self._waiters: list[_Waiter] = []
        self._under_way: dict[str, int] = {}
        self._told_next: list[_Waiter] = []
        self._owed: dict[str, int] = {}
        self._is_busy = False
        self._is_scheduled = False
        self._retry: Timer | None = None
        self.is_restored = False

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, client_id: str) -> Kept | None:
        return self._kept.get(client_id)

    def connected_until(self, client_id: str) -> int:
        """Of a session that was restored: when its client left (ms), 0 if it was connected when the broker ended."""
        kept = self._kept.get(client_id)
        return 0 if kept is None else kept.disconnected_at

    @property
    def owed(self) -> int:
        """Clients whose record is older than what it should say."""
        return len(self._owed)

    def now_ms(self) -> int:
        return round(self._clock() * 1000)

    # ---- what happens to sessions ----

    def keep(self, session: Session, client_type: str, *, matters: bool) -> None:
        """A client has connected with a session that outlives its connection."""
        kept = self._kept.get(session.client_id)
        if kept is None or kept.session is not session:
            kept = self._kept[session.client_id] = Kept(session, client_type, self.now_ms())
            matters = True
        matters = matters or kept.client_type != client_type
        kept.client_type = client_type
        kept.disconnected_at = 0
        kept.spent_will = None
        self._spent.pop(session.client_id, None)
        self._note(session.client_id, SESSION_CHANGED | (MATTERS if matters else 0))

    def leave(self, session: Session) -> None:
        """Its connection has ended."""
        kept = self._kept.get(session.client_id)
        if kept is not None and kept.session is session:
            kept.disconnected_at = self.now_ms()
            self._note(session.client_id, SESSION_CHANGED)

    def keep_will(self, session: Session, will: Will) -> None:
        """A client has connected with a session that ends with its connection. Nobody waits for this."""
        self._wills[session.client_id] = KeptWill(session, will)
        self._note(session.client_id, WILL_CHANGED)

    def spend_will(self, session: Session, will: Will) -> None:
        """The will was published; the record lets go of it a little later, also when the session has ended."""
        client_id = session.client_id
        kept = self._kept.get(client_id)
        if kept is not None and kept.session is session:
            kept.spent_will = will
            self._spent[client_id] = kept
            self._loop.call_later(WILL_SECONDS, self._let_go, kept, will)
            return
        newer = self._wills.get(client_id)
        if newer is None or newer.session is session or newer.is_spent:
            spent = self._wills[client_id] = KeptWill(session, will, is_spent=True)
            self._note(client_id, WILL_CHANGED)
            self._loop.call_later(WILL_SECONDS, self._let_go_of_will, spent)

    def _let_go_of_will(self, spent: KeptWill) -> None:
        client_id = spent.session.client_id
        if self._wills.get(client_id) is spent:
            del self._wills[client_id]
            self._note(client_id, WILL_CHANGED)

    def _let_go(self, kept: Kept, will: Will) -> None:
        if kept.spent_will is will:
            kept.spent_will = None
            client_id = kept.session.client_id
            if self._spent.get(client_id) is kept:
                del self._spent[client_id]
            if self._kept.get(client_id) is kept:
                self._note(client_id, SESSION_CHANGED)

    def save_subscriptions(self, session: Session) -> None:
        kept = self._kept.get(session.client_id)
        if kept is not None and kept.session is session:
            self._note(session.client_id, SUBSCRIPTIONS_CHANGED)

    def forget(self, session: Session) -> None:
        """The session has ended, or ends with its connection from now on."""
        kept = self._kept.get(session.client_id)
        if kept is not None and kept.session is session:
            del self._kept[session.client_id]
            self._spent.pop(session.client_id, None)
            self._note(session.client_id, EVERYTHING | MATTERS)
        kept_will = self._wills.get(session.client_id)
        if kept_will is not None and kept_will.session is session:
            self._let_go_of_will(kept_will)

    # ---- sessions that move between brokers ----

    def adopt(self, session: Session, record: SessionRecord, subscriptions: bytes | None) -> None:
        """A session that another broker had is kept here from now on; its client is not connected."""
        left = record.disconnected_at or self.now_ms()
        self._kept[session.client_id] = Kept(session, record.client_type, record.created_at, left)
        if subscriptions is not None:
            self._revive_subscriptions(session, subscriptions)
        self._note(session.client_id, EVERYTHING | MATTERS)

    def let_go(self, session: Session) -> None:
        """A will that was published is in its log by now."""
        kept = self._spent.get(session.client_id)
        if kept is not None and kept.spent_will is not None and kept.session is session:
            self._let_go(kept, kept.spent_will)

    def give_away(self, session: Session) -> None:
        """Another broker keeps it from now on: what is written of it here is not touched any more."""
        kept = self._kept.get(session.client_id)
        if kept is not None and kept.session is session:
            del self._kept[session.client_id]
            for noted in (self._changed, self._owed):
                if noted.pop(session.client_id, 0) & WILL_CHANGED:
                    noted[session.client_id] = WILL_CHANGED  # of an earlier session, which ended here
            self._spent.pop(session.client_id, None)

    # ---- waiting ----

    def must_wait(self, client_id: str) -> bool:
        """Whether a CONNACK for this client would promise something that is not durable yet."""
        owed = self._owed.get(client_id, 0)
        if owed & MATTERS:
            self._note(client_id, owed)  # tried again now
            return True
        return bool((self._changed.get(client_id, 0) | self._under_way.get(client_id, 0)) & MATTERS)

    def wait(self, answer: Callable[[StoreError | None], None], undo: Callable[[], None] | None = None) -> None:
        """`answer` is called when everything that was changed so far is durable, at once if it is; or with the error,
        after `undo`. Answers keep their order."""
        if not self._changed and not self._is_busy and not self._waiters:
            answer(None)
            return
        self._waiters.append(_Waiter(answer, undo))
        self._schedule()

    def _note(self, client_id: str, bits: int) -> None:
        self._changed[client_id] = self._changed.get(client_id, 0) | self._owed.pop(client_id, 0) | bits
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled and not self._is_busy and self.is_restored:
            self._is_scheduled = True
            self._loop.call_soon(self._write)

    # ---- writing ----

    def _write(self) -> None:
        """At the end of the iteration, or when the store has done with the last one."""
        self._is_scheduled = False
        if self._is_busy:
            return
        self._under_way, self._changed = self._changed, {}
        self._told_next, self._waiters = self._waiters, []
        if not self._under_way:
            self._tell(None)
            return
        changes: list[Change] = []
        for client_id, bits in self._under_way.items():
            self._encode(client_id, bits, changes)
        self._is_busy = True
        self._store.store(changes, self._on_done)

    def _encode(self, client_id: str, bits: int, changes: list[Change]) -> None:
        key = client_id.encode()
        kept = self._kept.get(client_id)
        if bits & WILL_CHANGED:
            changes.append((WILLS, will_key(client_id, self._node), self._encode_will(client_id)))
        if kept is None:
            if bits & EVERYTHING:
                changes += ((SESSIONS, key, None), (SUBSCRIPTIONS, key, None))
            return
        session = kept.session
        if bits & SESSION_CHANGED:
            will: Will | None = session.will or kept.spent_will
            record = encode_session(
                session, kept.client_type, kept.created_at, kept.disconnected_at, will, node=self._node
            )
            changes.append((SESSIONS, key, record))
        if bits & SUBSCRIPTIONS_CHANGED:
            subscriptions = self._trie.subscriptions(session)
            changes.append((SUBSCRIPTIONS, key, encode_subscriptions(subscriptions) if subscriptions else None))

    def _encode_will(self, client_id: str) -> bytes | None:
        kept = self._wills.get(client_id)
        if kept is None:
            return None
        return encode_session(kept.session, kept.session.client_type, 0, 0, kept.will, node=self._node)

    def _on_done(self, error: StoreError | None) -> None:
        self._is_busy = False
        if error is not None:
            self._undo()
        self._under_way = {}
        self._tell(error)
        if error is None and self._owed and not self._changed:
            self._pay()
        if self._changed or self._waiters:
            self._schedule()

    def _undo(self) -> None:
        """Everybody who waits by now is told: a change can only be taken back after those on top of it."""
        self._told_next += self._waiters
        self._waiters = []
        for waiter in reversed(self._told_next):
            if waiter.undo is not None:
                self._call(waiter.undo)
        for changed in (self._under_way, self._changed):
            for client_id, bits in changed.items():
                self._owed[client_id] = self._owed.get(client_id, 0) | bits
        self._changed = {}
        if self._retry is None:
            self._retry = self._loop.call_later(RETRY_SECONDS, self._try_again)

    def _tell(self, error: StoreError | None) -> None:
        told, self._told_next = self._told_next, []
        for waiter in told:
            self._call(waiter.answer, error)

    @staticmethod
    def _call(callback: Callable[..., None], *arguments: object) -> None:
        try:
            callback(*arguments)
        except Exception:  # one client's answer is not the others'
            log.exception("an answer that waited for the store failed")

    def _try_again(self) -> None:
        self._retry = None
        if self._owed and not self._is_busy:
            self._pay()

    def _pay(self) -> None:
        """Some of what is owed, so that nobody who waits has to wait for all of it."""
        for client_id in list(islice(self._owed, PAID_AT_ONCE)):
            self._note(client_id, 0)

    # ---- life ----

    async def restore(self, revive: Callable[[SessionRecord], Session | None]) -> int:
        """Gives every stored session to `revive` and its subscriptions to the trie; what nobody wants is removed.

        Sessions that were connected when the broker ended have left now. Returns how many are there.
        """
        left_alone: set[str] = set()
        now = self.now_ms()

        def on_session(key: bytes, value: bytes | None) -> None:
            client_id = key.decode(errors="replace")
            try:
                record = decode_session(client_id, value or b"")
            except RecordError as error:
                log.error("a stored session is left alone", client_id=client_id, error=str(error))
                left_alone.add(client_id)
                return
            if record.node != self._node and self._node:
                left_alone.add(client_id)
                return
            session = revive(record)
            if session is None:
                self._owed[client_id] = EVERYTHING
                return
            kept = Kept(session, record.client_type, record.created_at, record.disconnected_at)
            if not kept.disconnected_at:
                kept.disconnected_at = now
                self._owed[client_id] = SESSION_CHANGED
            self._kept[client_id] = kept

        def on_subscriptions(key: bytes, value: bytes | None) -> None:
            client_id = key.decode(errors="replace")
            kept = self._kept.get(client_id)
            if kept is not None:
                self._revive_subscriptions(kept.session, value or b"")
            elif client_id not in left_alone:
                self._owed[client_id] = EVERYTHING

        await self._store.load(SESSIONS, on_session)
        await self._store.load(SUBSCRIPTIONS, on_subscriptions)
        await self._store.load(WILLS, self._on_will)
        self.is_restored = True
        if self._owed:
            self._pay()
        self._schedule()
        return len(self._kept)

    def _on_will(self, key: bytes, value: bytes | None) -> None:
        if self._node and node_of_will(key) != self._node:
            return
        try:
            self._left_wills.append(decode_will(key, value or b""))
        except RecordError as error:
            log.error("a stored will is left alone", error=str(error))

    def take_left_wills(self) -> list[SessionRecord]:
        """After `restore`: of clients whose connection, and with it their session, ended with the broker."""
        left, self._left_wills = self._left_wills, []
        return left

    async def remove_wills(self, keys: list[bytes]) -> None:
        """Wills of another broker, which were published here. Raises StoreError."""
        done: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
        self._store.store([(WILLS, key, None) for key in keys], done.set_result)
        if (error := await done) is not None:
            raise error

    def _revive_subscriptions(self, session: Session, value: bytes) -> None:
        try:
            subscribe = self._trie.subscribe
            for topic_filter, options, identifier in decode_subscriptions(session.client_id, value):
                subscribe(session, topic_filter, options, identifier)
        except (RecordError, ValueError) as error:
            log.error("stored subscriptions are lost", client_id=session.client_id, error=str(error))

    async def close(self) -> None:
        """Everything is written, wills that were published are out of the records. Raises StoreError."""
        if self._retry is not None:
            self._retry.cancel()
        if not self.is_restored:
            return
        for kept in list(self._spent.values()):
            if kept.spent_will is not None:
                self._let_go(kept, kept.spent_will)
        for kept_will in [one for one in self._wills.values() if one.is_spent]:
            self._let_go_of_will(kept_will)
        while self._owed or self._changed or self._is_busy:
            self._pay()
            if not self._is_busy:
                self._write()
            await self._store.flush()
