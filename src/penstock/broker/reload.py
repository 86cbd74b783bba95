"""SIGHUP: everything that can change live, changes; when anything is bad, everything stays as it was."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.access import AccessControl
from penstock.broker.parts import Part, Reload
from penstock.core.errors import PenstockError
from penstock.core.logging import get_logger
from penstock.settings import Settings
from penstock.settings.loader import Loaded
from penstock.settings.reload import apply_live, diff

log = get_logger("penstock.app")


class Reloading:
    def __init__(self, loaded: Loaded, access: AccessControl, parts: Sequence[Part]) -> None:
        self._loaded = loaded
        self._access = access
        self._parts = parts
        self.settings: Settings = loaded.settings

    def reload(self) -> None:
        try:
            loaded = self._loaded.reload()
            live, needs_restart = diff(self.settings, loaded.settings)
            settings = apply_live(self.settings, live)
            files = self._access.prepare(settings.access)
            for part in self._parts:
                part.prepare_reload()
        except PenstockError as error:
            log.error("reload refused, the old settings stay", error=str(error))
            return
        self._access.apply(files)
        self._loaded = loaded
        self.settings = settings
        change = Reload(settings, loaded.settings, live)
        for part in self._parts:
            part.reload(change)
        self.rules_changed()
        log.info("reloaded", changed=sorted(live), needs_restart=needs_restart)

    def rules_changed(self) -> None:
        """Users or rules have changed: what is open, subscribed or connected goes by them from now on."""
        for part in self._parts:
            part.rules_changed(self.settings)
