"""The authenticators in the order of the settings: the first that says yes or no decides."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.access.base import (
    Authenticator,
    AuthExchange,
    Credentials,
    Entrance,
    Identity,
    Next,
    No,
)
from penstock.core.refusal import Refusal, Refused
from penstock.settings.model import ClientType


class Chain:
    def __init__(self, authenticators: Sequence[Authenticator]) -> None:
        self._authenticators = tuple(authenticators)
        self._by_name = {authenticator.name: authenticator for authenticator in authenticators}
        # Those that are worth asking about a client of each listener: a CONNECT pays for no others.
        self._serving: dict[Entrance, tuple[Authenticator, ...]] = {}

    def providers_changed(self) -> None:
        """Find out again which authenticators serve which listener."""
        self._serving.clear()

    def try_now(self, credentials: Credentials) -> Identity | None:
        """Return who it is if that is known without waiting; None: ask `authenticate`. Raises Refused."""
        for authenticator in self._serving.get(credentials.entrance) or self._find(credentials.entrance):
            answer = authenticator.try_now(credentials)
            if answer is None or isinstance(answer, Identity):
                return answer
            self._note(credentials, answer)
        raise self._refused(credentials)

    async def authenticate(self, credentials: Credentials) -> Identity:
        """Return who it is. Raises Refused."""
        credentials.was_examined = False
        for authenticator in self._find(credentials.entrance):
            answer = authenticator.try_now(credentials)
            if answer is None:
                answer = await authenticator.authenticate(credentials)
            if isinstance(answer, Identity):
                return answer
            self._note(credentials, answer)
        raise self._refused(credentials)

    def begin_exchange(self, credentials: Credentials) -> AuthExchange | None:
        """Begin the exchange of the first authenticator that has the method; None if there is none."""
        for authenticator in self._authenticators:
            exchange = authenticator.begin_exchange(credentials)
            if exchange is not None:
                return exchange
        return None

    def knows(self, identity: Identity) -> bool:
        """Return whether the provider that has confirmed the identity would still do so."""
        authenticator = self._by_name.get(identity.source)
        return authenticator is None or authenticator.knows(identity)

    def client_type(self, user: str) -> ClientType | None:
        for authenticator in self._authenticators:
            found = authenticator.client_type(user)
            if found is not None:
                return found
        return None

    def _find(self, entrance: Entrance) -> tuple[Authenticator, ...]:
        found = self._serving.get(entrance)
        if found is None:
            serving = (authenticator for authenticator in self._authenticators if authenticator.serves(entrance))
            found = self._serving[entrance] = tuple(serving)
        return found

    @staticmethod
    def _note(credentials: Credentials, answer: No | Next) -> None:
        if isinstance(answer, No):
            raise Refused(answer.refusal, answer.message)
        if answer.has_examined:
            credentials.was_examined = True

    @staticmethod
    def _refused(credentials: Credentials) -> Refused:
        if credentials.was_examined:
            return Refused(Refusal.BAD_CREDENTIALS, "user name or password is wrong")
        return Refused(Refusal.NOT_AUTHORISED, "this listener wants a user name and a password")
