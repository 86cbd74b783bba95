"""The providers by the names they have in the settings: built-in ones, and those of others as `module:factory`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias, TypeVar

from penstock.access.acl_file import AclFileRules
from penstock.access.anonymous import Anonymous
from penstock.access.base import Authenticator, Authoriser, Provider, Surroundings
from penstock.access.certificates import Certificates
from penstock.access.exchanges import Exchanges
from penstock.access.password_file import PasswordFileUsers
from penstock.core.errors import SettingsError
from penstock.core.plugins import load_plugin

ProviderFactory: TypeAlias = Callable[[Surroundings], Provider]
P = TypeVar("P", bound=Provider)

BUILT_IN: Mapping[str, ProviderFactory] = {
    "acl_file": AclFileRules,
    "anonymous": Anonymous,
    "certificate": Certificates,
    "enhanced": Exchanges,
    "password_file": PasswordFileUsers,
}


class Providers:
    """The providers of the two lists. One that is in both is made once."""

    def __init__(self, surroundings: Surroundings, built_in: Mapping[str, ProviderFactory]) -> None:
        self._surroundings = surroundings
        self._built_in = built_in
        self._made: dict[str, Provider] = {}
        settings = surroundings.settings
        self.authenticators = [self._get(name, Authenticator, "authenticators") for name in settings.authenticators]
        self.authorisers = [self._get(name, Authoriser, "authorisers") for name in settings.authorisers]

    @property
    def all(self) -> tuple[Provider, ...]:
        return tuple(self._made.values())

    def _get(self, name: str, port: type[P], key: str) -> P:
        """Raises SettingsError."""
        provider = self._made.get(name)
        if provider is None:
            provider = self._made[name] = self._make(name, key)
        if not isinstance(provider, port):
            raise SettingsError(f"access.{key}: {name} is not an {port.__name__} (penstock.access.base)")
        return provider

    def _make(self, name: str, key: str) -> Provider:
        if ":" in name:
            factory: ProviderFactory = load_plugin(f"access.{key}", name)
        elif name in self._built_in:
            factory = self._built_in[name]
        else:
            raise SettingsError(
                f"access.{key}: {name!r} is not known: use {', '.join(sorted(self._built_in))} or module:factory"
            )
        return factory(self._surroundings)
