"""100,000 messages through one queue while the client comes and goes and never takes some of them: packet ids start
again and none is given twice, on both stores."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.contract.device_providers import CLIENT, PROVIDERS, Caller, run


@pytest.mark.parametrize("provider", ["lmdb", "redis"])
def test_packet_ids_start_again(provider: str, tmp_path: Path) -> None:
    open_store = PROVIDERS[provider](tmp_path)
    chance = random.Random(7)
    total, at_once = 100_000, 2_500

    async def test() -> None:
        stuck: list[tuple[int, bytes]] = []  # messages the client never acknowledges
        number = 0
        wraps = last_id = 0
        while number < total:
            async with open_store(messages_limit=10_000) as store:
                caller = Caller(store, number)
                values = [b"%d" % i for i in range(number, number + at_once)]
                added = await caller.add(CLIENT, *values)
                number += at_once
                given = list(zip(added.packet_ids, values, strict=True))
                wraps += sum(1 for i in added.packet_ids if i < last_id and last_id - i > 30_000)
                last_id = added.packet_ids[-1]
                assert not {packet_id for packet_id, _ in given} & {packet_id for packet_id, _ in stuck}
                # The client comes back, and goes again in the middle of its backlog.
                first = await caller.page(CLIENT, -1, 300)
                assert list(zip(first.packet_ids, first.values, strict=True)) == (stuck + given)[:300]
                assert await caller.all(CLIENT, 700) == stuck + given
                left = set(chance.sample(given, 25))
                done = [packet_id for packet_id, value in given if (packet_id, value) not in left]
                assert await caller.remove(CLIENT, *done) == len(done)
                stuck += [message for message in given if message in left]
        assert wraps >= 1
        async with open_store(messages_limit=10_000) as store:
            assert await Caller(store).all(CLIENT) == stuck

    run(test(), 100)
