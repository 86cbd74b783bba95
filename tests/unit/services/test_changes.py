"""Changes heard on the loop and worked off in packs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from penstock._ext.record.segment import Record
from penstock.services.packs.changes import Changes
from penstock.services.packs.message import PackMessage
from penstock.services.packs.processor import Decoded, PackProcessor
from penstock.services.packs.queues import PackQueue
from penstock.settings.services import OrderedSubmit, PatientAck
from tests.support.machine.waiting import until

QUEUE = PackQueue("q", "q", max_records=3, submit=OrderedSubmit(), ack=PatientAck(retries=2, pause=0.001))


def decode(record: Record) -> Decoded:
    assert record.key is not None
    return Decoded(None if record.value is None else record.value.decode(), record.key)


def with_changes(handler: Callable[[PackMessage], Awaitable[None]], work: Callable[[Changes], Awaitable[None]]) -> None:
    async def run() -> None:
        changes = Changes(PackProcessor(QUEUE, handler, decode=decode))
        changes.start()
        try:
            await work(changes)
        finally:
            await changes.stop()

    asyncio.run(run())


def test_order_of_a_key_through_failures_and_packs() -> None:
    done: list[tuple[object, str]] = []
    failures = {"0": 2, "3": 1}

    async def handler(message: PackMessage) -> None:
        await asyncio.sleep(0)
        if failures.get(message.value, 0):
            failures[message.value] -= 1
            raise OSError("not now")
        done.append((message.originator, message.value))

    async def work(changes: Changes) -> None:
        for number in range(10):
            changes.put(b"a" if number % 2 else b"b", str(number).encode())
        await until(lambda: len(done) == 10)
        assert len(changes) == 0
        for key, first in ((b"a", 1), (b"b", 0)):
            assert [value for name, value in done if name == key] == [str(n) for n in range(first, 10, 2)]
        assert changes.processor.counters()["tmpFailed"] == 3

    with_changes(handler, work)


def test_what_cannot_be_decoded_or_done_holds_up_nobody() -> None:
    done: list[str | None] = []

    async def handler(message: PackMessage) -> None:
        if message.value == "never":
            raise OSError("never")
        done.append(message.value)

    async def work(changes: Changes) -> None:
        changes.put(b"a", b"\xff")
        changes.put(b"b", b"never")
        changes.put(b"c", None)
        changes.put(b"b", b"next")
        await until(lambda: done == [None, "next"])
        counters = changes.processor.counters()
        assert (counters["undecodableMsgs"], counters["failedMsgs"], counters["tmpFailed"]) == (1, 1, 2)

    with_changes(handler, work)
