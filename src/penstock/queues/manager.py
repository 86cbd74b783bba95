"""All durable queues of this broker, for every front-end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from penstock._ext.connection import DurableQueue, Hub, QueueGroup, Session
from penstock._ext.packets import Reason
from penstock._ext.segment import RecordPack
from penstock.core.logging import get_logger
from penstock.core.ports import Scheduler
from penstock.core.settings.queues import QueueManagerSettings
from penstock.logs.base import Appended, Consumer, Log, LogError
from penstock.partition.node import ClusterNode
from penstock.queues import state as names
from penstock.queues.dead_letters import REASONS
from penstock.queues.definitions import (
    QueueDefinition,
    QueueError,
    changed,
    check,
    decode,
    decode_ending,
    encode,
    ephemeral,
)
from penstock.queues.deletions import Deletions
from penstock.queues.fetcher import Fetcher
from penstock.queues.figures import Figures
from penstock.queues.following import Follower
from penstock.queues.memberships import MOST_PREFETCH, Membership, Memberships, read_properties
from penstock.queues.names import Address, is_dead_letters, parse_publish, parse_subscription, topic_of
from penstock.queues.ownership import Ownership
from penstock.queues.positions import parse_position, resolve
from penstock.queues.queue import Queue
from penstock.queues.readers import Readers
from penstock.queues.relays import Relays
from penstock.queues.returning import FindSession, Returning
from penstock.queues.state import MemberRecord, QueueState, member_key
from penstock.queues.upkeep import Upkeep
from penstock.stores.base import Change, StateStore, StoreError

log = get_logger("penstock.queues")

LOOKED_AT_ONCE = 50
QOS_0 = "a classic queue is consumed with QoS 1 or 2"


def _unable(session: Session) -> int:
    return int(Reason.IMPLEMENTATION_SPECIFIC_ERROR) if session.version == 5 else 0x80


class QueueManager:
    def __init__(
        self,
        hub: Hub,
        log_provider: Log,
        ephemeral_log: Log,
        store: StateStore,
        scheduler: Scheduler,
        *,
        settings: QueueManagerSettings,
        definitions: Iterable[QueueDefinition] = (),
        prefix: str = "",
        node: ClusterNode | None = None,
    ) -> None:
        """`node` says which queues' consumers this broker serves; None: it is alone."""
        self.hub = hub
        self.scheduler = scheduler
        self.settings = settings
        self.prefix = prefix
        self._node = node
        self.relays = None if node is None else Relays(self, node)
        self.ownership = Ownership(self, node)
        self.queues: dict[str, Queue] = {}
        self.state = QueueState(store, scheduler)
        self.figures = Figures()
        self._configured = {definition.name: definition for definition in definitions}
        self.durable_log = log_provider
        self._ephemeral_log = ephemeral_log
        self._readers = {id(each): Readers(each) for each in (log_provider, ephemeral_log)}
        self._fetchers = {id(each): Fetcher(each) for each in (log_provider, ephemeral_log)}
        self._lookers: dict[int, Consumer] = {}
        self._memberships = Memberships()
        self._tasks: set[asyncio.Task[None]] = set()
        self._upkeep = Upkeep(self)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.deletions = Deletions(self, "" if node is None else node.service_id)
        self._is_started = False
        self.is_closing = False
        self._follower: Follower | None = None
        if node is not None:
            self._follower = Follower(self, log_provider, node, prefix)
        self._returning = Returning(self, self._follower)
        self.on_buried: Callable[[str, str, str], None] | None = None

    def readers_of(self, log_provider: Log) -> Readers:
        return self._readers[id(log_provider)]

    def fetcher_of(self, log_provider: Log) -> Fetcher:
        return self._fetchers[id(log_provider)]

    def looker_of(self, log_provider: Log) -> Consumer:
        """A consumer that reads nothing: it asks where topics begin and end."""
        if id(log_provider) not in self._lookers:
            self._lookers[id(log_provider)] = log_provider.consumer(group="")
        return self._lookers[id(log_provider)]

    # ---- life ----

    async def start(self) -> None:
        """Everything is as it was left, and as the configuration says now."""
        definitions, stored, self._returning.stored = await self.state.load()
        topics = set(await self.durable_log.admin.list())
        await self._ephemeral_log.start()
        for name, value in definitions.items():
            try:
                ending = decode_ending(value)
                if ending is None:
                    self._open(decode(value))
                else:
                    await self.deletions.resume(ending, stored.pop(name, None))
            except QueueError as error:
                log.error("a stored queue cannot be opened", error=str(error))
        for definition in self._configured.values():
            await self.configure(definition)
        # Groups that are restored may want something at once; publishers come later.
        self.hub.serve_queues(None, self._on_queues, self._on_detach)
        known = [queue for queue in self.queues.values() if queue.topic in topics]
        for at in range(0, len(known), LOOKED_AT_ONCE):
            await asyncio.gather(*(queue.make(is_there=True) for queue in known[at : at + LOOKED_AT_ONCE]))
        for queue in self.queues.values():
            queue.is_current = self._node is None or not queue.definition.durable
            if queue.name in stored:
                queue.restore(stored[queue.name])
            queue.mind_depth()
        for queue in self.queues.values():
            for group in queue.groups.values():
                group.serve()  # dead letters that were not buried yet
        on_relay = None if self.relays is None else self.relays.settle
        self.hub.serve_queues(self._find_queue, self._on_queues, self._on_detach, on_relay)
        self._is_started = True
        if self._follower is not None:
            self.spawn(self._follower.run())
        self.ownership.start()
        self._upkeep.start()
        log.info("queues restored", queues=len(self.queues))

    async def configure(self, definition: QueueDefinition) -> None:
        """A queue of the configuration: made, or changed to what it says now."""
        known = self.queues.get(definition.name)
        if known is None and definition.name in self.deletions:
            self.deletions.make_after(definition)
            return
        if known is None:
            await self.create(definition)
            return
        try:
            wanted = changed(known.definition, definition)
        except QueueError as error:
            log.error("a queue keeps its stored definition", queue=definition.name, error=str(error))
            return
        if wanted != known.definition:
            try:
                await self.update(wanted)
            except LogError as error:
                log.error("a queue keeps its stored definition", queue=definition.name, error=str(error))

    async def reload(self, definitions: Iterable[QueueDefinition], settings: QueueManagerSettings) -> None:
        self.settings = settings
        self._configured = {definition.name: definition for definition in definitions}
        for definition in self._configured.values():
            await self.configure(definition)

    async def close(self) -> None:
        self.is_closing = True
        self._upkeep.stop()
        if self.relays is not None:
            self.relays.close_all(self._memberships)
        mine = [queue for queue in self.queues.values() if queue.is_current]
        for queue in mine:
            for group in queue.groups.values():
                if group.is_stream:
                    group.auto_commit()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._follower is not None:
            await self._follower.stop()
        for readers in self._readers.values():
            await readers.close()
        self.state.save([group.core for queue in mine for group in queue.groups.values()])
        for queue in list(self.queues.values()):
            await queue.close()
        for fetcher in self._fetchers.values():
            await fetcher.close()
        for looker in self._lookers.values():
            await looker.close()
        await self._ephemeral_log.close()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- queues ----

    def serves(self, queue: Queue) -> bool:
        """Only who serves a queue knows its groups: another node may take for settled what a new group has not read."""
        return self.ownership.owns(queue) and (queue.is_current or queue.core.is_stream)

    def turn_of(self, topic: str) -> asyncio.Lock:
        """Whoever makes a queue waits for who removes one of the same name."""
        lock = self._turns.get(topic)
        if lock is None:
            lock = self._turns[topic] = asyncio.Lock()
        return lock

    def _open(self, definition: QueueDefinition) -> Queue:
        queue = Queue(self, definition, self.durable_log if definition.durable else self._ephemeral_log)
        self.queues[definition.name] = queue
        self.ownership.note(queue)
        self._bind(queue)
        return queue

    def _bind(self, queue: Queue) -> None:
        self.hub.unbind_queue(queue.core)
        for binding in queue.definition.bindings:
            self.hub.bind_queue(queue.core, binding.encode())

    def find(self, name: str) -> Queue:
        queue = self.queues.get(name)
        if queue is None:
            raise QueueError(f"there is no queue {name[:100]!r}", "`penstock queue list` shows those there are.")
        return queue

    async def create(self, definition: QueueDefinition) -> Queue:
        check(definition)
        async with self.turn_of(topic_of(definition.name, self.prefix)):  # behind the end of an earlier one
            if definition.name in self.queues:
                raise QueueError(f"there is a queue {definition.name!r} already")
            self.deletions.check_free(definition.name)
            if len(self.queues) >= self.settings.max_queues:
                raise QueueError(f"there are {len(self.queues)} queues, as many as queue_manager.max_queues allows")
            queue = self._open(definition)
            if definition.durable:
                await self.store_definition(definition.name, encode(definition))
        await self._join_late(queue)
        return queue

    async def adopt(self, definition: QueueDefinition) -> None:
        """A queue that another node made. May be called again after it has raised LogError."""
        queue = self.queues.get(definition.name)
        if queue is None:
            if definition.name in self.deletions:
                raise LogError(f"the queue {definition.name!r} of before is still being deleted here")
            queue = self._open(definition)
            queue.is_current = False
        await self._join_late(queue)

    async def store_definition(self, name: str, definition: bytes | None) -> None:
        if self._follower is not None:
            self._follower.wrote(name, definition)
        self.state.store([(names.DEFINITIONS, name.encode(), definition)])
        if self._is_started:
            await self.state.flush()

    async def store_ending(self, name: str, mark: bytes | None, changes: Sequence[Change] = ()) -> None:
        """The definition of a queue that is being deleted, or none any more. Raises StoreError: not written then."""
        if self._follower is not None:
            self._follower.wrote(name, mark)
        await self.state.store_now([*changes, (names.DEFINITIONS, name.encode(), mark)])

    async def update(self, definition: QueueDefinition) -> None:
        """All of it, or nothing where it raises: QueueError, LogError."""
        check(definition)
        queue = self.find(definition.name)
        await queue.alter_log(definition)
        self.apply(queue, definition)
        if definition.durable:
            await self.store_definition(definition.name, encode(definition))

    def apply(self, queue: Queue, definition: QueueDefinition) -> None:
        queue.configure(definition)
        self._bind(queue)
        for group in queue.groups.values():
            group.core.wake()

    async def delete(self, name: str) -> bool:
        """The queue, its messages and its groups. False: nobody has it any more, its log goes later."""
        queue = self.find(name)
        async with self.turn_of(queue.topic):
            if self.queues.get(name) is not queue:
                return name not in self.deletions  # somebody else was quicker
            return await self.deletions.run(queue)

    async def forget(self, queue: Queue) -> None:
        """It is there no more; its log and its state are another's to remove."""
        del self.queues[queue.name]
        self.hub.unbind_queue(queue.core)
        for membership in self._memberships:
            membership.members = [pair for pair in membership.members if pair[0].queue is not queue]
            if self.relays is not None:
                self.relays.follow(membership)
        for group in queue.groups.values():
            group.is_removed = True  # what its consumers give back is not stored any more
            self.figures.keep_group(group)
        self.figures.keep_queue(queue)
        queue.is_deleted = True
        await queue.close()

    def _find_queue(self, topic: bytes, is_settlement: bool) -> DurableQueue | None:
        """Called by the hub: the queue a settlement names, or a new one for a topic that no queue is bound to."""
        try:
            name, _ = parse_publish(topic.decode())
        except ValueError:
            return None
        queue = self.queues.get(name)
        if queue is None and not is_settlement:
            queue = self._make_ephemeral(name)
        return None if queue is None else queue.core

    def _make_ephemeral(self, name: str) -> Queue | None:
        if not self.settings.auto_create or len(self.queues) >= self.settings.max_queues or is_dead_letters(name):
            return None
        if name in self.deletions:
            return None
        queue = self._open(self._configured.get(name) or ephemeral(name))
        self.spawn(self._join_late(queue))
        log.info("an ephemeral queue was made", queue=name)
        return queue

    # ---- the hub's side ----

    def append(self, core: DurableQueue, pack: RecordPack, on_done: Callable[[Appended | LogError], None]) -> None:
        core.owner.append_pack(pack, on_done)

    def save(self, groups: list[QueueGroup], on_done: Callable[[StoreError | None], None]) -> None:
        self.state.save(groups, on_done)
        for core in groups:
            core.owner.saved()
            core.owner.queue.update_floor()

    def ends_of(self, topics: Collection[str]) -> dict[str, int]:
        """How far the logs of these are durable, of those that outlive the process."""
        if not topics:
            return {}
        return {
            queue.topic: queue.end
            for queue in self.queues.values()
            if queue.topic in topics and queue.definition.durable
        }

    def tell_buried(self, queue: str, letters: Iterable[tuple[bytes, int]]) -> None:
        """Messages, by topic and reason, are dead letters now."""
        if self.on_buried is not None:
            for topic, reason in letters:
                self.on_buried(queue, topic.decode(errors="replace"), REASONS[reason])

    def _on_queues(self, groups: list[QueueGroup]) -> None:
        for core in groups:
            core.owner.serve()

    def _on_detach(self, session: Session) -> None:
        """A client without a session gives back what it has; a persistent one has until the visibility timeout."""
        if session.expiry_interval == 0:
            self.ended(session)

    # ---- subscriptions ----

    async def subscribe(
        self,
        session: Session,
        topic_filter: str,
        *,
        qos: int,
        identifier: int,
        properties: Iterable[tuple[str, str]] = (),
        receive_maximum: int = MOST_PREFETCH,
        is_relayed: bool = False,
    ) -> tuple[int, str]:
        """The client becomes a consumer; the QoS granted, or the reason code of the refusal and its words.
        `is_relayed`: it is another node, for a client of its own, and only of queues that are served here."""
        try:
            address = parse_subscription(topic_filter)
            record, position = read_properties(session, properties, qos, identifier, receive_maximum)
            if position:
                parse_position(position)
        except ValueError as error:
            log.info("a subscription to a queue is refused", client_id=session.client_id, error=str(error))
            return int(Reason.TOPIC_FILTER_INVALID), str(error)
        if not is_relayed and not self._is_there(address) and self._make_ephemeral(address.queue) is None:
            return self._await_dead_letters(address, session, topic_filter, record, position)
        unable = _unable(session)
        if not await self.ownership.joined():
            return unable, "this node has not joined the cluster yet"
        membership = Membership(session, topic_filter, address, record, position, [], is_relayed)
        queues = self.queues_for(membership)
        if qos == 0 and any(queue.definition.type == "classic" for queue in queues):
            return unable, QOS_0
        here = [queue for queue in queues if self.ownership.owns(queue)]
        if is_relayed and not here and not address.spans_queues:
            return unable, "it is served by another node now"
        if not await self.ownership.serve(here):
            return unable, "the queue is being handed to another node: try again"
        self.unsubscribe(session, topic_filter, forget=False)
        self._memberships.add(membership)
        try:
            for queue in here:
                await self.join(membership, queue)
            refusal = None if self.relays is None else await self.relays.open(membership)
        except LogError as error:
            log.warning("a queue cannot be consumed now", client_id=session.client_id, error=str(error))
            self.unsubscribe(session, topic_filter)
            return int(Reason.UNSPECIFIED_ERROR), "the queue cannot be consumed now"
        if refusal is not None:
            log.info("a queue of another node cannot be consumed", client_id=session.client_id, error=refusal[1])
            self.unsubscribe(session, topic_filter)
            return refusal
        self._store_member(membership)
        return qos, ""

    def _await_dead_letters(
        self, address: Address, session: Session, topic_filter: str, record: MemberRecord, position: str
    ) -> tuple[int, str]:
        """Dead letters may be waited for before there are any; other queues that are not there are refused."""
        if not is_dead_letters(address.queue) or address.queue.removeprefix("$dlq/") not in self.queues:
            if self.settings.auto_create:
                return int(Reason.QUOTA_EXCEEDED), "there is no such queue, and one more cannot be made"
            return int(Reason.TOPIC_FILTER_INVALID), "there is no such queue"
        if record.qos == 0:
            return _unable(session), QOS_0
        membership = Membership(session, topic_filter, address, record, position, [])
        self._memberships.add(membership)
        self._store_member(membership)
        return record.qos, ""

    def _store_member(self, membership: Membership) -> None:
        session = membership.session
        if session.expiry_interval:
            key = member_key(session.client_id, membership.topic_filter)
            self.state.store([(names.MEMBERS, key, msgspec.json.encode(membership.record))])

    def queues_for(self, membership: Membership) -> list[Queue]:
        """Those there are now, wherever they are served. Ephemeral ones are each node's own."""
        address = membership.address
        if not address.spans_queues:
            found = [self.queues[address.queue]] if address.queue in self.queues else []
        else:
            is_dead = is_dead_letters(address.queue)
            found = [queue for name, queue in self.queues.items() if is_dead_letters(name) == is_dead]
        return [queue for queue in found if queue.definition.durable] if membership.is_relayed else found

    def memberships(self) -> Iterable[Membership]:
        return self._memberships

    def is_member(self, membership: Membership) -> bool:
        return self._memberships.has(membership)

    def memberships_of(self, session: Session) -> list[Membership]:
        return [membership for membership in self._memberships.of(session.client_id) if membership.session is session]

    async def join(self, membership: Membership, queue: Queue) -> None:
        await queue.make()
        record, session = membership.record, membership.session
        start = None
        if membership.position and queue.core.is_stream:
            position = parse_position(membership.position)
            start = await resolve(queue.log, queue.topic, position, queue.head, queue.tail)
        if not self._memberships.has(membership) or membership.has_joined(queue) or not membership.may_consume:
            return  # it has unsubscribed meanwhile, or somebody else was quicker, or the rules have changed
        group = queue.group(
            record.group or session.client_id, membership.address.filter, start=start, auto_commit=record.auto_commit
        )
        if start is not None:
            await group.seek(start)
        member = group.join(
            session,
            qos=record.qos,
            prefetch=record.prefetch,
            identifier=record.identifier,
            settles_by_ack=record.settles_by_ack,
            is_lasting=session.expiry_interval > 0,
        )
        membership.members.append((group, member))

    async def _join_late(self, queue: Queue) -> None:
        """Those who consume all queues, or waited for this one."""
        for membership in self._memberships:
            address = membership.address
            waits = address.queue == queue.name or (
                address.spans_queues and is_dead_letters(address.queue) == is_dead_letters(queue.name)
            )
            if waits and not (membership.is_relayed and not queue.definition.durable):
                await self.ownership.follow(membership, [queue])

    def unsubscribe(self, session: Session, topic_filter: str, *, forget: bool = True) -> None:
        membership = self._memberships.remove(session.client_id, topic_filter)
        if membership is None:
            return
        if self.relays is not None:
            self.relays.close(membership)
        for group, member in membership.members:
            group.leave(member)
        if forget and session.expiry_interval:
            self.state.store([(names.MEMBERS, member_key(session.client_id, topic_filter), None)])

    def ended(self, session: Session) -> None:
        """Its subscriptions are gone with it."""
        for membership in self.memberships_of(session):
            self.unsubscribe(session, membership.topic_filter)

    def withdraw(self, session: Session, topic_filter: str) -> None:
        """As `unsubscribe`, of this session only: another one of the client may have subscribed since."""
        for membership in self._memberships.of(session.client_id):
            if membership.session is session and membership.topic_filter == topic_filter:
                self.unsubscribe(session, topic_filter)

    async def apply_rights(self, memberships: Iterable[Membership] | None = None) -> None:
        """Rules have changed: who may not consume a queue any more gets nothing of it, who may again goes on."""
        for membership in self._memberships if memberships is None else memberships:
            if not membership.may_consume:
                members, membership.members = membership.members, []
                for group, member in members:
                    group.leave(member)
                if self.relays is not None:
                    self.relays.close(membership)
            elif not membership.members and self._is_there(membership.address):
                await self.ownership.follow(membership, self.queues_for(membership))

    def attached(self, session: Session, receive_maximum: int) -> None:
        """A client is back, perhaps with another version of MQTT, or with other rights."""
        if session.acl is not None:
            self.spawn(self.apply_rights(self._memberships.of(session.client_id)))
        for membership in self._memberships.of(session.client_id):
            for group, member in membership.members:
                member.core.settles_by_ack = membership.record.settles_by_ack or session.version != 5
                if not group.is_stream:
                    member.core.prefetch = min(membership.record.prefetch, max(receive_maximum, 1))
            if self.relays is not None:
                self.relays.close(membership)
                self.spawn(self.ownership.follow(membership, ()))
        if self._node is not None:
            self.spawn(self._returning.take_up(session))

    def let_go(self, session: Session) -> None:
        """The client and its session are at another node now; what it asked for is known there."""
        for membership in self.memberships_of(session):
            self.unsubscribe(session, membership.topic_filter, forget=False)

    async def restore_members(self, find_session: FindSession) -> None:
        await self._returning.restore(find_session)

    async def consume(self, membership: Membership) -> None:
        """A subscription that was granted before."""
        self.unsubscribe(membership.session, membership.topic_filter, forget=False)
        self._memberships.add(membership)
        if self._node is None or await self._node.joined(0):  # else with all others, when it has
            await self.ownership.follow(membership, self.queues_for(membership))

    def _is_there(self, address: Address) -> bool:
        return address.spans_queues or address.queue in self.queues

    # ---- figures ----

    def counters(self) -> dict[str, int | float]:
        return self.figures.read(self.queues) | ({} if self.relays is None else self.relays.counters())
