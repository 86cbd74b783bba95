"""What a log says of itself, on every provider."""

from __future__ import annotations

from penstock.storage.log.base import FileLog, Log
from tests.contract.log_scenarios import run
from tests.contract.providers import Provider


def test_capabilities_are_those_of_the_table(provider: Provider) -> None:
    """Commands without an open log ask the table: it must not say anything else than the log."""

    async def scenario(log: Log) -> None:
        stated = (log.is_shared, log.has_files, log.is_durable, log.is_remote)
        can = provider.capabilities
        assert stated == (can.is_shared, can.has_files, can.is_durable, can.is_remote)
        assert isinstance(log, FileLog) == log.has_files

    run(provider, scenario)
