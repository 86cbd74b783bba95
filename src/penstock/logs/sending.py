"""`Producer.send` in terms of `Producer.append`, the same for every provider."""

from __future__ import annotations

import asyncio

from penstock._ext.segment import RecordPack
from penstock.logs.base import Appended, LogError, Producer


async def send(producer: Producer, topic: str, partition: int, pack: RecordPack) -> Appended:
    """Appends and waits; raises what `on_done` would get."""
    done: asyncio.Future[Appended | LogError] = asyncio.get_running_loop().create_future()

    def finish(result: Appended | LogError) -> None:
        if not done.done():  # who waited may have been cancelled
            done.set_result(result)

    producer.append(topic, partition, pack, finish)
    result = await done
    if isinstance(result, LogError):
        raise result
    return result
