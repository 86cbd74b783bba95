"""One server that commands go to: connects, logs in, loads the scripts, and all that again when the connection ends."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import hiredis

from penstock.settings.redis import RedisSettings
from penstock.subscribers.device.store.base import DeviceStatistics
from penstock.subscribers.device.store.redis import safety, topology
from penstock.subscribers.device.store.redis.connection import (
    Command,
    Endpoint,
    NotRedis,
    RedisConnection,
    connect,
)

SHORT_LIFE_SECONDS = 1.0


class NodeOwner(Protocol):
    """The client, as a node sees it."""

    settings: RedisSettings
    scripts: Sequence[bytes]
    tls: ssl.SSLContext | None
    seeds: list[Endpoint]
    statistics: DeviceStatistics

    def on_answer(self, command: Command, reply: Any) -> None: ...
    def on_error_reply(self, connection: RedisConnection, command: Command, error: hiredis.ReplyError) -> None: ...
    def on_information(self, endpoint: Endpoint, information: safety.Information) -> None: ...
    def on_ready(self, node: Node) -> None: ...
    def on_trouble(self, endpoint: Endpoint | None, error: Exception) -> None: ...
    def on_progress(self) -> None: ...


class Node:
    """`endpoint` is None when the settings or Sentinel decide each time which server it is."""

    def __init__(self, owner: NodeOwner, endpoint: Endpoint | None) -> None:
        self.endpoint = endpoint
        self.waiting: deque[Command] = deque()
        self.connection: RedisConnection | None = None  # one that is logged in
        self.task: asyncio.Task[None] | None = None
        self._owner = owner
        self.on_answer = owner.on_answer  # each answer passes here: without a call in between
        self._is_closed = False
        self._attempts = 0
        self._ready_at = float("-inf")
        self._start()

    @property
    def is_ready(self) -> bool:
        return self.connection is not None

    def close(self) -> None:
        self._is_closed = True
        if self.task is not None:
            self.task.cancel()
        if self.connection is not None:
            self.connection.abort()

    def reconnect(self) -> None:
        """The server is not the one that is wanted any more."""
        if self.connection is not None:
            self.connection.abort()

    async def load_scripts(self) -> None:
        """Errors show up when the scripts are used."""
        connection = self.connection
        if connection is not None:
            try:
                await self._load_scripts(connection)
            except (OSError, TimeoutError, hiredis.ReplyError) as error:
                self._owner.on_trouble(connection.endpoint, error)

    # What the connection tells.

    def on_error_reply(self, connection: RedisConnection, command: Command, error: hiredis.ReplyError) -> None:
        self._owner.on_error_reply(connection, command, error)

    def on_idle(self, connection: RedisConnection) -> None:
        self._owner.on_progress()

    def on_connection_lost(self, connection: RedisConnection) -> None:
        returned = []
        for command in connection.outstanding:
            if command.number < 0:
                command.on_reply(connection.failure)
            elif not command.is_done:
                returned.append(command)
        connection.outstanding.clear()
        self.waiting.extendleft(reversed(returned))
        if connection is self.connection:
            self.connection = None
            if not self._is_closed:
                self._owner.statistics.reconnects += 1
                is_other = isinstance(connection.failure, NotRedis)
                why = connection.failure if is_other else ConnectionResetError("the connection was lost")
                self._owner.on_trouble(connection.endpoint, why)
                self._start()
        self._owner.on_progress()

    # Connecting.

    def _start(self) -> None:
        self.task = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        settings = self._owner.settings
        delay = settings.reconnect_delay
        loop = asyncio.get_running_loop()
        if loop.time() - self._ready_at < SHORT_LIFE_SECONDS:
            await asyncio.sleep(delay)  # a server that drops us at once must not be stormed
        while not self._is_closed:
            endpoint = self.endpoint
            try:
                endpoint = await self._choose()
                connection = await connect(endpoint, self, self._owner.tls, settings.connect_timeout)
                try:
                    await self._log_in(connection)
                except BaseException:
                    connection.abort()
                    raise
            except (OSError, TimeoutError, hiredis.HiredisError) as error:
                self._owner.on_trouble(endpoint, error)
                await asyncio.sleep(delay * (0.5 + random.random()))
                delay = min(2 * delay, settings.reconnect_delay_max)
                continue
            if self._is_closed or not connection.is_open:
                connection.abort()
                continue
            self.connection = connection
            self._ready_at = loop.time()
            self._owner.on_ready(self)
            return

    async def _choose(self) -> Endpoint:
        if self.endpoint is not None:
            return self.endpoint
        if self._owner.settings.mode == "sentinel":
            return await topology.find_master(self._owner.settings, self._owner.tls)
        self._attempts += 1
        return self._owner.seeds[(self._attempts - 1) % len(self._owner.seeds)]

    async def _log_in(self, connection: RedisConnection) -> None:
        settings = self._owner.settings
        timeout = settings.connect_timeout
        await topology.authenticate(connection, settings.username, settings.password, timeout)
        if settings.database and settings.mode != "cluster":
            await connection.call("SELECT", settings.database, timeout=timeout)
        if settings.mode == "sentinel":
            answer = await connection.call("ROLE", timeout=timeout)
            if not isinstance(answer, list) or not answer or not isinstance(role := answer[0], bytes):
                raise NotRedis(answer)
            if role != b"master":
                raise OSError(f"the sentinels name {connection.endpoint} as the master, but it is a {role.decode()}")
        await self._look_at(connection, timeout)
        await self._load_scripts(connection)

    async def _look_at(self, connection: RedisConnection, timeout: float) -> None:
        try:
            information = safety.parse_information(await connection.call("INFO", timeout=timeout))
        except hiredis.ReplyError as error:
            if str(error).startswith("NOPERM"):
                return  # an ACL user may not be allowed to ask; it is the administrator's business then
            raise
        if "redis_version" in information and safety.version_of(information) < safety.OLDEST_VERSION:
            raise OSError(f"{connection.endpoint} is Redis {information['redis_version']}; 6.2 or later is needed")
        self._owner.on_information(connection.endpoint, information)

    async def _load_scripts(self, connection: RedisConnection) -> None:
        for script in self._owner.scripts:
            await connection.call("SCRIPT", "LOAD", script, timeout=self._owner.settings.connect_timeout)
