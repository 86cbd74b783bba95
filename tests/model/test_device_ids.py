"""Packet ids of DEVICE clients by chance: connections that break, brokers that are killed, clients that acknowledge
late or never, around the end of the numbers, on both stores. No id is used for two messages that are under way."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from penstock.settings.redis import DeviceSettings, RedisSettings
from penstock.subscribers.device.store.base import DeviceStore, client_queue, result_of
from penstock.subscribers.device.store.lmdb import LmdbDeviceStore
from penstock.subscribers.device.store.redis import RedisDeviceStore
from tests.support.brokers.device_node import DeviceLog, DeviceNode
from tests.support.servers.redis_server import shared_redis
from tests.support.worlds.lanes import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, LaneClient, Packet

STEPS = 250
NAME = "device"


@dataclass
class Client:
    """What a client may expect of the ids it is given, and what it keeps of them over connections [MQTT-2.2.1-4]."""

    chance: random.Random
    connection: LaneClient | None = None
    open: dict[int, tuple[bytes, int]] = field(default_factory=dict)  # id to payload and QoS, until acknowledged
    received: dict[int, bytes] = field(default_factory=dict)  # QoS 2, between PUBREC and PUBREL
    seen: list[bytes] = field(default_factory=list)  # in the order they came first
    ids: list[int] = field(default_factory=list)
    late: list[Packet] = field(default_factory=list)  # to be answered later, or never on this connection

    def look(self, *, answers_all: bool = False) -> None:
        assert self.connection is not None
        for packet in self.connection.take():
            if packet.kind == PUBREL:
                self.received.pop(packet.packet_id, None)
                self._say(PUBCOMP, packet.packet_id)
                self.open.pop(packet.packet_id, None)
                continue
            assert packet.kind == PUBLISH
            self._on_publish(packet)
            if answers_all or self.chance.random() < 0.6:
                self._answer(packet)
            else:
                self.late.append(packet)
        if answers_all or self.chance.random() < 0.3:
            late, self.late = self.late, []
            for packet in late:
                self._answer(packet)

    def _on_publish(self, packet: Packet) -> None:
        under_way = self.open.get(packet.packet_id)
        message = (packet.payload, packet.qos)
        assert under_way in (None, message), f"{packet.packet_id} is {under_way}, and now {message}"
        if under_way is not None:
            assert packet.dup
        if packet.qos == 2:
            # What a client has said PUBREC for it drops when it comes again: it must be the same.
            assert self.received.get(packet.packet_id, packet.payload) == packet.payload
            others = [one for one, (payload, _) in self.open.items() if payload == packet.payload]
            assert others in ([], [packet.packet_id]), "a QoS 2 message under two ids"
            assert under_way is not None or packet.payload not in self.seen, f"{packet.payload!r} twice"
        self.open[packet.packet_id] = message
        self.ids.append(packet.packet_id)
        if packet.payload not in self.seen:
            self.seen.append(packet.payload)

    def _answer(self, packet: Packet) -> None:
        if packet.qos == 1:
            self._say(PUBACK, packet.packet_id)
            self.open.pop(packet.packet_id, None)
        else:
            self.received[packet.packet_id] = packet.payload
            self._say(PUBREC, packet.packet_id)

    def _say(self, kind: int, packet_id: int) -> None:
        assert self.connection is not None
        self.connection.say(kind, packet_id)

    def is_gone(self, *, by_a_kill: bool) -> None:
        self.connection = None
        self.late.clear()
        if by_a_kill:
            # A QoS 1 message that was not stored yet has no past: it comes under another id.
            self.open = {one: message for one, message in self.open.items() if message[1] == 2}


class World:
    def __init__(self, chance: random.Random, make_store: Callable[[], DeviceStore]) -> None:
        self.chance = chance
        self.make_store = make_store
        self.log = DeviceLog()
        self.client = Client(chance)
        self.published = 0

    async def run(self) -> None:
        self.node = self._make_node()
        await self.node.start()
        self._connect()
        self.node.hub.trie.subscribe(self.node.sessions[NAME], b"#", 2, 0)
        await self.node.until(lambda: self.node.sessions[NAME].live)
        await self._near_the_end()
        self.published = 1
        self.node.publish(b"0")
        self._connect()
        for _ in range(STEPS):
            await self._step()
        await self._finish()

    def _make_node(self) -> DeviceNode:
        return DeviceNode(self.log, self.make_store(), persist_after=0.01, page_size=7)

    async def _near_the_end(self) -> None:
        """The client was given nearly all ids before."""
        assert self.client.connection is not None
        self.client.connection.lose()
        await result_of(self.node.store.reserve, client_queue(NAME), self.chance.choice([65_450, 65_500]), b"")

    def _connect(self) -> None:
        version = self.chance.choice([4, 5])
        self.client.is_gone(by_a_kill=False)
        self.client.connection = self.node.connect(
            NAME, version=version, receive_maximum=self.chance.choice([1, 3, 20]) if version == 5 else 65_535
        )

    async def _step(self) -> None:
        match self.chance.choices(["publish", "look", "wait", "lose", "connect", "kill"], [8, 8, 3, 1, 2, 0.3])[0]:
            case "publish":
                payloads = [b"%d" % (self.published + i) for i in range(self.chance.randint(1, 4))]
                self.published += len(payloads)
                self.node.publish(*payloads, qos=self.chance.choice([1, 1, 2]))
            case "look" if self.client.connection is not None:
                self.client.look()
            case "wait":
                await asyncio.sleep(self.chance.choice([0, 0.002, 0.025]))
            case "lose" if self.client.connection is not None:
                self.client.connection.lose()
                self.client.is_gone(by_a_kill=False)
            case "connect":
                self._connect()
            case "kill":
                await self._kill()

    async def _kill(self) -> None:
        known = await self.node.stop()
        self.client.is_gone(by_a_kill=True)
        self.node = self._make_node()
        await self.node.start(known)

    async def _finish(self) -> None:
        """Everything comes in the end, and is acknowledged."""
        self._connect()

        def is_done() -> bool:
            self.client.look(answers_all=True)
            return len(self.client.seen) == self.published and not self.client.open and self.node.sessions[NAME].live

        await self.node.until(is_done)
        await self.node.until(lambda: self.node.is_settled)
        assert self.client.seen == [b"%d" % number for number in range(self.published)]
        assert self.node.sessions[NAME].inflight == 0
        assert any(one > 65_000 for one in self.client.ids)
        assert any(one < 500 for one in self.client.ids)
        while (await result_of(self.node.store.describe, client_queue(NAME))).messages:  # noqa: ASYNC110 - a store has no event
            await asyncio.sleep(0.002)
        await self.node.stop()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("store", ["lmdb", "redis"])
def test_ids_by_chance(store: str, seed: int, tmp_path: Path) -> None:
    settings = DeviceSettings()
    redis = (
        RedisSettings(addresses=shared_redis().address, prefix=f"{uuid.uuid4().hex[:8]}:") if store == "redis" else None
    )

    def make_store() -> DeviceStore:
        return RedisDeviceStore(redis, settings) if redis is not None else LmdbDeviceStore(tmp_path / "d", settings)

    async def main() -> None:
        async with asyncio.timeout(60):
            await World(random.Random(seed), make_store).run()

    asyncio.run(main())
