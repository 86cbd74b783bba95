"""Does who follows compacted topics know what they say, and when it is up to date?"""

from __future__ import annotations

import asyncio

from penstock.storage.log.memory import MemoryLog
from penstock.storage.state.topic import StateLog
from penstock.storage.state.topic_tail import StateTail


def test_the_newest_value_of_each_key_is_known() -> None:
    async def run() -> None:
        log = MemoryLog()
        await log.start()
        store = StateLog(log)
        await store.load("t", lambda key, value: None)
        store.store([("t", b"old", b"1"), ("t", b"gone", b"1")])
        store.store([("t", b"gone", None)])
        await store.flush()
        seen: list[tuple[str, bytes, bytes | None]] = []
        tails = [StateTail(log, ["t", "u"], name, lambda *change: seen.append(change)) for name in ("a", "b")]
        for tail in tails:
            await tail.start()
        assert [tail.items("t") for tail in tails] == [{b"old": b"1"}, {b"old": b"1"}]
        for number in range(50):
            store.store([("t", b"new", b"%d" % number), ("u", b"%d" % number, b"")])
            await store.flush()
            await asyncio.gather(*(tail.catch_up() for tail in tails))
            assert [tail.get("t", b"new") for tail in tails] == [b"%d" % number] * 2
            assert tails[0].get("u", b"%d" % number) == b""
        assert tails[0].get("t", b"gone") is None
        assert len(tails[1].items("u")) == 50
        assert ("t", b"new", b"49") in seen
        assert all(key != b"\xffload" for _, key, _ in seen), "marks are nobody's business"
        for tail in tails:
            await tail.stop()
        await log.close()

    asyncio.run(asyncio.wait_for(run(), 60))
