"""Parts of a broker, as the composition root sees them: what to call when the broker starts, drains, reloads and stops.

A feature that the settings switch off has no part in the list.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass

from penstock.settings import Settings

Health = Callable[[], bool | str]
"""True, or why the part does not work now."""
Counters = Callable[[], Mapping[str, int | float]]


class Closing(enum.IntEnum):
    """The order in which parts stop. It is not that in which they start: what clients sent is written, and the others
    learn that this node leaves, before that of which they learn it goes."""

    SYS_TOPICS = enum.auto()
    LISTENERS = enum.auto()
    NODE_LISTENER = enum.auto()
    ADMIN = enum.auto()
    DATA = enum.auto()
    INGEST = enum.auto()
    EVENTS = enum.auto()
    HOUSEKEEPER = enum.auto()
    CLUSTER = enum.auto()
    SUBSCRIBERS = enum.auto()
    SESSIONS = enum.auto()
    NODE = enum.auto()
    LOG = enum.auto()
    LAST = enum.auto()


@dataclass(frozen=True, slots=True)
class Reload:
    """New settings: all of them with what can change live, and those that did; `definitions` as the file has them."""

    settings: Settings
    definitions: Settings
    live: Collection[str]


async def _nothing() -> None:
    pass


def _fine() -> bool:
    return True


def _none() -> None:
    pass


def _ignore(_: Reload) -> None:
    pass


def _ignore_rules(_: Settings) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Parts start in the order of the list. They stop by `closing`, and among equals the last to start is the first to
    stop. `is_remote`: it depends on a service that others run, and that may be away when this broker ends."""

    name: str
    closing: Closing = Closing.LAST
    start: Callable[[], Awaitable[object]] = _nothing
    drain: Callable[[], None] = _none
    stop: Callable[[], Awaitable[object]] = _nothing
    health: Health = _fine
    is_remote: bool = False
    counters: Counters = dict
    prepare_reload: Callable[[], None] = _none  # raises PenstockError: nothing is reloaded then
    reload: Callable[[Reload], None] = _ignore
    rules_changed: Callable[[Settings], None] = _ignore_rules  # every part knows the new settings by then

    @property
    def is_checked(self) -> bool:
        return self.health is not _fine


def in_closing_order(parts: Collection[Part]) -> list[Part]:
    last_started_first = list(reversed(list(parts)))
    return sorted(last_started_first, key=lambda part: part.closing)
