"""The connection between two nodes, with the other one played by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock._ext.wire import packets
from penstock.core.refusal import Refusal
from penstock.mqtt.nodes.link import AWAY, METHOD, Link, LinkError, prove
from penstock.services.membership import Door

SECRET = "of this node"
PUBLISH, SUBSCRIBE = 3, 8


class Node:
    """The other node: what it reads, packet by packet."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def read(self) -> tuple[int, bytes]:
        first, size = await self._reader.readexactly(2)
        shift = 7
        if size > 127:
            size = (size & 127) | (await self._reader.readexactly(1))[0] << shift
        return first, await self._reader.readexactly(size)

    async def let_in(self, **properties: int) -> None:
        connect = packets.parse_connect((await self.read())[1])
        assert (connect.authentication_method, connect.username, connect.client_id) == (METHOD, "here", "client")
        challenge = b"c" * 32
        self.writer.write(packets.build_auth(0x18, authentication_method=METHOD, authentication_data=challenge))
        first, body = await self.read()
        proof = packets.parse_auth(first & 15, body, 5).authentication_data
        assert proof == prove(SECRET, connect.authentication_data or b"", challenge)
        self.writer.write(packets.build_connack(5, False, **properties))


def run(serve: Callable[[Node], Awaitable[None]], use: Callable[[Link], Awaitable[None]]) -> None:
    async def main() -> None:
        failures: list[BaseException] = []

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await serve(Node(reader, writer))
            except BaseException as error:
                failures.append(error)
            finally:
                writer.close()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        async with server, asyncio.timeout(60):
            port = server.sockets[0].getsockname()[1]
            link = Link(Door(f"127.0.0.1:{port}", SECRET), "here", "client", receive_maximum=5)
            await use(link)
            link.close()
        assert not failures

    asyncio.run(main())


def test_no_more_is_asked_at_once_than_the_other_takes() -> None:
    seen = []

    async def serve(node: Node) -> None:
        await node.let_in(receive_maximum=2)
        for _ in range(2):
            first, body = await node.read()
            assert first == PUBLISH << 4 | 2
            seen.append(packets.parse_publish_packet(first & 15, body, 5))
        assert not node._reader._buffer  # type: ignore[attr-defined]  # nothing more came
        node.writer.write(packets.build_ack(4, seen[1].packet_id, 0x80))
        first, body = await node.read()
        seen.append(packets.parse_publish_packet(first & 15, body, 5))
        for packet in (seen[0], seen[2]):
            node.writer.write(packets.build_ack(4, packet.packet_id))
        await node.read()

    async def use(link: Link) -> None:
        answers: asyncio.Queue[tuple[bytes, int]] = asyncio.Queue()
        properties = packets.encode_publish_properties(user_properties=[("group-id", "g" * 200)])
        for topic in (b"1", b"2", b"3"):  # before it is open
            link.ask(topic, properties, lambda reason, words, topic=topic: answers.put_nowait((topic, reason)))
        await link.open()
        assert [await answers.get() for _ in range(3)] == [(b"2", 0x80), (b"1", 0), (b"3", 0)]
        assert [packet.topic for packet in seen] == ["1", "2", "3"]
        assert seen[0].properties["user_properties"] == [("group-id", "g" * 200)]

    run(serve, use)


def test_what_is_asked_is_answered_when_the_other_is_gone() -> None:
    async def serve(node: Node) -> None:
        await node.let_in()
        await node.read()

    async def use(link: Link) -> None:
        answers: list[tuple[int, bytes]] = []
        await link.open()
        for _ in range(3):
            link.ask(b"t", b"", lambda reason, words: answers.append((reason, words)))
        while not link.is_closed:  # noqa: ASYNC110  # it has no event for that
            await asyncio.sleep(0.01)
        link.ask(b"t", b"", lambda reason, words: answers.append((reason, words)))
        assert answers == [(0x80, AWAY)] * 4

    run(serve, use)


@pytest.mark.parametrize("bytes_said", [b"\x20\xff\xff\xff\xff\x01", b"\x20\x00", b"\x20\x03\x00\x87\x00", b"\xe0\x00"])
def test_nonsense_and_refusals_end_it(bytes_said: bytes) -> None:
    async def serve(node: Node) -> None:
        await node.read()
        node.writer.write(bytes_said)

    async def use(link: Link) -> None:
        with pytest.raises(LinkError):
            await link.open()
        assert link.is_closed

    run(serve, use)


def test_a_refused_subscription_has_the_words_of_the_other() -> None:
    async def serve(node: Node) -> None:
        await node.let_in()
        first, body = await node.read()
        packet = packets.parse_subscribe(first & 15, body, 5)
        assert (packet.entries, packet.user_properties) == ([(b"$queue/q", 1, 0)], [("consumer-group", "g")])
        node.writer.write(packets.build_suback(5, packet.packet_id, [0x83], reason_string="not here"))
        await node.read()

    async def use(link: Link) -> None:
        await link.open()
        with pytest.raises(LinkError, match="not here") as caught:
            await link.subscribe("$queue/q", 1, [("consumer-group", "g")])
        assert caught.value.refusal is Refusal.NOT_SUPPORTED

    run(serve, use)
