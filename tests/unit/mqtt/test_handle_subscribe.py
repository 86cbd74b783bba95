"""A SUBSCRIBE that takes its time is answered, whatever happens meanwhile; who may not have a filter learns that."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from penstock._ext.wire import packets
from penstock._ext.wire.packets import Reason, parse_subscribe
from penstock.broker.build import build_broker
from penstock.mqtt.handle_subscribe import NOTHING_JOINED, Reserved, _subscribe_prepared
from penstock.sessions.events import SessionEvents
from penstock.settings.loader import load_settings
from penstock.storage.log.base import LogError
from penstock.subscribers.application import retained_appends
from penstock.subscribers.base import Subscriber
from penstock.subscribers.kinds import Kinds

FILTER = b"$share/g/s"


@pytest.mark.parametrize("error", [LogError("away"), KeyError("a mistake")])
def test_a_client_whose_share_cannot_be_prepared_is_answered_and_heard_again(error: Exception) -> None:
    done: list[Any] = []
    released: list[bytes] = []

    class Sharing(Subscriber):
        @contextlib.asynccontextmanager
        async def prepared(self, filters: Sequence[bytes]) -> AsyncIterator[None]:
            raise error
            yield

        def release(self, topic_filter: bytes) -> None:
            released.append(topic_filter)

    connection: Any = SimpleNamespace(
        session=SimpleNamespace(client_id="a"),
        version=5,
        maximum_packet_size=0,
        is_connected=True,
        is_writable=True,
        is_blocked=False,
        send=done.append,
        resume_reading=lambda: done.append("heard"),
    )
    kind = Sharing()
    front: Any = SimpleNamespace(kinds=Kinds([kind]))
    packet = parse_subscribe(2, b"\0\7\0" + len(FILTER).to_bytes(2, "big") + FILTER + b"\1", 5, 10, 100)
    session = connection.session
    reserved: Reserved = {FILTER: [kind]}
    asyncio.run(_subscribe_prepared(front, connection, session, packet, reserved=reserved, joined=NOTHING_JOINED))
    assert done == [bytes([0x90, 4, 0, 7, 0, Reason.UNSPECIFIED_ERROR]), "heard"]
    assert released == [FILTER]


RULES = """
[[rules]]
effect = "allow"
topics = ["own/#"]
"""


@pytest.mark.parametrize(
    ("topic_filter", "reason", "events"),
    [
        (b"secret", Reason.NOT_AUTHORIZED, 1),
        (b"own/a", Reason.QUOTA_EXCEEDED, 0),
        (b"$share/g/$queue/a", Reason.TOPIC_FILTER_INVALID, 0),
    ],
)
def test_rights_are_checked_before_quotas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic_filter: bytes, reason: Reason, events: int
) -> None:
    """Of an APPLICATION client, while the retained messages of others wait for the log."""
    monkeypatch.setattr(retained_appends, "MOST_BYTES", 0)
    denied: list[str] = []
    monkeypatch.setattr(SessionEvents, "denied", lambda self, client_id, **_: denied.append(client_id))
    (tmp_path / "acl.toml").write_text(RULES)
    overrides = {
        "listeners.0.address": "127.0.0.1:0",
        "admin.address": "",
        "sys.interval": "0",
        "log.provider": "memory",
        "server.data_dir": str(tmp_path / "data"),
        "access.acl_file": str(tmp_path / "acl.toml"),
        "access.anonymous_type": "application",
        "logging.level": "error",
    }

    async def main() -> bytes:
        broker = build_broker(load_settings(None, {}, overrides))
        await broker.start_only("log", "node", "ingest", "sessions")
        await broker.listeners[0].start()
        try:
            reader, writer = await asyncio.open_connection(*broker.listeners[0].address.rsplit(":", 1))
            writer.write(packets.build_connect("c", session_expiry=60))
            connack = await reader.readexactly(2)
            await reader.readexactly(connack[1])
            writer.write(packets.build_subscribe(7, [(topic_filter, 1)]))
            return await reader.readexactly(6)
        finally:
            await broker.close()

    assert uvloop.run(asyncio.wait_for(main(), 60)) == bytes([0x90, 4, 0, 7, 0, reason])
    assert len(denied) == events
