"""The password file and the ACL file of the settings, together, and reloaded together."""

from __future__ import annotations

from typing import NamedTuple

from penstock._ext.match.acl import AclProgram
from penstock.access.acl_file import AclFile
from penstock.access.authenticator import Authenticator
from penstock.access.passwords import PasswordFile
from penstock.settings import AccessSettings
from penstock.settings.model import ClientType


class AccessFiles(NamedTuple):
    """The two files, and what holds for clients that neither of them knows."""

    passwords: PasswordFile | None
    acl: AclFile | None
    anonymous_type: ClientType
    default_type: ClientType


class AccessControl:
    """What the broker asks when a client connects. Raises AccessFileError when a file cannot be used."""

    def __init__(self, settings: AccessSettings) -> None:
        self._files = _load(settings)
        passwords = self._files.passwords
        self._authenticator = None if passwords is None else Authenticator(passwords)

    @property
    def has_passwords(self) -> bool:
        return self._authenticator is not None

    def reload(self, settings: AccessSettings) -> None:
        """Read both files again; when one is bad this raises and the old ones stay. Connected clients keep the
        programs they have until they connect again or are given new ones by `program_for`."""
        self.apply(self.prepare(settings))

    def prepare(self, settings: AccessSettings) -> AccessFiles:
        """Both files, read and checked, for `apply`: nothing changes until everything else of a reload is right too."""
        return _load(settings)

    def apply(self, files: AccessFiles) -> None:
        self._files = files
        passwords = files.passwords
        if passwords is None:
            self.close()
            self._authenticator = None
        elif self._authenticator is None:
            self._authenticator = Authenticator(passwords)
        else:
            self._authenticator.replace(passwords)

    def knows_user(self, username: str) -> bool:
        """Return whether the password file has the user; False without one."""
        return self._files.passwords is not None and username in self._files.passwords

    def close(self) -> None:
        if self._authenticator is not None:
            self._authenticator.close()

    def try_remembered(self, username: str, password: bytes) -> bool:
        """Whether the pair was verified lately: an answer without waiting, for the usual reconnect."""
        return self._authenticator is not None and self._authenticator.try_remembered(username, password)

    async def authenticate(self, username: str, password: bytes, address: str = "") -> bool:
        """Return whether the password file has this pair; False without a file. Raises AuthenticatorBusy if the address
        or the user name already has its share of the waiting line."""
        return self._authenticator is not None and await self._authenticator.authenticate(username, password, address)

    def explain(self, client_id: str, username: str | None, action: str, topic: bytes) -> str:
        """Say why the client may not publish to the topic, or subscribe to the filter."""
        if action == "publish" and (topic == b"$SYS" or topic.startswith(b"$SYS/")):
            return "$SYS belongs to the broker"
        if self._files.acl is None:
            return "no ACL file is loaded"
        return self._files.acl.explain(client_id, username, action, topic)

    def program_for(self, client_id: str, username: str | None) -> AclProgram | None:
        """The client's access program; None = no ACL file, everything is allowed."""
        return None if self._files.acl is None else self._files.acl.compile_for(client_id, username)

    def may_use_client_id(self, client_id: str, username: str | None) -> bool:
        """Return whether the user may connect with this client id; always without an ACL file."""
        return self._files.acl is None or self._files.acl.may_use_client_id(client_id, username)

    @property
    def has_acl(self) -> bool:
        return self._files.acl is not None

    def data_access(self, client_id: str, username: str | None, action: str, topic: str) -> bool | None:
        """Whether the ACL file allows this with a query topic; None when it says nothing of it."""
        return None if self._files.acl is None else self._files.acl.data_access(client_id, username, action, topic)

    def client_type(self, client_id: str, username: str | None, *, from_certificate: bool = False) -> ClientType:
        """Whether the client is a DEVICE or an APPLICATION: the first [[types]] entry for it in the ACL file says so,
        else its line in the password file, else the settings. Its CONNECT has no say in it."""
        passwords, acl, anonymous_type, default_type = self._files
        found = None
        if acl is not None:
            found = acl.client_type(client_id, username, from_certificate=from_certificate)
        if found is None and passwords is not None and username is not None:
            found = passwords.client_type(username)
        return found or (anonymous_type if username is None else default_type)


def _load(settings: AccessSettings) -> AccessFiles:
    return AccessFiles(
        PasswordFile.load(settings.password_file) if settings.password_file else None,
        AclFile.load(settings.acl_file) if settings.acl_file else None,
        settings.anonymous_type,
        settings.default_type,
    )
