"""Objects that the settings name as `module:factory`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from penstock.core.errors import SettingsError


def load(target: str, what: str) -> Any:
    """Return the factory. Raises SettingsError, which begins with `what`."""
    module, _, name = target.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(
            f"{what} cannot be loaded: {error}",
            "Name it as module:factory; the module must be importable by the broker.",
        ) from error
