"""Users of the password file (`access.password_file`)."""

from __future__ import annotations

from typing import cast

from penstock.access.base import (
    NEXT,
    UNKNOWN_USER,
    Answer,
    Authenticator,
    Credentials,
    Entrance,
    Identity,
    No,
    Surroundings,
)
from penstock.access.password_checks import PasswordChecks
from penstock.access.passwords import PasswordFile
from penstock.core.refusal import Refusal
from penstock.settings import AccessSettings
from penstock.settings.model import ClientType

WRONG = No(Refusal.BAD_CREDENTIALS, "user name or password is wrong")
NO_USERS = PasswordFile({})


class PasswordFileUsers(Authenticator):
    """Without a file it serves nobody, until a reload brings one."""

    name = "password_file"

    def __init__(self, surroundings: Surroundings) -> None:
        self._users = NO_USERS
        self._has_file = False
        self._checks = PasswordChecks(NO_USERS)
        # Clients of one user share one object.
        self._identities: dict[str, Identity] = {}

    def prepare(self, settings: AccessSettings) -> object:
        return PasswordFile.load(settings.password_file) if settings.password_file else None

    def apply(self, prepared: object) -> None:
        users = cast("PasswordFile | None", prepared)
        self._has_file = users is not None
        self._users = users or NO_USERS
        self._checks.replace(self._users)
        self._identities.clear()

    async def stop(self) -> None:
        self._checks.close()

    def serves(self, entrance: Entrance) -> bool:
        return self._has_file

    def try_now(self, credentials: Credentials) -> Answer | None:
        username = credentials.username
        if username is None:
            return NEXT
        if self._checks.try_remembered(username, credentials.password or b""):
            return self._identity(username)
        return None

    async def authenticate(self, credentials: Credentials) -> Answer:
        username = credentials.username
        if username is None:
            return NEXT
        if await self._checks.check(username, credentials.password or b"", credentials.host):
            return self._identity(username)
        # An unknown user has waited as long as a known one.
        return WRONG if username in self._users else UNKNOWN_USER

    def knows(self, identity: Identity) -> bool:
        return identity.user is not None and identity.user in self._users

    def client_type(self, user: str) -> ClientType | None:
        return self._users.client_type(user)

    def _identity(self, username: str) -> Identity:
        found = self._identities.get(username)
        if found is None:
            found = self._identities[username] = Identity(username, self.name)
        return found
