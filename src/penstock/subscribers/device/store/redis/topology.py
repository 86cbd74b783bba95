"""Where the servers are: one of some addresses, the master that Sentinel names, or the masters of a cluster."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Any

import hiredis

from penstock.core.errors import SettingsError
from penstock.settings.address import parse_address
from penstock.settings.redis import RedisSettings
from penstock.subscribers.device.store.redis.connection import (
    Command,
    Endpoint,
    NotRedis,
    RedisConnection,
    connect,
)

SLOTS = 16_384
# What is wrong with an answer of another shape than Redis gives shows when it is taken apart.
OTHER_SHAPE = (TypeError, ValueError, LookupError, AttributeError)


class Asker:
    """Owner of a connection that only asks a question or two."""

    def on_answer(self, command: Command, reply: Any) -> None:
        command.on_reply(reply)

    def on_error_reply(self, connection: RedisConnection, command: Command, error: hiredis.ReplyError) -> None:
        command.on_reply(error)

    def on_connection_lost(self, connection: RedisConnection) -> None:
        for command in connection.outstanding:
            command.on_reply(connection.failure)

    def on_idle(self, connection: RedisConnection) -> None:
        pass


def parse_endpoints(settings: RedisSettings) -> list[Endpoint]:
    """`redis.addresses`, with `redis.port` where one names no port."""
    endpoints = []
    for text in (part.strip() for part in settings.addresses.split(",")):
        if not text:
            continue
        has_port = ":" in text.rpartition("]")[2]
        try:
            address = parse_address(text if has_port else f"{text}:{settings.port}")
        except ValueError as error:
            raise SettingsError(f"redis.addresses: {text!r} is no address: {error}") from None
        endpoints.append(Endpoint(address.host or "127.0.0.1", address.port))
    if not endpoints:
        raise SettingsError("redis.addresses names no server")
    return endpoints


def make_tls(settings: RedisSettings) -> ssl.SSLContext | None:
    if not settings.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca or None)
        if settings.tls_certificate:
            context.load_cert_chain(settings.tls_certificate, settings.tls_key or None, password=lambda: b"")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise SettingsError(f"redis.tls_ca, tls_certificate or tls_key cannot be used: {error}") from None
    if not settings.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


async def authenticate(connection: RedisConnection, username: str, password: str, timeout: float) -> None:
    if username:
        await connection.call("AUTH", username, password, timeout=timeout)
    elif password:
        await connection.call("AUTH", password, timeout=timeout)


async def ask(
    endpoint: Endpoint, tls: ssl.SSLContext | None, credentials: tuple[str, str], timeout: float, *command: str
) -> Any:
    """One question to one server; raises OSError, TimeoutError or ReplyError."""
    connection = await connect(endpoint, Asker(), tls, timeout)
    try:
        await authenticate(connection, *credentials, timeout=timeout)
        return await connection.call(*command, timeout=timeout)
    finally:
        connection.abort()


async def find_master(settings: RedisSettings, tls: ssl.SSLContext | None) -> Endpoint:
    """Asks the sentinels one by one; raises the last one's error."""
    credentials = (settings.sentinel_username, settings.sentinel_password)
    failure: Exception = OSError("no sentinel was asked")
    for sentinel in parse_endpoints(settings):
        try:
            command = ("SENTINEL", "get-master-addr-by-name", settings.master)
            answer = parse_master(await ask(sentinel, tls, credentials, settings.connect_timeout, *command))
        except (OSError, TimeoutError, hiredis.HiredisError) as error:
            failure = error
            continue
        if answer:
            return answer
        failure = OSError(f"sentinel {sentinel} knows no master called {settings.master!r} (redis.master)")
    raise failure


SlotRanges = list[tuple[int, int, Endpoint]]


async def find_slots(settings: RedisSettings, tls: ssl.SSLContext | None, known: Sequence[Endpoint]) -> SlotRanges:
    """First and last slot of each range, and its master, from the first server that knows; raises the last error."""
    failure: Exception = OSError("no server of the cluster was asked")
    for endpoint in known:
        try:
            credentials = (settings.username, settings.password)
            answer = await ask(endpoint, tls, credentials, settings.connect_timeout, "CLUSTER", "SLOTS")
            ranges = parse_slots(answer, endpoint)
        except (OSError, TimeoutError, hiredis.HiredisError) as error:
            failure = error
            continue
        if ranges:
            return ranges
        failure = OSError(f"{endpoint} is in a cluster without slots")
    raise failure


def parse_master(answer: Any) -> Endpoint | None:
    """What a sentinel answers; None when it knows no such master. Raises NotRedis."""
    try:
        return Endpoint(answer[0].decode(), int(answer[1])) if answer else None
    except OTHER_SHAPE:
        raise NotRedis(answer) from None


def parse_slots(answer: Any, asked: Endpoint) -> SlotRanges:
    """What CLUSTER SLOTS answers. Raises NotRedis."""
    try:
        return [(int(entry[0]), int(entry[1]), master_of(entry[2], asked)) for entry in answer]
    except OTHER_SHAPE:
        raise NotRedis(answer) from None


def master_of(entry: Sequence[Any], asked: Endpoint) -> Endpoint:
    # An empty host, or ?, means the one that was asked.
    host = entry[0].decode() if entry[0] else ""
    return Endpoint(host if host not in ("", "?") else asked.host, int(entry[1]))


def parse_redirect(error: str, asked: Endpoint) -> Endpoint:
    """Where `MOVED slot host:port` and `ASK slot host:port` point to."""
    host, _, port = error.split(" ")[2].rpartition(":")
    return Endpoint(host or asked.host, int(port))
