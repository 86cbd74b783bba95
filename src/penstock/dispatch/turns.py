"""Shared subscriptions with members at several brokers: each message goes to one member of them all.

Every broker reads every message from the log. For each group it knows how many members the others have (a compacted
topic, one record for each broker and group), so all of them calculate alike whose turn a record is:

    members     node-1: 2    node-2: 1          turn = offset mod 3
    turn 0, 1   node-1 delivers it              turn 2   node-2 does

Connected members count; only where nobody is connected anywhere, those that are away do. Groups with persistent members
go by the old numbers too for a moment after a change, so that no message is lost while brokers know different ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import islice

from penstock._ext.dispatch.desk import count_group, forget_turns, give_turns
from penstock._ext.hub.connection import Hub
from penstock._ext.record.segment import RecordPack
from penstock.core.logging import Throttled, get_logger
from penstock.storage.log.base import Appended, Log, LogError
from penstock.storage.state.topic_tail import StateTail

log = get_logger("penstock.cluster")

TOPIC = "penstock.cluster.shares"
SWEEP_SECONDS = 0.1
SWEPT_AT_ONCE = 1_000
# Until everybody has surely read what was told.
GRACE_SECONDS = 1.0

Count = tuple[int, int]
"""Members that are connected, and all of them."""


class ShareTable:
    """`others` are the brokers that are alive, without this one; `has_sessions`: whether sessions of a broker that is
    away wait for it, or for another to take them up."""

    def __init__(
        self,
        hub: Hub,
        log_provider: Log,
        node: str,
        others: Callable[[], Iterable[str]],
        *,
        has_sessions: Callable[[str], bool],
        prefix: str = "",
    ) -> None:
        self._has_sessions = has_sessions
        self._topic = f"{prefix}.{TOPIC}" if prefix else TOPIC
        self._hub = hub
        self._log = log_provider
        self._node = node
        self._others = others
        self._tail = StateTail(log_provider, [TOPIC], f"shares of {node}", self._on_change, prefix=prefix)
        self._of: dict[bytes, dict[str, Count]] = {}
        self._mine: dict[bytes, None] = {}  # filters with members here; those looked at last are at the end
        self._told: dict[bytes, Count] = {}
        self._given: dict[bytes, tuple[int, int, int]] = {}
        self._sweeper: asyncio.Task[None] | None = None
        self._warnings = Throttled(log, interval=10.0)

    async def start(self) -> None:
        """Raises LogError."""
        await self._tail.start()
        for share_filter, counts in self._of.items():
            if self._node in counts:  # of an earlier life
                self._told[share_filter] = counts[self._node]
                self._mine.setdefault(share_filter)
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep_for_ever())

    async def stop(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._tail.stop()

    def joined(self, share_filter: bytes) -> None:
        """The filter has a member here. Others serve the group until they know of it."""
        self._mine.setdefault(share_filter)
        if count_group(self._hub, share_filter)[1] == 1:
            self._given.pop(share_filter, None)  # the group is new, or new again
        self._recalculate(share_filter)

    def members_changed(self) -> None:
        for share_filter in self._mine:
            self._recalculate(share_filter)

    def is_elsewhere(self, share_filter: bytes) -> bool:
        """Whether other brokers have members of the group; those that are away may come back to it."""
        alive = set(self._others())
        counts = self._of.get(share_filter, {})
        return any(name != self._node and (name in alive or self._has_sessions(name)) for name in counts)

    def _on_change(self, _topic: str, key: bytes, value: bytes | None) -> None:
        node, _, share_filter = key.partition(b"\0")
        counts = self._of.setdefault(share_filter, {})
        if value is None:
            counts.pop(node.decode(), None)
            if not counts:
                del self._of[share_filter]
        else:
            connected, _, everybody = value.partition(b" ")
            counts[node.decode()] = int(connected), int(everybody)
        self._recalculate(share_filter)

    def _living(self, share_filter: bytes) -> dict[str, Count]:
        counts = self._of.get(share_filter)
        return {} if not counts else {name: counts[name] for name in self._others() if name in counts}

    def _recalculate(self, share_filter: bytes) -> None:
        if share_filter not in self._mine:
            return
        turns = 0, 0, 0
        counts = self._living(share_filter)
        if counts:
            counts[self._node] = self._of[share_filter].get(self._node, (0, 0))
            which = 0 if any(connected for connected, _ in counts.values()) else 1
            first = sum(counts[name][which] for name in counts if name < self._node)
            turns = first, counts[self._node][which], sum(count[which] for count in counts.values())
        before = self._given.get(share_filter)
        if turns == before:
            return
        self._given[share_filter] = turns
        give_turns(self._hub, share_filter, *turns)
        if before is None:
            forget_turns(self._hub, share_filter)
        else:
            asyncio.get_running_loop().call_later(GRACE_SECONDS, self._forget, share_filter, turns)

    def _forget(self, share_filter: bytes, turns: tuple[int, int, int]) -> None:
        if self._given.get(share_filter) == turns:
            forget_turns(self._hub, share_filter)

    # ---- telling the others ----

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                self._sweep()
            except Exception as error:  # whatever it is, the next round may do
                log.exception("members of share groups cannot be told", error=repr(error))

    def _sweep(self) -> None:
        """Some of the filters, those first that were not looked at for longest."""
        pack = RecordPack()
        told: dict[bytes, Count] = {}
        for share_filter in list(islice(self._mine, SWEPT_AT_ONCE)):
            del self._mine[share_filter]
            count = count_group(self._hub, share_filter)
            if count[1]:
                self._mine[share_filter] = None
            else:
                self._given.pop(share_filter, None)
            if count != self._told.get(share_filter, (0, 0)):
                value = b"%d %d" % count if count[1] else None
                pack.append(value, self._node.encode() + b"\0" + share_filter)
                told[share_filter] = count
        if not told:
            return
        self._told.update(told)

        def on_done(result: Appended | LogError) -> None:
            if isinstance(result, LogError):
                for share_filter in told:  # told again
                    self._told[share_filter] = -1, -1
                    self._mine.setdefault(share_filter)
                self._warnings.warning("members of share groups cannot be told", error=str(result))
                return
            for share_filter, count in told.items():
                if not count[1] and self._told.get(share_filter) == count:
                    del self._told[share_filter]

        self._log.producer.append(self._topic, 0, pack, on_done)
