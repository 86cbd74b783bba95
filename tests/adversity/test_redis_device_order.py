"""Messages of a DEVICE client keep their order when Redis refuses some of them, or does not answer in time."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from penstock.settings.redis import DeviceSettings, RedisSettings
from penstock.subscribers.device import delivery as module
from penstock.subscribers.device.store.base import client_queue
from penstock.subscribers.device.store.redis import RedisDeviceStore
from tests.contract.device_providers import run
from tests.support.brokers.device_node import DeviceLog, DeviceNode
from tests.support.machine.waiting import until
from tests.support.servers.redis_proxy import proxied
from tests.support.servers.redis_server import own_redis
from tests.support.worlds.device_load import read_all
from tests.support.worlds.lanes import PUBACK

TIMEOUT = 1.0
OUT_OF_MEMORY = "OOM command not allowed when used memory > 'maxmemory'."
NAMES = ("a", "b", "c")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.1)


@asynccontextmanager
async def absent_devices(address: str) -> AsyncIterator[DeviceNode]:
    """Clients that are subscribed to `t`, one of them to `u` too, and gone."""
    quick = {"reconnect_delay": 0.02, "reconnect_delay_max": 0.2, "command_timeout": TIMEOUT}
    store = RedisDeviceStore(RedisSettings(addresses=address, **quick), DeviceSettings())  # type: ignore[arg-type]
    node = DeviceNode(DeviceLog(), store, persist_after=0.02)
    await node.start()
    try:
        for name in NAMES:
            client = node.connect(name)
            for topic in (b"t", b"u") if name == "a" else (b"t",):
                node.hub.trie.subscribe(client.session, topic, 1, 0)
            await node.until(lambda client=client: client.session.live)
            client.lose()
        yield node
    finally:
        await node.stop()


async def numbers_of(node: DeviceNode, name: str) -> list[int]:
    _, values = await read_all(node.store, client_queue(name))
    return [number_in(value) for value in values]


def number_in(value: bytes) -> int:
    return int(value.rpartition(b"#")[2].split(b";")[0])


def message(number: int, size: int = 0) -> bytes:
    return b"%b#%d;" % (b"x" * size, number)


async def assert_in_order(node: DeviceNode, count: int) -> None:
    await until(lambda: node.is_settled)
    for name in NAMES:
        assert await numbers_of(node, name) == list(range(count)), name


@pytest.mark.parametrize("away", [0.5, 1.5, 3.0])
def test_unreachable_for_longer_than_the_time_of_a_command(away: float) -> None:
    """The oldest additions time out, and younger ones do not: all of them have to wait for the oldest."""
    with own_redis(is_durable=True) as server:

        async def test() -> None:
            async with absent_devices(server.address) as node:
                count = 0

                async def publish(seconds: float) -> None:
                    nonlocal count
                    end = asyncio.get_running_loop().time() + seconds
                    while asyncio.get_running_loop().time() < end:
                        node.publish(message(count))
                        count += 1
                        await asyncio.sleep(0.01)

                await publish(0.2)
                await asyncio.to_thread(server.kill)
                await publish(away)
                await asyncio.gather(publish(2.0), asyncio.to_thread(server.start))
                await assert_in_order(node, count)

        run(test())


def test_unreachable_again_and_again() -> None:
    with own_redis() as server:

        async def test() -> None:
            async with proxied(server.port) as proxy, absent_devices(proxy.address) as node:
                count = 0
                for pause in (0.1, 0.9, 1.4, 0.3, 1.1):
                    proxy.is_deaf = True
                    for _ in range(int(pause / 0.01)):
                        node.publish(message(count))
                        count += 1
                        await asyncio.sleep(0.01)
                    proxy.cut()
                    proxy.is_deaf = False
                    for _ in range(20):
                        node.publish(message(count))
                        count += 1
                        await asyncio.sleep(0.01)
                await assert_in_order(node, count)

        run(test())


@pytest.mark.parametrize("size", [0, 100_000])
def test_no_memory_for_one_addition_only(size: int) -> None:
    """Those after it are on their way already, and there is memory for them."""
    with own_redis() as server:

        async def test() -> None:
            async with proxied(server.port) as proxy, absent_devices(proxy.address) as node:
                proxy.delay = 0.1
                proxy.errors = [OUT_OF_MEMORY]
                node.publish(message(0, size))
                for number in range(1, 20):
                    await asyncio.sleep(0.01)
                    node.publish(message(number))
                await assert_in_order(node, 20)

        run(test())


def test_an_older_addition_whose_failure_is_told_later() -> None:
    """Additions of several clients share a call, whose results are told when all of them are known."""
    with own_redis() as server:

        async def test() -> None:
            async with proxied(server.port) as proxy, absent_devices(proxy.address) as node:
                proxy.errors = [OUT_OF_MEMORY]
                # Not messages of one record each, which would share a command.
                node.publish(*(message(number) for number in range(3)))
                await until(lambda: not proxy.errors)
                proxy.delay = 0.3
                for number in range(3, 10):
                    node.publish(message(number))
                    await asyncio.sleep(0.02)
                await assert_in_order(node, 10)

        run(test())


def test_redis_goes_back_to_an_earlier_state() -> None:
    """With `appendfsync everysec` a killed Redis may lose its last writes, and gives their scores to other messages. A
    connected client that has read further gets these messages all the same, without connecting again."""
    with own_redis(is_durable=True) as server:

        async def test() -> None:
            async with absent_devices(server.address) as node:
                client = node.connect("a", receive_maximum=2)
                found: list[int] = []
                unacknowledged: list[int] = []

                def look(count: int, acks: int) -> bool:
                    for packet in client.take():
                        found.append(number_in(packet.payload))
                        unacknowledged.append(packet.packet_id)
                    while len(found) - len(unacknowledged) < acks and unacknowledged:
                        client.say(PUBACK, unacknowledged.pop(0))
                    return len(found) >= count

                await node.until(lambda: client.session.live)
                node.publish(*map(message, range(5)))
                await node.until(lambda: node.is_settled)
                earlier = server.directory.with_name(f"{server.directory.name}-earlier")
                shutil.copytree(server.directory / "appendonlydir", earlier)
                node.publish(*map(message, range(5, 10)))
                await node.until(lambda: look(10, 8) and node.is_settled)
                await asyncio.to_thread(server.kill)
                shutil.rmtree(server.directory / "appendonlydir")
                earlier.rename(server.directory / "appendonlydir")
                node.publish(*map(message, range(10, 15)))
                await asyncio.to_thread(server.start)
                await node.until(lambda: node.is_settled)
                await node.until(lambda: look(15, 100) and {*range(15)} <= set(found), 20)
                assert [number for number in found if number >= 10] == [*range(10, 15)]

        run(test())
