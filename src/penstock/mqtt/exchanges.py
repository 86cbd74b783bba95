"""Methods of enhanced authentication that are plugged in by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from penstock.core.errors import SettingsError
from penstock.core.ports import AuthExchangeFactory
from penstock.settings import Settings


def load_exchanges(settings: Settings) -> dict[str, AuthExchangeFactory]:
    """The plugged-in methods of enhanced authentication, `module:factory` each."""
    found: dict[str, AuthExchangeFactory] = {}
    for method, target in settings.access.enhanced.items():
        module, _, name = target.partition(":")
        try:
            factory: Callable[..., object] = getattr(import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise SettingsError(
                f"access.enhanced: {target!r} for the method {method!r} cannot be loaded: {error}",
                "Name it as module:factory; the module must be importable by the broker.",
            ) from error
        found[method] = factory  # type: ignore[assignment]  # a plug-in's own type is not known here
    return found
