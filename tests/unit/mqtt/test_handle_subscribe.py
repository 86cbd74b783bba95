"""A SUBSCRIBE that takes its time is answered, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from penstock._ext.wire.packets import Reason, parse_subscribe
from penstock.mqtt.handle_subscribe import NOTHING_JOINED, Reserved, _subscribe_prepared
from penstock.storage.log.base import LogError
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
