"""The composition root: picks the providers the settings name and wires the ports."""

from __future__ import annotations

import asyncio
import gc
import math
import signal
from collections.abc import Callable
from functools import partial
from importlib import import_module

import msgspec

from penstock._ext.hub.connection import Connection, Hub, Session
from penstock._ext.wire.packets import Reason, split_share
from penstock.access import AccessControl
from penstock.access.base import Entrance
from penstock.broker import providers
from penstock.broker.closing import Close, close_parts
from penstock.broker.memory import MemoryKeeper
from penstock.cluster.cluster import Cluster, check_node
from penstock.core.data_dir import prepare_data_dir
from penstock.core.errors import PenstockError
from penstock.core.logging import configure_logging, get_logger
from penstock.data.frontend import DataFrontend
from penstock.dispatch.persistent_clients import PersistentClients
from penstock.ingest.ingest import Ingest
from penstock.ingest.received import ReceivedIds
from penstock.ingest.retained import restore_retained
from penstock.listen.admission import Admission
from penstock.listen.listener import Listener
from penstock.mqtt.frontend import ListenerContext, MqttFrontend
from penstock.mqtt.nodes.listener import NodeListener
from penstock.mqtt.nodes.relays import Relays
from penstock.mqtt.query_topics import QueryTopics
from penstock.mqtt.queue_consumers import MqttConsumers
from penstock.operate.http.server import AdminServer, package_version
from penstock.operate.retained import RetainedControl
from penstock.operate.sessions import SessionControl
from penstock.operate.sys_topics import SysPublisher
from penstock.services.log_names import LogNames
from penstock.sessions.event_log import EventLog
from penstock.sessions.events import SessionEvents
from penstock.sessions.keeper import SessionKeeper
from penstock.sessions.registry import SessionRegistry
from penstock.settings import ListenerSettings, Settings
from penstock.settings.hub_limits import hub_limits
from penstock.settings.loader import Loaded
from penstock.settings.reload import apply_live, diff
from penstock.storage.log.base import parse_properties
from penstock.storage.log.embedded import EmbeddedLog
from penstock.storage.log.memory import MemoryLog
from penstock.storage.state.base import StoreError
from penstock.subscribers.application.names import ApplicationNames
from penstock.subscribers.device.delivery import DeviceDelivery
from penstock.subscribers.query.assembly import DataSubscription
from penstock.subscribers.queue.control import QueueControl
from penstock.subscribers.queue.definitions import configured
from penstock.subscribers.queue.manager import QueueManager
from penstock.subscribers.queue.remote import NoRemoteQueues

log = get_logger("penstock.app")

TICK_SECONDS = 0.5
DRAIN_POLL_SECONDS = 0.02
RETAINED_SWEEP = 10_000
RESTORE_SECONDS = 5.0


