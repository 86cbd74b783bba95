"""A kind of subscriber that is added from outside: it serves MQTT clients with QoS 1 and back-pressure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from penstock._ext.wire import packets
from penstock.broker.build import build_broker
from penstock.broker.life import Broker
from penstock.settings.loader import load_settings
from tests.support.machine.waiting import until
from tests.support.toys.counting import CountingSubscriber

PUBLISH, SUBACK, UNSUBACK = 0x30, 0x90, 0xB0
Scenario = Callable[[Broker, CountingSubscriber], Awaitable[None]]


class Client:
    """One connection, packet by packet."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, broker: Broker, **options: object) -> Client:
        client = cls(*await asyncio.open_connection(*broker.listeners[0].address.rsplit(":", 1)))
        client.send(packets.build_connect("c", **options))  # type: ignore[arg-type]
        kind, _ = await client.read()
        assert kind == 0x20
        return client

    def send(self, packet: bytes) -> None:
        self._writer.write(packet)

    async def read(self) -> tuple[int, bytes]:
        first = (await self._reader.readexactly(1))[0]
        size = (await self._reader.readexactly(1))[0]
        return first & 0xF0, await self._reader.readexactly(size)

    async def subscribe(self, topic_filter: str) -> int:
        self.send(packets.build_subscribe(1, [(topic_filter, 1)], version=5))
        kind, body = await self.read()
        assert kind == SUBACK
        return body[-1]

    async def take(self, count: int) -> list[int]:
        """Read messages and acknowledge none of them; return their packet ids."""
        found = [await self.read() for _ in range(count)]
        assert all(kind == PUBLISH for kind, _ in found)
        return [int.from_bytes(body[2 + body[1] :][:2], "big") for _, body in found]

    def acknowledge(self, packet_ids: list[int]) -> None:
        for packet_id in packet_ids:
            self.send(b"\x40\x02" + packet_id.to_bytes(2, "big"))

    async def is_quiet(self) -> bool:
        self.send(packets.build_pingreq())
        return (await self.read())[0] == 0xD0

    def close(self) -> None:
        self._writer.close()


def run(tmp_path: Path, log: str, scenario: Scenario) -> None:
    async def main() -> CountingSubscriber:
        overrides = {
            "listeners.0.address": "127.0.0.1:0",
            "admin.address": "",
            "sys.interval": "0",
            "ingest.log": log,
            "log.provider": "memory",
            "data_subscription.enabled": "false",
            "server.data_dir": str(tmp_path / "data"),
            "logging.level": "error",
        }
        kind = CountingSubscriber()
        broker = build_broker(load_settings(None, {}, overrides), more_kinds=[lambda _: kind])
        await broker.start_only("log", "node", "ingest", "sessions")
        await broker.listeners[0].start()
        try:
            await scenario(broker, kind)
        finally:
            await broker.close()
        return kind

    kind = uvloop.run(asyncio.wait_for(main(), 60))
    assert kind.heard[0] == "start"
    assert kind.heard[-1] == "stop"


@pytest.mark.parametrize("log", ["none", "all"])
def test_a_client_gets_as_much_as_it_takes(tmp_path: Path, log: str) -> None:
    async def scenario(broker: Broker, kind: CountingSubscriber) -> None:
        client = await Client.connect(broker, receive_maximum=2)
        assert await client.subscribe("$count/5") == 1
        ids = await client.take(2)
        assert await client.is_quiet()
        (count,) = kind.counts.values()
        assert count.sent == 2
        client.acknowledge(ids)
        client.acknowledge(await client.take(2))
        client.acknowledge(await client.take(1))
        await until(lambda: count.acknowledged == [1, 2, 3, 4, 5])
        assert any(part.counters().get("counting_subscriptions") for part in broker.parts)

    run(tmp_path, log, scenario)


@pytest.mark.parametrize(("topic_filter", "reason"), [("$count/x", 0x8F), ("$count/1001", 0x97), ("$count/3", 1)])
def test_its_refusals_have_reason_codes(tmp_path: Path, topic_filter: str, reason: int) -> None:
    async def scenario(broker: Broker, kind: CountingSubscriber) -> None:
        client = await Client.connect(broker)
        assert await client.subscribe(topic_filter) == reason
        assert len(kind.counts) == (reason == 1)

    run(tmp_path, "all", scenario)


def test_it_goes_on_with_a_session_that_comes_back(tmp_path: Path) -> None:
    async def scenario(broker: Broker, kind: CountingSubscriber) -> None:
        client = await Client.connect(broker, receive_maximum=2, session_expiry=60)
        await client.subscribe("$count/3")
        await client.take(2)
        client.close()
        await until(lambda: "detached c" in kind.heard)
        client = await Client.connect(broker, receive_maximum=2, session_expiry=60, clean_start=False)
        client.acknowledge(await client.take(2))
        client.acknowledge(await client.take(1))
        (count,) = kind.counts.values()
        await until(lambda: count.acknowledged == [1, 2, 3])
        client.send(packets.build_unsubscribe(2, ["$count/3"], version=5))
        assert (await client.read()) == (UNSUBACK, b"\0\2\0\0")
        assert not kind.counts
        await Client.connect(broker, clean_start=True)
        assert kind.heard[1:] == ["detached c", "returned c", "detached c", "ended c"]

    run(tmp_path, "all", scenario)
