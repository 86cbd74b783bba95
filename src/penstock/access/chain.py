"""Who somebody is: the authenticators are asked in the order of the settings, the first that says yes or no decides."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.access.base import (
    Authenticator,
    AuthExchange,
    Authoriser,
    Credentials,
    Entrance,
    Identity,
    Next,
    No,
    Subject,
)
from penstock.core.refusal import Refusal, Refused
from penstock.settings.model import ClientType


class Chain:
    """Remote authorisers complete the identity that an authenticator has found."""

    def __init__(self, authenticators: Sequence[Authenticator], authorisers: Sequence[Authoriser] = ()) -> None:
        self._authenticators = tuple(authenticators)
        self._remote = tuple(authoriser for authoriser in authorisers if authoriser.is_remote)
        # Those with an answer of their own: a CONNECT pays for no others.
        self._judges = {each.name: each for each in _with("knows", authenticators)}
        self._typing = _with("client_type", authenticators)
        # The same, by listener.
        self._serving: dict[Entrance, tuple[Authenticator, ...]] = {}

    def providers_changed(self) -> None:
        """Find out again which authenticators serve which listener."""
        self._serving.clear()

    def try_now(self, credentials: Credentials) -> Identity | None:
        """Return who it is if that is known without waiting, as at the usual reconnect; None: ask `authenticate`.
        Raises Refused."""
        if self._remote:
            return None
        for authenticator in self._serving.get(credentials.entrance) or self._find(credentials.entrance):
            answer = authenticator.try_now(credentials)
            if answer is None or isinstance(answer, Identity):
                return answer
            self._note(credentials, answer)
        raise self._refused(credentials)

    async def authenticate(self, credentials: Credentials) -> Identity:
        """Return who it is, with what is known of it elsewhere. Raises Refused."""
        identity = await self._ask(credentials)
        return await self.enrich(Subject(identity, credentials.client_id, credentials.peer or ""))

    async def _ask(self, credentials: Credentials) -> Identity:
        credentials.was_examined = False
        for authenticator in self._find(credentials.entrance):
            answer = authenticator.try_now(credentials)
            if answer is None:
                answer = await authenticator.authenticate(credentials)
            if isinstance(answer, Identity):
                return answer
            self._note(credentials, answer)
        raise self._refused(credentials)

    @property
    def is_remote(self) -> bool:
        """Return whether `enrich` asks anybody."""
        return bool(self._remote)

    async def enrich(self, subject: Subject) -> Identity:
        """Return the identity with what remote authorisers know of it. Raises Refused."""
        for authoriser in self._remote:
            subject = msgspec.structs.replace(subject, identity=await authoriser.enrich(subject))
        return subject.identity

    def begin_exchange(self, credentials: Credentials) -> AuthExchange | None:
        """Begin the exchange of the first authenticator that has the method; None if there is none."""
        for authenticator in self._authenticators:
            exchange = authenticator.begin_exchange(credentials)
            if exchange is not None:
                return exchange
        return None

    def knows(self, identity: Identity) -> bool:
        """Return whether the provider that has confirmed the identity would still do so: a reload may have removed the
        user."""
        judge = self._judges.get(identity.source)
        return judge is None or judge.knows(identity)

    def client_type(self, user: str) -> ClientType | None:
        for authenticator in self._typing:
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


def _with(method: str, authenticators: Sequence[Authenticator]) -> tuple[Authenticator, ...]:
    """Return those that do not leave the method to the port's default."""
    default = getattr(Authenticator, method)
    return tuple(each for each in authenticators if getattr(type(each), method) is not default)
