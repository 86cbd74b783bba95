"""Providers of access control, made only of what src/ offers to anybody: proof that one can be added from outside.

Select them with `access.authenticators = "tests.support.toys.access:Badges,anonymous"` and
`access.authorisers = "tests.support.toys.access:Rooms"`.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

from penstock._ext.match.acl import PUBLISH, SUBSCRIBE, AclProgram
from penstock.access.base import (
    NEXT,
    UNKNOWN_USER,
    Answer,
    Authenticator,
    Authoriser,
    AuthStep,
    Credentials,
    Grant,
    Identity,
    No,
    Subject,
    Surroundings,
)
from penstock.core.refusal import Refusal, Refused
from penstock.settings.model import ClientType

BADGES = "tests.support.toys.access:Badges"
ROOMS = "tests.support.toys.access:Rooms"
REMOTE = "tests.support.toys.access:RemoteRooms"
KNOCK = "tests.support.toys.access:Knock"
FILE = "TOY_ROOMS"
BOTH = PUBLISH | SUBSCRIBE
VISIT_SECONDS = 0.5


class Badges(Authenticator):
    """A user shows a badge, `badge:group,group` as the password; a service elsewhere takes a moment to check it."""

    name = "badges"

    def __init__(self, surroundings: Surroundings) -> None:
        self._known: dict[tuple[str, bytes], Identity] = {}

    def try_now(self, credentials: Credentials) -> Answer | None:
        if credentials.username is None or credentials.password is None:
            return NEXT
        return self._known.get((credentials.username, credentials.password))

    async def authenticate(self, credentials: Credentials) -> Answer:
        user, password = credentials.username or "", credentials.password or b""
        await asyncio.sleep(0.01)
        if user == "outage":
            raise Refused(Refusal.UNAVAILABLE, "badges cannot be checked now")
        if user == "bug":
            raise RuntimeError("a mistake in the provider")
        badge, colon, groups = password.decode().partition(":")
        if badge == "stranger":
            return UNKNOWN_USER
        if badge != "badge" or not colon:
            return No(Refusal.BAD_CREDENTIALS, "that is not a badge")
        grants = (Grant(True, BOTH, "own/%u/#"), Grant(True, BOTH, "$queue/%u/#")) if "granted" in groups else None
        identity = Identity(
            user,
            self.name,
            tuple(filter(None, groups.split(","))),
            grants,
            self._type_of(groups),
            expires_at=time.time() + VISIT_SECONDS if "visitors" in groups else None,
        )
        self._known[user, password] = identity
        return identity

    @staticmethod
    def _type_of(groups: str) -> ClientType | None:
        return "application" if "application" in groups else None

    def client_type(self, user: str) -> ClientType | None:
        return "application" if user.startswith("app-") else None


class Knock:
    """An exchange of one step: the data names the groups of the client."""

    def __init__(self, client_id: str, username: str | None) -> None: ...

    def step(self, data: bytes | None) -> AuthStep:
        return AuthStep.success(Identity("ada", "knock", tuple((data or b"").decode().split(","))))


class Rooms(Authoriser):
    """Groups may use the topics and the queues of their rooms. A file says which, and is looked at again and again."""

    name = "rooms"

    def __init__(self, surroundings: Surroundings) -> None:
        self._changed = surroundings.changed
        self._path = Path(os.environ[FILE])
        self._rooms: dict[str, list[str]] = json.loads(self._path.read_text())
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            rooms = json.loads(self._path.read_text())
            if rooms != self._rooms:
                self._rooms = rooms
                self._changed()

    @property
    def has_rules(self) -> bool:
        return True

    def program_for(self, subject: Subject) -> AclProgram | None:
        rooms = [room for group in subject.identity.groups for room in self._rooms.get(group, [])]
        return AclProgram([(True, BOTH, (root, room.encode(), "#")) for root in (b"room", b"$queue") for room in rooms])

    def explain(self, subject: Subject, action: str, topic: bytes) -> str | None:
        return f"none of the groups {list(subject.identity.groups)} has that room"

    def may_use_client_id(self, subject: Subject) -> bool | None:
        return False if subject.client_id.startswith("reserved") else None

    def data_access(self, subject: Subject, action: str, topic: str) -> bool | None:
        return topic in subject.identity.groups


class RemoteRooms(Authoriser):
    """The same rules, asked of a service once for each connection."""

    name = "remote rooms"
    is_remote = True

    def __init__(self, surroundings: Surroundings) -> None: ...

    async def enrich(self, subject: Subject) -> Identity:
        await asyncio.sleep(0.01)
        known = subject.identity
        if known.user == "barred":
            raise Refused(Refusal.NOT_AUTHORISED, "barred")
        grants = tuple(Grant(True, BOTH, f"room/{group}/#") for group in known.groups)
        return Identity(known.user, known.source, known.groups, grants)
