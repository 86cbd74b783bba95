"""The providers that the contract suite of the logs runs against. A provider is added by one entry in PROVIDERS; the
environment variable PENSTOCK_TEST_LOG_PROVIDERS adds those of other packages, as `module:function` of the same form."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.core.plugins import load_plugin
from penstock.settings.providers import LOGS, LogCapabilities
from penstock.storage.log.base import Log
from penstock.storage.log.embedded import EmbeddedLog
from penstock.storage.log.kafka import KafkaLog, KafkaSettings
from penstock.storage.log.memory import MemoryLog
from penstock.storage.state.lmdb_kv import LmdbStore
from tests.support.servers.kafka_fixtures import shared_cluster
from tests.support.toys.sqlite_log import SqliteLog, make_log

ADDED = "PENSTOCK_TEST_LOG_PROVIDERS"


@dataclass(frozen=True)
class Provider:
    name: str
    # gives a log that is started, and closes it; opened again it has what it had
    open: Callable[[], AbstractAsyncContextManager[Log]]
    capabilities: LogCapabilities
    # for how long a test waits until members of a group have agreed, at most
    patience: float = 30.0


def memory_provider(_: pytest.FixtureRequest, __: Path) -> Provider:
    kept = MemoryLog()

    @asynccontextmanager
    async def open_log() -> AsyncIterator[Log]:
        await kept.start()
        try:
            yield kept
        finally:
            await kept.close()

    return Provider("memory", open_log, LOGS["memory"])


def embedded_provider(_: pytest.FixtureRequest, directory: Path) -> Provider:
    @asynccontextmanager
    async def open_log() -> AsyncIterator[Log]:
        store = LmdbStore(directory / "state")
        log = EmbeddedLog(directory, store.space("groups"))
        try:
            await log.start()
            yield log
        finally:
            await log.close()
            store.close()

    return Provider("embedded", open_log, LOGS["embedded"])


def uncached_provider(_: pytest.FixtureRequest, directory: Path) -> Provider:
    """The embedded log with small segments and nothing in memory: every read goes to the files."""

    @asynccontextmanager
    async def open_log() -> AsyncIterator[Log]:
        store = LmdbStore(directory / "state")
        log = EmbeddedLog(directory, store.space("groups"), cache_bytes=0)
        try:
            await log.start()
            yield log
        finally:
            await log.close()
            store.close()

    return Provider("uncached", open_log, LOGS["embedded"])


def kafka_provider(_: pytest.FixtureRequest, __: Path, brokers: int = 1) -> Provider:
    settings = KafkaSettings(
        bootstrap_servers=shared_cluster(brokers).bootstrap,
        replication_factor=brokers,
        create_topics=False,
        session_timeout_ms=6_000,
        heartbeat_interval_ms=300,
    )

    @asynccontextmanager
    async def open_log() -> AsyncIterator[Log]:
        log = KafkaLog(settings)
        await log.start()
        try:
            yield log
        finally:
            await log.close()

    return Provider("kafka", open_log, LOGS["kafka"], patience=60.0)


def kafka_cluster_provider(request: pytest.FixtureRequest, directory: Path) -> Provider:
    return kafka_provider(request, directory, brokers=3)


def sqlite_provider(_: pytest.FixtureRequest, directory: Path) -> Provider:
    """The toy: a provider that is not in src/."""

    @asynccontextmanager
    async def open_log() -> AsyncIterator[Log]:
        log = SqliteLog(directory / "toy.sqlite")
        await log.start()
        try:
            yield log
        finally:
            await log.close()

    return Provider("sqlite", open_log, make_log.capabilities)


MakeProvider = Callable[[pytest.FixtureRequest, Path], Provider]
PROVIDERS: dict[str, MakeProvider] = {
    "memory": memory_provider,
    "embedded": embedded_provider,
    "uncached": uncached_provider,
    "kafka": kafka_provider,
    "kafka-cluster": kafka_cluster_provider,
    "sqlite": sqlite_provider,
    **{name: load_plugin(ADDED, name) for name in filter(None, os.environ.get(ADDED, "").split(","))},
}
