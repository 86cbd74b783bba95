"""Which broker a load test was of, as the broker itself says it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from penstock.cli.client_options import Connection
from penstock.core.errors import PenstockError
from penstock_client.mqtt.client import Client

TOPIC = "$SYS/broker/version"
SECONDS = 1.0
LONGEST = 100


def ask_version(connection: Connection, client_id: str) -> str | None:
    """None when it does not say so, or not to this client, or not at once. Asked after the test: before it the memory
    of a broker that has served nobody yet is measured."""
    try:
        return asyncio.run(_ask(connection, client_id))
    except (PenstockError, OSError, TimeoutError):
        return None


async def _ask(connection: Connection, client_id: str) -> str | None:
    async with asyncio.timeout(SECONDS):
        client = await Client.connect(connection.target, replace(connection.request, client_id=client_id))
        try:
            await client.subscribe([TOPIC], 0)
            async for message in client.messages():
                text = message.payload.decode("utf-8", "replace")[:LONGEST]
                return text if text.isprintable() else None
        finally:
            await client.close()
    return None
