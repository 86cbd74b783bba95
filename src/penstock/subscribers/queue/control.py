"""Looking at queues and changing them, for the admin API. Everything it gives can be written as JSON."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import fnmatch
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.core.errors import ConflictError, NotFoundError, UsageError
from penstock.core.logging import get_logger
from penstock.core.metrics import QueueSample
from penstock.storage.log.base import LogError
from penstock.subscribers.queue.abandoned import holder_of
from penstock.subscribers.queue.definitions import QueueDefinition, changed, define
from penstock.subscribers.queue.positions import parse_position, resolve

if TYPE_CHECKING:
    from penstock.subscribers.queue.group import Group
    from penstock.subscribers.queue.manager import QueueManager
    from penstock.subscribers.queue.queue import Queue

log = get_logger("penstock.queues")

MOST_LISTED = 10_000
MOST_PENDING = 1_000
LONGEST_PATTERN = 1_024
# Between so many queues everybody else has a turn: a list is never on a message's way.
DESCRIBED_AT_ONCE = 200


class QueueControl:
    """The queues of this broker. `clock` is the time of day, in seconds."""

    def __init__(self, manager: QueueManager, clock: Callable[[], float] = time.time) -> None:
        self._manager = manager
        self.clock = clock

    async def list(
        self,
        pattern: str = "*",
        limit: int = 100,
        offset: int = 0,
        *,
        is_by_depth: bool = False,
        with_ages: bool = False,
    ) -> dict[str, Any]:
        """A page of the queues whose names match the glob, by name; or those first that hold most. `with_ages`: with
        the age of their oldest unsettled messages, which have to be read."""
        if len(pattern) > LONGEST_PATTERN:
            raise UsageError(f"the pattern is longer than {LONGEST_PATTERN} characters")
        queues = self._manager.queues
        names = sorted(queues)
        if is_by_depth:
            names.sort(key=lambda name: (-queues[name].depth, -queues[name].dead))
        if pattern != "*":
            matches = re.compile(fnmatch.translate(pattern)).match
            names = [name for name in names if matches(name)]
        page = names[offset : offset + limit]
        ages = await self._manager.ages.of([queues[name] for name in page]) if with_ages else {}
        entries = []
        for index, name in enumerate(page):
            if index and index % DESCRIBED_AT_ONCE == 0:
                await asyncio.sleep(0)
            queue = self._manager.queues.get(name)
            if queue is not None:  # it may have gone in the meantime
                entries.append(describe(queue) | (self._describe_oldest(ages.get(name)) if with_ages else {}))
        return {
            "queues": entries,
            "total": len(self._manager.queues),
            "matched": len(names),
            "offset": offset,
            "truncated": offset + limit < len(names),
        }

    def samples(self) -> Iterator[QueueSample]:
        """The numbers of each queue, for metrics."""
        for name, queue in self._manager.queues.items():
            groups = queue.groups.values()
            consumers, pending = sum(len(group.consumers) for group in groups), sum(group.pending for group in groups)
            yield QueueSample(name, queue.depth, pending, consumers, queue.dead, int(holder_of(queue) is not None))

    async def show(self, name: str) -> dict[str, Any]:
        """With its settings and groups, and in a cluster with the node that serves it."""
        queue = self.find(name)
        node = self._manager.ownership.owner_of(queue)
        if node is not None and queue.is_made:
            with contextlib.suppress(LogError):
                await queue.look()  # others publish as well
        ages = await self._manager.ages.of([queue])
        return {
            **describe(queue),
            **self._describe_oldest(ages.get(name)),
            **({} if node is None else {"served_by": node}),
            "bindings": builtins.list(queue.definition.bindings),
            "definition": msgspec.to_builtins(queue.definition),
            "groups": [describe_group(group) for group in queue.groups.values()],
        }

    def _describe_oldest(self, stored_at: int | None) -> dict[str, Any]:
        """The time and the age, in seconds, of the oldest message that some group has yet to settle."""
        age = None if stored_at is None else max(round(self.clock() - stored_at / 1000, 3), 0.0)
        return {"oldest_at": None if stored_at is None else to_text(stored_at / 1000), "oldest_age": age}

    async def create(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """The queue a table of settings describes. Once more with the same settings changes nothing."""
        definition = define(table)
        known = self._manager.queues.get(definition.name)
        if known is not None and known.definition.origin == "auto" and not known.definition.durable:
            raise ConflictError(
                f"there is an ephemeral queue {definition.name!r} already, made when a client used it",
                f"Delete it first: penstock queue delete '{definition.name}'",
            )
        if known is not None:
            if _settings_of(known.definition) == _settings_of(definition):
                return await self.show(definition.name)
            raise ConflictError(
                f"there is a queue {definition.name!r} already, with other settings",
                "`penstock queue update` changes them.",
            )
        await self._manager.create(definition)
        log.info("a queue was made by an operator", queue=definition.name, type=definition.type)
        return await self.show(definition.name)

    async def update(self, name: str, table: Mapping[str, Any]) -> dict[str, Any]:
        """The settings in the table change, the others stay."""
        queue = self.find(name)
        if table.get("name", name) != name:
            raise UsageError("a queue keeps its name", "Make another one, and move the messages: penstock queue move")
        merged = _merge(_settings_of(queue.definition), table)
        definition = changed(queue.definition, define(merged))
        await self._manager.update(msgspec.structs.replace(definition, origin=queue.definition.origin))
        log.info("a queue was changed by an operator", queue=name, changed=sorted(table))
        return await self.show(name)

    async def delete(self, name: str, *, if_empty: bool = False, if_unused: bool = False) -> dict[str, Any]:
        """The queue, its messages and its groups; the entry as it was, and whether it is `deleted` or still being so.
        What its dead letters are stays."""
        queue = self.find(name)
        entry = describe(queue)
        if if_empty and queue.depth:
            raise ConflictError(
                f"the queue {name!r} is not empty: {queue.depth} messages wait", "`penstock queue purge` empties it."
            )
        if if_unused and entry["consumers"]:
            raise ConflictError(
                f"the queue {name!r} is used by {entry['consumers']} consumers", "Without if_unused it is deleted."
            )
        is_gone = await self._manager.delete(name)
        log.warning("a queue was deleted by an operator", queue=name, messages=entry["messages"], is_gone=is_gone)
        return {**entry, "deleted": is_gone}

    async def purge(self, name: str) -> dict[str, Any]:
        """All messages go, pending ones too; the queue and its groups stay."""
        queue = self.find_served(name)
        purged = await queue.purge()
        log.warning("a queue was purged by an operator", queue=name, messages=purged)
        return {**describe(queue), "purged": purged}

    async def pause(self, name: str, *, paused: bool) -> dict[str, Any]:
        """While it is paused a queue takes messages and settlements, and delivers nothing."""
        queue = self.find(name)
        await queue.pause(paused)
        log.info("a queue was paused or resumed by an operator", queue=name, paused=paused)
        return describe(queue)

    async def groups(self, name: str) -> dict[str, Any]:
        """With their consumers."""
        queue = self.find_served(name)
        groups = [describe_group(group, with_consumers=True) for group in queue.groups.values()]
        return {"queue": name, "head": queue.head, "tail": queue.tail, "groups": groups}

    async def pending(self, name: str, group_name: str, limit: int) -> dict[str, Any]:
        """Messages that were delivered and are not settled: with whom, how often, and when they are delivered again."""
        group = self.find_group(name, group_name)
        return {
            "queue": name,
            "group": group.id,
            "pending": group.pending,
            "entries": group.pending_entries(min(limit, MOST_PENDING)),
        }

    async def seek(self, name: str, group_name: str, to: str) -> dict[str, Any]:
        """The group goes on elsewhere: at `first`, `last`, an offset, a time."""
        queue, group = self.find_served(name), self.find_group(name, group_name)
        try:
            position = parse_position(to)
        except ValueError as error:
            raise UsageError(str(error)) from None
        offset = await resolve(queue.log, queue.topic, position, queue.head, queue.tail)
        last = group.last_pending
        if last is not None and last >= offset:
            raise ConflictError(
                f"the group {group.id!r} has unsettled deliveries up to offset {last}: it cannot go back to {offset}",
                "Wait until they are settled, or settle them: penstock queue settle",
            )
        await group.seek(offset)
        log.warning("a group was moved by an operator", queue=name, group=group.id, offset=offset)
        return describe_group(group)

    async def settle(self, name: str, group_name: str, verb: str, offsets: Sequence[int]) -> dict[str, Any]:
        """What its consumers do not say of deliveries: `ack`, `nack`, `reject`, or `claim`: to whoever has room, now.
        Those that are not pending are told."""
        group = self.find_group(name, group_name)
        if group.is_stream:
            raise ConflictError(
                f"the stream {name!r} has no pending deliveries", "`penstock queue seek` moves a group."
            )
        done = [offset for offset in offsets if group.core.decide(offset, verb)]
        self._manager.state.save([group.core])  # at once: the answer says that it is durable
        await self._manager.state.flush()
        log.warning("deliveries were settled by an operator", queue=name, group=group.id, verb=verb, messages=len(done))
        unknown = sorted(set(offsets) - set(done))
        return {"queue": name, "group": group.id, "settled": len(done), "unknown": unknown, "pending": group.pending}

    async def truncate(self, name: str, before: int) -> dict[str, Any]:
        """Messages before the offset go, pending ones too; no group is given them any more."""
        queue = self.find_served(name)
        if before > queue.end:
            raise UsageError(f"the queue {name!r} ends at offset {queue.end}")
        removed = await queue.cut(before)
        log.warning("a queue was truncated by an operator", queue=name, before=before, messages=removed)
        return {**describe(queue), "removed": removed}

    async def delete_group(self, name: str, group_name: str) -> dict[str, Any]:
        """The group forgets where it was; the entry as it was. A client that subscribes creates a new one."""
        group = self.find_group(name, group_name)
        if group.consumers:
            raise ConflictError(
                f"the group {group.id!r} of {name!r} has {len(group.consumers)} consumers",
                "Disconnect them first: penstock session kick",
            )
        entry = describe_group(group)
        await group.delete()
        log.warning("a group was deleted by an operator", queue=name, group=group.id)
        return entry

    def find(self, name: str) -> Queue:
        queue = self._manager.queues.get(name)
        if queue is None and name in self._manager.deletions:
            raise NotFoundError(
                f"the queue {name!r} is being deleted", "It is gone, with its name, when its log can be removed."
            )
        if queue is None:
            raise NotFoundError(f"there is no queue {name[:100]!r}", "`penstock queue list` shows those there are.")
        return queue

    def find_served(self, name: str) -> Queue:
        """Only who serves a queue knows how far its groups are; what another node changed of them would be lost."""
        queue = self.find(name)
        if queue.core.is_elsewhere:
            owner = self._manager.ownership.owner_of(queue)
            raise ConflictError(f"the queue {name!r} is served by the node {owner}", "Ask that one.")
        if not queue.is_current:
            raise ConflictError(f"the queue {name!r} is being taken over from another node", "Try again in a moment.")
        return queue

    def find_group(self, name: str, group_name: str) -> Group:
        """By its id, or by its name where only one filter is used with it."""
        groups = self.find_served(name).groups
        if group_name in groups:
            return groups[group_name]
        named = [group for group in groups.values() if group.name == group_name]
        if len(named) == 1:
            return named[0]
        if named:
            raise ConflictError(
                f"the queue {name!r} has {len(named)} groups {group_name!r}, each with a filter of its own",
                f"Name one of them: {', '.join(group.id for group in named)}",
            )
        raise NotFoundError(
            f"the queue {name!r} has no group {group_name[:100]!r}", "`penstock queue groups` shows those there are."
        )


def describe(queue: Queue) -> dict[str, Any]:
    definition = queue.definition
    holder = holder_of(queue)
    return {
        "name": definition.name,
        "type": definition.type,
        "durable": definition.durable,
        "paused": definition.paused,
        "origin": definition.origin,
        "messages": max(queue.tail - queue.head, 0),
        "depth": queue.depth,
        "bytes": queue.bytes,
        "head": queue.head,
        "tail": queue.tail,
        "group_count": len(queue.groups),
        "consumers": sum(len(group.consumers) for group in queue.groups.values()),
        "pending": sum(group.pending for group in queue.groups.values()),
        "dropped": queue.dropped,
        "refused": queue.refused,
        "expired": queue.expired,
        "dead": queue.dead,
        "held_back_by": None if holder is None else holder.id,
        "held_back_since": None if holder is None else to_text(holder.unused_since),
        "last_used": to_text(queue.last_used),
        "topic": queue.topic,
    }


def describe_group(group: Group, *, with_consumers: bool = False) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "id": group.id,
        "name": group.name,
        "filter": group.filter or None,
        "type": "stream" if group.is_stream else "classic",
        "consumers": len(group.consumers),
        "lag": group.lag,
        "pending": group.pending,
        "cursor": group.cursor,
        "committed": group.committed,
        "delivered": group.delivered,
        "redelivered": group.redelivered,
        "acked": group.acked,
        "nacked": group.nacked,
        "rejected": group.rejected,
        "idle_since": None if group.is_used else to_text(group.unused_since),
        "last_used": to_text(time.time() if group.is_used else group.unused_since),
    }
    if with_consumers:
        entry["members"] = [
            {
                "client_id": member.client_id,
                "prefetch": member.prefetch,
                "unsettled": member.unsettled,
                "since": to_text(member.since),
            }
            for member in group.consumers
        ]
    return entry


def to_text(seconds: float) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds") if seconds else None


def _settings_of(definition: QueueDefinition) -> dict[str, Any]:
    """What may be written in a table; not what happened to the queue."""
    table: dict[str, Any] = msgspec.to_builtins(definition)
    del table["paused"], table["origin"]
    return table


def _merge(table: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in changes.items():
        outer, dot, inner = name.partition(".")
        if dot and isinstance(table.get(outer), dict):
            table[outer][inner] = value
        elif isinstance(value, Mapping) and isinstance(table.get(name), dict):
            table[name].update(value)
        else:
            table[name] = value
    return table
