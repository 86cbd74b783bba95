"""Sessions across a restart: how long 100,000 of them take to come back, and how many bytes one of them is.

    python bench/session_bench.py [--directory DIR] [--sessions N] [--subscriptions N] [--save]

Sessions with their subscriptions are stored as the broker stores them, in LMDB with a sync for each commit; then the
store is opened anew and read as at the start of a broker: records, sessions, and the trie of their subscriptions.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import shutil
import sys
import tempfile
import time
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.parts import save_part
from penstock._ext.hub.connection import Hub
from penstock._ext.wire.packets import WillPacket
from penstock.mqtt.refusals import disconnect
from penstock.sessions.keeper import SessionKeeper
from penstock.sessions.registry import Opening, SessionRegistry
from penstock.storage.state.base import Change
from penstock.storage.state.lmdb import LmdbStateStore
from penstock_bench.targets import Figure, at_most

BATCH = 2_000
EXPIRY = 86_400


class Counted(LmdbStateStore):
    """Adds up the bytes of keys and values."""

    stored_bytes = 0

    def store(self, changes: list[Change], on_done: object = None) -> None:  # type: ignore[override] # only a list here
        self.stored_bytes += sum(len(key) + len(value or b"") for _, key, value in changes)
        super().store(changes, on_done)  # type: ignore[arg-type] # handed through


def make_registry(store: LmdbStateStore) -> SessionRegistry:
    loop = asyncio.get_running_loop()
    hub = Hub(loop)
    hub.trie.checks_acl = False
    keeper = SessionKeeper(store, hub.trie, loop)
    return SessionRegistry(hub, loop, keeper, disconnect=disconnect)


async def write(path: Path, sessions: int, subscriptions: int) -> dict[str, float]:
    store = Counted(path, asyncio.get_running_loop())
    registry = make_registry(store)
    await registry.restore(lambda subject: None)
    keeper, hub = registry.keeper, registry._hub
    assert keeper is not None
    will = WillPacket("plant/hall-7/wills", b"gone", 1, False, b"", 30)
    started = time.perf_counter()
    for number in range(sessions):
        client_id = f"sensor-{number:08d}"
        opening = Opening(client_id, "plant-user", False, EXPIRY, will if number % 10 == 0 else None)
        session, _ = registry.open(opening)
        for at in range(subscriptions):
            hub.trie.subscribe(session, f"plant/hall-{number % 50}/{client_id}/{at}/+".encode(), 1)
        keeper.save_subscriptions(session)
        registry.leave(session, keep_will=True)
        if number % BATCH == BATCH - 1:
            done = asyncio.get_running_loop().create_future()
            keeper.wait(done.set_result)
            await done
    await keeper.close()
    seconds = time.perf_counter() - started
    await store.close()
    return {"write_seconds": seconds, "bytes_per_session": store.stored_bytes / sessions}


async def restore(path: Path) -> dict[str, float]:
    started = time.perf_counter()
    store = LmdbStateStore(path, asyncio.get_running_loop())
    registry = make_registry(store)
    gc.disable()  # as app.py does
    cpu = time.process_time()
    count = await registry.restore(lambda subject: None)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    gc.enable()
    found = {"sessions": count, "subscriptions": registry._hub.trie.subscription_count}
    await store.close()
    return {**found, "restore_seconds": seconds, "restore_cpu_seconds": cpu}


FIGURES = (
    Figure("sessions restored, all of them", "restore_seconds", "s", at_most(5), True),
    Figure("a stored session", "bytes_per_session", "bytes", at_most(2_048), True),
    Figure("the same with its share of the file", "file_bytes_per_session", "bytes", None, True),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, help="on the disk to be measured; a temporary one by default")
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--subscriptions", type=int, default=10, help="of each session")
    parser.add_argument("--save", action="store_true", help="write a dated result to bench/results/session")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="penstock-sessions-", dir=options.directory))
    try:
        figures = uvloop.run(write(directory / "clients", options.sessions, options.subscriptions))
        figures["file_bytes_per_session"] = (directory / "clients" / "data.mdb").stat().st_size / options.sessions
        figures |= uvloop.run(restore(directory / "clients"))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    for name, value in figures.items():
        sys.stdout.write(f"{name:24} {value:14,.2f}\n")
    if options.save:
        counts = {"sessions": options.sessions, "subscriptions": options.subscriptions}
        save_part("session", "embedded", FIGURES, {"penstock": figures}, **counts)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
