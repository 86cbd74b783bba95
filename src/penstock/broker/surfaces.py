"""Makes what people and clients see of a broker: MQTT listeners, the admin address, $SYS topics."""

from __future__ import annotations

from collections.abc import Callable

from penstock._ext.hub.connection import Connection
from penstock.access.base import Entrance
from penstock.broker.features import Features
from penstock.broker.foundation import Foundation
from penstock.broker.parts import Closing, Part, Reload
from penstock.listen.listener import Listener
from penstock.mqtt.frontend import ListenerContext, MqttFrontend
from penstock.operate.http.server import AdminServer, Check, package_version
from penstock.operate.sys_topics import SysPublisher
from penstock.settings import ListenerSettings, Settings

ReadCounters = Callable[[], dict[str, int | float]]


def make_frontend(base: Foundation, features: Features) -> MqttFrontend:
    return MqttFrontend(
        settings=base.settings,
        hub=base.hub,
        registry=features.registry,
        access=base.access,
        admission=base.admission,
        ownership=base.ownership,
        kinds=features.kinds,
        events=features.events,
        cluster=features.cluster,
        refusals=features.refusals,
    )


def frontend_part(frontend: MqttFrontend) -> Part:
    def reload(change: Reload) -> None:
        frontend.configure(change.settings)

    def rules_changed(_: Settings) -> None:
        frontend.access_changed()

    return Part(name="mqtt", drain=frontend.drain, reload=reload, rules_changed=rules_changed)


def make_listener(base: Foundation, frontend: MqttFrontend, settings: ListenerSettings) -> Listener:
    context = ListenerContext(settings, Entrance.of(settings, base.settings.access, "mqtt"))
    hub = base.hub

    def factory() -> Connection:
        return Connection(hub, frontend, context)

    return Listener(settings, factory, on_refused=frontend.socket_refused)


def listener_part(listener: Listener) -> Part:
    return Part(
        name=f"listener {listener.settings.name}",
        closing=Closing.LISTENERS,
        start=listener.start,
        drain=listener.stop_accepting,
        stop=listener.close,
        prepare_reload=listener.reload_certificates,
    )


def make_admin(
    base: Foundation, features: Features, checks: dict[str, Check], read_counters: ReadCounters
) -> AdminServer:
    return AdminServer(
        base.settings.admin,
        checks,
        read_counters,
        data_dir=base.settings.server.data_dir,
        commands=features.commands,
        readings=features.readings,
        lesser_checks=features.lesser_checks,
    )


def admin_part(admin: AdminServer) -> Part:
    return Part(name="admin", closing=Closing.ADMIN, start=admin.start, stop=admin.stop)


class SysTopics:
    """Publishes $SYS topics at the interval of the settings, which may change."""

    def __init__(self, base: Foundation, read_counters: ReadCounters) -> None:
        self._hub = base.hub
        self._loop = base.loop
        self._read_counters = read_counters
        self._publisher = self._make(base.settings.sys.interval)

    def part(self) -> Part:
        return Part(name="$SYS", closing=Closing.SYS_TOPICS, start=self.start, stop=self.stop, reload=self.reload)

    async def start(self) -> None:
        self._publisher.start()

    async def stop(self) -> None:
        await self._publisher.stop()

    def reload(self, change: Reload) -> None:
        if "sys.interval" in change.live:
            self._restarting = self._loop.create_task(self._restart(change.settings.sys.interval))

    async def _restart(self, interval: int) -> None:
        await self._publisher.stop()
        self._publisher = self._make(interval)
        self._publisher.start()

    def _make(self, interval: int) -> SysPublisher:
        def publish(topic: str, payload: bytes, retain: bool = True) -> None:
            self._hub.publish(topic, payload, retain=retain)

        return SysPublisher(publish, self._read_counters, interval, package_version())
