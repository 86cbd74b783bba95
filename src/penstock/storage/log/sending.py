"""`Producer.send` and `append_packs` in terms of `Producer.append`, the same for every provider."""

from __future__ import annotations

import asyncio
from functools import partial

from penstock._ext.record.segment import RecordPack
from penstock.storage.log.base import Appended, LogError, OnAllAppended, Packs, Producer


def append_each(
    producer: Producer, topic: str, packs: Packs, on_done: OnAllAppended, *, is_lasting: bool = False
) -> None:
    """Append the packs one by one and report when the last is done."""
    results: list[Appended | LogError | None] = [None] * len(packs)
    left = len(packs)

    def finish(number: int, result: Appended | LogError) -> None:
        nonlocal left
        results[number] = result
        left -= 1
        if left == 0:
            on_done([result for result in results if result is not None])

    for number, (partition, pack) in enumerate(packs):
        producer.append(topic, partition, pack, partial(finish, number), is_lasting=is_lasting)


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