class Broker:
    """One node with everything in it."""

    def __init__(self, loaded: Loaded) -> None:
        check(loaded.settings)
        self._loaded = loaded
        settings = self.settings = loaded.settings
        self.names = LogNames(settings)
        loop = self._loop = asyncio.get_running_loop()
        self.hub = Hub(loop, match_cache=settings.limits.match_cache, **hub_limits(settings))
        self._memory = MemoryKeeper(lambda: self.hub.trie.subscription_bytes + self.hub.retained.bytes)
        self.access = AccessControl(settings.access, restrict=self._check_rules)
        self.hub.trie.checks_acl = self.access.has_rules
        self.access.listen(self._on_access_changed)
        self.admission = Admission(settings.limits, settings.listeners)
        prepare_data_dir(settings.server.data_dir)
        self.store = providers.make_store(settings)
        self.log = providers.make_log(settings, self.store)
        self.state = providers.make_state_store(settings, self.log, loop)
        node = settings.server.node_id if settings.log.provider == "kafka" else ""
        self.keeper = SessionKeeper(self.state, self.hub.trie, loop, node=node)
        self.registry = SessionRegistry(self.hub, loop, self.keeper)
        self.device_store = providers.make_device_store(settings, self.log)
        self.received = ReceivedIds(self.state, is_shared=bool(node), node=node)
        self.applications = self._make_applications()
        self.node = providers.make_node(settings, self.log, loop)
        self.housekeeper = providers.make_housekeeper(settings, self.log, self.node)
        if self.applications is not None and self.housekeeper is not None:
            self.applications.keep_house(self.housekeeper)
        self.queues = self._make_queues()
        self.frontend = MqttFrontend(
            settings=settings,
            hub=self.hub,
            registry=self.registry,
            access=self.access,
            admission=self.admission,
            applications=self.applications,
            queues=self.queues,
        )
        self.datasub = self._make_datasub()
        self.data_frontend = None if self.datasub is None else self._make_data_frontend(self.datasub)
        if self.datasub is not None:
            self.frontend.query_topics = QueryTopics(self.datasub.service, self.state)
        self.cluster = self.frontend.cluster = self._make_cluster()
        self.node_listener = self._make_node_listener()
        self.ingest = self._make_ingest()
        self.listeners = [self._make_listener(index) for index in range(len(settings.listeners))]
        self.registry.on_end = self._on_session_end
        self.registry.on_give_away = None if self.queues is None else self.queues.let_go
        self.admin = self._make_admin()
        self.events: SessionEvents | None = None
        if self.log is not None and settings.ingest.events:
            events = EventLog(self.log, node=settings.server.node_id, topic=self.names.events_topic)
            self.events = self.frontend.events = SessionEvents(events, self.registry)
            if self.queues is not None:
                self.queues.on_buried = self.events.dead_lettered
        self.sys_topics = self._make_sys_topics(settings)
        self._tick_handle: asyncio.TimerHandle | None = None
        self._lag = 0.0
        self._is_ready = False
        self._restoring: asyncio.Task[None] | None = None
        self.stopping = asyncio.Event()

    # ---- life ----

    async def start(self) -> None:
        self._handle_signals()  # before anybody can see that it listens
        await self.access.start()
        await self.start_log()
        await self.restore_sessions()
        if self.datasub is not None:
            await self.datasub.start()
            if self.frontend.query_topics is not None:
                self.frontend.query_topics.restore_when(self.datasub.until_started(), self.registry.get)
        if self.events is not None:
            self.events.start()
        if self.node_listener is not None:
            await self.node_listener.start()
        for listener in self.listeners:
            await listener.start()
        if self.data_frontend is not None:
            await self.data_frontend.start()
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
        if self.data_frontend is not None:
            log.info("listening", listener="data", address=self.data_address)

    @property
    def data_address(self) -> str:
        """Where consumers of query topics connect; empty where nobody does."""
        return "" if self.data_frontend is None else self.data_frontend.address

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
        for other in (self.data_frontend, self.node_listener):
            if other is not None:
                other.stop_accepting()
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
        seconds = self.settings.server.close_seconds if self._services() else math.inf
        await close_parts(self._parts(), seconds, self._find_away)
        if self.store is not None:
            self.store.close()
        await self.access.stop()
        log.info("stopped")

    def _parts(self) -> dict[str, Close | None]:
        """What waits for something when it is closed, in the order in which it is."""
        return {
            "$SYS": self.sys_topics.stop,
            **{f"listener {listener.settings.name}": listener.close for listener in self.listeners},
            "node listener": None if self.node_listener is None else self.node_listener.close,
            "admin": self.admin.stop,
            "data subscription": self._close_datasub,
            "ingest": None if self.ingest is None else self.ingest.stop,
            "events": None if self.events is None else self.events.stop,
            "housekeeper": None if self.housekeeper is None else self.housekeeper.stop,
            "cluster": None if self.cluster is None else self.cluster.stop,
            "persistent clients": None if self.applications is None else self.applications.stop,
            "queues": None if self.queues is None else self.queues.close,
            "sessions": self._close_sessions,
            "node": None if self.node is None else self.node.stop,
            "log": None if self.log is None else self.log.close,
        }

    def _services(self) -> list[Callable[[], bool | str]]:
        """Checks of what others run. A disk is waited for whatever it takes."""
        checks = [self._check_log] if self.settings.log.provider == "kafka" else []
        return checks + ([self._check_devices] if self.settings.device.store == "redis" else [])

    def _find_away(self) -> str:
        """Why a service cannot be reached, if one cannot."""
        return next((str(state) for check in self._services() if (state := check()) is not True), "")

    async def _close_datasub(self) -> None:
        if self.data_frontend is not None:
            await self.data_frontend.close()
        if self.frontend.query_topics is not None:
            await self.frontend.query_topics.close()
        if self.datasub is not None:
            await self.datasub.stop()

    async def start_log(self) -> None:
        """Publishes are logged, and acknowledged by the log, from here on."""
        if self.log is None or self.ingest is None:
            return
        await self.log.start()
        if self.datasub is not None:
            await self.datasub.protect()
        if self.node is not None:
            await self.node.start()
        ingest, limits = self.settings.ingest, self.settings.log
        times = {"linger_ms": limits.linger_ms, "ack_linger_ms": limits.ack_linger_ms}
        await self.ingest.start(ingest.log, ingest.hash_function, limits.max_pending_bytes, **times)

    async def restore_sessions(self) -> None:
        """Before anybody can connect. Where the store is a Kafka that cannot be reached, the broker serves clients
        without sessions meanwhile, and refuses the others."""
        self._restoring = asyncio.create_task(self._restore())
        gc.disable()  # everything made here stays
        try:
            await asyncio.wait([self._restoring], timeout=RESTORE_SECONDS)
            while not self._restoring.done() and self.state.check() is True:
                await asyncio.wait([self._restoring], timeout=DRAIN_POLL_SECONDS)
        finally:
            gc.enable()
        if self._restoring.done():
            self._restoring.result()
        else:
            log.warning("sessions cannot be restored yet", reason=self.state.check())
            self._restoring.add_done_callback(self._on_restored_late)

    @staticmethod
    def _on_restored_late(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("sessions cannot be restored", error=str(error))

    async def _restore(self) -> None:
        started = self._loop.time()
        prepare = None
        if self.queues is not None:
            await self.queues.start()
        if self.applications is not None:
            await self.applications.start()
            prepare = self.applications.restore
        if self.cluster is not None:
            await self.cluster.start()
        if self.log is not None:
            retained = await restore_retained(self.hub, self.log, self.names.retained_topic)
            log.info("retained messages restored", messages=retained)
        count = await self.registry.restore(self.access.program_for, prepare)
        if self.log is not None:
            await self.received.restore(self.registry.get)
            await self._restore_late()
        if self.queues is not None:
            await self.queues.restore_members(self.registry.get)
        if self.cluster is not None:
            await self.cluster.open()
        if self.housekeeper is not None:
            await self.housekeeper.start()
        log.info("sessions restored", sessions=count, seconds=round(self._loop.time() - started, 3))

    async def _restore_late(self) -> None:
        assert self.log is not None
        late = await self.received.restore_late(self.hub, self.log, self.names.ingest_topic, self.registry.get)
        if late:
            log.info("messages of QoS 2 were in the log, and their packet ids were not stored yet", messages=late)

    def _on_session_end(self, session: Session) -> None:
        if self.applications is not None:
            self.applications.ended(session)
        if self.queues is not None:
            self.queues.ended(session)
        if self.frontend.query_topics is not None:
            self.frontend.query_topics.ended(session)
        if self.events is not None:
            self.events.ended(session)
        if session.left_unreleased or session.received_sequence:
            self.received.forget(session.client_id)

    async def _close_sessions(self) -> None:
        """What is known of sessions is stored; a store that cannot be reached gets as long as a drain."""
        if self._restoring is not None and not self._restoring.done():
            self._restoring.cancel()
            await asyncio.wait([self._restoring])
        seconds = max(self.settings.server.drain_seconds, 1.0)
        for close in (self.keeper.close, self.state.close):
            try:
                async with asyncio.timeout(seconds):
                    await close()
            except (StoreError, TimeoutError) as error:
                log.error("the last changes of sessions are lost", reason=str(error) or self.state.check())

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
            if self.data_frontend is not None:
                self.data_frontend.listener.reload_certificates()
        except PenstockError as error:
            log.error("reload refused, the old settings stay", error=str(error))
            return
        self.access.apply(files)
        self._loaded = loaded
        self.settings = self.frontend.settings = settings
        self.hub.configure(**hub_limits(settings))
        self.admission.configure(settings.limits, settings.listeners)
        configure_logging(settings.logging.level, settings.logging.format)
        self._on_access_changed()
        if self.queues is not None:
            self.queues.spawn(self.queues.reload(configured(loaded.settings), settings.durable_queues))
        if "sys.interval" in live:
            self._loop.create_task(self._restart_sys_topics())
        log.info("reloaded", changed=sorted(live), needs_restart=needs_restart)

    def _on_access_changed(self) -> None:
        """Users or rules have changed: what is open, subscribed or connected goes by them from now on."""
        if self.node_listener is not None:
            self.node_listener.reload(self.settings.limits.receive_maximum)
        self.frontend.access_changed()
        if self.queues is not None:
            self.queues.spawn(self.queues.apply_rights())
        if self.datasub is not None:
            self.datasub.service.access_changed()
        if self.data_frontend is not None and self.settings.access.disconnect_removed_users:
            self.data_frontend.disconnect_removed()

    def _check_rules(self) -> None:
        """A client has rules where nobody had any."""
        self.hub.trie.checks_acl = True
        self.hub.trie.bump()

    async def _restart_sys_topics(self) -> None:
        await self.sys_topics.stop()
        self.sys_topics = self._make_sys_topics(self.settings)
        self.sys_topics.start()

    # ---- the rest ----

    def _make_applications(self) -> PersistentClients | None:
        settings = self.settings
        if self.log is None:
            return None  # without a log, APPLICATION clients are served as DEVICE clients
        names = ApplicationNames(
            self.names.prefix,
            client_id_validation=settings.application.client_id_validation,
            shared_topic_validation=settings.application.shared_topic_validation,
        )
        return PersistentClients(
            self.hub,
            self.log,
            self.state,
            names,
            settings=settings.application,
            devices=None if self.device_store is None else DeviceDelivery(self.hub, self.device_store, settings.device),
            ingest_topic=self.names.ingest_topic,
            dispatch_group=self.names.dispatch_group,
            scheduler=self._loop,
            end_session=lambda session: self.registry.kick(session, "deleted by an operator"),
            on_type=self.registry.type_changed,
            connected_until=self.keeper.connected_until,
        )

    def _make_ingest(self) -> Ingest | None:
        if self.log is None:
            return None
        ingest = self.settings.ingest
        return Ingest(
            self.hub,
            self.log,
            self.names.ingest_topic,
            ingest.partitions,
            parse_properties(ingest.properties),
            received=self.received,
            retained_topic=self.names.retained_topic,
            queues=self.queues,
        )

    def _make_queues(self) -> QueueManager | None:
        settings = self.settings
        if self.log is None:
            return None  # publishes to $queue/ are refused
        node = self.node if settings.log.provider == "kafka" else None
        return QueueManager(
            self.hub,
            self.log,
            MemoryLog(max_topic_bytes=settings.durable_queues.ephemeral_bytes),
            self.state,
            self._loop,
            settings=settings.durable_queues,
            definitions=configured(settings),
            prefix=self.names.prefix,
            lasting=MqttConsumers(self.hub.trie),
            node=node,
            remote=NoRemoteQueues if node is None else partial(Relays, node=node),
        )

    def _make_datasub(self) -> DataSubscription | None:
        if self.log is None or not self.settings.data_subscription.enabled:
            return None
        node = self.node if self.settings.log.provider == "kafka" else None
        return DataSubscription(
            self.settings,
            self.log,
            self.state,
            self.access,
            self._loop,
            names=self.names,
            node=node,
            is_taken=self._is_shared,
        )

    def _is_shared(self, name: str) -> bool:
        """Whether clients share the ordinary topic of this name: asked when a query topic is made, which is rare."""
        topic, shares = name.encode(), self.hub.trie.shares
        return any(split_share(one)[1] == topic for session in self.registry.sessions() for one in shares(session))

    def _make_data_frontend(self, datasub: DataSubscription) -> DataFrontend:
        refusals = self.frontend.refusals
        return DataFrontend(self.settings, datasub.service, self.access, version=package_version(), refusals=refusals)

    def _make_cluster(self) -> Cluster | None:
        settings = self.settings
        if settings.log.provider != "kafka" or self.log is None or self.node is None or self.applications is None:
            return None
        return Cluster(
            self.hub,
            self.log,
            members=self.node,
            registry=self.registry,
            applications=self.applications,
            node=settings.server.node_id,
            settings=settings.cluster,
            prefix=settings.services.prefix,
            has_own_queues=settings.device.store != "redis",
            ownership=self.frontend.ownership,
            program_for=self.access.program_for,
        )

    def _make_node_listener(self) -> NodeListener | None:
        settings = self.settings
        if self.cluster is None or self.queues is None or self.node is None:
            return None
        return NodeListener(
            self.hub,
            self.queues,
            self.node,
            settings.cluster,
            kafka=settings.kafka.bootstrap_servers,
            receive_maximum=settings.limits.receive_maximum,
            program_for=self.access.program_for,
        )

    def _make_admin(self) -> AdminServer:
        settings = self.settings
        admin = AdminServer(
            settings.admin,
            {
                "listeners": self._check_ready,
                "log": self._check_log,
                "sessions": self._check_sessions,
                "devices": self._check_devices,
            },
            self.counters,
            data_dir=settings.server.data_dir,
            sessions=SessionControl(self.registry, self.device_store),
            retained=RetainedControl(self.hub),
            queues=None if self.queues is None else QueueControl(self.queues),
        )
        if self.applications is not None:
            overview = admin.applications = self.applications.overview
            admin.read_clients, admin.read_shares = overview.samples, overview.share_samples
        if self.datasub is not None:
            admin.read_groups = self.datasub.metrics.samples
            admin.most_groups = settings.data_subscription.group_metrics
        admin.lesser_checks = {"log": self._check_readers}
        admin.read_cut = self.log.cut if isinstance(self.log, EmbeddedLog) else None
        return admin

    def _make_listener(self, index: int) -> Listener:
        settings = self.settings.listeners[index]
        context = ListenerContext(settings, Entrance.of(settings, self.settings.access, "mqtt"))
        hub, frontend = self.hub, self.frontend

        def factory() -> Connection:
            return Connection(hub, frontend, context)

        return Listener(settings, factory, on_refused=self.frontend.socket_refused)

    def _make_sys_topics(self, settings: Settings) -> SysPublisher:
        def publish(topic: str, payload: bytes, retain: bool = True) -> None:
            self.hub.publish(topic, payload, retain=retain)

        return SysPublisher(publish, self.counters, settings.sys.interval, package_version())

    def counters(self) -> dict[str, int | float]:
        """Everything that is counted, for metrics and $SYS."""
        of_hub = self.hub.counters_now()
        return {
            **(of_hub if self.node_listener is None else self.node_listener.counters(of_hub)),
            **self.admission.counters(),
            "sessions_expired": self.registry.expired_total,
            "sessions_taken_over": self.registry.taken_over_total,
            "loop_lag": self._lag,
            **({} if self.log is None else {f"log_{name}": value for name, value in self.log.counters().items()}),
            **({} if self.node is None else self.node.counters()),
            **({} if self.housekeeper is None else self.housekeeper.counters()),
            **({} if self.cluster is None else self.cluster.counters()),
            **({} if self.events is None else self.events.counters()),
            **({} if self.applications is None else self.applications.counters()),
            **({} if self.queues is None else self.queues.counters()),
            **({} if self.datasub is None else self.datasub.counters()),
            **({} if self.data_frontend is None else self.data_frontend.counters()),
        }

    def _check_ready(self) -> bool | str:
        return self._is_ready or "starting or draining"

    def _check_log(self) -> bool | str:
        return True if self.log is None else self.log.check()

    def _check_readers(self) -> bool | str:
        return True if self.log is None else self.log.check_readers()

    def _check_devices(self) -> bool | str:
        devices = None if self.applications is None else self.applications.devices
        return True if devices is None else devices.check()

    def _check_sessions(self) -> bool | str:
        return self.state.check() if self.keeper.is_restored else "sessions are not restored yet"

    def _schedule_tick(self) -> None:
        due = self._loop.time() + TICK_SECONDS
        self._tick_handle = self._loop.call_at(due, self._tick, due)

    def _tick(self, due: float) -> None:
        self._lag = max(0.0, self._loop.time() - due)
        self._schedule_tick()
        self.hub.tick()
        self.hub.sweep_retained(RETAINED_SWEEP)
        self._memory.look()


def check(settings: Settings) -> None:
    """What only the parts themselves can judge; `penstock check-config` asks it too. Raises SettingsError."""
    configured(settings)
    ingest, application = settings.ingest, settings.application
    is_kafka = settings.log.provider == "kafka"
    providers.check_service_topics(settings.services, is_kafka=is_kafka)
    topic = LogNames(settings).ingest_topic
    providers.check_topic("ingest.properties", ingest.properties, topic, ingest.partitions, is_kafka=is_kafka)
    for name, partitions in (("topic_properties", 1), ("shared_topic_properties", application.shared_partitions)):
        key, text = f"application.{name}", getattr(application, name)
        largest = settings.kafka.max_request_size
        providers.check_topic(key, text, "tbmq.msg.app", partitions, is_kafka=is_kafka, is_queue=True, largest=largest)
    if is_kafka:
        check_node(settings.server.node_id)
        import_module("penstock.storage.log.kafka.clients").check_clients(settings.kafka)
