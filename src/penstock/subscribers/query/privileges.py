"""Who may create, subscribe to and drop query topics. The first of these that says something decides:

    the [[data]] entries of the ACL file ─▶ whose topic it is ─▶ GRANT and REVOKE ─▶ is there an ACL file at all

Without one everything is allowed, as for MQTT; with one nothing is that nobody has allowed. Who creates a topic must be
allowed to read its source, all of it: what a query brings is not checked again for each consumer.

Who has no right on a topic hears the same words whether it is there or not: names say something too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from penstock._ext.match.acl import SUBSCRIBE, AclProgram, filter_covers, filters_intersect
from penstock.access.base import Subject
from penstock.core.signal import Signal
from penstock.storage.state.base import Change
from penstock.subscribers.query.ports import Identity
from penstock.subscribers.query.stored import GRANTS, Stored
from penstock_client.errors import NotAllowed, NotFound

EVERY = "*"
SEPARATOR = "\0"

Given = dict[str, bool]
"""Privileges that were granted (True) or revoked (False)."""


class Hidden(NotAllowed):
    """It is not there, or not for this one to know of."""


class Access(Protocol):
    """The part of access control that is asked here."""

    def is_open_to(self, subject: Subject) -> bool: ...
    def data_access(self, subject: Subject, action: str, topic: str) -> bool | None: ...
    def program_for(self, subject: Subject) -> AclProgram | None: ...


class Privileges:
    def __init__(self, access: Access, stored: Stored) -> None:
        self._access = access
        self._stored = stored
        self._given: dict[tuple[str, str], Given] = {}
        # Hears which topic's privileges have changed, None for every one's.
        self.on_changed = Signal[[str | None]]()
        stored.listen(GRANTS, self._on_change)

    def may(self, who: Identity, action: str, topic: str, owner: str | None = None) -> bool:
        """`owner`: of the topic, if it is there and has one."""
        if who.is_operator:
            return True
        subject = who.subject
        said = self._access.data_access(subject, action, topic)
        if said is not None:
            return said
        if who.user is not None:
            if who.user == owner:
                return True
            for name in (topic, EVERY):
                given = self._given.get((who.user, name), {}).get(action)
                if given is not None:
                    return given
        return self._access.is_open_to(subject)

    def may_know(self, who: Identity, name: str, owner: str | None) -> bool:
        """Return whether SHOW lists a topic: its name and query reveal what messages contain."""
        return any(self.may(who, action, name, owner) for action in ("subscribe", "drop"))

    def may_know_table(self, who: Identity, name: str, owner: str | None, topic_filter: str) -> bool:
        """Return whether SHOW lists a table. The right to create is not a right on tables of others: with it alone, a
        table is visible if the user may read all messages of its filter."""
        return self.may(who, "drop", name, owner) or (
            self.may(who, "create", name, owner) and self.may_read(who, topic_filter)
        )

    def check(self, who: Identity, action: str, topic: str, owner: str | None = None) -> None:
        """Raises NotAllowed."""
        if not self.may(who, action, topic, owner):
            raise NotAllowed(refusal(who, action, topic))

    def check_there(
        self,
        who: Identity,
        action: str,
        name: str,
        owner: str | None,
        *,
        is_there: bool,
        noun: str = "topic",
        table_filter: str | None = None,
    ) -> None:
        """Raises NotFound to who may do it with a topic of this name, Hidden to who has no right on it whether it is
        there or not, NotAllowed to who knows of it and may not do this. `table_filter` is the
        filter of an existing table."""
        if self.may(who, action, name, owner):
            if not is_there:
                raise NotFound(f"there is no {noun} {name}")
            return
        if table_filter is None:
            is_known = is_there and self.may_know(who, name, owner)
        else:
            is_known = self.may_know_table(who, name, owner, table_filter)
        if is_known:
            raise NotAllowed(refusal(who, action, name, noun))
        else:
            raise Hidden(unknown(who, action, name, noun))

    def may_read(self, who: Identity, topic_filter: str) -> bool:
        """Every message of it."""
        program = None if who.is_operator else self._access.program_for(who.subject)
        return program is None or covers(program, topic_filter)

    def check_source(self, who: Identity, topic_filter: str) -> None:
        """Raises NotAllowed unless every message of the filter may be received."""
        if not self.may_read(who, topic_filter):
            raise NotAllowed(
                f"{name_of(who)} may not read everything that {topic_filter} brings: a topic of it would show it to all"
            )

    # ---- GRANT and REVOKE ----

    async def give(self, user: str, topic: str, privileges: Iterable[str], *, is_granted: bool) -> None:
        """Raises Unavailable."""
        given = {**self._given.get((user, topic), {}), **dict.fromkeys(privileges, is_granted)}
        await self._stored.write([(GRANTS, _key(user, topic), msgspec.msgpack.encode(given))])

    def forget_topic(self, topic: str) -> list[Change]:
        """What is to be removed with the topic: another one of its name is another one."""
        return [(GRANTS, _key(user, name), None) for user, name in self._given if name == topic]

    def given(self) -> Mapping[tuple[str, str], Given]:
        """By user and topic."""
        return self._given

    def _on_change(self, key: bytes, value: bytes | None) -> None:
        user, _, topic = key.decode().partition(SEPARATOR)
        if value is None:
            self._given.pop((user, topic), None)
        else:
            self._given[user, topic] = msgspec.msgpack.decode(value, type=Given)
        self.on_changed(None if topic == EVERY else topic)


def _key(user: str, topic: str) -> bytes:
    return f"{user}{SEPARATOR}{topic}".encode()


def name_of(who: Identity) -> str:
    return "an anonymous client" if who.user is None else f"user {who.user}"


def refusal(who: Identity, action: str, name: str, noun: str = "topic") -> str:
    return f"{name_of(who)} may not {_verb(action)} {noun} {name}"


def unknown(who: Identity, action: str, name: str, noun: str = "topic") -> str:
    return f"there is no {noun} {name}, or {name_of(who)} may not {_verb(action)} it"


def _verb(action: str) -> str:
    return "subscribe to" if action == "subscribe" else action


def covers(program: AclProgram, topic_filter: str) -> bool:
    """Whether the program allows every topic of the filter: one rule must allow all of it, and none before that deny
    any of it."""
    wanted = topic_filter.encode()
    for is_allowed, actions, levels in program.rules:
        pattern = _pattern(levels) if actions & SUBSCRIBE else None
        if pattern is None:
            continue
        if is_allowed and filter_covers(pattern, wanted):
            return True
        if not is_allowed and filters_intersect(pattern, wanted):
            return False
    return False


def _pattern(levels: Iterable[bytes | str]) -> bytes | None:
    """None for a rule that matches nothing: a client id or user name in it has a sign that MQTT gives a meaning."""
    parts: list[bytes] = []
    for level in levels:
        if isinstance(level, bytes):
            if any(sign in level for sign in (b"+", b"#", b"/")):
                return None
            parts.append(level)
        else:
            parts.append(level.encode())
    return b"/".join(parts)
