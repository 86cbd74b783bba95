"""The providers that the settings name, put together: what the front-ends ask, and how a reload changes all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from penstock._ext.match.acl import AclProgram
from penstock.access.base import (
    Authoriser,
    Provider,
    Subject,
    Surroundings,
)
from penstock.access.chain import Chain
from penstock.access.grants import compile_grants, explain_grants
from penstock.access.providers import BUILT_IN, ProviderFactory, Providers
from penstock.settings import AccessSettings
from penstock.settings.model import ClientType


class Prepared(msgspec.Struct, frozen=True):
    """Everything of a reload, read and checked."""

    settings: AccessSettings
    parts: list[tuple[Provider, object]]


class AccessControl:
    """`chain` says who somebody is, everything else what they may do. Raises SettingsError when a provider or a file
    cannot be used.

    `restrict` is called before the first client gets rules though no authoriser has any: its identity has brought them.
    """

    def __init__(
        self,
        settings: AccessSettings,
        *,
        restrict: Callable[[], None] = lambda: None,
        built_in: Mapping[str, ProviderFactory] = BUILT_IN,
    ) -> None:
        providers = Providers(Surroundings(settings, self._on_changed), built_in)
        self._settings = settings
        self._providers = providers.all
        self._authorisers: tuple[Authoriser, ...] = tuple(providers.authorisers)
        self._with_rules: tuple[Authoriser, ...] = ()
        self._restrict = restrict
        self._has_granted = False
        self._listeners: list[Callable[[], None]] = []
        self.chain = Chain(providers.authenticators, providers.authorisers)
        self.apply(self.prepare(settings))

    # ---- life ----

    async def start(self) -> None:
        for provider in self._providers:
            await provider.start()

    async def stop(self) -> None:
        for provider in self._providers:
            await provider.stop()

    def prepare(self, settings: AccessSettings) -> Prepared:
        """Everything read and checked, for `apply`: nothing changes until everything else of a reload is right too.
        Raises SettingsError."""
        return Prepared(settings, [(provider, provider.prepare(settings)) for provider in self._providers])

    def apply(self, prepared: Prepared) -> None:
        """Connected clients keep the programs they have until they get new ones by `program_for`."""
        self._settings = prepared.settings
        for provider, part in prepared.parts:
            provider.apply(part)
        self._look_again()

    def reload(self, settings: AccessSettings) -> None:
        """Read everything again; when something is bad this raises and everything stays as it was."""
        self.apply(self.prepare(settings))

    def listen(self, on_changed: Callable[[], None]) -> None:
        """Call `on_changed` when a provider's users or rules have changed without a reload."""
        self._listeners.append(on_changed)

    def _look_again(self) -> None:
        self._with_rules = tuple(authoriser for authoriser in self._authorisers if authoriser.has_rules)
        self.chain.providers_changed()

    def _on_changed(self) -> None:
        self._look_again()
        for listener in self._listeners:
            listener()

    # ---- what may it do ----

    @property
    def has_rules(self) -> bool:
        """Return whether anybody may be denied anything."""
        return self._has_granted or bool(self._with_rules)

    def is_open_to(self, subject: Subject) -> bool:
        """Return whether the client may do everything that no rule is about: there are no rules for it at all."""
        return subject.identity.grants is None and not self._with_rules

    def program_for(self, subject: Subject) -> AclProgram | None:
        """Compile the client's rules; None: everything is allowed."""
        if subject.identity.grants is not None or len(self._with_rules) > 1:
            return self._merge(subject)
        return self._with_rules[0].program_for(subject) if self._with_rules else None

    def _merge(self, subject: Subject) -> AclProgram | None:
        grants = subject.identity.grants
        programs = [authoriser.program_for(subject) for authoriser in self._with_rules]
        found = [program for program in programs if program is not None]
        if grants is None:
            if len(found) < 2:
                return found[0] if found else None
            grants = ()
        elif not self._has_granted:
            self._has_granted = True
            self._restrict()
        rules = compile_grants(grants, subject)
        for program in found:
            rules += program.rules
        return AclProgram(rules)

    def explain(self, subject: Subject, action: str, topic: bytes) -> str:
        """Say why the client may not publish to the topic, or subscribe to the filter."""
        if action == "publish" and (topic == b"$SYS" or topic.startswith(b"$SYS/")):
            return "$SYS belongs to the broker"
        grants = subject.identity.grants
        found = None if grants is None else explain_grants(grants, subject, action, topic)
        for authoriser in self._with_rules:
            found = found or authoriser.explain(subject, action, topic)
        return found or ("no ACL file is loaded" if self.is_open_to(subject) else "no rule allows it")

    def may_use_client_id(self, subject: Subject) -> bool:
        """Return whether the user may connect with this client id; always where no rule is about client ids."""
        for authoriser in self._with_rules:
            found = authoriser.may_use_client_id(subject)
            if found is not None:
                return found
        return True

    def data_access(self, subject: Subject, action: str, topic: str) -> bool | None:
        """Return whether the rules allow this with a query topic; None if they say nothing of it."""
        for authoriser in self._with_rules:
            found = authoriser.data_access(subject, action, topic)
            if found is not None:
                return found
        return None

    def client_type(self, subject: Subject) -> ClientType:
        """Return whether the client is a DEVICE or an APPLICATION: the rules say so, else the provider that knows the
        user, else the settings. Its CONNECT has no say in it."""
        for authoriser in self._with_rules:
            found = authoriser.client_type(subject)
            if found is not None:
                return found
        identity = subject.identity
        if identity.client_type is not None:
            return identity.client_type
        if identity.user is None:
            return self._settings.anonymous_type
        return self.chain.client_type(identity.user) or self._settings.default_type
