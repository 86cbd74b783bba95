"""The composition root: reads the settings, picks the providers, wires the ports, runs the loop."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import cast

import msgspec
import uvloop

from penstock._ext.connection import Connection, Hub, Session
from penstock._ext.packets import Reason
from penstock.access import AccessControl
from penstock.admin.server import AdminServer, package_version
from penstock.admin.sys_topics import SysPublisher
from penstock.core.errors import PenstockError, SettingsError
from penstock.core.logging import configure_logging, get_logger
from penstock.core.ports import AuthExchangeFactory, Scheduler
from penstock.core.settings import ListenerSettings, Settings
from penstock.core.settings.checks import is_anonymous_allowed
from penstock.core.settings.loader import Loaded
from penstock.core.settings.reload import diff
from penstock.dispatch.ingest import Ingest
from penstock.frontends.mqtt.admission import Admission
from penstock.frontends.mqtt.frontend import ListenerContext, MqttFrontend
from penstock.frontends.mqtt.listener import Listener
from penstock.logs.base import Log, LogError, parse_properties
from penstock.logs.embedded import EmbeddedLog
from penstock.logs.memory import MemoryLog
from penstock.logs.topics import TopicConfig, check_properties
from penstock.partition.node import ClusterNode
from penstock.partition.settings import parse_settings
from penstock.session.registry import SessionRegistry
from penstock.stores.lmdb_kv import LmdbStore
from penstock.stores.memory import MemorySessionStore

log = get_logger("penstock.app")

TICK_SECONDS = 0.5
DRAIN_POLL_SECONDS = 0.02
RETAINED_SWEEP = 10_000


Announce = Callable[[Sequence[ListenerSettings], str, str], str]


def run(loaded: Loaded, announce: Announce) -> int:
    """Runs the broker until a signal ends it; the exit code. `announce` tells a person where it listens."""
    return uvloop.run(_main(loaded, announce))


async def _main(loaded: Loaded, announce: Announce) -> int:
    broker = Broker(loaded)
    starting = asyncio.ensure_future(broker.start())
    stopping = asyncio.ensure_future(broker.stopping.wait())
    try:
        # A signal ends a start that takes long as well.
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait([starting])
            await broker.close()
            return 0
        starting.result()
    except BaseException:
        await broker.close()
        raise
    sys.stdout.write(announce(broker.bound_listeners(), broker.settings.server.data_dir, broker.admin.address))
    sys.stdout.flush()
    await broker.run_until_stopped()
    return 0


class Broker:
    """One node with everything in it."""

    def __init__(self, loaded: Loaded) -> None:
        check(loaded.settings)
        self._loaded = loaded
        self.settings = loaded.settings
        settings = self.settings
        loop = asyncio.get_running_loop()
        self._loop = loop
        self.hub = Hub(loop, match_cache=settings.limits.match_cache, **hub_limits(settings))
        self.access = AccessControl(settings.access)
        self.hub.trie.checks_acl = bool(settings.access.acl_file)
        self.admission = Admission(settings.limits, settings.listeners)
        self.registry = SessionRegistry(self.hub, MemorySessionStore[Session](), loop)
        self.frontend = MqttFrontend(
            settings=settings,
            hub=self.hub,
            registry=self.registry,
            access=self.access,
            admission=self.admission,
            enhanced=load_exchanges(settings),
        )
        prepare_data_dir(settings.server.data_dir)
        self.store = make_store(settings)
        self.log = make_log(settings, self.store)
        self.node = make_node(settings, self.log, loop)
        self.ingest = None if self.log is None else make_ingest(settings, self.hub, self.log)
        self.listeners = [self._make_listener(index) for index in range(len(settings.listeners))]
        self.admin = AdminServer(
            settings.admin, {"listeners": self._check_ready, "log": self._check_log}, self.counters
        )
        self.sys_topics = self._make_sys_topics(settings)
        self._tick_handle: asyncio.TimerHandle | None = None
        self._lag = 0.0
        self._is_ready = False
        self.stopping = asyncio.Event()

    # ---- life ----

    async def start(self) -> None:
        self._handle_signals()  # before anybody can see that it listens
        await self.start_log()
        for listener in self.listeners:
            await listener.start()
        await self.admin.start()
        self._schedule_tick()
        self.sys_topics.start()
        self._is_ready = True
        # What is here now stays: the collector need not look at it again, and looks less often at the rest.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        for listener in self.listeners:
            log.info("listening", listener=listener.settings.name, address=listener.address)

    def bound_listeners(self) -> list[ListenerSettings]:
        """With the addresses they really got."""
        return [msgspec.structs.replace(listener.settings, address=listener.address) for listener in self.listeners]

    async def run_until_stopped(self) -> None:
        await self.stopping.wait()
        await self.drain()
        await self.close()

    def stop(self) -> None:
        self.stopping.set()

    async def drain(self) -> None:
        """No new clients; what is in flight is finished, within the limit; MQTT 5 clients are told."""
        self._is_ready = False
        self.frontend.is_draining = True
        for listener in self.listeners:
            listener.stop_accepting()
        log.info("draining", connections=self.hub.connection_count, seconds=self.settings.server.drain_seconds)
        deadline = self._loop.time() + self.settings.server.drain_seconds
        while self.hub.has_work() and self._loop.time() < deadline:  # noqa: ASYNC110  # the compiled side has no events
            await asyncio.sleep(DRAIN_POLL_SECONDS)
        for connection in self.hub.connections():
            connection.disconnect(Reason.SERVER_SHUTTING_DOWN, "the broker is shutting down")
        while self.hub.connection_count and self._loop.time() < deadline:  # noqa: ASYNC110  # as above
            await asyncio.sleep(DRAIN_POLL_SECONDS)

    async def close(self) -> None:
        if self._tick_handle is not None:
            self._tick_handle.cancel()
        await self.sys_topics.stop()
        for listener in self.listeners:
            await listener.close()
        await self.admin.stop()
        if self.ingest is not None:
            await self.ingest.stop()
        if self.node is not None:
            await self.node.stop()
        if self.log is not None:
            await self._close_log(self.log)
        if self.store is not None:
            self.store.close()
        self.access.close()
        log.info("stopped")

    async def start_log(self) -> None:
        """Publishes are logged, and acknowledged by the log, from here on."""
        if self.log is None or self.ingest is None:
            return
        await self.log.start()
        if self.node is not None:
            await self.node.start()
        ingest, limit = self.settings.ingest, self.settings.log.max_pending_bytes
        await self.ingest.start(ingest.log, ingest.hash_function, limit)

    async def _close_log(self, log_provider: Log) -> None:
        """The embedded log is closed whatever it takes; one that cannot be reached gets as long as a drain."""
        if log_provider.check() is True:
            await log_provider.close()
            return
        try:
            async with asyncio.timeout(max(self.settings.server.drain_seconds, 1.0)):
                await log_provider.close()
        except TimeoutError:
            log.warning("the log did not close in time", reason=log_provider.check())

    # ---- signals ----

    def _handle_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self.stop)
        self._loop.add_signal_handler(signal.SIGHUP, self.reload)

    def reload(self) -> None:
        """SIGHUP: everything that can change live, changes; when anything is bad, everything stays as it was."""
        try:
            loaded = self._loaded.reload()
            live, needs_restart = diff(self.settings, loaded.settings)
            settings = apply_live(self.settings, live)
            files = self.access.prepare(settings.access)
            for listener in self.listeners:
                listener.reload_certificates()
        except PenstockError as error:
            log.error("reload refused, the old settings stay", error=str(error))
            return
        self.access.apply(files)
        self._loaded = loaded
        self.settings = self.frontend.settings = settings
        self.hub.configure(**hub_limits(settings))
        self.admission.configure(settings.limits, settings.listeners)
        configure_logging(settings.logging.level, settings.logging.format)
        for session in self.registry.sessions():
            session.acl = self.access.program_for(session.client_id, session.username)
        self.hub.trie.checks_acl = bool(settings.access.acl_file)
        self.hub.trie.bump()
        if "sys.interval" in live:
            self._loop.create_task(self._restart_sys_topics())
        log.info("reloaded", changed=sorted(live), needs_restart=needs_restart)

    async def _restart_sys_topics(self) -> None:
        await self.sys_topics.stop()
        self.sys_topics = self._make_sys_topics(self.settings)
        self.sys_topics.start()

    # ---- the rest ----

    def _make_listener(self, index: int) -> Listener:
        settings = self.settings.listeners[index]
        context = ListenerContext(settings, is_anonymous_allowed(settings, self.settings.access))
        hub, frontend = self.hub, self.frontend

        def factory() -> Connection:
            return Connection(hub, frontend, context)

        return Listener(settings, factory, on_refused=self.admission.count_refused)

    def _make_sys_topics(self, settings: Settings) -> SysPublisher:
        def publish(topic: str, payload: bytes, retain: bool = True) -> None:
            self.hub.publish(topic, payload, retain=retain)

        return SysPublisher(publish, self.counters, settings.sys.interval, package_version())

    def counters(self) -> dict[str, int | float]:
        """Everything that is counted, for metrics and $SYS."""
        return {
            **self.hub.counters_now(),
            **self.admission.counters(),
            "sessions_expired": self.registry.expired_total,
            "sessions_taken_over": self.registry.taken_over_total,
            "loop_lag": self._lag,
            **({} if self.log is None else {f"log_{name}": value for name, value in self.log.counters().items()}),
            **({} if self.node is None else self.node.counters()),
        }

    def _check_ready(self) -> bool | str:
        return self._is_ready or "starting or draining"

    def _check_log(self) -> bool | str:
        return True if self.log is None else self.log.check()

    def _schedule_tick(self) -> None:
        due = self._loop.time() + TICK_SECONDS
        self._tick_handle = self._loop.call_at(due, self._tick, due)

    def _tick(self, due: float) -> None:
        self._lag = max(0.0, self._loop.time() - due)
        self._schedule_tick()
        self.hub.tick()
        self.hub.sweep_retained(RETAINED_SWEEP)


def check(settings: Settings) -> None:
    """What only the parts themselves can judge; `penstock check-config` asks it too. Raises SettingsError."""
    parse_settings(settings.queue)
    ingest = settings.ingest
    try:
        properties = parse_properties(ingest.properties)
        if settings.log.provider != "kafka":
            check_properties(properties)
            TopicConfig.of(ingest.topic, ingest.partitions, properties)
    except (ValueError, LogError) as error:
        raise SettingsError(f"ingest.properties = {ingest.properties!r} is not allowed: {error}") from None
    if settings.log.provider == "kafka":
        import_module("penstock.logs.kafka.settings").producer_config(settings.kafka)


def make_store(settings: Settings) -> LmdbStore | None:
    """The key-value state of the embedded log."""
    if settings.ingest.log == "none" or settings.log.provider != "embedded":
        return None
    return LmdbStore(Path(settings.server.data_dir) / "state")


def make_log(settings: Settings, store: LmdbStore | None) -> Log | None:
    """The provider of the settings; none where nothing is logged."""
    if settings.ingest.log == "none":
        return None
    # Publishers wait at the setting; what they had sent before they were stopped still finds room.
    room = 2 * settings.log.max_pending_bytes
    if settings.log.provider == "memory":
        return MemoryLog(max_pending_bytes=room)
    if settings.log.provider == "kafka":
        # imported here: who has no Kafka does not wait for its library
        return cast(Log, import_module("penstock.logs.kafka.log").KafkaLog(settings.kafka))
    assert store is not None
    return EmbeddedLog(
        settings.server.data_dir,
        store.space("groups"),
        fsync=settings.log.fsync,
        fsync_interval_ms=round(settings.log.fsync_interval * 1000),
        max_pending_bytes=room,
    )


def make_node(settings: Settings, log_provider: Log | None, scheduler: Scheduler) -> ClusterNode | None:
    """This process among the others: on Kafka there may be others, on a log of its own it is alone."""
    queues = parse_settings(settings.queue)
    if log_provider is None:
        return None
    is_clustered = settings.log.provider == "kafka"
    return ClusterNode(log_provider, queues, settings.server.node_id, scheduler, is_clustered=is_clustered)


def make_ingest(settings: Settings, hub: Hub, log_provider: Log) -> Ingest:
    ingest = settings.ingest
    return Ingest(hub, log_provider, ingest.topic, ingest.partitions, parse_properties(ingest.properties))


def hub_limits(settings: Settings) -> dict[str, int | float | str | bool]:
    """The limits the compiled hub knows, by its names."""
    limits, mqtt = settings.limits, settings.mqtt
    names = (
        "max_packet_size",
        "connect_packet_size",
        "max_topic_levels",
        "max_topic_length",
        "max_user_properties",
        "receive_maximum",
        "max_inflight",
        "max_queued_messages",
        "max_queued_bytes",
        "queue_overflow",
        "topic_alias_maximum",
        "max_retained_messages",
        "max_retained_bytes",
        "write_high_watermark",
        "write_low_watermark",
        "connect_timeout",
        "backpressure_seconds",
    )
    return {
        **{name: getattr(limits, name) for name in names},
        "maximum_qos": mqtt.maximum_qos,
        "retain_available": mqtt.retain_available,
        "shared_strategy": mqtt.shared_strategy,
    }


def apply_live(old: Settings, live: dict[str, object]) -> Settings:
    """The old settings with those of the new that need no restart."""
    sections: dict[str, dict[str, object]] = {}
    for key, value in live.items():
        section, _, name = key.partition(".")
        if section != "listeners":
            sections.setdefault(section, {})[name] = value
    changed = {name: msgspec.structs.replace(getattr(old, name), **values) for name, values in sections.items()}
    return msgspec.structs.replace(old, **changed)


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


def prepare_data_dir(path: str) -> None:
    try:
        Path(path).mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(
            f"server.data_dir {path} cannot be made: {error.strerror}",
            "Set server.data_dir (or --data-dir) to a directory the broker may write.",
        ) from error
