"""All durable queues of this broker, for every front-end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from penstock._ext.hub.connection import DurableQueue, Hub, QueueGroup
from penstock.core.logging import get_logger
from penstock.core.ports import Scheduler
from penstock.core.refusal import Refusal, Refused
from penstock.core.tasks import TaskSet
from penstock.services.node import ClusterNode
from penstock.settings.queues import DurableQueueSettings
from penstock.storage.log.base import Consumer, Log, LogError
from penstock.storage.log.waiting import until_available
from penstock.storage.state.base import StateStore, StoreError
from penstock.subscribers.queue import state as names
from penstock.subscribers.queue.abandoned import Life, client_left
from penstock.subscribers.queue.ages import Ages
from penstock.subscribers.queue.consumer import Client, ConsumerTerms, LastingConsumers, Outlet
from penstock.subscribers.queue.dead_letters import REASONS
from penstock.subscribers.queue.definitions import QueueDefinition, QueueError, changed, decode, decode_ending
from penstock.subscribers.queue.deletions import Deletions
from penstock.subscribers.queue.fetcher import Fetcher
from penstock.subscribers.queue.figures import Figures
from penstock.subscribers.queue.first_use import FirstUse
from penstock.subscribers.queue.following import Follower
from penstock.subscribers.queue.memberships import (
    QOS_0,
    Membership,
    Memberships,
    check_kind,
)
from penstock.subscribers.queue.names import Address, is_dead_letters, parse_publish
from penstock.subscribers.queue.ownership import Ownership
from penstock.subscribers.queue.positions import parse_position, resolve
from penstock.subscribers.queue.queue import Queue
from penstock.subscribers.queue.readers import Readers
from penstock.subscribers.queue.remote import MakeRemote, NoRemoteQueues
from penstock.subscribers.queue.returning import FindClient, Returning
from penstock.subscribers.queue.rights import apply_rights, check_move, identity_of
from penstock.subscribers.queue.state import QueueState, member_key
from penstock.subscribers.queue.upkeep import Upkeep
from penstock.subscribers.queue.writing import DefinitionWriter

log = get_logger("penstock.queues")

LOOKED_AT_ONCE = 50

OnBuried = Callable[[str, str, str], None]
"""Called with the queue, the topic and the reason of a message that is a dead letter now."""


def ignore_buried(queue: str, topic: str, reason: str) -> None:
    """Where no events are recorded."""


class QueueManager:
    def __init__(
        self,
        hub: Hub,
        log_provider: Log,
        ephemeral_log: Log,
        store: StateStore,
        scheduler: Scheduler,
        *,
        settings: DurableQueueSettings,
        definitions: Iterable[QueueDefinition] = (),
        prefix: str = "",
        lasting: LastingConsumers,
        node: ClusterNode | None = None,
        remote: MakeRemote = NoRemoteQueues,
        on_buried: OnBuried = ignore_buried,
    ) -> None:
        """`node` says which queues' consumers this broker serves; None: it is alone. `remote` makes the port to queues
        that other nodes serve; `lasting` knows the consumers of sessions, `on_buried` is called for dead letters."""
        self.hub = hub
        self.scheduler = scheduler
        self.settings = settings
        self.prefix = prefix
        self._node = node
        self.remote = remote(self)
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
        self.ages = Ages()
        self._memberships = Memberships()
        self._tasks = TaskSet()
        self.upkeep = Upkeep(self)
        self.first_use = FirstUse(self)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.deletions = Deletions(self, "" if node is None else node.service_id)
        self.is_closing = False
        self._follower: Follower | None = None
        if node is not None:
            self._follower = Follower(self, log_provider, node, prefix)
        self.definitions = DefinitionWriter(self, self._follower)
        self._returning = Returning(self, self._follower, lasting)
        self._on_buried = on_buried

    @property
    def is_alone(self) -> bool:
        return self._node is None

    @property
    def has_others(self) -> bool:
        """Whether other brokers use the same store now."""
        return self._node is not None and bool(self._node.others())

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
        topics = set(await until_available(self.durable_log.admin.list, "restore queues"))
        await self._ephemeral_log.start()
        for name, value in definitions.items():
            try:
                ending = decode_ending(value)
                if ending is None:
                    self.open(decode(value))
                else:
                    await self.deletions.resume(ending, stored.pop(name, None))
            except QueueError as error:
                log.error("a stored queue cannot be opened", error=str(error))
        for definition in self._configured.values():
            await self.configure(definition)
        # Groups that are restored may want something at once; publishers come later.
        self.hub.queues.serve(None, self._on_queues, self._on_detach)
        known = [queue for queue in self.queues.values() if queue.topic in topics]
        for at in range(0, len(known), LOOKED_AT_ONCE):
            making = (partial(queue.make, is_there=True) for queue in known[at : at + LOOKED_AT_ONCE])
            await asyncio.gather(*(until_available(make, "restore queues") for make in making))
        for queue in self.queues.values():
            queue.is_current = self._node is None or not queue.definition.durable
            if queue.name in stored:
                queue.restore(stored[queue.name])
            queue.mind_depth()
        for queue in self.queues.values():
            for group in queue.groups.values():
                group.serve()  # dead letters that were not buried yet
        self.hub.queues.serve(self._find_queue, self._on_queues, self._on_detach, self.remote.on_settlement)
        self.definitions.is_started = True
        if self._follower is not None:
            self.spawn(self._follower.run())
        self.ownership.start()
        self.upkeep.start()
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

    async def reload(self, definitions: Iterable[QueueDefinition], settings: DurableQueueSettings) -> None:
        self.settings = settings
        self.hub.queues.bindings.bump()  # publishers remember that their queue was not created: let them try again
        self._configured = {definition.name: definition for definition in definitions}
        for definition in self._configured.values():
            await self.configure(definition)

    async def close(self) -> None:
        self.is_closing = True
        self.upkeep.stop()
        self.remote.close_all()
        mine = [queue for queue in self.queues.values() if queue.is_current]
        for queue in mine:
            for group in queue.groups.values():
                if group.is_stream:
                    group.auto_commit()
        await self._tasks.close()
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
        await self.ages.close()
        await self._ephemeral_log.close()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.spawn(work)

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

    def open(self, definition: QueueDefinition) -> Queue:
        queue = Queue(self, definition, self.durable_log if definition.durable else self._ephemeral_log)
        self.queues[definition.name] = queue
        self.first_use.opened(queue)
        self.ownership.note(queue)
        self._bind(queue)
        if not definition.durable:
            self.upkeep.expect(definition.expires_after)
        return queue

    def _bind(self, queue: Queue) -> None:
        self.hub.queues.unbind(queue.core)
        for binding in queue.definition.bindings:
            self.hub.queues.bind(queue.core, binding.encode())

    def find(self, name: str) -> Queue:
        queue = self.queues.get(name)
        if queue is None:
            raise QueueError(f"there is no queue {name[:100]!r}", "`penstock queue list` shows those there are.")
        return queue

    async def create(self, definition: QueueDefinition) -> Queue:
        return await self.definitions.create(definition)

    async def update(self, definition: QueueDefinition) -> None:
        await self.definitions.update(definition)

    async def adopt(self, definition: QueueDefinition) -> None:
        """A queue that another node made. May be called again after it has raised LogError."""
        queue = self.queues.get(definition.name)
        if queue is None:
            if definition.name in self.deletions:
                raise LogError(f"the queue {definition.name!r} of before is still being deleted here")
            queue = self.open(definition)
            queue.is_current = False
        await self.join_late(queue)

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
        self.first_use.gone(queue)
        self.hub.queues.unbind(queue.core)
        for membership in self._memberships:
            membership.members = [pair for pair in membership.members if pair[0].queue is not queue]
            self.remote.follow(membership)
        for group in queue.groups.values():
            group.is_removed = True  # what its consumers give back is not stored any more
            self.figures.keep_group(group)
        self.figures.keep_queue(queue)
        queue.is_deleted = True
        await queue.close()

    def _find_queue(self, topic: bytes, is_settlement: bool) -> DurableQueue | int | None:
        """Return the queue that a settlement names, or create one for a topic that no queue is bound to. Called by the
        hub. An int is the number of the answer that says why there is no queue."""
        try:
            name, _ = parse_publish(topic.decode())
        except ValueError:
            return None
        queue = self.queues.get(name)
        if queue is not None:
            return queue.core
        if is_settlement:
            return None
        made = self.first_use.make(name, self._configured.get(name))
        return (made or None) if isinstance(made, int) else made.core

    # ---- the hub's side ----

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
        for topic, reason in letters:
            self._on_buried(queue, topic.decode(errors="replace"), REASONS[reason])

    def _on_queues(self, groups: list[QueueGroup]) -> None:
        for core in groups:
            core.owner.serve()

    def _on_detach(self, client: Client) -> None:
        """A client without a session gives back what it has; a persistent one has until the visibility timeout."""
        if client.expiry_interval == 0:
            self.ended(client)
            return
        for membership in self._memberships.of(client.client_id):
            for group, _ in membership.members:
                group.note_use(leaving=client)

    # ---- subscriptions ----

    async def consume(
        self,
        client: Client,
        name: str,
        address: Address,
        *,
        terms: ConsumerTerms,
        outlet: Outlet,
        relayed_life: Life | None = None,
    ) -> None:
        """Make the client a consumer; returns when its groups are durable, raises Refused. `name` tells the consumers
        of a client apart: a second one with the same name replaces the first. `relayed_life`: the client is another
        node, for a client of its own, and consumes only queues that are served here."""
        try:
            if terms.position:
                parse_position(terms.position)
        except ValueError as error:
            log.info("a consumer of a queue is refused", client_id=client.client_id, error=str(error))
            raise Refused(Refusal.INVALID_ARGUMENT, str(error)) from None
        membership = Membership(client, name, address, terms, outlet, relayed_life, terms.position)
        if not membership.is_relayed and not self.is_there(address):
            made = self.first_use.make(address.queue, self._configured.get(address.queue))
            if isinstance(made, int):
                self._await_dead_letters(membership, made)
                await self._store_now(membership)
                return
            if not await self.first_use.is_ready(made):
                raise Refused(Refusal.UNAVAILABLE, "the queue cannot be created now")
        here = await self._check(membership)
        self.unsubscribe(client, name, forget=False)
        self._memberships.add(membership)
        try:
            for queue in here:
                await self.join(membership, queue)
            await self.remote.open(membership)
        except LogError as error:
            log.warning("a queue cannot be consumed now", client_id=client.client_id, error=str(error))
            self.unsubscribe(client, name)
            raise Refused(Refusal.UNAVAILABLE, "the queue cannot be consumed now") from None
        except Refused as refused:
            log.info("a queue of another node cannot be consumed", client_id=client.client_id, error=str(refused))
            self.unsubscribe(client, name)
            raise
        await self._store_now(membership)

    async def _check(self, membership: Membership) -> list[Queue]:
        """Return the queues of a new membership that are served here; raises Refused."""
        if not await self.ownership.joined():
            raise Refused(Refusal.IN_USE, "this node has not joined the cluster yet")
        queues = self.queues_for(membership)
        here = [queue for queue in queues if self.ownership.owns(queue)]
        check_kind(membership, {queue.definition.type for queue in queues})
        check_move(membership, here)
        if membership.is_relayed and not here and not membership.address.spans_queues:
            raise Refused(Refusal.IN_USE, "it is served by another node now")
        if not await self.ownership.serve(here):
            raise Refused(Refusal.IN_USE, "the queue is being handed to another node: try again")
        return here

    def _await_dead_letters(self, membership: Membership, answer: int) -> None:
        """Dead letters may be waited for before there are any; other queues that are not there are refused."""
        queue = membership.address.queue
        if not is_dead_letters(queue) or queue.removeprefix("$dlq/") not in self.queues:
            raise self.first_use.refused(answer)
        if not membership.terms.settles:
            raise Refused(Refusal.NOT_SUPPORTED, QOS_0)
        self._memberships.add(membership)

    async def _store_now(self, membership: Membership) -> None:
        """Return when the membership and its groups are durable: messages that are acknowledged from then on reach the
        groups even after a crash. Raises Refused if they cannot be stored, and removes the consumer."""
        client, is_lasting = membership.client, membership.client.expiry_interval > 0
        if is_lasting:
            key = member_key(client.client_id, membership.name)
            self.state.store([(names.MEMBERS, key, msgspec.json.encode(membership.record))])
        if not is_lasting and not any(group.is_kept for group, _ in membership.members):
            return
        try:
            await self.state.flush()
        except StoreError as error:
            log.warning("a consumer of a queue cannot be stored", client_id=client.client_id, error=str(error))
            if self._memberships.has(membership):
                self.unsubscribe(client, membership.name)
            raise Refused(Refusal.UNAVAILABLE, "the consumer cannot be stored now") from None

    def queues_for(self, membership: Membership) -> list[Queue]:
        """Return the existing queues that the client's rules can allow, wherever they are served. Ephemeral queues
        belong to one node."""
        address = membership.address
        if not address.spans_queues:
            found = [self.queues[address.queue]] if address.queue in self.queues else []
        else:
            is_dead = is_dead_letters(address.queue)
            found = [queue for name, queue in self.queues.items() if is_dead_letters(name) == is_dead]
        found = [queue for queue in found if membership.may_consume(queue.name)]
        return [queue for queue in found if queue.definition.durable] if membership.is_relayed else found

    def memberships(self) -> Iterable[Membership]:
        return self._memberships

    def is_member(self, membership: Membership) -> bool:
        return self._memberships.has(membership)

    def memberships_of(self, client: Client) -> list[Membership]:
        return [membership for membership in self._memberships.of(client.client_id) if membership.client is client]

    async def join(self, membership: Membership, queue: Queue) -> None:
        await queue.make()
        terms, client = membership.terms, membership.client
        start = None
        if membership.position and queue.core.is_stream:
            position = parse_position(membership.position)
            start = await resolve(queue.log, queue.topic, position, queue.head, queue.tail)
        has_gone = not self._memberships.has(membership) or membership.has_joined(queue)
        if has_gone or not membership.may_consume(queue.name):
            return  # it has unsubscribed or joined meanwhile, or the rules do not allow it
        may_move = membership.may_move(queue)
        group = queue.group(
            membership.group_name,
            membership.address.filter,
            start=start,
            auto_commit=terms.auto_commit if may_move else None,
            made_by=identity_of(client),
            life=membership.life,
        )
        if start is not None and may_move and queue.name not in membership.placed:
            await group.seek(start)
        membership.placed.add(queue.name)
        membership.members.append((group, group.join(client, membership.outlet, credit=terms.credit)))

    async def join_late(self, queue: Queue) -> None:
        """Those who consume all queues, or waited for this one."""
        for membership in self._memberships:
            if membership.waits_for(queue):
                await self.ownership.follow(membership, [queue])

    def unsubscribe(self, client: Client, name: str, *, forget: bool = True) -> None:
        membership = self._memberships.remove(client.client_id, name)
        if membership is None:
            return
        self.remote.close(membership, has_left=forget)
        for group, member in membership.members:
            group.leave(member)
            if forget and not membership.is_relayed:
                client_left(group, is_assigned=client.is_assigned)
        if forget and client.expiry_interval:
            self.state.store([(names.MEMBERS, member_key(client.client_id, name), None)])

    def ended(self, client: Client) -> None:
        """Its subscriptions are gone with it."""
        for membership in self._memberships.of(client.client_id):
            if membership.client is client:
                self.unsubscribe(client, membership.name)

    def withdraw(self, client: Client, name: str) -> None:
        """As `unsubscribe`, of this client only: another one with the same id may have subscribed since."""
        if any(membership.name == name for membership in self.memberships_of(client)):
            self.unsubscribe(client, name)

    async def apply_rights(self, memberships: Iterable[Membership] | None = None) -> None:
        await apply_rights(self, self._memberships if memberships is None else memberships)

    def attached(self, client: Client, credit: int) -> None:
        """A client is back, perhaps with other rights; it takes `credit` messages at a time now."""
        memberships = self._memberships.of(client.client_id)
        if memberships:
            self.spawn(self.apply_rights(memberships))
        for membership in memberships:
            if membership.has_lost:
                membership.has_lost = False
                self.spawn(self.ownership.follow(membership, self.queues_for(membership)))
            for group, member in membership.members:
                group.review()
                group.note_use()
                membership.outlet.attached(member.core)
                if not group.is_stream:
                    member.core.prefetch = min(membership.terms.credit, max(credit, 1))
            if self._node is not None:
                self.remote.close(membership)
                self.spawn(self.ownership.follow(membership, ()))
        if self._node is not None:
            self.spawn(self._returning.take_up(client))

    def let_go(self, client: Client) -> None:
        """The client and its session are at another node now; what it asked for is known there."""
        for membership in self.memberships_of(client):
            self.unsubscribe(client, membership.name, forget=False)

    async def restore_members(self, find_client: FindClient) -> None:
        await self._returning.restore(find_client)

    async def resume(self, membership: Membership) -> None:
        """Take up a consumer that was granted before."""
        self.unsubscribe(membership.client, membership.name, forget=False)
        self._memberships.add(membership)
        if self._node is None or await self._node.joined(0):  # else with all others, when it has
            await self.ownership.follow(membership, self.queues_for(membership))

    def is_there(self, address: Address) -> bool:
        return address.spans_queues or address.queue in self.queues

    # ---- figures ----

    def counters(self) -> dict[str, int | float]:
        return self.figures.read(self.queues) | self.remote.counters()
