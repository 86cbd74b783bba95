"""Code of the user's own that a setting names as `module:attribute`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from penstock.core.errors import SettingsError


def load_plugin(setting: str, target: str) -> Any:
    """Return the attribute that a setting names, such as `my_package.logs:make_log`. Raises SettingsError."""
    module, _, name = target.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(
            f"{setting}: {target!r} cannot be loaded: {error}",
            "Name it as module:factory; the module must be importable by the broker.",
        ) from error
