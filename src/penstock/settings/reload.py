"""Compares settings at SIGHUP: which changes apply while clients are connected, and which need a restart."""

from __future__ import annotations

import msgspec

from penstock.settings.loader import LISTENERS, QUEUES, flatten
from penstock.settings.model import Settings
from penstock.settings.schema import find_key


def is_live(key: str) -> bool:
    """Whether a setting can change without a restart."""
    found = find_key(key)
    return found is not None and found.live


def diff(old: Settings, new: Settings) -> tuple[dict[str, object], list[str]]:
    """Dotted key to new value of what changes live, and the keys that changed but need a restart.

    Files keep their names when their contents change: certificates, passwords and ACL are read again on every reload,
    whatever this says. The queues are one value, since the order they are written in says nothing.
    """
    if len(old.listeners) != len(new.listeners):
        live, needs_restart = _compare(old, new, skip_listeners=True)
        return live, [*needs_restart, LISTENERS]
    return _compare(old, new, skip_listeners=False)


def _compare(old: Settings, new: Settings, *, skip_listeners: bool) -> tuple[dict[str, object], list[str]]:
    skipped = (QUEUES, LISTENERS) if skip_listeners else (QUEUES,)
    before = dict(flatten(old, skipped))
    live: dict[str, object] = {QUEUES: new.queues} if old.queues != new.queues else {}
    needs_restart: list[str] = []
    for key, value in flatten(new, skipped):
        if before.get(key) == value:
            continue
        if is_live(key):
            live[key] = value
        else:
            needs_restart.append(key)
    return live, needs_restart


def apply_live(old: Settings, live: dict[str, object]) -> Settings:
    """The old settings with those of the new that need no restart."""
    sections: dict[str, dict[str, object]] = {}
    whole: dict[str, object] = {}
    for key, value in live.items():
        section, _, name = key.partition(".")
        if key == QUEUES:
            whole[key] = value
        elif section != LISTENERS:
            sections.setdefault(section, {})[name] = value
    changed = {name: msgspec.structs.replace(getattr(old, name), **values) for name, values in sections.items()}
    return msgspec.structs.replace(old, **changed, **whole)
