"""Brings every command to the server that has its slot, and again until it is answered or its time is over.

Commands leave without waiting for each other (those of one queue do wait, see lanes), so each of them can be sent again
on its own: at once where a slot moved to, when the scripts are loaded, or a little later when a server said that it
cannot now. A connection that breaks gives back what was not answered. Every command can be carried out twice without
harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from itertools import takewhile
from typing import Any

import hiredis

from penstock.core.logging import Throttled, get_logger
from penstock.settings.redis import RedisSettings
from penstock.storage.state.base import StoreError
from penstock.subscribers.device.store.base import DeviceStatistics, StoreFull, StoreUnavailable
from penstock.subscribers.device.store.redis import errors, safety, topology
from penstock.subscribers.device.store.redis.connection import (
    Command,
    Endpoint,
    OnReply,
    RedisConnection,
    pack_command,
)
from penstock.subscribers.device.store.redis.node import Node

log = get_logger("penstock.stores.redis")

# What a command costs in memory beside its bytes, roughly.
COMMAND_OVERHEAD = 300
CLOSE_SECONDS = 5.0
SWEEP_SECONDS = 1.0
ASKING = pack_command(("ASKING",))


class RedisClient:
    """Made and used on the loop."""

    def __init__(self, settings: RedisSettings, scripts: Sequence[bytes], statistics: DeviceStatistics) -> None:
        self.settings = settings
        self.scripts = scripts
        self.statistics = statistics
        self.tls = topology.make_tls(settings)
        self.seeds = topology.parse_endpoints(settings)
        self.is_cluster = settings.mode == "cluster"
        self._can_choose = settings.mode == "sentinel" or len(self.seeds) > 1  # another server may be the master
        self.pending_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        self._problem = ""
        self._warnings = Throttled(log, interval=10.0)
        self._told: set[tuple[Endpoint, str]] = set()
        self._number = 0
        self._nodes: dict[Endpoint | None, Node] = {}
        self._slots: list[Node | None] = [None] * topology.SLOTS
        self._homeless: deque[Command] = deque()  # whose slot has no server yet
        self._unscripted: list[Command] = []  # that wait for the scripts
        self._delayed: dict[Command, str] = {}  # that are sent again soon, and why
        self._progress = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._sweeper: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Waits for the first attempt to connect, whatever comes of it."""
        if self.is_cluster:
            self._run_once("refresh", self._refresh)
        else:
            self._slots = [self._node(None)] * topology.SLOTS
        self._sweep()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.connect_timeout):
                while self.check() is not True and not self._problem:
                    await self._wait_for_progress()

    async def close(self) -> None:
        """Waits a little for what is under way."""
        is_hopeful = any(node.is_ready for node in self._nodes.values())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS if is_hopeful else 0):
                while self.pending_bytes:
                    await self._wait_for_progress()
        self._is_closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        for node in self._nodes.values():
            node.close()
            if node.task is not None:
                tasks.append(node.task)
        await asyncio.gather(*tasks, return_exceptions=True)
        for command in [*self._take_waiting(), *self._unscripted, *self._delayed]:
            self.on_answer(command, StoreUnavailable("the store was closed"))

    def check(self) -> bool | str:
        if self._nodes and not self._homeless and all(node.is_ready for node in self._nodes.values()):
            return True
        return f"Redis: {self._problem or 'not connected yet'}"

    def submit(self, slot: int, payload: bytes, on_reply: OnReply, deadline: float = 0.0, beside: int = 0) -> None:
        """`on_reply` gets the answer or a StoreError, later. `beside`: bytes that wait elsewhere for the same room; -1:
        there is room for it."""
        size = len(payload) + COMMAND_OVERHEAD
        if self._is_closed or (beside >= 0 and not self.has_room(size, beside)):
            self._loop.call_soon(on_reply, self.refuse())
            return
        self.pending_bytes += size
        self._number += 1
        deadline = deadline or self._loop.time() + self.settings.command_timeout
        command = Command(payload, slot, on_reply, self._number, deadline)
        node = self._slots[slot]
        if node is not None and node.connection is not None:
            self.statistics.commits += 1
            node.connection.send(command)
        else:
            self._dispatch(command)

    def has_room(self, size: int, beside: int) -> bool:
        """What is larger than all the room goes alone: else it would never go."""
        used = self.pending_bytes + beside
        return not self._is_closed and (used == 0 or used + size <= self.settings.backlog_bytes)

    def soon(self, callback: Callable[[Any], None], result: Any) -> None:
        """For calls that need no command: their answer comes later, too."""
        self._loop.call_soon(callback, result)

    def refuse(self) -> StoreError:
        if self._is_closed:
            return StoreUnavailable("the store was closed")
        self.statistics.refused += 1
        return StoreFull(
            f"{self.pending_bytes} bytes wait for Redis already ({self._problem or 'it is too slow'})",
            "give it again later; the limit is redis.backlog_bytes",
        )

    def _dispatch(self, command: Command) -> None:
        node = self._slots[command.slot]
        if node is None:
            self._homeless.append(command)
        else:
            self._dispatch_to(node, command)

    def _dispatch_to(self, node: Node, command: Command) -> None:
        connection = node.connection
        if connection is None:
            node.waiting.append(command)
            return
        self.statistics.commits += 1
        if command.is_sent:
            self.statistics.retried += 1
        if command.is_asking:
            command.is_asking = False
            connection.send(Command(ASKING, -1, lambda _: None, -1, command.deadline))
        connection.send(command)

    def _node(self, endpoint: Endpoint | None) -> Node:
        node = self._nodes.get(endpoint)
        if node is None:
            node = self._nodes[endpoint] = Node(self, endpoint)
        return node

    # What the nodes tell.

    def on_answer(self, command: Command, reply: Any) -> None:
        """The command is done; an error is an answer, too."""
        if command.number < 0:
            command.on_reply(reply)
        elif not command.is_done:
            command.is_done = True
            self.pending_bytes -= len(command.payload) + COMMAND_OVERHEAD
            command.on_reply(reply)

    def on_error_reply(self, connection: RedisConnection, command: Command, error: hiredis.ReplyError) -> None:
        if command.number < 0:
            command.on_reply(error)
        elif not command.is_done:
            self._process_error(connection, command, error)

    def _process_error(self, connection: RedisConnection, command: Command, error: hiredis.ReplyError) -> None:
        word = errors.word_of(error)
        if word == "NOSCRIPT":
            self._unscripted.append(command)
            self._run_once("scripts", self._load_scripts)
        elif word in ("MOVED", "ASK") and self.is_cluster:
            self._redirect(connection, command, word, str(error))
        elif errors.is_passing(error):
            if word in ("READONLY", "MASTERDOWN") and self._can_choose:
                connection.abort()
            elif word == "CLUSTERDOWN" and self.is_cluster:
                self._run_once("refresh", self._refresh)
            self._delay(command, error)
        else:
            self.on_answer(command, errors.to_store_error(error))

    def _redirect(self, connection: RedisConnection, command: Command, word: str, error: str) -> None:
        endpoint = topology.parse_redirect(error, connection.endpoint)
        if word == "MOVED":
            self._slots[command.slot] = self._node(endpoint)
            self._run_once("refresh", self._refresh)
            self._dispatch(command)
            return
        # The slot is on its way: this command, and only this one, is for the server it moves to.
        command.is_asking = True
        self._dispatch_to(self._node(endpoint), command)

    def _delay(self, command: Command, error: Exception) -> None:
        self._problem = errors.describe(error)
        delay = self.settings.reconnect_delay * 2 ** min(command.attempts, 16)
        command.attempts += 1
        self._delayed[command] = self._problem
        wait = min(delay, self.settings.reconnect_delay_max) * (0.5 + random.random())
        self._loop.call_later(wait, self._send_delayed, command)

    def _send_delayed(self, command: Command) -> None:
        if self._delayed.pop(command, None) is not None and not command.is_done:
            self._dispatch(command)

    async def _load_scripts(self) -> None:
        while self._unscripted:
            commands, self._unscripted = self._unscripted, []
            await asyncio.gather(*(node.load_scripts() for node in self._nodes.values()))
            for command in commands:
                command.attempts += 1
                if command.attempts <= 3:
                    self._dispatch(command)
                else:
                    self._delay(command, hiredis.ReplyError("NOSCRIPT the scripts are forgotten all the time"))

    def on_ready(self, node: Node) -> None:
        self._problem = ""
        waiting, node.waiting = node.waiting, deque()
        for command in waiting:
            if not command.is_done:
                self._dispatch_to(node, command)
        self.on_progress()

    def on_information(self, endpoint: Endpoint, information: safety.Information) -> None:
        """What of a server can lose messages is said once."""
        for weakness in safety.find_weaknesses(information):
            if (endpoint, weakness.what) not in self._told:
                self._told.add((endpoint, weakness.what))
                log.warning(
                    "this Redis can lose acknowledged messages",
                    address=str(endpoint),
                    why=weakness.what,
                    advice=weakness.advice,
                )

    def on_trouble(self, endpoint: Endpoint | None, error: Exception) -> None:
        if self._is_closed:
            return
        self._complain(f"{endpoint or self.settings.mode}: {errors.describe(error)}")
        if self.is_cluster:
            self._run_once("refresh", self._refresh)
        self.on_progress()

    def _complain(self, problem: str) -> None:
        self._problem = problem
        self._warnings.warning("Redis cannot be used", per=problem, why=problem)

    def on_progress(self) -> None:
        self._progress.set()

    async def _wait_for_progress(self) -> None:
        self._progress.clear()
        await self._progress.wait()

    def _run_once(self, name: str, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if name not in self._tasks and not self._is_closed:
            task = self._tasks[name] = self._loop.create_task(function())
            task.add_done_callback(lambda _: self._tasks.pop(name, None))

    # Servers that change.

    def _take_waiting(self) -> list[Command]:
        commands = list(self._homeless)
        self._homeless.clear()
        for node in self._nodes.values():
            commands += node.waiting
            node.waiting.clear()
        return [command for command in commands if not command.is_done]

    async def _refresh(self) -> None:
        """Looks where the slots are."""
        delay = self.settings.reconnect_delay
        while not self._is_closed:
            try:
                ranges = await topology.find_slots(self.settings, self.tls, self._known_endpoints())
            except (OSError, TimeoutError, hiredis.HiredisError) as error:
                self._complain(f"cluster: {errors.describe(error)}")
                self.on_progress()
                await asyncio.sleep(delay * (0.5 + random.random()))
                delay = min(2 * delay, self.settings.reconnect_delay_max)
                continue
            self._apply_slots(ranges)
            return

    def _known_endpoints(self) -> list[Endpoint]:
        ready = [endpoint for endpoint, node in self._nodes.items() if endpoint is not None and node.is_ready]
        return list(dict.fromkeys([*ready, *self.seeds, *(endpoint for endpoint in self._nodes if endpoint)]))

    def _apply_slots(self, ranges: topology.SlotRanges) -> None:
        """What waits for a server that has the slot no more goes to the one that has it."""
        slots: list[Node | None] = [None] * topology.SLOTS
        for first, last, endpoint in ranges:
            slots[first : last + 1] = [self._node(endpoint)] * (last + 1 - first)
        if slots == self._slots:
            return
        self._slots = slots
        wanted = {endpoint for _, _, endpoint in ranges}
        unwanted = [node for node in self._nodes.values() if node.endpoint not in wanted]
        for node in unwanted:
            node.close()
        commands = sorted(self._take_waiting(), key=lambda command: command.number)
        for node in unwanted:
            del self._nodes[node.endpoint]
        for command in commands:
            self._dispatch(command)
        self.on_progress()

    def _sweep(self) -> None:
        """Servers that went silent, and commands whose time is over."""
        interval = min(SWEEP_SECONDS, self.settings.command_timeout / 4, self.settings.response_timeout / 4)
        self._sweeper = self._loop.call_later(interval, self._sweep)
        now = self._loop.time()
        overdue: list[Command] = []
        for node in list(self._nodes.values()):
            connection = node.connection
            if connection is not None and connection.outstanding:
                overdue += takewhile(lambda command: command.deadline <= now, connection.outstanding)
                if now - connection.last_answer > self.settings.response_timeout:
                    connection.abort()
            overdue += (command for command in node.waiting if command.deadline <= now)
        overdue += (command for command in self._homeless if command.deadline <= now)
        overdue += (command for command in self._delayed if command.deadline <= now)
        # Who is told may give the next command at once, so nothing is being walked through any more.
        for command in overdue:
            self._time_out(command)
        for node in self._nodes.values() if overdue else ():
            node.waiting = deque(command for command in node.waiting if not command.is_done)
        self._homeless = deque(command for command in self._homeless if not command.is_done)

    def _time_out(self, command: Command) -> None:
        if command.number >= 0:
            why = self._delayed.pop(command, "") or self._problem or "it answers too slowly"
            self.on_answer(
                command, StoreUnavailable(f"no answer of Redis in {self.settings.command_timeout:g} s: {why}")
            )
