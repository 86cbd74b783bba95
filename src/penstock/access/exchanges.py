"""Methods of enhanced authentication that the settings name (`access.enhanced`)."""

from __future__ import annotations

from penstock.access.base import (
    ENHANCED,
    Authenticator,
    AuthExchange,
    AuthExchangeFactory,
    Credentials,
    Entrance,
    Surroundings,
)
from penstock.core.plugins import load_plugin


class Exchanges(Authenticator):
    """An exchange says who the client is; its user name was only a claim."""

    name = ENHANCED

    def __init__(self, surroundings: Surroundings) -> None:
        self._factories: dict[str, AuthExchangeFactory] = {
            method: load_plugin(f"access.enhanced.{method}", target)
            for method, target in surroundings.settings.enhanced.items()
        }

    def serves(self, entrance: Entrance) -> bool:
        return False  # only exchanges

    def begin_exchange(self, credentials: Credentials) -> AuthExchange | None:
        factory = self._factories.get(credentials.method or "")
        return None if factory is None else factory(credentials.client_id, credentials.username)
