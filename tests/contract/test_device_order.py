"""Every store of DEVICE queues keeps the order of additions when one of them fails."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pytest

from penstock.subscribers.device.store.base import Addition, StoreError, client_queue
from tests.contract.device_providers import CLIENT, PROVIDERS, Caller, OpenStore, run
from tests.support.machine.waiting import until


@pytest.fixture(params=PROVIDERS)
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    return PROVIDERS[request.param](tmp_path)


def test_nothing_succeeds_before_an_older_addition_that_failed(open_store: OpenStore) -> None:
    """Of its queue, and until all results are told: those who give it again keep the order from then on."""

    async def test() -> None:
        async with open_store() as store:
            caller = Caller(store)
            other = client_queue("other")
            results: list[Any] = []
            everything = array("H", range(1, 65_536)).tobytes()
            # Results of a call come together, so those of younger additions may come before that of the first.
            others = [Addition(client_queue(f"other-{i}"), caller.pack([b"x", b"y"])) for i in range(50)]
            store.add([Addition(CLIENT, caller.pack([b"a", b"b"]), everything), *others], results.append)
            for value in (b"c", b"d", b"e"):
                store.add([Addition(CLIENT, caller.pack([value]))], results.append)
            store.add([Addition(other, caller.pack([b"z"]))], results.append)
            await until(lambda: len(results) == 5)
            assert sum(isinstance(result[0], StoreError) for result in results) == 4
            assert await caller.values(CLIENT) == []
            assert await caller.values(other) == [b"z"]
            for value in (b"a", b"b", b"c"):
                assert len((await caller.add(CLIENT, value)).packet_ids) == 1
            assert await caller.values(CLIENT) == [b"a", b"b", b"c"]

    run(test())
