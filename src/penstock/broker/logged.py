"""Makes everything that a broker with a log has: kinds of subscriber, ingest, events, and the cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from penstock._ext.hub.connection import Session
from penstock.access.refusals import Refusals
from penstock.broker.clustering import Neighbourhood, Own, make_cluster
from penstock.broker.features import Features, kind_part, sessions_part
from penstock.broker.foundation import Foundation
from penstock.broker.ground import Ground
from penstock.broker.parts import Closing, Part, Reload
from penstock.broker.persistence import Persistence, application_names
from penstock.broker.restoring import Restoring, Step, Steps
from penstock.cluster.cluster import Alone, Cluster
from penstock.core.logging import get_logger
from penstock.data.frontend import DataFrontend
from penstock.ingest.ingest import Ingest
from penstock.ingest.retained import restore_retained
from penstock.mqtt.nodes.listener import NodeListener
from penstock.mqtt.nodes.relays import Relays
from penstock.mqtt.query_subscriber import QuerySubscriber
from penstock.mqtt.query_topics import QueryTopics
from penstock.mqtt.queue_consumers import MqttConsumers
from penstock.mqtt.queue_subscriber import QueueSubscriber
from penstock.mqtt.refusals import disconnect
from penstock.operate.http.server import Commands, Readings, package_version
from penstock.operate.retained import RetainedControl
from penstock.operate.sessions import SessionControl
from penstock.services.node import ClusterNode
from penstock.sessions.registry import SessionRegistry
from penstock.settings import Settings
from penstock.storage.log.base import FileLog, parse_properties
from penstock.storage.log.memory import MemoryLog
from penstock.subscribers.application.control import ApplicationControl
from penstock.subscribers.application.elsewhere import Elsewhere
from penstock.subscribers.base import Subscriber
from penstock.subscribers.kinds import Kinds
from penstock.subscribers.query.assembly import DataSubscription
from penstock.subscribers.queue.control import QueueControl
from penstock.subscribers.queue.definitions import configured
from penstock.subscribers.queue.manager import QueueManager
from penstock.subscribers.queue.remote import MakeRemote, NoRemoteQueues
from penstock_schema.topic_filter import split_share

log = get_logger("penstock.app")


@dataclass(frozen=True, slots=True)
class Logged:
    """`queries` is empty where data subscription is off; `query_kinds` are the kinds that it adds."""

    ground: Ground
    persistence: Persistence
    queues: QueueManager
    queries: tuple[DataSubscription, ...]
    query_kinds: tuple[Subscriber, ...]
    kinds: Kinds
    registry: SessionRegistry
    refusals: Refusals


@dataclass(frozen=True, slots=True)
class Clustered:
    """Parts and steps that a node adds when it is not alone."""

    cluster: Cluster | Alone = field(default_factory=Alone)
    before_sessions: Sequence[Step] = ()
    at_last: Sequence[Step] = ()
    parts: Sequence[Part] = ()
    read_hub: Callable[[dict[str, int]], dict[str, int]] = dict


def build_with_log(base: Foundation) -> Features:
    ground = Ground.of(base)
    return _build_in_cluster(ground) if ground.log.is_shared else _build_alone(ground)


def _build_alone(ground: Ground) -> Features:
    base = ground.base
    names = application_names(base.settings, base.names.prefix)
    made = _make(ground, Persistence.of(ground, names, Elsewhere()), None, NoRemoteQueues)
    return _features(made, Clustered())


def _build_in_cluster(ground: Ground) -> Features:
    base, node = ground.base, ground.node
    settings = base.settings
    names = application_names(settings, base.names.prefix)
    nearby = Neighbourhood.of(base, ground.log, node, names)
    persistence = Persistence.of(ground, names, nearby.neighbours)
    made = _make(ground, persistence, node, partial(Relays, node=node))
    own = Own(made.kinds, made.registry, ground.keeper, persistence.moves(made.kinds), persistence.delivery)
    cluster = make_cluster(base, node, nearby, own, has_own_queues=persistence.has_own_queues)
    listener = NodeListener(
        base.hub,
        made.queues,
        node,
        settings.cluster,
        kafka=settings.kafka.bootstrap_servers,
        receive_maximum=settings.limits.receive_maximum,
        program_for=base.access.program_for,
    )
    parts = [
        Part(name="cluster", closing=Closing.CLUSTER, stop=cluster.stop, counters=cluster.counters),
        node_listener_part(listener),
    ]
    return _features(made, Clustered(cluster, [cluster.start], [cluster.open], parts, listener.counters))


def node_listener_part(listener: NodeListener) -> Part:
    def reload(change: Reload) -> None:
        listener.reload(change.settings.limits.receive_maximum)

    def rules_changed(_: Settings) -> None:
        # Queues apply the rules in a task, so after every part has been called.
        listener.rules_changed()

    return Part(
        name="node listener",
        closing=Closing.NODE_LISTENER,
        start=listener.start,
        drain=listener.stop_accepting,
        stop=listener.close,
        reload=reload,
        rules_changed=rules_changed,
    )


def _make(ground: Ground, persistence: Persistence, node: ClusterNode | None, remote: MakeRemote) -> Logged:
    """`node` and `remote` where other nodes use the same log."""
    base, settings = ground.base, ground.base.settings
    queues = QueueManager(
        base.hub,
        ground.log,
        MemoryLog(max_topic_bytes=settings.durable_queues.ephemeral_bytes),
        ground.state,
        base.loop,
        settings=settings.durable_queues,
        definitions=configured(settings),
        prefix=base.names.prefix,
        lasting=MqttConsumers(base.hub.trie),
        node=node,
        remote=remote,
        on_buried=ground.events.dead_lettered,
    )
    queries = _make_queries(ground, node) if settings.data_subscription.enabled else ()
    query_kinds = tuple(QuerySubscriber(each, QueryTopics(each.service, ground.state)) for each in queries)
    more_kinds = base.make_kinds(ground.state, ground.log, persistence.dispatch.join)
    kinds = Kinds([QueueSubscriber(queues), *persistence.kinds, *query_kinds, *more_kinds])
    registry = SessionRegistry(
        base.hub,
        base.loop,
        ground.keeper,
        disconnect=disconnect,
        followers=[kinds, ground.events, ground.received],
        sessions=base.sessions,
    )
    refusals = Refusals(ground.events.denied, ground.events.refused)
    return Logged(ground, persistence, queues, queries, query_kinds, kinds, registry, refusals)


def _make_queries(ground: Ground, node: ClusterNode | None) -> tuple[DataSubscription]:
    base = ground.base

    def is_taken(name: str) -> bool:
        """Return whether clients share the ordinary topic of this name: asked when a query topic is made, rarely."""
        topic, shares = name.encode(), base.hub.trie.shares
        return any(split_share(one)[1] == topic for session in base.sessions.values() for one in shares(session))

    queries = DataSubscription(
        base.settings,
        ground.log,
        ground.state,
        base.access,
        base.loop,
        names=base.names,
        node=node,
        is_taken=is_taken,
    )
    return (queries,)


def _features(made: Logged, clustered: Clustered) -> Features:
    ground, base = made.ground, made.ground.base
    frontends = [
        DataFrontend(base.settings, each.service, base.access, version=package_version(), refusals=made.refusals)
        for each in made.queries
    ]
    parts = [
        *ground.log_parts(),
        *(Part(name="retention", start=each.protect) for each in made.queries),
        ground.node_part(),
        _ingest_part(made),
        _sessions_part(made, clustered),
        *(kind_part(kind) for kind in made.kinds if kind not in made.query_kinds),
        _definitions_part(made.queues),
        *(
            Part(
                name="data subscription",
                closing=Closing.DATA,
                start=each.start,
                stop=each.stop,
                counters=each.counters,
            )
            for each in made.queries
        ),
        *(Part(name=kind.name, closing=Closing.DATA, stop=kind.stop) for kind in made.query_kinds),
        *ground.events_parts(),
        Part(
            name="housekeeper",
            closing=Closing.HOUSEKEEPER,
            stop=ground.housekeeper.stop,
            counters=ground.housekeeper.counters,
        ),
        *clustered.parts,
    ]
    return Features(
        registry=made.registry,
        kinds=made.kinds,
        events=ground.events,
        refusals=made.refusals,
        cluster=clustered.cluster,
        queues=(made.queues,),
        parts=parts,
        late_parts=[_data_part(each) for each in frontends],
        listening={each.listener_settings.name: partial(getattr, each, "address") for each in frontends},
        commands=_commands(made),
        readings=_readings(made),
        read_hub=lambda: clustered.read_hub(base.hub.counters_now()),
        lesser_checks={"log": ground.log.check_readers},
    )


def _definitions_part(queues: QueueManager) -> Part:
    def reload(change: Reload) -> None:
        queues.spawn(queues.reload(configured(change.definitions), change.settings.durable_queues))

    return Part(name="queue definitions", reload=reload)


def _ingest_part(made: Logged) -> Part:
    """Publishes are logged, and acknowledged by the log, from its start on."""
    base, settings = made.ground.base, made.ground.base.settings
    ingest = Ingest(
        base.hub,
        made.ground.log,
        base.names.ingest_topic,
        settings.ingest.partitions,
        parse_properties(settings.ingest.properties),
        received=made.ground.received,
        retained_topic=base.names.retained_topic,
        queues=made.queues,
    )
    start = partial(
        ingest.start,
        settings.ingest.log,
        settings.ingest.hash_function,
        settings.log.max_pending_bytes,
        linger_ms=settings.log.linger_ms,
        ack_linger_ms=settings.log.ack_linger_ms,
    )
    return Part(name="ingest", closing=Closing.INGEST, start=start, stop=ingest.stop)


def _sessions_part(made: Logged, clustered: Clustered) -> Part:
    ground, base, registry = made.ground, made.ground.base, made.registry
    received, names = ground.received, base.names

    async def restore_messages() -> None:
        count = await restore_retained(base.hub, ground.log, names.retained_topic)
        log.info("retained messages restored", messages=count)

    async def restore_ids() -> None:
        await received.restore(registry.get)
        late = await received.restore_late(base.hub, ground.log, names.ingest_topic, registry.get)
        if late:
            log.info("messages of QoS 2 were in the log, and their packet ids were not stored yet", messages=late)

    steps = Steps(
        [*clustered.before_sessions, restore_messages],
        [restore_ids],
        [*clustered.at_last, ground.housekeeper.start],
    )
    restoring = Restoring(
        registry,
        ground.keeper,
        ground.state,
        made.kinds,
        program_for=base.access.program_for,
        steps=steps,
        drain_seconds=base.settings.server.drain_seconds,
    )
    return sessions_part(restoring)


def _data_part(frontend: DataFrontend) -> Part:
    def rules_changed(settings: Settings) -> None:
        if settings.access.disconnect_removed_users:
            frontend.disconnect_removed()

    return Part(
        name="data listener",
        closing=Closing.DATA,
        start=frontend.start,
        drain=frontend.stop_accepting,
        stop=frontend.close,
        counters=frontend.counters,
        prepare_reload=frontend.listener.reload_certificates,
        rules_changed=rules_changed,
    )


def _commands(made: Logged) -> Commands:
    log_provider, persistence = made.ground.log, made.persistence

    def end_session(session: Session) -> None:
        made.registry.kick(session, "deleted by an operator")

    return Commands(
        applications=ApplicationControl(persistence.overview, persistence.delivery, log_provider, end_session),
        sessions=SessionControl(made.registry, next(iter(persistence.stores), None)),
        retained=RetainedControl(made.ground.base.hub),
        queues=QueueControl(made.queues),
        read_cut=log_provider.cut if isinstance(log_provider, FileLog) else None,
    )


def _readings(made: Logged) -> Readings:
    overview = made.persistence.overview
    return Readings(
        clients=overview.samples,
        shares=overview.share_samples,
        groups=next((each.metrics.samples for each in made.queries), None),
        most_groups=made.ground.base.settings.data_subscription.group_metrics if made.queries else 0,
    )
