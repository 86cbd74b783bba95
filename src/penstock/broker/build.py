"""The composition root: picks the providers that the settings name, and makes a broker of its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.broker.check import check
from penstock.broker.features import Features, build_without_log
from penstock.broker.foundation import Foundation
from penstock.broker.health import Readiness, Ticker, checks_of, counters_of
from penstock.broker.life import Broker
from penstock.broker.logged import build_with_log
from penstock.broker.parts import Part
from penstock.broker.reload import Reloading
from penstock.broker.surfaces import (
    SysTopics,
    admin_part,
    frontend_part,
    listener_part,
    make_admin,
    make_frontend,
    make_listener,
)
from penstock.core.data_dir import prepare_data_dir
from penstock.settings.loader import Loaded
from penstock.subscribers.surroundings import MakeKind

MakeFrontend = Callable[[Foundation, Features], Part]
"""Makes a front-end beside MQTT and the data protocol; it starts with the listeners."""


def build_broker(
    loaded: Loaded, *, more_kinds: Iterable[MakeKind] = (), more_frontends: Iterable[MakeFrontend] = ()
) -> Broker:
    """`more_kinds` make kinds of subscriber beside those that the broker makes itself, `more_frontends` make further
    front-ends. Raises PenstockError where the settings, or the data directory, do not allow it."""
    settings = loaded.settings
    check(settings)
    base = Foundation.of(settings, more_kinds)
    prepare_data_dir(settings.server.data_dir)
    features = build_without_log(base) if settings.ingest.log == "none" else build_with_log(base)
    frontend = make_frontend(base, features)
    listeners = [make_listener(base, frontend, each) for each in settings.listeners]
    ticker = Ticker(base.hub, base.loop).part()
    parts = [
        base.part(),
        frontend_part(frontend),
        *features.parts,
        *map(listener_part, listeners),
        *features.late_parts,
        *(make(base, features) for make in more_frontends),
    ]
    readiness = Readiness()
    read_counters = counters_of(features.read_hub, [*parts, ticker])
    admin = make_admin(base, features, checks_of(readiness, parts), read_counters)
    parts += [admin_part(admin), ticker, SysTopics(base, read_counters).part()]
    reloading = Reloading(loaded, base.access, parts)
    base.access.listen(reloading.rules_changed)
    return Broker(
        base.hub,
        frontend,
        parts,
        listeners=listeners,
        listening=features.listening,
        admin=admin,
        readiness=readiness,
        reloading=reloading,
    )
